"""What comes out of the core: a `Change`, or a `Refused` that names state and command and changes nothing.

What a store has to write is the difference between `before` and `after`, so a snapshot and its rows cannot disagree.
"""

from typing import Literal

from msgspec import Struct

from holdfast.core import journal
from holdfast.core.commands import Reach
from holdfast.core.records import Call, Cause, Compaction, Frozen, KeptRule, NewChat, Queued, Role, Snapshot, State
from holdfast.core.spending import SpendingLine

Reason = Literal[
    "state",  # this state does not take this command
    "stale_writer",  # another (worker, fence) holds the chat, or none does
    "stale_epoch",  # history was cut or work superseded since
    "taken",  # the chat is held by a worker
    "not_due",  # its wake_at is still ahead
    "no_such_call",
    "call_state",  # the call's own state does not take this
    "call_changed",  # its arguments are not those that a person was shown
    "nothing_to_keep",  # "always" is not offered for this call
    "no_such_message",
    "stale_position",  # history was cut since a client looked
    "not_a_user_message",
    "limit",  # a documented limit is reached
    "family_full",  # one more chat would be too many in this family
    "open_calls",  # calls without a result
    "model_is_next",  # the model still owes a response
    "compaction_is_next",  # a compaction was asked for and is still owed
    "not_the_models_turn",  # a response that was not asked for
    "runnable",  # there is something to run here
    "nothing_outside",  # no person, client, child or clock could wake the chat
    "wrong_message",  # roles, parts or ids that do not fit the command
    "wrong_cause",  # a cause that this command cannot have
    "wrong_title",
    "moved_on",  # the chat is not as its sender has read it
    "begun",  # it has had a turn, and this belongs before the first
    "no_budget_ended_it",  # its last turn did not end because of a budget
    "another_life",  # it is about a chat that had this id before
    "titled",  # a title is not replaced by one that only fills a gap
]


class Line(Struct, frozen=True, gc=False):
    """One journal entry to be. With `pos` it is also a position of the history."""

    entry: journal.Entry
    pos: int | None = None
    role: Role | None = None
    ref: str | None = None  # message id


class Change(Frozen):
    """What happened to one chat. `before` None: it was created."""

    before: Snapshot | None
    after: Snapshot
    lines: tuple[Line, ...] = ()
    cut_from: int | None = None  # history positions from here on left history before `lines` entered it
    sent: str | None = None  # id of the message that a client brought, which is queued now or was taken
    dropped: tuple[Queued, ...] = ()  # queued messages the caller gets back
    compaction: Compaction | None = None
    ended_attempt: int | None = None  # its deltas, if there may be any, are replaced by its message
    kept: tuple[KeptRule, ...] = ()  # rules that a person said "always" to
    spent: tuple[SpendingLine, ...] = ()
    settled: tuple[str, ...] = ()  # reservations that this settles
    # What this means for other chats, in the same transaction:
    spawned: NewChat | None = None
    awaited: Call | None = None  # a call that now waits for a child, which may have ended already
    stop_children: tuple[str, ...] = ()
    stop_all_children: bool = False  # and theirs, at any depth
    stop_cause: Cause = Cause.USER  # that those are told
    reach: Reach | None = None  # what a call says to a child, or its stop
    turn_over: int | None = None  # the turn that ended: a parent may wait for it
    asking: tuple[Call, ...] = ()  # calls of a chat below another that people or clients have to answer from now on
    answered: tuple[Call, ...] = ()  # and those that they need not answer any more
    gone: bool = False  # deleted: no later turn will end
    by_runner: bool = False  # made by the runner that holds the chat, which need not be told of it

    @property
    def reaches_others(self) -> bool:
        return bool(
            self.spawned
            or self.awaited
            or self.stop_children
            or self.stop_all_children
            or self.reach
            or self.asking
            or self.answered
            or ((self.gone or self.turn_over is not None) and self.after.chat.parent_id)
        )


class Refused(Frozen):
    reason: Reason
    state: State
    command: str
    message: str


class Refusal(Exception):
    """Raised inside a cell, turned into a `Refused` by `apply`."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
