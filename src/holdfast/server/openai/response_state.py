"""A response as its chat's journal tells it, from the response's start on: the fold's updates as items and events.

Told again, in whatever process, after however many crashes, it comes to the same items. How the turn stands, its
calls and what waits come from the one fold (core/fold.py), which reads here without deltas. Only streamed text is put
together here: these clients cannot take words back, and an item's id has to be the same in a process that never saw
what was lost, so each attempt is an item of its own. One that was lost in mid-answer is withdrawn, and the next
attempt tells its text from its beginning. Only what was committed is in `outputs`.
"""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.codec import decode_json
from holdfast.core.fold import Fold
from holdfast.core.journal import (
    AnyEntry,
    Delta,
    DescendantAnswered,
    Event,
    MessageAdded,
    PreviewReset,
    TurnEnded,
    TurnResumed,
    UnknownEntry,
)
from holdfast.core.records import NOTHING, STOPS, Cause, Failure, Message, Role, ToolResult
from holdfast.core.updates import (
    CallAsked,
    CallDone,
    CallView,
    Finished,
    Happened,
    Paused,
    Responded,
    TurnView,
    Update,
)
from holdfast.server.openai.ids import ResponsePlace, seen_at

Status = Literal["in_progress", "completed", "failed", "cancelled", "incomplete"]


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
    """The client has to run a tool, which takes four numbers, or to hear that a person has to approve one: two."""

    number: int
    index: int
    call: CallView


class ResponseEnded(Struct, frozen=True):
    number: int


Happening = Begun | Said | Withdrawn | Spoken | Called | ResponseEnded
CALL_NUMBERS = 4


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
    """`after`: what has a number up to this one was told before; text that was told in part is told from there.

    `through_approvals`: a person who has to act does not end it. Then `asked` says what is open.
    """

    def __init__(self, place: ResponsePlace, after: int = -1, *, through_approvals: bool = False) -> None:
        self.place = place
        self._after = after
        self._seen = seen_at(after)
        self._through_approvals = through_approvals
        self._fold = Fold(settled=True)
        self._seq = place.start  # of the last entry that events came from
        self._withdrawn = self._seen.withdrawn  # items that took an index and are in no output
        self._text = ""  # streamed so far of the open attempt
        self._begun = False
        self.outputs: list[Spoke | CallView] = []
        self.pending: dict[str, CallView] = {}  # what has to be answered before the turn goes on
        self.asked: tuple[CallView, ...] = ()  # what people have to approve, while the turn waits for it
        self.waits = False  # it ended because others have to act, and they have not
        self.echo: dict[str, object] = {}  # what the client asked for, to be shown again
        self.status: Status = "in_progress"
        self.finish: str | None = None  # why the last answer is not whole, if it is not
        self.cached_tokens = 0
        self.reasoning_tokens = 0
        self.began_at = 0
        self.ended_at: int | None = None
        self.end = place.start  # journal number of the entry that ended it
        self.paused_at: int | None = None  # of the one with which it began to wait for others
        self.last_message: str | None = None  # id of the last one that was added to the history

    @property
    def over(self) -> bool:
        return self.status != "in_progress"

    @property
    def turn(self) -> TurnView:
        """As it was when the response ended, or as it is; from the response's start on."""
        return self._fold.turn

    @property
    def error(self) -> Failure | None:
        return self.turn.error if self.status == "failed" else None

    @property
    def incomplete(self) -> Cause | None:
        return self.turn.cause if self.status == "incomplete" else None

    def take(self, event: Event) -> list[Happening]:
        """What newer code wrote is passed over."""
        body = event.body
        if self.over:
            self._take_after(event)
            return []
        self._begin_turn(event)
        if isinstance(body, Delta):
            return self._stream(body.text) if body.part == "text" and body.text else []
        if isinstance(body, UnknownEntry) or event.seq is None:
            return []
        told = self._withdraw(event.seq) if isinstance(body, PreviewReset) else []
        off_history = isinstance(body, MessageAdded) and body.off_history
        if event.seq == self.place.start and isinstance(body, MessageAdded) and body.message.terms is not None:
            self.echo = _echo_of(bytes(body.message.terms.metadata))  # it began with a client's results
        for update in self._fold.take(event):
            if not off_history:
                told += self._take_update(event.seq, update)
        if self.over:
            self.end, self.ended_at = event.seq, event.at
        return told

    def _begin_turn(self, event: Event) -> None:
        """One that begins in the midst of a turn has not seen how it began."""
        if self.began_at == 0:
            self.began_at = event.at
            waits = isinstance(event.body, DescendantAnswered)
            self._fold.turn = replace(self._fold.turn, state="waiting" if waits else "running")

    def _take_after(self, event: Event) -> None:
        """What became of a response for which others had to act: it can still be cancelled."""
        body = event.body
        if not self.waits or event.seq is None:
            return
        if isinstance(body, MessageAdded) and not body.off_history:
            self._note_results(body.message)
        elif isinstance(body, TurnResumed | DescendantAnswered):
            self.waits = False
        elif isinstance(body, TurnEnded):
            self.waits = False
            self.pending.clear()
            if body.cause in (*STOPS, Cause.SUPERSEDED):
                self.status = "cancelled"
                self.end, self.ended_at = event.seq, event.at

    def _note_results(self, message: Message) -> None:
        """A result that no client gave answers its call as well."""
        self.last_message = message.id
        for part in message.parts:
            if isinstance(part, ToolResult) and part.synthetic is not None:
                self.pending.pop(part.call_id, None)

    # --- text -------------------------------------------------------------------------------------------

    @property
    def _index(self) -> int:
        """Of the item that is being told: they are counted as a reader was told of them."""
        return len(self.outputs) + self._withdrawn

    @property
    def _item(self) -> str:
        return self.place.item_id(self._seq)

    def _number(self, seq: int, nth: int = 0) -> int:
        return self.place.number(seq, nth, self._withdrawn)

    def _text_number(self, chars: int) -> int:
        return self.place.text_number(self._seq, chars, self._withdrawn)

    def _stream(self, text: str) -> list[Happening]:
        told = self._begin()
        already = max(len(self._text), self._after - self._text_number(1))
        self._text += text
        if new := self._text[already:]:
            told.append(Said(self._text_number(1 + len(self._text)), self._index, self._item, new))
        return told

    def _begin(self) -> list[Happening]:
        if self._begun:
            return []
        self._begun = True
        return [Begun(self._text_number(0), self._index, self._item)]

    def _withdraw(self, seq: int) -> list[Happening]:
        """Its reader may have been told of it by another process, which its last number says."""
        entry = seq - self.place.start
        told_elsewhere = self._seen.text and self._seen.entry == self._seq - self.place.start
        if entry <= self._seen.entry or not (self._begun or told_elsewhere):
            self._next(seq)  # one that was withdrawn before is counted in the reader's number
            return []
        index, item_id = self._index, self._item
        self._withdrawn += 1
        self._next(seq)
        return [Withdrawn(self._number(seq), index, item_id)]

    def _next(self, seq: int) -> None:
        self._seq, self._text, self._begun = seq, "", False

    # --- what the fold tells ----------------------------------------------------------------------------

    def _take_update(self, seq: int, update: Update) -> list[Happening]:
        match update:
            case Responded(message=message):
                return self._answer(seq, message)
            case CallDone(call=call) if call.chat_id is None:
                self.pending.pop(call.id, None)
                self.last_message = f"{call.id}.result"
            case CallAsked(call=call) if call.kind in ("client", "question") and call.chat_id is None:
                return [self._hand_over(seq, 0, call)]
            case Paused(open=found):
                return self._pause(seq, found)
            case Finished(turn=turn):
                return self._end(seq, turn)
            case Happened(entry=entry):
                self._happen(entry)
        return []

    def _happen(self, entry: AnyEntry) -> None:
        if isinstance(entry, TurnResumed):
            self.asked = ()
        elif isinstance(entry, MessageAdded):
            message = entry.message
            self.last_message = message.id
            if message.role is Role.USER and message.metadata != NOTHING:
                self.echo = _echo_of(bytes(message.metadata))

    def _answer(self, seq: int, message: Message) -> list[Happening]:
        self.last_message = message.id
        self.finish = message.finish
        self.cached_tokens += message.cached_tokens
        self.reasoning_tokens += message.reasoning_tokens
        cut_off = message.finish == "length" or message.stopped is not None
        told: list[Happening] = []
        if text := message.text:
            if rest := text[len(self._text) :]:
                told += self._stream(rest)
            told.append(Spoken(self._text_number(2 + len(text)), self._index, self._item, text, cut_off))
            self.outputs.append(Spoke(self._item, text, cut_off))
        self._next(seq)
        return told

    def _hand_over(self, seq: int, nth: int, call: CallView) -> Called:
        called = Called(self._number(seq, nth * CALL_NUMBERS), self._index, call)
        self.pending[call.id] = call
        self.outputs.append(call)
        self._next(seq)
        return called

    def _pause(self, seq: int, found: tuple[CallView, ...]) -> list[Happening]:
        """What is open in chats of sub-agents is told here: their calls may have been answered by others before."""
        self.asked = tuple(call for call in found if call.kind == "approval")
        if self.asked and self._through_approvals:
            return []
        new = [call for call in found if call.id not in self.pending]
        told: list[Happening] = [self._hand_over(seq, nth, call) for nth, call in enumerate(new)]
        self.waits, self.paused_at = True, seq
        self.status = "incomplete" if self.asked else "completed"
        return [*told, ResponseEnded(self._number(seq, len(new) * CALL_NUMBERS))]

    def _end(self, seq: int, turn: TurnView) -> list[Happening]:
        if turn.state == "failed":
            self.status = "failed"
        elif turn.cause is None:
            self.status = "incomplete" if self.finish in ("length", "refused") else "completed"
        elif turn.cause in (*STOPS, Cause.SUPERSEDED):
            self.status = "cancelled"
        else:
            self.status = "incomplete"
        return [ResponseEnded(self._number(seq))]
