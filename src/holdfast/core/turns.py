"""One turn, as the journal tells it: how it stands, what was said last, what it took.

The journal alone says it, whatever the chat did since: a turn that ended long ago reads as it did on that day.
"""

from typing import Literal

from holdfast.core.journal import (
    AnyEntry,
    AttemptFailed,
    ChatFailed,
    ChatRenamed,
    ChatRetried,
    Compacted,
    CompactionFailed,
    HistoryCut,
    MessageAdded,
    TurnEnded,
    TurnResumed,
    TurnStarted,
    TurnWaiting,
)
from holdfast.core.records import Cause, Failure, Frozen, Message, State

# queued: the message that begins it waits for its turn. waiting: people or clients have to act.
TurnState = Literal["queued", "running", "waiting", "done", "stopped", "failed"]


class TurnUsage(Frozen):
    """What a turn took. `input_tokens` and `output_tokens` are those of its committed responses, as their providers
    counted them; `total_tokens` is what counts against its budget: lost attempts, summaries and a title are in it.
    """

    responses: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


NO_USAGE = TurnUsage()


class TurnFold:
    """Give it every entry from the turn's start on; it takes no notice of those before and after.

    A retry opens a failed turn again, so it is over for certain only once the next one has begun (`closed`).
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun = False
        self.closed = False
        self.state: TurnState = "running"
        self.cause: Cause | None = None
        self.detail: str | None = None
        self.error: Failure | None = None
        self.response: Message | None = None  # the last one that was committed
        self._told: tuple[int, float] | None = None  # tokens and cost that its end told
        self._tokens = 0
        self._cost = 0.0
        self._responses = 0
        self._input_tokens = 0
        self._output_tokens = 0

    @property
    def usage(self) -> TurnUsage:
        return TurnUsage(
            responses=self._responses,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            total_tokens=self._tokens,
        )

    @property
    def cost(self) -> float | None:
        """None: the turn has not ended, or older code ended it and did not say."""
        return self._cost if self._told is not None else None

    def take(self, entry: AnyEntry) -> None:
        if isinstance(entry, TurnStarted):
            self.begun = self.begun or entry.turn == self.number
            self.closed = self.closed or entry.turn > self.number
        elif self.begun and not self.closed:
            self._take(entry)

    def _take(self, entry: AnyEntry) -> None:
        match entry:
            case MessageAdded(attempt=int(), off_history=False):
                self._respond(entry.message)
            case HistoryCut() if self.state in ("running", "waiting"):
                self.response = None  # what it had said is not said any more; a turn that was over stays as it was
            case TurnWaiting():
                self.state = "waiting"
            case TurnResumed():
                self.state = "running"
            case TurnEnded(turn=turn) if turn == self.number:
                self._end(entry)
            case ChatFailed(error=error) if self.state == "failed":
                self.error = error
            case ChatRetried():
                self.state, self.cause, self.detail, self.error = "running", None, None, None
            case AttemptFailed(tokens=tokens):
                self._count(tokens)
            case Compacted(tokens=tokens) | CompactionFailed(tokens=tokens) if self.state in ("running", "waiting"):
                self._count(tokens)  # one of a chat at rest is none of the turn's
            case ChatRenamed(tokens=tokens, cost=cost):
                self._count(tokens, cost)

    def _respond(self, message: Message) -> None:
        self.response = message
        self._responses += 1
        self._input_tokens += message.input_tokens or 0
        self._output_tokens += message.output_tokens or 0
        counted = (message.input_tokens or 0) + (message.output_tokens or 0)
        self._count(counted or message.estimated_tokens or 0)

    def _count(self, tokens: int, cost: float = 0.0) -> None:
        self._tokens += tokens
        self._cost += cost

    def _end(self, entry: TurnEnded) -> None:
        if entry.state is State.FAILED:
            self.state = "failed"
        else:
            self.state = "done" if entry.cause is None else "stopped"
        self.cause, self.detail = entry.cause, entry.detail
        if entry.tokens is not None and entry.cost is not None:
            self._told = self._tokens, self._cost = entry.tokens, entry.cost
