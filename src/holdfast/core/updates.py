"""What a reader of a chat is told: updates, and the turn so far as a value. `core/fold.py` makes them of the journal.

Updates are a closed union of frozen records. Each carries the turn as it stands after it, and the cursor to go on
from. A program that prints `TextAdded` and takes back what `Restarted` says shows exactly what the turn says, at
every moment.
"""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.core.journal import AnyEntry
from holdfast.core.records import FINAL, CallState, Cause, External, Failure, File, Frozen, Message

# queued: the message that begins it waits for its turn. waiting: people or clients have to act.
TurnState = Literal["queued", "running", "waiting", "done", "stopped", "failed"]
TurnViewState = Literal["running", "stopping", "waiting", "done", "stopped", "failed"]
AskedKind = Literal["approval", "question", "client"]


class Prose:
    """Text that grows by pieces, as a value: adding to it makes another one, in constant time.

    The versions share one list, of which each sees a beginning. Joined only when a reader asks for the text.
    """

    __slots__ = ("_count", "_pieces", "chars")

    def __init__(self, pieces: Sequence[str] = ()) -> None:
        self._pieces = list(pieces)
        self._count = len(self._pieces)
        self.chars = sum(map(len, self._pieces))

    def plus(self, piece: str) -> "Prose":
        grown = Prose.__new__(Prose)
        # An older version has had other words put behind it; the empty one is shared by all.
        latest = 0 < self._count == len(self._pieces)
        grown._pieces = self._pieces if latest else self._pieces[: self._count]
        grown._pieces.append(piece)
        grown._count = self._count + 1
        grown.chars = self.chars + len(piece)
        return grown

    def cut(self, chars: int) -> "Prose":
        """Its first characters. Takes as long as the text is."""
        return self if chars >= self.chars else Prose((str(self)[:chars],))

    def __str__(self) -> str:
        return "".join(self._pieces[: self._count])

    def __repr__(self) -> str:
        return f"Prose({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prose) and self.chars == other.chars and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


NO_PROSE = Prose()


class CallView(Frozen):
    """A call, as far as the journal tells of it. `chat_id` is set for a call of a sub-agent, and says where it is
    answered.
    """

    id: str
    name: str
    arguments: str = ""  # those that run, where the journal tells them
    state: CallState = CallState.PLANNED
    chat_id: str | None = None
    external: External | None = None
    question: str | None = None
    child_id: str | None = None
    expires_at: int | None = None  # of a sub-agent's call
    by: str | None = None  # who answered it
    began_at: int | None = None
    ended_at: int | None = None
    result: str | None = None
    error: bool = False
    files: tuple[File, ...] = ()  # of the result
    _progress: Prose = NO_PROSE

    @property
    def progress(self) -> str:
        """What its tool said while it ran."""
        return str(self._progress)

    @property
    def kind(self) -> AskedKind | None:
        """What a person or a client is asked for; None: neither is asked."""
        if self.state is CallState.ASKING:
            return "approval"
        if self.state is CallState.EXTERNAL and self.external is External.QUESTION:
            return "question"
        if self.state is CallState.EXTERNAL and self.external is External.CLIENT:
            return "client"
        return None

    @property
    def over(self) -> bool:
        return self.state in FINAL


class _Calls:
    """The calls of a turn as a value: versions of them in the order in which they came, shared as in `Prose`."""

    __slots__ = ("_count", "_versions")

    def __init__(self, versions: Sequence[CallView] = ()) -> None:
        self._versions = list(versions)
        self._count = len(self._versions)

    def plus(self, call: CallView) -> "_Calls":
        grown = _Calls.__new__(_Calls)
        latest = 0 < self._count == len(self._versions)
        grown._versions = self._versions if latest else self._versions[: self._count]
        grown._versions.append(call)
        grown._count = self._count + 1
        return grown

    def all(self) -> tuple[CallView, ...]:
        """Each once, as it is now, in the order in which they were asked for."""
        return tuple({(call.chat_id, call.id): call for call in self._versions[: self._count]}.values())

    def __repr__(self) -> str:
        return repr(self.all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Calls) and self.all() == other.all()

    def __hash__(self) -> int:
        return hash(self.all())


class TurnUsage(Frozen):
    """What a turn took. `input_tokens` and `output_tokens` are those of its committed responses, as their providers
    counted them; `total_tokens` is what counts against its budget: lost attempts, summaries and a title are in it.
    """

    responses: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


NO_USAGE = TurnUsage()


class TurnView(Frozen):
    """A turn as its journal tells it so far. Cheap to make for each update: text is joined when it is asked for."""

    number: int = 0  # 0: no turn has begun
    state: TurnViewState = "done"
    cause: Cause | None = None
    detail: str | None = None
    error: Failure | None = None
    retries: int = 0  # of the response that is being asked for
    usage: TurnUsage = NO_USAGE
    cost: float | None = None  # None: it has not ended, or older code ended it and did not say
    response: Message | None = None  # the last one that was committed and stands
    answer_from: int = 0  # where in the text the last response begins
    _text: Prose = NO_PROSE
    _reasoning: Prose = NO_PROSE
    _calls: _Calls = _Calls()

    @property
    def over(self) -> bool:
        """It has ended. A retry opens a failed one again."""
        return self.state in ("done", "stopped", "failed")

    @property
    def text(self) -> str:
        """All that the model said in this turn: what was committed, and behind it what it is saying."""
        return str(self._text)

    @property
    def answer(self) -> str:
        """What it says in its last response."""
        return str(self._text)[self.answer_from :]

    @property
    def reasoning(self) -> str:
        return str(self._reasoning)

    @property
    def calls(self) -> tuple[CallView, ...]:
        """All of the turn, in the order in which the model asked for them."""
        return tuple([call for call in self._calls.all() if call.chat_id is None])

    @property
    def open(self) -> tuple[CallView, ...]:
        """What a person or a client has to answer, in this chat and in those of its sub-agents."""
        return tuple([call for call in self._calls.all() if call.kind is not None])


def with_response(turn: TurnView, message: Message) -> TurnView:
    asked, said, usage = message.input_tokens or 0, message.output_tokens or 0, turn.usage
    return replace(
        turn,
        response=message,
        usage=TurnUsage(
            responses=usage.responses + 1,
            input_tokens=usage.input_tokens + asked,
            output_tokens=usage.output_tokens + said,
            total_tokens=usage.total_tokens + (asked + said or message.estimated_tokens or 0),
        ),
    )


def with_tokens(turn: TurnView, tokens: int, cost: float = 0.0) -> TurnView:
    """It took so many more than its responses. What they cost is known by its end, and added to that afterwards."""
    usage = replace(turn.usage, total_tokens=turn.usage.total_tokens + tokens)
    return replace(turn, usage=usage, cost=None if turn.cost is None else turn.cost + cost)


def with_progress(call: CallView, text: str) -> CallView:
    return replace(call, _progress=call._progress.plus(text))


def with_call(turn: TurnView, call: CallView) -> TurnView:
    """It is new, or as it is now."""
    return replace(turn, _calls=turn._calls.plus(call))


def with_words(turn: TurnView, text: Prose, reasoning: Prose, **fields: Any) -> TurnView:
    return replace(turn, _text=text, _reasoning=reasoning, **fields)


class _Update(Frozen):
    turn: TurnView  # as it is after this update
    cursor: str  # the place to go on from


class TextAdded(_Update):
    """More of what the model says."""

    text: str


class ReasoningAdded(_Update):
    """More of what the model thinks, where its provider tells."""

    text: str


class Restarted(_Update):
    """The last `dropped` characters of the text, and the last `reasoning_dropped` of the reasoning, do not stand: the
    model was asked again and says something else, or the turn ended without them. Take them back.
    """

    dropped: int = 0
    reasoning_dropped: int = 0


class Responded(_Update):
    """A response of the model is durable. Its text was told before this."""

    message: Message


class CallDrafted(_Update):
    """The model is writing a call. It may come to nothing."""

    call: CallView


class CallBegan(_Update):
    """A tool runs now, or a sub-agent or the clock does; once more after a crash, where that is safe."""

    call: CallView


class CallProgress(_Update):
    """A tool says how far it is: `text` is new, `call.progress` is all of it."""

    call: CallView
    text: str


class CallAsked(_Update):
    """A person or a client has to answer this call; others may still run."""

    call: CallView


class CallAnswered(_Update):
    """This call needs no answer any more."""

    call: CallView


class CallDone(_Update):
    """A call has its result, whatever it is: see its `state`, `result` and `error`."""

    call: CallView


class Retrying(_Update):
    """The model is asked again, at this instant. `attempt` counts within the response: the second one is 2."""

    reason: str
    at: int
    attempt: int
    model: str | None = None


class Paused(_Update):
    """Nothing goes on until a person or a client answers one of these."""

    open: tuple[CallView, ...]


class Finished(_Update):
    """The turn is over: `turn.state` is done, stopped or failed."""


class Happened(_Update):
    """Whatever else the journal tells: a user's message, the queue, a compaction, a note."""

    entry: AnyEntry


Update = (
    TextAdded
    | ReasoningAdded
    | Restarted
    | Responded
    | CallDrafted
    | CallBegan
    | CallProgress
    | CallAsked
    | CallAnswered
    | CallDone
    | Retrying
    | Paused
    | Finished
    | Happened
)
