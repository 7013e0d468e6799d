"""Cells: a stop, from the request of it to its end, when everything it had to end is dead."""

from typing import Any

from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.cells.turn import check_response
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.records import STOPS, Cause, Failure, Message, Phase, fence_of, last_attempt_of
from holdfast.core.spending import SpendingKind


def nothing_to_stop(draft: Draft, command: cmd.Stop) -> None:
    """But for what is below it: it may have left some of that at work. And one that was given up with its workers
    does not go on when one of them turns out to live (`revive`): nobody wants it any more.
    """
    if command.clear_queue:
        draft.drop(draft.queue, "cleared")
    draft.set(silent="")
    _stop_all_below(draft, command)


def stop(draft: Draft, command: cmd.Stop) -> None:
    if command.clear_queue:
        draft.drop(draft.queue, "cleared")
    _stop_all_below(draft, command)
    draft.stopping(command.cause)


def stop_again(draft: Draft, command: cmd.Stop) -> None:
    if command.clear_queue:
        draft.drop(draft.queue, "cleared")
    _stop_all_below(draft, command)
    if draft.stop_cause not in (Cause.USER, command.cause):
        draft.stopping(command.cause)


def stop_waiting(draft: Draft, command: cmd.Stop) -> None:
    if command.clear_queue:
        draft.drop(draft.queue, "cleared")
    _stop_all_below(draft, command)
    draft.tell(journal.StopRequested(cause=command.cause))
    draft.answer_all(_why(command.cause))
    draft.end_turn_and_go_on(command.cause, compact=False)


def _stop_all_below(draft: Draft, command: cmd.Stop) -> None:
    draft.effects["stop_all_children"] = True
    draft.effects["stop_cause"] = command.cause


def finish_stop(draft: Draft, command: cmd.FinishStop) -> None:
    cause = draft.stop_cause
    in_turn = draft.chat.turn_started_at is not None
    draft.spend(SpendingKind.STOPPED, command.tokens, command.cost, command.bill, in_turn=in_turn)
    draft.answer_all(_why(cause))
    if command.partial is not None:
        _add_partial(draft, command, command.partial, cause)
    _end_stopped_attempts(draft, command.attempt)
    _finish_stopping(draft, cause, command.detail, unclean=0, silent="")


def _add_partial(draft: Draft, command: cmd.FinishStop, partial: Message, cause: Cause) -> None:
    """The partial response enters history if the model still owed it there; else it stays in the deltas.

    It does not if history was cut meanwhile, nor if clients were told to forget it because its worker was lost before
    the stop.
    """
    check_response(partial)
    if command.attempt is None or not partial.parts:
        raise Refusal("wrong_message", "a partial response has at least one part and names its attempt")
    chat = draft.chat
    if chat.phase is Phase.MODEL and command.length == chat.length and command.attempt > chat.attempt_ended:
        # Only now is the cause certain: a user's stop may have come after the message that superseded this.
        partial = replace(partial, stopped=cause)
        draft.add_response(partial, attempt=command.attempt)
        draft.open_batch(partial, {part.call_id: cmd.PlannedCall(id=part.call_id) for part in partial.calls})
        draft.answer_all(_why(cause))


def _end_stopped_attempts(draft: Draft, attempt: int | None) -> None:
    """The stopped attempt is over, and so are those of earlier holders. The holder's next one is not."""
    fence = draft.chat.fence
    if attempt is not None and fence_of(attempt) > fence:
        raise Refusal("wrong_message", f"attempt {attempt} was not made under fence {fence} or before")
    draft.end_attempts(max(attempt or 0, last_attempt_of(fence - 1)))


def fail_stopping(draft: Draft, command: cmd.Fail) -> None:
    """It was to end anyway: the stop is done, the error is noted."""
    _end_stopped_attempts(draft, command.attempt)
    stop_with_error(draft, command.error)


def stop_with_error(draft: Draft, error: Failure) -> None:
    draft.tell(journal.Noted(topic="error", text=f"{error.code}: {error.message}"))
    draft.answer_all("the turn failed while stopping", lost=True)
    _finish_stopping(draft, draft.stop_cause, error.code, compact=False)


def _finish_stopping(draft: Draft, cause: Cause, detail: str | None, **fields: Any) -> None:
    if cause in STOPS:
        fields["compact"] = False  # the user's stop ends a compaction as well
        if draft.chat.compact or draft.chat.turn_started_at is None:
            draft.tell(journal.CompactionFailed(error=_why(cause)))
    draft.end_turn_and_go_on(cause, detail, **fields)


def _why(cause: Cause | None) -> str:
    return _WHY.get(cause, "stopped by the user")


_WHY: dict[Cause | None, str] = {
    Cause.SUPERSEDED: "superseded by a newer message",
    Cause.PARENT: "cancelled by the agent that gave the task",
}
