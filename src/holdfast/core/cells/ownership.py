"""Cells: workers take a chat and leave it. A claim, a handover, a lease that ended, and a lease that ended too early.

A chat that loses one worker after the other without progress waits longer each time, and fails in the end.
"""

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.cells.answers import due
from holdfast.core.cells.calls import lose
from holdfast.core.cells.stopping import stop_with_error
from holdfast.core.cells.turn import fail_with
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.limits import unclean_backoff_ms
from holdfast.core.records import (
    CallState,
    Cause,
    ChatRecord,
    Failure,
    LeaseEnd,
    Phase,
    Replay,
    State,
    last_attempt_of,
)
from holdfast.core.states import CallMove, OwnerMove


def claim(draft: Draft, command: cmd.Claim) -> None:
    if backs_off(draft.chat, draft.now):
        raise Refusal("not_due", f"the chat wakes at {draft.chat.wake_at}, it is {draft.now}")
    draft.own(OwnerMove.CLAIM, command.worker)
    if _goes_on(draft.chat):
        draft.tell(journal.ChatTakenOver(worker=command.worker))
    draft.set(fence=draft.chat.fence + 1, wake_at=None, backoff_ms=0)
    _settle_lost_calls(draft)


def backs_off(chat: ChatRecord, now: int) -> bool:
    """Of a chat that runs. One that lies further ahead than it is long is over: the clock was set back."""
    return chat.wake_at is not None and 0 < chat.wake_at - now <= chat.backoff_ms


def _goes_on(chat: ChatRecord) -> bool:
    """With a turn that another hold began. One that just began is due since the very instant of its start."""
    return chat.turn_started_at is not None and chat.wake_at != chat.turn_started_at


def claim_waiting(draft: Draft, command: cmd.Claim) -> None:
    """Only the clock leads here. If what was due makes nothing runnable, the chat goes on waiting, unowned."""
    if draft.chat.wake_at is None or draft.chat.wake_at > draft.now:
        raise Refusal("not_due", "the chat waits for a person, a client or a child")
    due(draft, command)  # sets the next wake_at if nothing came of it
    if draft.chat.state is State.RUNNING:
        claim(draft, command)


def _settle_lost_calls(draft: Draft) -> None:
    """The worker that started these calls is gone: a new holder never inherits a running body."""
    for call in draft.calls:
        if call.state is CallState.STARTED:
            lose(draft, call, rerun=call.replay is not Replay.UNSAFE)
    draft.settle()


def release(draft: Draft, command: cmd.Release) -> None:
    for call_id in command.never_begun:
        call = draft.call(call_id)
        draft.move(call, CallMove.REVERT, started_at=None, starts=call.starts - 1)
    _tell_of_loss(draft, Cause.SHUTDOWN, never_begun=command.never_begun)
    draft.own(OwnerMove.RELEASE)
    _hand_over(draft, Cause.SHUTDOWN, backoff_ms=command.delay_ms)


def expire_lease(draft: Draft, command: cmd.LeaseExpired) -> None:
    if draft.chat.worker != command.worker:
        raise Refusal(
            "stale_writer", f"the chat is held by {draft.chat.worker or 'no worker'}, not by {command.worker}"
        )
    cause = Cause.CRASH if command.how is LeaseEnd.DIED else Cause.LEASE_LOST
    _tell_of_loss(draft, cause, command.heard_at)
    draft.own(OwnerMove.EXPIRE)
    if command.how is LeaseEnd.RETIRED:
        _hand_over(draft, cause)  # by a worker that lives: there is nothing to count
    else:
        _count_death(draft, command, cause)


def _tell_of_loss(draft: Draft, cause: Cause, heard_at: int | None = None, never_begun: tuple[str, ...] = ()) -> None:
    """Whose it was, while that is still known."""
    if (worker := draft.chat.worker) is not None:
        draft.tell(journal.ChatHandedOver(worker=worker, cause=cause, heard_at=heard_at, never_begun=never_begun))


def _count_death(draft: Draft, command: cmd.LeaseExpired, cause: Cause) -> None:
    unclean = draft.chat.unclean + 1
    draft.set(unclean=unclean)
    if command.how is LeaseEnd.SILENT:
        draft.set(silent=f"{draft.chat.silent} {command.worker}".lstrip())
    if unclean >= draft.limits.unclean_claims_max:
        error = Failure(
            code="crash",
            message=f"{unclean} workers in a row were lost while they held this chat and made no progress; "
            "look at their logs, then retry",
            cause=Cause.CRASH,
            chain=(command.why,) if command.why else (),
        )
        if draft.chat.state is State.STOPPING:
            stop_with_error(draft, error)
        else:
            fail_with(draft, error)
    else:
        _hand_over(draft, cause, backoff_ms=unclean_backoff_ms(unclean))


def outlive_lease(draft: Draft, command: cmd.LeaseOutlived) -> None:
    """A worker that lives was no death: the chat is handed over if no sweep took it back yet, else not counted."""
    chat = draft.chat
    if chat.worker == command.worker:
        _tell_of_loss(draft, Cause.LEASE_LOST)
        draft.own(OwnerMove.EXPIRE)
        _hand_over(draft, Cause.LEASE_LOST)
        return
    _uncount(draft, command.worker)
    if chat.wake_at is not None:
        earned_ms = min(chat.backoff_ms, unclean_backoff_ms(draft.chat.unclean))
        draft.set(wake_at=chat.wake_at - chat.backoff_ms + earned_ms, backoff_ms=earned_ms)


def _uncount(draft: Draft, worker: str) -> None:
    chat = draft.chat
    silent = chat.silent.split()
    if worker not in silent:
        raise Refusal("stale_writer", f"the chat was not taken from {worker}, or has made progress since")
    silent.remove(worker)
    draft.set(unclean=chat.unclean - 1, silent=" ".join(silent))


def revive(draft: Draft, command: cmd.LeaseOutlived) -> None:
    """It was given up for one loss too many, and that was none: it goes on, as by a retry, after what is left of its
    backoff. Not where others have gone on without it: a person who put it away, a parent that was told of its end.
    """
    chat = draft.chat
    _uncount(draft, command.worker)
    given_up = chat.error is not None and chat.error.cause is Cause.CRASH
    if not given_up or chat.archived or chat.parent_id is not None:
        return
    draft.set(error=None, cause=None, turn_started_at=draft.now)
    draft.tell(journal.Noted(topic="lease", text=f"Worker {command.worker}, which was taken for lost, lives."))
    draft.tell(journal.ChatRetried())
    draft.run()
    backoff_ms = unclean_backoff_ms(draft.chat.unclean)
    draft.set(wake_at=draft.now + backoff_ms, backoff_ms=backoff_ms)


def _hand_over(draft: Draft, cause: Cause, *, backoff_ms: int = 0) -> None:
    draft.set(wake_at=draft.now + backoff_ms, backoff_ms=backoff_ms)
    if draft.chat.state is State.RUNNING and draft.chat.phase is Phase.MODEL:
        # The next holder asks the model again. A stopping chat keeps its preview: it becomes the partial text.
        ended = last_attempt_of(draft.chat.fence)
        draft.end_attempts(ended)
        draft.tell(journal.PreviewReset(attempt=ended, cause=cause))


def repair(draft: Draft, command: cmd.Repair) -> None:
    """Bring ownership, wake_at and calls back into line with the state."""
    chat = draft.chat
    if chat.state in (State.RUNNING, State.STOPPING):
        if chat.worker is None:
            draft.set(wake_at=chat.wake_at if chat.wake_at is not None else draft.now)
        elif command.lease_is_live:
            draft.set(wake_at=None, backoff_ms=0)
        else:
            _tell_of_loss(draft, Cause.LEASE_LOST)
            draft.own(OwnerMove.EXPIRE)
            _hand_over(draft, Cause.LEASE_LOST)
    elif chat.state is State.WAITING:
        draft.own(OwnerMove.REST)
        draft.settle()
    else:
        draft.own(OwnerMove.REST)
        draft.set(wake_at=None, backoff_ms=0)
        draft.answer_all("the chat was at rest", lost=True)
        if chat.state is State.IDLE and draft.queue:
            draft.start_next_turn()
    draft.tell(journal.ChatRepaired(reason=command.reason))
