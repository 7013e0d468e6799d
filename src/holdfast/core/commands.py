"""What can happen to a chat: the inputs of `apply`, grouped by who sends them.

Clients ask, the surroundings report, a runner writes under its fence, workers take and leave.
"""

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct

from holdfast.core.journal import Traced
from holdfast.core.records import (
    Always,
    Call,
    Cause,
    CompactionWhy,
    External,
    Failure,
    File,
    Frozen,
    LeaseEnd,
    Message,
    NewChat,
    OnUnknown,
    Replay,
    Role,
    SendMode,
    Terms,
)
from holdfast.core.spending import NO_BILL, Bill, SpendingKind


class Command(Frozen):
    """Base of all commands. `name` is the row of the execution table that decides it."""

    name: ClassVar[str]


# --- clients ---------------------------------------------------------------------------------------


class Send(Command):
    """`length`: only while the chat rests with a history of so many positions, which is what its sender has read.
    `answers`: an open question takes it as a person's answer; what another agent says is none. `tainted`: content
    from outside may speak through it.
    """

    message: Message
    mode: SendMode = "queue"
    length: int | None = None
    answers: bool = True
    tainted: bool = False

    name = "send"


class Give(Command):
    """Before the first turn: `messages` that were said elsewhere come behind those that the chat was made with, and
    another `agent` is named for it. `length`: only while its history has so many positions, as its sender has read.
    """

    messages: tuple[Message, ...] = ()
    agent: str | None = None
    length: int | None = None

    name = "give"


class Edit(Command):
    """Replace the user message at `pos` and everything after it. `epoch` is the one `pos` was read under."""

    pos: int
    role: Role
    epoch: int
    message: Message

    name = "edit"


class Stop(Command):
    """`turn`: only this one, which is the one that its sender means. `cause`: a user's, or the parent's."""

    clear_queue: bool = False
    turn: int | None = None
    cause: Cause = Cause.USER

    name = "stop"


class Promote(Command):
    message_id: str

    name = "promote"


class Withdraw(Command):
    """Take a queued message back."""

    message_id: str

    name = "withdraw"


class Approve(Command):
    """With a `digest` (`Call.digest`) it is refused unless what would run is what the person was shown.

    With `always` the rules that the call offers are kept with it, for `always_ms` or until they are revoked. Refused
    where the call offers none.
    """

    call_id: str
    by: str = ""
    digest: str | None = None
    always: Always | None = None
    always_ms: int | None = None

    name = "approve"


class Deny(Command):
    call_id: str
    words: str = ""
    by: str = ""

    name = "deny"


class Submit(Command):
    """The result of a call that a client ran, or the answer to a question. `terms`: what the client asks of the turn
    from here on, in place of what was asked when it began.
    """

    call_id: str
    content: str
    error: bool = False
    by: str = ""
    files: tuple[File, ...] = ()
    terms: Terms | None = None

    name = "submit"


class Compact(Command):
    name = "compact"


class Retry(Command):
    name = "retry"


class GoOn(Command):
    """A turn that a budget ended goes on without a new message: a person has raised the budget, or allows another
    turn's worth.
    """

    name = "go_on"


class Fork(Command):
    """Asked of the source only: forking never changes it."""

    name = "fork"


class Archive(Command):
    archived: bool = True

    name = "archive"


class Rename(Command):
    """`unless_titled`: only a chat without a title takes it, so that a model's title never replaces a person's."""

    title: str
    unless_titled: bool = False
    tokens: int = 0  # what it took to make it
    cost: float = 0.0
    bill: Bill = NO_BILL

    name = "rename"


class CountSpending(Command):
    """What a call of this chat took, where no other commit tells of it: a shutdown cut it off, no title came of it,
    or its commit failed. It counts in its turn while that goes on, and in the chat in any case.
    """

    kind: SpendingKind
    life: int  # of the chat that spent it: one made again under its id did not
    turn: int
    tokens: int = 0
    cost: float = 0.0
    bill: Bill = NO_BILL

    name = "count_spending"


class Delete(Command):
    name = "delete"


# --- surroundings ----------------------------------------------------------------------------------


class ChildEnded(Command):
    """A spawned chat ended a turn. `text` None: its answer was lost, which is not an empty answer."""

    child_id: str
    turn: int
    text: str | None
    error: bool = False
    untrusted: bool = False  # content from outside may speak through it

    name = "child_ended"


class Due(Command):
    """The clock passed `wake_at`: timers ring, unanswered calls expire."""

    name = "due"


class Reached(Command):
    """What came of a `Reach`, in its transaction."""

    call_id: str
    content: str
    error: bool = False

    name = "reached"


class Descendant(Command):
    """Said to the chat at the top of a family: what a chat below it asks people and clients, and what came of it."""

    chat_id: str
    agent: str
    asking: tuple[Call, ...] = ()
    answered: tuple[Call, ...] = ()

    name = "descendant"


# --- a runner, under its fence ---------------------------------------------------------------------


class Writer(Struct, frozen=True, gc=False):
    """Who writes. `worked_ms`: how long it has worked on the chat since its last commit, told by the first command
    of a commit.
    """

    worker: str
    fence: int
    epoch: int
    worked_ms: int = 0


class RunnerCommand(Command):
    by: Writer


class PlannedCall(Frozen):
    """How a call of a response is to be handled. Its id is that of the message's ToolCall."""

    id: str
    replay: Replay = Replay.UNSAFE
    on_unknown: OnUnknown = "tell_model"
    start: bool = False  # its body begins with this commit: nothing can come between
    decision: str = ""  # that let it begin, for the journal; empty: nothing was judged


class Respond(RunnerCommand):
    """The model's response is complete. `previewed`: pieces of it may be stored, which it replaces."""

    message: Message
    attempt: int
    previewed: bool = True
    plans: tuple[PlannedCall, ...] = ()
    tokens: int = 0
    cost: float = 0.0
    bill: Bill = NO_BILL

    name = "responded"


class AskAgain(RunnerCommand):
    """The response just committed will not do: `message` tells the model why, and it is the model's turn again."""

    message: Message

    name = "ask_again"


class AttemptLost(RunnerCommand):
    """An attempt failed and was recorded; the turn goes on (a retry, a fallback, or `Fail` next).

    What it used counts in the turn's budget: it was paid for.
    """

    attempt: int
    model: str
    error: str
    code: str = "error"
    provider: str | None = None
    status: int | None = None
    request_id: str | None = None
    retry_in_ms: int | None = None
    next_model: str | None = None
    duration_ms: int | None = None
    tokens: int = 0
    cost: float = 0.0
    bill: Bill = NO_BILL

    name = "attempt_lost"


class StartCalls(RunnerCommand):
    """The intent: bodies begin right after this commit, with the arguments that a hook changed.

    `told` is how those are told to readers, where a hook may have put something into them that is not for readers.
    """

    call_ids: tuple[str, ...]
    arguments: Mapping[str, str] = {}
    told: Mapping[str, str] = {}
    decisions: Mapping[str, str] = {}  # that let them begin, for the journal

    name = "start_calls"


class AskApproval(RunnerCommand):
    call_id: str
    question: str
    arguments: str | None = None  # changed by a hook
    told: str | None = None  # as in StartCalls
    expires_at: int | None = None
    decision: str | None = None  # as in StartCalls: who asks
    offer: tuple[str, ...] = ()  # the rules that "always" would keep

    name = "ask_approval"


class Delegate(RunnerCommand):
    """Hand a call to a person, a client, a child or the clock; it is answered by Submit, ChildEnded or Due.

    To a child: one that exists (`child_id`), or one that is created in the same transaction (`spawn`).
    """

    call_id: str
    external: External
    arguments: str | None = None  # changed by a hook
    told: str | None = None  # as in StartCalls
    question: str | None = None
    child_id: str | None = None
    child_turn: int | None = None  # wait for the end of this turn; None: of the one it is in, if any
    spawn: NewChat | None = None
    expires_at: int | None = None
    decision: str | None = None  # as in StartCalls

    name = "delegate"


class Refuse(RunnerCommand):
    """Answer a call without running it: no such tool, arguments cut off, a guard's veto."""

    call_id: str
    content: str
    denied: bool = False
    decision: str = ""  # as in StartCalls: what denied it
    untrusted: bool = False  # it quotes what came from outside

    name = "refuse"


class Outcome(RunnerCommand):
    """What a body returned. Real, so it is never replaced by "cancelled".

    `unknown`: it began, and the worker does not know what came of it; `content` says why. With `again`
    nothing of it runs any more, so that one that may run again can. What it spent counts in the turn's budget,
    whatever came of it.
    """

    call_id: str
    content: str
    files: tuple[File, ...] = ()
    error: bool = False
    unknown: bool = False
    again: bool = False
    spawn: NewChat | None = None  # a child chat that the call does not wait for, created in the same transaction
    untrusted: bool = False  # what it returned comes from outside
    tokens: int = 0
    cost: float = 0.0
    bill: Bill = NO_BILL

    name = "outcome"


class Reach(RunnerCommand):
    """A started call says `message` to a child of this chat, or, without one, stops it and all that is below it. The
    child's change and the call's answer are one transaction.
    """

    call_id: str
    child_id: str
    message: Message | None = None
    mode: SendMode = "queue"

    name = "reach"


class Note(RunnerCommand):
    """Words for clients to see; or, for operators alone, where an exception came from (`trace`).

    `tokens` and `cost` are what a call spent that has no outcome: a stop or a shutdown ended it.
    """

    topic: str
    text: str = ""
    call_id: str | None = None
    trace: Traced | None = None
    tokens: int = 0
    cost: float = 0.0
    tool: str = ""  # that spent it
    bill: Bill = NO_BILL

    name = "note"


class Keep(RunnerCommand):
    """What a body wants to find again, when it is run again after a crash or in a later call of the chat.

    Under a `key`, in place of what was kept under it before; an empty `text` keeps nothing. Where there are too many,
    the oldest gives way that is not `spared`: those are of other calls that run.
    """

    key: str
    text: str
    spared: frozenset[str] = frozenset()

    name = "keep"


class FinishCompaction(RunnerCommand):
    """A compaction was made, or was not and `error` says why; the chat goes on in any case.

    With both a summary and an error, the summary is what is left when none could be made: the oldest messages are
    left out. With neither there was nothing to compact. What it used counts in the turn's budget, if one is open.
    """

    upto: int = 0
    summary: str | None = None
    error: str = ""
    why: CompactionWhy = "asked"
    tokens: int = 0
    cost: float = 0.0
    bill: Bill = NO_BILL

    name = "finish_compaction"


class Park(RunnerCommand):
    """Nothing here is runnable; a person, a client, a child or the clock must answer."""

    name = "park"


class FinishTurn(RunnerCommand):
    """`cause` None: the model has said all it had to say, and its last response is the answer; else a limit."""

    cause: Cause | None = None
    detail: str | None = None

    name = "finish_turn"


class FinishStop(RunnerCommand):
    """Everything the stop had to end is dead. `partial` was streamed when history had `length` positions.

    `attempt` is the last one, named even if nothing of it is kept: it is over, the next one is not.
    """

    partial: Message | None = None
    attempt: int | None = None
    length: int = 0
    detail: str | None = None
    tokens: int = 0  # that the provider said it took until it was cut off
    cost: float = 0.0
    bill: Bill = NO_BILL

    name = "finish_stop"


class Fail(RunnerCommand):
    error: Failure
    attempt: int | None = None  # as in FinishStop, should the chat be stopping

    name = "fail"


# --- ownership -------------------------------------------------------------------------------------


class Claim(Command):
    worker: str

    name = "claim"


class Release(RunnerCommand):
    """A clean handover. Calls in `never_begun` had their intent written but not their body entered.

    `delay_ms`: no worker need try before; this one could not read the chat, and one that can may be about to start.
    """

    never_begun: tuple[str, ...] = ()
    delay_ms: int = 0

    name = "release"


class LeaseExpired(Command):
    """Its holder's lease ended, or its runner broke (`why`): whatever was going on may be half done.

    `heard_at`: when the holder renewed its lease last, where that is known.
    """

    worker: str
    how: LeaseEnd = LeaseEnd.DIED
    why: str = ""
    heard_at: int | None = None

    name = "lease_expired"


class LeaseOutlived(Command):
    """This worker lost its lease and lives: it was no crash that took the chat from it."""

    worker: str

    name = "lease_outlived"


class Repair(Command):
    """The sweeper found promise 7 broken in this chat."""

    reason: str
    lease_is_live: bool = False

    name = "repair"


COMMANDS: dict[str, type[Command]] = {
    command.name: command
    for command in (
        *(Send, Give, Edit, Stop, Promote, Withdraw, Approve, Deny, Submit, Compact, Retry, GoOn, Fork),
        *(Archive, Rename, CountSpending, Delete),
        *(ChildEnded, Due, Reached, Descendant),
        *(Respond, AskAgain, AttemptLost, StartCalls, AskApproval, Delegate, Refuse, Outcome, Reach, Note, Keep),
        *(FinishCompaction, Park, FinishTurn, FinishStop, Fail),
        *(Claim, Release, LeaseExpired, LeaseOutlived, Repair),
    )
}

# A real outcome and the end of a stop must get through after history was cut; they look at positions instead. So must
# what a body said last, which is committed with its outcome, and what it keeps.
EPOCH_FREE = frozenset({Outcome.name, Note.name, Keep.name, FinishStop.name, Release.name})
