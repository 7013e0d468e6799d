"""A response as its chat's journal tells it: a fold over entries and deltas, from the response's start on.

Told again, in whatever process, after however many crashes, it comes to the same items, indexes and numbers. An
attempt that was lost in mid-answer has streamed text that will never be finished: its item is withdrawn, and the next
attempt tells its text as an item of its own. Only what was committed is in `outputs`.
"""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.codec import decode_json
from holdfast.core.journal import (
    CallChanged,
    ChatFailed,
    Delta,
    Entry,
    Event,
    MessageAdded,
    PreviewReset,
    TurnEnded,
    TurnWaiting,
    UnknownEntry,
)
from holdfast.core.records import (
    NOTHING,
    CallState,
    Cause,
    External,
    Failure,
    Message,
    Role,
    State,
    ToolCall,
    ToolResult,
)
from holdfast.server.openai.ids import ResponsePlace

Status = Literal["in_progress", "completed", "failed", "cancelled", "incomplete"]
CLIENTS = (External.CLIENT, External.QUESTION)


class Begun(Struct, frozen=True):
    """A message begins; it takes two numbers."""

    number: int
    index: int
    item_id: str


class Said(Struct, frozen=True):
    number: int
    index: int
    item_id: str
    text: str


class Withdrawn(Struct, frozen=True):
    """The attempt was lost: what was said of this item does not stand."""

    number: int
    index: int
    item_id: str


class Spoken(Struct, frozen=True):
    """The message is all that there will be of it, and durable; three numbers."""

    number: int
    index: int
    item_id: str
    text: str
    cut_off: bool = False


class Called(Struct, frozen=True):
    """The client has to run a tool; four numbers."""

    number: int
    index: int
    call: ToolCall


class ResponseEnded(Struct, frozen=True):
    number: int


Happening = Begun | Said | Withdrawn | Spoken | Called | ResponseEnded


class Spoke(Struct, frozen=True):
    """A message in the response's output."""

    item_id: str
    text: str
    cut_off: bool = False


def _echo_of(metadata: bytes) -> dict[str, Any]:
    try:
        given = decode_json(metadata)
    except ValueError:
        return {}
    echo = given.get("openai", {}) if isinstance(given, dict) else {}
    return echo if isinstance(echo, dict) else {}


class Telling:
    """`after`: what has a number up to this one was told before; text that was told in part is told from there."""

    def __init__(self, place: ResponsePlace, after: int = -1) -> None:
        self.place = place
        self._after = after
        self._seq = place.start  # of the last entry that events came from
        self._index = 0
        self._text = ""  # streamed so far of the open attempt
        self._begun = False
        self._asked: dict[str, ToolCall] = {}  # calls of the last message
        self.outputs: list[Spoke | ToolCall] = []
        self.pending: dict[str, ToolCall] = {}  # calls that the client has to answer
        self.echo: dict[str, object] = {}  # what the client asked for, to be shown again
        self.status: Status = "in_progress"
        self.error: Failure | None = None
        self.incomplete: Cause | None = None
        self.finish: str | None = None  # why the last answer is not whole, if it is not
        self.input_tokens = 0
        self.output_tokens = 0
        self.began_at = 0
        self.ended_at: int | None = None
        self.end = place.start  # journal number of the entry that ended it
        self.last_message: str | None = None  # id of the last one that was added to the history

    @property
    def over(self) -> bool:
        return self.status != "in_progress"

    def take(self, event: Event) -> list[Happening]:
        """What newer code wrote is passed over."""
        if self.over:
            return []
        self.began_at = self.began_at or event.at
        body = event.body
        if isinstance(body, Delta):
            return self._stream(body.text) if body.part == "text" and body.text else []
        if isinstance(body, UnknownEntry) or event.seq is None:
            return []
        told = self._take_entry(event.seq, body)
        if self.over:
            self.end, self.ended_at = event.seq, event.at
        return told

    def _stream(self, text: str) -> list[Happening]:
        told = self._begin()
        already = max(len(self._text), self._after - self.place.text_number(self._seq, 1))
        self._text += text
        if new := self._text[already:]:
            number = self.place.text_number(self._seq, 1 + len(self._text))
            told.append(Said(number, self._index, self._item, new))
        return told

    def _begin(self) -> list[Happening]:
        if self._begun:
            return []
        self._begun = True
        return [Begun(self.place.text_number(self._seq, 0), self._index, self._item)]

    @property
    def _item(self) -> str:
        return self.place.item_id(self._seq)

    def _take_entry(self, seq: int, entry: Entry) -> list[Happening]:
        match entry:
            case MessageAdded(off_history=False):
                return self._take_message(seq, entry)
            case PreviewReset():
                return self._reset(seq)
            case CallChanged(state=CallState.EXTERNAL, external=external) if external in CLIENTS:
                return self._hand_over(seq, entry)
            case TurnWaiting() if self.pending:
                self.status = "completed"
                return [ResponseEnded(self.place.number(seq))]
            case TurnEnded():
                return self._end_turn(seq, entry)
            case ChatFailed():
                self.status, self.error = "failed", entry.error
                return [ResponseEnded(self.place.number(seq))]
        return []

    def _take_message(self, seq: int, entry: MessageAdded) -> list[Happening]:
        message = entry.message
        self.last_message = message.id
        for part in message.parts:
            if isinstance(part, ToolResult):
                self.pending.pop(part.call_id, None)
        if message.role is Role.USER and message.metadata != NOTHING:
            self.echo = _echo_of(bytes(message.metadata))
        return self._answer(seq, message) if entry.attempt is not None else []

    def _answer(self, seq: int, message: Message) -> list[Happening]:
        self.input_tokens += message.input_tokens or 0
        self.output_tokens += message.output_tokens or 0
        self.finish = message.finish
        self._asked = {call.call_id: call for call in message.calls}
        cut_off = message.finish == "length" or message.stopped is not None
        told: list[Happening] = []
        if text := message.text:
            if rest := text[len(self._text) :]:
                told += self._stream(rest)
            done = self.place.text_number(self._seq, 2 + len(text))
            told.append(Spoken(done, self._index, self._item, text, cut_off))
            self.outputs.append(Spoke(self._item, text, cut_off))
        self._next(seq)
        return told

    def _reset(self, seq: int) -> list[Happening]:
        """Its reader may have been told of it by another process, which is why its place counts as well."""
        begun = self._begun or self._after >= self.place.text_number(self._seq, 0)
        told: list[Happening] = (
            [Withdrawn(self.place.number(seq), self._index, self._item)] if begun else []
        )  # one that was told before has a number up to `after`
        self._next(seq)
        return told

    def _hand_over(self, seq: int, entry: CallChanged) -> list[Happening]:
        call = self._asked.get(entry.call_id)
        if call is None:
            return []
        if entry.arguments is not None:  # a hook's word counts for who runs it
            call = replace(call, arguments=entry.arguments)
        called = Called(self.place.number(seq), self._index, call)
        self.pending[call.call_id] = call
        self.outputs.append(call)
        self._next(seq)
        return [called]

    def _next(self, seq: int) -> None:
        self._seq, self._text, self._begun = seq, "", False
        self._index += 1

    def _end_turn(self, seq: int, entry: TurnEnded) -> list[Happening]:
        if entry.state is State.FAILED:
            return []  # the next entry says why
        if entry.cause is None:
            self.status = "incomplete" if self.finish in ("length", "refused") else "completed"
        elif entry.cause in (Cause.USER, Cause.SUPERSEDED):
            self.status = "cancelled"
        else:
            self.status, self.incomplete = "incomplete", entry.cause
        return [ResponseEnded(self.place.number(seq))]
