"""The journal's entries: everything any client ever sees of a chat, in the past tense.

Entries are numbered per chat without gaps. Streamed text arrives as `Delta`s, which have numbers of their own
(attempt, k) and are replaced by the committed message when the attempt ends.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Raw, field

from holdfast.core.decoding import MESSAGES, decode_with
from holdfast.core.records import (
    CallState,
    Cause,
    CompactionWhy,
    External,
    Failure,
    Frozen,
    Message,
    Record,
    SendMode,
    State,
)
from holdfast.errors import DropCause


class Entry(Record, tag_field="kind"):
    """Base of the journal's entries."""


class ChatCreated(Entry, tag="chat.created"):
    agent: str
    parent_id: str | None = None
    forked_from: str | None = None


class AgentNamed(Entry, tag="chat.agent"):
    """Before its first turn: another agent than the one that it was made with will answer."""

    agent: str


class MessageAdded(Entry, tag="message"):
    """A message entered history. Of an attempt: it replaces whatever was streamed of that attempt.

    `off_history` marks a tool's outcome that came after its call had been cut away: recorded, not shown to a model.
    """

    raw: Raw = field(name="message")  # as it was written
    attempt: int | None = None
    started: tuple[str, ...] = ()  # calls whose bodies begin with this commit
    call_state: CallState | None = None  # of a tool message: how the call ended
    off_history: bool = False
    decisions: Mapping[str, str] = {}  # of those calls, or of one that was denied: by which rule or mode

    @property
    def message(self) -> Message:
        """Read anew each time. Raises RecordError for what this code cannot read."""
        return decode_with(MESSAGES, self.raw, "message")


class MessageQueued(Entry, tag="message.queued"):
    raw: Raw = field(name="message")
    mode: SendMode
    first: bool = False

    @property
    def message(self) -> Message:
        """As in `MessageAdded`."""
        return decode_with(MESSAGES, self.raw, "message")


class MessagePromoted(Entry, tag="message.promoted"):
    """A queued message was put first."""

    message_id: str


class MessagesDropped(Entry, tag="message.dropped"):
    """Queued messages that will not be delivered; they were returned to the caller that dropped them."""

    message_ids: tuple[str, ...]
    why: DropCause


class HistoryCut(Entry, tag="history.cut"):
    length: int
    epoch: int


class TurnStarted(Entry, tag="turn.started"):
    turn: int


class TurnEnded(Entry, tag="turn.ended"):
    """`tokens` and `cost` are what it took, lost attempts and summaries included; None: older code did not say."""

    turn: int
    state: State
    cause: Cause | None = None
    detail: str | None = None
    tokens: int | None = None
    cost: float | None = None


class StopRequested(Entry, tag="stop.requested"):
    cause: Cause


class CallsStarted(Entry, tag="calls.started"):
    call_ids: tuple[str, ...]
    arguments: Mapping[str, str] = {}  # those that a hook changed
    decisions: Mapping[str, str] = {}  # by which rule or mode each was let go


class CallChanged(Entry, tag="call.changed"):
    call_id: str
    name: str
    state: CallState
    external: External | None = None
    question: str | None = None
    child_id: str | None = None
    by: str | None = None
    detail: str | None = None
    arguments: str | None = None  # what is to run, where a hook changed them and a person or a client has to act
    decision: str | None = None  # by whom it was asked about: a rule, a mode, the tool itself


class DescendantAsking(Entry, tag="descendant.asking"):
    """A call in a chat below this one waits for a person or a client, who answers it there: in `chat_id`."""

    chat_id: str
    agent: str
    call_id: str
    name: str
    state: CallState
    external: External | None = None
    question: str | None = None
    arguments: str = ""  # an excerpt
    expires_at: int | None = None


class DescendantAnswered(Entry, tag="descendant.answered"):
    """It needs no answer any more, and this is what became of the call."""

    chat_id: str
    call_id: str
    name: str
    state: CallState
    by: str | None = None


class TurnWaiting(Entry, tag="turn.waiting"):
    call_ids: tuple[str, ...]
    wake_at: int | None = None


class TurnResumed(Entry, tag="turn.resumed"):
    pass


class AttemptFailed(Entry, tag="attempt.failed"):
    attempt: int
    model: str
    error: str
    code: str = "error"
    provider: str | None = None
    status: int | None = None
    request_id: str | None = None
    retry_in_ms: int | None = None  # until the next attempt
    next_model: str | None = None  # whom that one asks; None: there is none
    duration_ms: int | None = None
    tokens: int = 0


class PreviewReset(Entry, tag="preview.reset"):
    """Forget what was streamed of every attempt up to this one: the model is asked again."""

    attempt: int
    cause: Cause | None = None


class Compacted(Entry, tag="compacted"):
    """The model sees `summary` in place of the positions before `upto`. `trimmed`: they were left out, for want of a
    summary. The messages themselves stay.
    """

    upto: int
    summary: str
    why: CompactionWhy = "asked"
    trimmed: bool = False
    tokens: int = 0


class CompactionFailed(Entry, tag="compaction.failed"):
    """No summary could be made, or none could be stored."""

    error: str
    why: CompactionWhy = "asked"
    tokens: int = 0


class ChatFailed(Entry, tag="chat.failed"):
    error: Failure


class ChatRetried(Entry, tag="chat.retried"):
    pass


class ChatArchived(Entry, tag="chat.archived"):
    archived: bool


class ChatRenamed(Entry, tag="chat.renamed"):
    title: str
    tokens: int = 0  # that a model took to make it
    cost: float = 0.0


class ChatRepaired(Entry, tag="chat.repaired"):
    reason: str


class ChatHandedOver(Entry, tag="chat.handed_over"):
    """Its worker has it no more, and what it was doing goes on with another. `heard_at`: when that worker was last
    heard of, where its loss was found out from outside. `never_begun`: calls that were told to start, and whose
    bodies that worker had not entered when it let go: they are planned, as before.
    """

    worker: str
    cause: Cause  # shutdown: it let go by itself; crash: its process or its runner died; lease_lost: it went silent
    heard_at: int | None = None
    never_begun: tuple[str, ...] = ()


HANDED_OVER: Mapping[Cause, str] = {
    Cause.SHUTDOWN: "let the chat go, to end or for another that can go on",
    Cause.CRASH: "died while it held the chat",
    Cause.LEASE_LOST: "went silent for longer than its lease",
}  # what a worker did, in words


class ChatTakenOver(Entry, tag="chat.taken_over"):
    """A worker goes on with a turn that it did not begin: after a handover, or after a wait."""

    worker: str


class Noted(Entry, tag="note"):
    """Something a runner, a tool or a hook wanted clients to see. With `tokens` or `cost`: what the call spent."""

    topic: str
    text: str = ""
    call_id: str | None = None
    tokens: int = 0
    cost: float = 0.0


FOR_OPERATORS = b'{"kind":"trace",'  # how the entries begin that clients are not shown
TraceSource = Literal["tool", "hook", "model", "runner"]


class Traced(Entry, tag="trace"):
    """An exception in what users bring, or in the runner itself, with its traceback: bounded and without secrets.

    For operators. No model and no reader of a stream is shown it; `holdfast chats show` does.
    """

    source: TraceSource
    name: str  # of the tool, the hook or the model
    error: str  # the exception's type
    text: str
    turn: int = 0
    call_id: str | None = None


AnyEntry = (
    ChatCreated
    | AgentNamed
    | MessageAdded
    | MessageQueued
    | MessagePromoted
    | MessagesDropped
    | HistoryCut
    | TurnStarted
    | TurnEnded
    | StopRequested
    | CallsStarted
    | CallChanged
    | DescendantAsking
    | DescendantAnswered
    | TurnWaiting
    | TurnResumed
    | AttemptFailed
    | PreviewReset
    | Compacted
    | CompactionFailed
    | ChatFailed
    | ChatRetried
    | ChatArchived
    | ChatRenamed
    | ChatRepaired
    | ChatHandedOver
    | ChatTakenOver
    | Noted
    | Traced
)


class Delta(Record):
    """A piece of a response while it streams. Numbered k = 0, 1, … within its attempt."""

    part: Literal["text", "reasoning", "arguments", "progress"]
    text: str
    call_id: str | None = None
    name: str | None = None


class UnknownEntry(Frozen):
    """Newer code wrote it: `problem` says what this code could not read, the event's `raw` has it whole."""

    problem: str


class Event(Frozen):
    """One thing that a reader of a chat sees: an entry of the journal (it has a `seq`), or a delta of the response
    that is being streamed (it has `attempt` and `k`). `raw` is its JSON as it is stored.
    """

    cursor: str
    at: int
    body: AnyEntry | Delta | UnknownEntry
    raw: bytes
    seq: int | None = None
    attempt: int | None = None
    k: int | None = None
