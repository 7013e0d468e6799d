"""The three machines of a chat, as data. This file is the design; nothing about states is decided elsewhere.

EXECUTION  what should happen: (command, state) -> Cell. The cell names the function of `cells/` that carries it
           out and every state it may lead to. A missing pair is a refusal; `apply` checks the target.
OWNERSHIP  who does it: (move, unowned | held) -> what becomes of ownership.
CALLS      one tool call: (move, call state) -> call state.

The diagrams in ARCHITECTURE.md are drawn from these tables. A test walks every pair of all three and fails when a
state, a command or a move is added without a decision.
"""

from enum import StrEnum

from msgspec import Struct

from holdfast.core.commands import COMMANDS
from holdfast.core.records import Call, CallState, External, State

IDLE, RUNNING, STOPPING, WAITING, FAILED = State
AT_REST = frozenset({IDLE, FAILED})


class Cell(Struct, frozen=True):
    """One decision: which function of `cells/` carries it out, and where it may lead."""

    do: str
    to: tuple[State, ...]


def _stays(do: str, *states: State) -> dict[State, Cell]:
    return {state: Cell(do, (state,)) for state in states}


# Send has three modes; each is a row of its own, chosen by `row_of`.
EXECUTION: dict[str, dict[State, Cell]] = {
    # -- clients
    "send.queue": {
        IDLE: Cell("begin", (RUNNING,)),
        RUNNING: Cell("enqueue", (RUNNING,)),
        STOPPING: Cell("enqueue", (STOPPING,)),
        WAITING: Cell("answer_or_enqueue", (WAITING, RUNNING)),
        FAILED: Cell("enqueue_and_promote", (RUNNING,)),
    },
    "send.interrupt": {
        IDLE: Cell("begin", (RUNNING,)),
        RUNNING: Cell("interrupt", (STOPPING,)),
        STOPPING: Cell("enqueue_first", (STOPPING,)),
        WAITING: Cell("answer_all_and_begin", (RUNNING,)),
        FAILED: Cell("enqueue_and_promote", (RUNNING,)),
    },
    "send.steer": {
        IDLE: Cell("begin", (RUNNING,)),
        RUNNING: Cell("enqueue", (RUNNING,)),
        STOPPING: Cell("enqueue", (STOPPING,)),
        WAITING: Cell("answer_or_enqueue", (WAITING, RUNNING)),
        FAILED: Cell("enqueue_and_promote", (RUNNING,)),
    },
    "give": _stays("give", IDLE),
    "edit": {
        IDLE: Cell("edit_at_rest", (RUNNING,)),
        RUNNING: Cell("edit_at_work", (STOPPING,)),
        STOPPING: Cell("edit_at_work", (STOPPING,)),
        WAITING: Cell("edit_waiting", (RUNNING,)),
        FAILED: Cell("edit_at_rest", (RUNNING,)),
    },
    "stop": {
        IDLE: Cell("nothing_to_stop", (IDLE,)),
        RUNNING: Cell("stop", (STOPPING,)),
        STOPPING: Cell("stop_again", (STOPPING,)),
        WAITING: Cell("stop_waiting", (IDLE, RUNNING)),
        FAILED: Cell("nothing_to_stop", (FAILED,)),
    },
    "promote": {
        RUNNING: Cell("promote_and_supersede", (STOPPING,)),
        STOPPING: Cell("promote", (STOPPING,)),
        WAITING: Cell("promote_waiting", (RUNNING,)),
        FAILED: Cell("promote_failed", (RUNNING,)),
    },
    "withdraw": _stays("withdraw", RUNNING, STOPPING, WAITING, FAILED),
    "approve": {
        RUNNING: Cell("approve", (RUNNING,)),
        WAITING: Cell("approve", (RUNNING,)),
    },
    "deny": {
        RUNNING: Cell("deny", (RUNNING,)),
        WAITING: Cell("deny", (WAITING, RUNNING)),
    },
    "submit": {
        RUNNING: Cell("submit", (RUNNING,)),
        WAITING: Cell("submit", (WAITING, RUNNING)),
    },
    "compact": {
        IDLE: Cell("begin_compaction", (RUNNING,)),
        RUNNING: Cell("note_compaction", (RUNNING,)),
        FAILED: Cell("begin_compaction", (RUNNING,)),
    },
    "retry": {
        FAILED: Cell("retry", (RUNNING,)),
    },
    "go_on": {
        IDLE: Cell("go_on", (RUNNING,)),
    },
    "fork": _stays("leave", IDLE, RUNNING, STOPPING, WAITING, FAILED),
    "archive": _stays("archive", IDLE, FAILED),
    "rename": _stays("rename", IDLE, RUNNING, STOPPING, WAITING, FAILED),
    "count_spending": _stays("count_spending", IDLE, RUNNING, STOPPING, WAITING, FAILED),
    "delete": _stays("delete", IDLE, FAILED),
    # -- surroundings
    "child_ended": {
        IDLE: Cell("ignore", (IDLE,)),
        RUNNING: Cell("child_ended", (RUNNING,)),
        STOPPING: Cell("child_ended", (STOPPING,)),
        WAITING: Cell("child_ended", (WAITING, RUNNING)),
        FAILED: Cell("ignore", (FAILED,)),
    },
    "due": {
        IDLE: Cell("ignore", (IDLE,)),
        RUNNING: Cell("due", (RUNNING,)),
        STOPPING: Cell("due", (STOPPING,)),
        WAITING: Cell("due", (WAITING, RUNNING)),
        FAILED: Cell("ignore", (FAILED,)),
    },
    "reached": _stays("reached", RUNNING),
    "descendant": _stays("tell_of_descendant", IDLE, RUNNING, STOPPING, WAITING, FAILED),
    # -- a runner
    "responded": {RUNNING: Cell("respond", (RUNNING,))},
    "ask_again": _stays("ask_again", RUNNING),
    "attempt_lost": _stays("record_lost_attempt", RUNNING),
    "start_calls": _stays("start_calls", RUNNING),
    "ask_approval": _stays("ask_approval", RUNNING),
    "delegate": _stays("delegate", RUNNING),
    "refuse": _stays("refuse_call", RUNNING),
    "outcome": _stays("record_outcome", RUNNING, STOPPING),
    "reach": _stays("reach", RUNNING),
    "note": _stays("note", RUNNING, STOPPING),
    "keep": _stays("keep", RUNNING, STOPPING),
    "finish_compaction": _stays("finish_compaction", RUNNING),
    "park": {RUNNING: Cell("park", (WAITING,))},
    "finish_turn": {RUNNING: Cell("finish_turn", (IDLE, RUNNING))},
    "finish_stop": {STOPPING: Cell("finish_stop", (IDLE, RUNNING))},
    "fail": {
        RUNNING: Cell("fail", (FAILED,)),
        STOPPING: Cell("fail_stopping", (IDLE, RUNNING)),
    },
    # -- ownership
    "claim": {
        RUNNING: Cell("claim", (RUNNING,)),
        STOPPING: Cell("claim", (STOPPING,)),
        WAITING: Cell("claim_waiting", (WAITING, RUNNING)),
    },
    "release": _stays("release", RUNNING, STOPPING),
    "lease_expired": {
        RUNNING: Cell("expire_lease", (RUNNING, FAILED)),
        STOPPING: Cell("expire_lease", (STOPPING, IDLE, RUNNING)),
    },
    "lease_outlived": {
        **_stays("outlive_lease", RUNNING, STOPPING),
        FAILED: Cell("revive", (FAILED, RUNNING)),
    },
    "repair": {
        IDLE: Cell("repair", (IDLE, RUNNING)),
        RUNNING: Cell("repair", (RUNNING,)),
        STOPPING: Cell("repair", (STOPPING,)),
        WAITING: Cell("repair", (WAITING, RUNNING)),
        FAILED: Cell("repair", (FAILED,)),
    },
}

ROWS = tuple(EXECUTION)


# --- ownership -------------------------------------------------------------------------------------


class Owner(StrEnum):
    UNOWNED = "unowned"
    HELD = "held"


UNOWNED, HELD = Owner


class OwnerMove(StrEnum):
    CLAIM = "claim"  # a worker takes the chat: the fence grows
    WRITE = "write"  # a runner's commit: its (worker, fence) must be the holder's
    REST = "rest"  # the chat came to rest or waits: no worker needs to hold it
    RELEASE = "release"  # handed over cleanly
    EXPIRE = "expire"  # the holder's lease ended


# A missing pair is a refusal: the writer is stale, or the chat is taken.
OWNERSHIP: dict[OwnerMove, dict[Owner, Owner]] = {
    OwnerMove.CLAIM: {UNOWNED: HELD},
    OwnerMove.WRITE: {HELD: HELD},
    OwnerMove.REST: {UNOWNED: UNOWNED, HELD: UNOWNED},
    OwnerMove.RELEASE: {HELD: UNOWNED},
    OwnerMove.EXPIRE: {HELD: UNOWNED},
}


# --- one tool call ---------------------------------------------------------------------------------


class CallMove(StrEnum):
    ASK = "ask"  # a person must approve it
    APPROVE = "approve"
    DENY = "deny"  # by a person, a guard, or silence until the approval's expiry
    START = "start"  # the intent is durable, the body begins
    DELEGATE = "delegate"  # a person, a client, a child or the clock must answer
    FINISH = "finish"  # an outcome is known
    REFUSE = "refuse"  # answered without running
    REVERT = "revert"  # began nothing, or may simply run again
    LOSE = "lose"  # started, and its outcome is lost: the model is told
    DOUBT = "doubt"  # started, and its outcome is lost: a person is asked
    CANCEL = "cancel"  # stopped, superseded, or expired


PLANNED, ASKING, APPROVED, STARTED, EXTERNAL, DONE, DENIED, UNKNOWN, CANCELLED = CallState

CALLS: dict[CallMove, dict[CallState, CallState]] = {
    CallMove.ASK: {PLANNED: ASKING},
    CallMove.APPROVE: {ASKING: APPROVED},
    CallMove.DENY: {PLANNED: DENIED, ASKING: DENIED},
    CallMove.START: {PLANNED: STARTED, APPROVED: STARTED},
    CallMove.DELEGATE: {PLANNED: EXTERNAL, APPROVED: EXTERNAL},
    CallMove.FINISH: {STARTED: DONE, EXTERNAL: DONE},
    CallMove.REFUSE: {PLANNED: DONE, APPROVED: DONE},
    CallMove.REVERT: {STARTED: PLANNED},
    CallMove.LOSE: {STARTED: UNKNOWN},
    CallMove.DOUBT: {STARTED: EXTERNAL},
    CallMove.CANCEL: {
        PLANNED: CANCELLED,
        ASKING: CANCELLED,
        APPROVED: CANCELLED,
        STARTED: CANCELLED,
        EXTERNAL: CANCELLED,
    },
}

# What a runner could do something about, and what only a person, a client, a child or the clock can.
RUNNABLE = frozenset({PLANNED, APPROVED, STARTED})
OUTSIDE = frozenset({ASKING, EXTERNAL})
OPEN = RUNNABLE | OUTSIDE


def awaits_reply(call: Call) -> bool:
    """A person or a client has to answer it; not a child, not the clock."""
    return call.state is CallState.ASKING or (
        call.state is CallState.EXTERNAL and call.external in (External.CLIENT, External.QUESTION)
    )


assert {row.partition(".")[0] for row in ROWS} == set(COMMANDS)
