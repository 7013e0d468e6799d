"""The names under which clients of OpenAI's protocols know our things. Each says all that a server needs to find it.

A response is a stretch of a chat's journal: it begins at the entry `start`, and ends where the turn does or where the
client has to run tools. So any process can tell it, as often as asked.

An event's `sequence_number` is made of the last durable entry that events came from, counted from `start`, and of a
place behind it: for streamed text that is how many characters were told. It only grows, needs no memory, and means
the same in every process; it leaves gaps.
"""

from holdfast.core.records import Frozen
from holdfast.errors import NotFound

_ENTRY = 1 << 28
_TEXT = 1 << 20  # below: events of the entry itself; from here on: the text that was streamed after it


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

    def number(self, seq: int, nth: int = 0) -> int:
        """Of the nth event of an entry."""
        return (seq - self.start) * _ENTRY + nth

    def text_number(self, seq: int, chars: int) -> int:
        """When so many characters were told of what was streamed after an entry."""
        return self.number(seq, _TEXT + chars)


def parse_response_id(text: str) -> ResponsePlace:
    prefix, _, rest = text.partition("_")
    start, _, chat_id = rest.partition("_")
    number = start.isascii() and start.isdigit() and len(start) <= 12 and not start.startswith("0")
    if prefix != "resp" or not chat_id or not number:
        raise NotFound("response", text[:200])
    return ResponsePlace(chat_id=chat_id, start=int(start))


def outer_call_id(chat_id: str, call_id: str) -> str:
    """Our own call ids hold no dash."""
    return f"{call_id}-{chat_id}"


def parse_call_id(text: str) -> tuple[str, str | None]:
    """(call, chat); the chat is None for a call that was never ours."""
    call_id, dash, chat_id = text.partition("-")
    return (call_id, chat_id) if dash and chat_id else (text, None)
