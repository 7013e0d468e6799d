"""The names under which clients of OpenAI's protocols know our things. Each says all that a server needs to find it.

A response is a stretch of a chat's journal: it begins at the entry `start`, and ends where the turn does or where a
client or a person has to act. So any process can tell it, as often as asked.

An event's `sequence_number` is made of three things: the last durable entry that events came from, counted from
`start`; how many items were withdrawn from this reader; and a place behind the entry, which for streamed text is how
many characters were told. It only grows, needs no memory, and every process understands it; it leaves gaps. The
withdrawn items are in it because they took an `output_index` each, and a process that never saw the lost words could
not know of them.
"""

from typing import NamedTuple

from holdfast.core.records import Frozen
from holdfast.errors import NotFound

# A client in JavaScript keeps 53 bits: 20 for entries, 8 for withdrawn items, 25 for the place.
_PLACE_BITS = 25
_WITHDRAWN_BITS = 8
_PLACES = 1 << _PLACE_BITS
WITHDRAWN_MAX = (1 << _WITHDRAWN_BITS) - 1
_TEXT = 1 << 16  # below: events of the entry itself; from here on: the text that was streamed after it


class Seen(NamedTuple):
    """What a reader's last number says: nothing was told to one that has none."""

    entry: int = -1
    withdrawn: int = 0
    text: bool = False  # in the midst of what was streamed after the entry


class ResponsePlace(Frozen):
    chat_id: str
    start: int

    @property
    def response_id(self) -> str:
        return f"resp_{self.start}_{self.chat_id}"

    @property
    def completion_id(self) -> str:
        return f"chatcmpl-{self.start}-{self.chat_id}"

    def item_id(self, seq: int) -> str:
        return f"msg_{seq}_{self.chat_id}"

    def number(self, seq: int, nth: int = 0, withdrawn: int = 0) -> int:
        """Of the nth event of an entry."""
        entry = (seq - self.start) << _WITHDRAWN_BITS | min(withdrawn, WITHDRAWN_MAX)
        return entry << _PLACE_BITS | min(nth, _PLACES - 1)

    def text_number(self, seq: int, chars: int, withdrawn: int = 0) -> int:
        """When so many characters were told of what was streamed after an entry."""
        return self.number(seq, _TEXT + chars, withdrawn)


def seen_at(number: int) -> Seen:
    if number < 0:
        return Seen()
    entry = number >> _PLACE_BITS
    return Seen(entry >> _WITHDRAWN_BITS, entry & WITHDRAWN_MAX, number % _PLACES >= _TEXT)


def parse_response_id(text: str) -> ResponsePlace:
    prefix, _, rest = text.partition("_")
    start, _, chat_id = rest.partition("_")
    number = start.isascii() and start.isdigit() and len(start) <= 12 and not start.startswith("0")
    if prefix != "resp" or not chat_id or not number:
        raise NotFound("response", text[:200])
    return ResponsePlace(chat_id=chat_id, start=int(start))


def parse_item_id(text: str) -> tuple[int, str]:
    """Of a message: (the entry that it came after, chat)."""
    prefix, _, rest = text.partition("_")
    seq, _, chat_id = rest.partition("_")
    if prefix != "msg" or not chat_id or not (seq.isascii() and seq.isdigit() and len(seq) <= 12):
        raise NotFound("item", text[:200])
    return int(seq), chat_id


def outer_call_id(chat_id: str, call_id: str) -> str:
    """Our own call ids hold no dash."""
    return f"{call_id}-{chat_id}"


def parse_call_id(text: str) -> tuple[str, str | None]:
    """(call, chat); the chat is None for a call that was never ours."""
    call_id, dash, chat_id = text.partition("-")
    return (call_id, chat_id) if dash and chat_id else (text, None)


CALL = "fc_"  # before the outer id of a call that the client runs
APPROVAL = "mcpr_"  # before the outer id of a call that a person is asked about
CONVERSATION = "conv_"  # before the id of the chat that is a conversation


def parse_conversation_id(text: str) -> str:
    """The chat."""
    if not text.startswith(CONVERSATION) or len(text) == len(CONVERSATION):
        raise NotFound("conversation", text[:200])
    return text.removeprefix(CONVERSATION)
