"""A user's stop: bounded, honest about what ran, and never mistaken for a shutdown (promise 5)."""

import pytest

from holdfast.core import commands as cmd
from holdfast.core import history
from holdfast.core.change import Change
from holdfast.core.journal import MessagesDropped, Noted, StopRequested, TurnEnded
from holdfast.core.records import (
    Cause,
    Message,
    Reasoning,
    Replay,
    Role,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
    attempt_id,
    last_attempt_of,
)
from tests.support.situations import (
    HOUR_MS,
    answered,
    call_external_beside_started,
    call_started_beside_planned,
    failed,
    interrupted,
    model_next,
    nearly_given_up,
    said_with_queue,
    stopped,
    unclaimed,
    waiting,
)
from tests.support.story import BOOM, Story, asks_for, assistant


def ends(story: Story) -> list[tuple[int, str, Cause | None]]:
    return [(e.turn, e.state, e.cause) for e in story.journal if isinstance(e, TurnEnded)]


def dropped(change: Change) -> list[str]:
    return [queued.id for queued in change.dropped]


# --- asking for it ----------------------------------------------------------------------------------


def test_a_stop_of_a_resting_chat_changes_nothing() -> None:
    for telling in (answered, failed):
        story = telling()
        state, entries = story.state, story.journal
        story.stops()
        assert (story.state, story.journal) == (state, entries)


def test_a_stop_of_a_failed_chat_can_clear_its_queue() -> None:
    story = failed(queued=True)
    assert dropped(story.stops(clear_queue=True)) == ["q1", "q2"]
    assert (story.state, story.queue) == ("failed", [])


def test_a_stop_of_a_running_chat_is_visible_until_it_is_true() -> None:
    story = stopped(call_started_beside_planned)
    assert (story.state, story.chat.cause, story.chat.worker) == ("stopping", Cause.USER, "w1")
    assert story.call("a").state == "started"
    assert story.tells(StopRequested) == [StopRequested(cause=Cause.USER)]


def test_a_stop_does_not_touch_who_holds_the_chat() -> None:
    story = stopped(model_next)
    assert (story.chat.worker, story.chat.fence, story.chat.wake_at) == ("w1", 1, None)


def test_a_stop_of_a_chat_that_nobody_holds_calls_a_worker_to_finish_it() -> None:
    story = stopped(unclaimed)
    assert (story.state, story.chat.wake_at) == ("stopping", story.now)
    story.claimed().finishes_stop()
    assert (story.state, story.ids) == ("idle", ["m1"])


def test_a_stop_with_clear_queue_returns_what_it_removed() -> None:
    story = said_with_queue()
    assert dropped(story.stops(clear_queue=True)) == ["q1"]
    assert story.tells(MessagesDropped) == [MessagesDropped(message_ids=("q1",), why="cleared")]
    story.finishes_stop()
    assert story.state == "idle"


def test_a_users_stop_beats_a_message_that_superseded() -> None:
    story = interrupted(model_next)
    assert story.chat.cause is Cause.SUPERSEDED
    story.stops()
    assert (story.state, story.chat.cause, story.queue) == ("stopping", Cause.USER, ["i1"])


def test_a_message_that_supersedes_does_not_beat_a_users_stop() -> None:
    story = stopped(model_next)
    story.sends("i1", "interrupt")
    assert story.chat.cause is Cause.USER


def test_stopping_twice_is_told_once() -> None:
    story = stopped(model_next)
    story.stops()
    assert story.tells(StopRequested) == [StopRequested(cause=Cause.USER)]


def test_stopping_again_can_clear_the_queue() -> None:
    story = stopped(said_with_queue)
    assert dropped(story.stops(clear_queue=True)) == ["q1"]


# --- waiting ----------------------------------------------------------------------------------------


def test_a_stop_of_a_waiting_chat_answers_its_calls_and_rests_at_once() -> None:
    story = waiting()
    story.stops()
    assert (story.state, story.chat.cause, story.chat.wake_at) == ("idle", Cause.USER, None)
    assert story.ids == ["m1", "calls-a-b", "a.result", "b.result"]
    assert story.is_synthetic("a", Synthetic.CANCELLED)
    assert ends(story) == [(1, "idle", Cause.USER)]


def test_a_stop_of_a_waiting_chat_with_a_queue_takes_its_next_message() -> None:
    story = waiting(queued=True)
    story.stops()
    assert (story.state, story.ids[-1], story.chat.wake_at) == ("running", "q1", story.now)
    assert ends(story) == [(1, "running", Cause.USER)]


def test_a_stop_of_a_waiting_chat_can_clear_the_queue_and_then_rests() -> None:
    story = waiting(queued=True)
    assert dropped(story.stops(clear_queue=True)) == ["q1"]
    assert story.state == "idle"


# --- its end ----------------------------------------------------------------------------------------


def test_a_stop_ends_with_the_partial_text_in_history_marked_as_stopped() -> None:
    story = stopped(model_next)
    story.finishes_stop(assistant("half", Text(text="Once upon a")), story.next_attempt())
    assert (story.state, story.ids) == ("idle", ["m1", "half"])
    assert story.history[-1].stopped is Cause.USER
    assert story.history[-1].text == "Once upon a"


def test_what_supersedes_is_told_from_a_stop_in_the_partial_message_too() -> None:
    story = interrupted(model_next)
    story.finishes_stop(assistant("half"), story.next_attempt())
    assert story.history[1].stopped is Cause.SUPERSEDED
    assert story.ids == ["m1", "half", "i1"]


def test_a_stop_ends_with_every_open_call_answered_in_order() -> None:
    story = stopped(call_external_beside_started)
    story.finishes_stop()
    assert story.ids == ["m1", "calls-a-b", "a.result", "b.result"]
    assert history.problems(story.history) == []


def test_only_a_call_that_never_ran_is_said_never_to_have_run() -> None:
    story = stopped(call_started_beside_planned)
    story.finishes_stop()
    assert story.result("a").content == (
        "Cancelled while it ran: stopped by the user. It may have taken effect in part."
    )
    assert story.result("b").content == "Never ran: stopped by the user."


def test_a_call_that_ran_and_is_to_run_again_is_not_said_never_to_have_run() -> None:
    """An idempotent call, reverted after a crash: it may well have taken effect."""
    story = model_next().calls("a", start=True, replay=Replay.IDEMPOTENT).lost().claimed("w2")
    assert story.call("a").state == "planned"
    story.stops()
    story.finishes_stop()
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert "may or may not have taken effect" in story.result("a").content


def test_a_call_in_doubt_is_not_said_never_to_have_run_when_the_user_stops() -> None:
    story = model_next().calls("a", start=True, on_unknown="ask").lost().claimed("w2").parks()
    story.stops()
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert story.state == "idle"


def test_a_result_that_comes_while_stopping_is_real_and_never_replaced() -> None:
    story = stopped(call_started_beside_planned)
    story.returns("a", "done it")
    assert story.state == "stopping"
    story.finishes_stop()
    assert story.result("a") == ToolResult(call_id="a", name="tool", content="done it")
    assert story.is_synthetic("b", Synthetic.CANCELLED)


def test_the_last_result_while_stopping_does_not_wake_the_model() -> None:
    story = model_next().calls("a", start=True)
    story.sends("s1", "steer")
    story.stops()
    story.returns("a")
    assert (story.state, story.queue) == ("stopping", ["s1"])


def test_a_stop_with_a_queue_ends_in_the_next_turn_under_the_same_holder() -> None:
    story = stopped(said_with_queue)
    story.finishes_stop()
    assert (story.state, story.chat.worker, story.ids) == ("running", "w1", ["m1", "said", "q1"])
    assert story.chat.cause is None
    assert ends(story) == [(1, "running", Cause.USER)]


def test_a_stop_without_a_queue_ends_idle_and_the_cause_stays_visible() -> None:
    story = stopped(model_next)
    story.finishes_stop()
    assert (story.state, story.chat.cause, story.chat.worker) == ("idle", Cause.USER, None)


def test_a_response_that_comes_while_stopping_goes_into_the_end_of_the_stop() -> None:
    story = stopped(model_next)
    whole = assistant("whole", *asks_for("a", "b"))
    attempt = story.next_attempt()
    plans = (cmd.PlannedCall(id="a"), cmd.PlannedCall(id="b"))
    story.refuses(cmd.Respond(by=story.by, message=whole, attempt=attempt, plans=plans), reason="state")
    story.finishes_stop(whole, attempt)
    assert story.ids == ["m1", "whole", "a.result", "b.result"]
    assert story.result("a").content == "Never ran: stopped by the user."
    assert story.chat.batch is not None


def test_a_partial_call_is_kept_verbatim_and_goes_to_the_provider_as_an_empty_object() -> None:
    story = stopped(model_next)
    half = Message(
        id="half",
        role=Role.ASSISTANT,
        parts=(Reasoning(text="Hm"), Text(text=""), ToolCall(call_id="a", name="t", arguments='{"ci', cut=True)),
    )
    story.finishes_stop(half, story.next_attempt())
    kept, sent = story.history[1], history.make_valid(story.history)[1]
    assert kept.calls[0].arguments == '{"ci'
    assert sent.parts == (ToolCall(call_id="a", name="t", arguments="{}", cut=True),)


def test_a_partial_response_of_an_attempt_that_clients_were_told_to_forget_does_not_come_back() -> None:
    """Crash without a stop: the preview was reset. A stop that comes later does not undo that."""
    story = model_next()
    attempt = story.next_attempt()
    story.lost()
    story.stops()
    story.claimed("w2").finishes_stop(assistant("half"), attempt)
    assert story.ids == ["m1"]


def test_a_stop_before_the_crash_is_finished_by_the_successor_with_the_partial_text() -> None:
    story = stopped(model_next)
    attempt = story.next_attempt()
    story.lost().claimed("w2")
    assert (story.state, story.chat.cause) == ("stopping", Cause.USER)
    story.finishes_stop(assistant("half"), attempt)
    assert (story.state, story.ids, story.history[-1].stopped) == ("idle", ["m1", "half"], Cause.USER)


def test_a_partial_response_streamed_at_another_length_does_not_enter() -> None:
    story = stopped(model_next)
    command = cmd.FinishStop(by=story.by, partial=assistant("half"), attempt=story.next_attempt(), length=0)
    story.does(command)
    assert story.ids == ["m1"]


def test_no_partial_response_enters_while_calls_are_what_is_next() -> None:
    story = stopped(call_started_beside_planned)
    story.finishes_stop(assistant("half"), story.next_attempt())
    assert story.ids == ["m1", "calls-a-b", "a.result", "b.result"]


@pytest.mark.parametrize(
    "partial",
    [
        Message(id="p", role=Role.USER, parts=(Text(text="x"),)),
        Message(id="p", role=Role.ASSISTANT, parts=()),
        Message(id="p", role=Role.ASSISTANT, parts=asks_for("a", "a")),
        Message(id="p", role=Role.ASSISTANT, parts=(ToolResult(call_id="a", name="t"),)),
    ],
)
def test_a_partial_response_that_is_none_is_refused(partial: Message) -> None:
    story = stopped(model_next)
    command = cmd.FinishStop(by=story.by, partial=partial, attempt=story.next_attempt(), length=1)
    story.refuses(command, reason="wrong_message")


def test_a_partial_response_names_its_attempt() -> None:
    story = stopped(model_next)
    story.refuses(cmd.FinishStop(by=story.by, partial=assistant("p"), length=1), reason="wrong_message")
    later = attempt_id(story.chat.fence + 1, 1)
    story.refuses(cmd.FinishStop(by=story.by, attempt=later), reason="wrong_message")


# --- previews ---------------------------------------------------------------------------------------


def test_the_attempts_of_the_next_turn_are_shown_though_the_holder_and_its_fence_stay() -> None:
    story = interrupted(model_next)
    first = story.next_attempt()
    story.finishes_stop(None, first)
    assert (story.state, story.chat.worker, story.chat.attempt_ended) == ("running", "w1", first)
    assert story.next_attempt() > story.chat.attempt_ended
    story.says()


def test_the_attempts_of_lost_holders_are_over_when_a_successor_finishes_the_stop() -> None:
    story = interrupted(model_next).lost().claimed("w2")
    story.finishes_stop()
    assert (story.state, story.chat.fence, story.chat.attempt_ended) == ("running", 2, last_attempt_of(1))


def test_when_a_stop_ends_at_rest_every_attempt_is_over() -> None:
    story = stopped(model_next)
    story.finishes_stop()
    assert story.chat.attempt_ended == last_attempt_of(1)


# --- when it fails ----------------------------------------------------------------------------------


def test_a_failure_while_stopping_ends_the_stop_and_is_noted() -> None:
    story = stopped(call_started_beside_planned).fails()
    assert (story.state, story.chat.error, story.chat.cause) == ("idle", None, Cause.USER)
    assert story.tells(Noted) == [Noted(topic="error", text="boom: it broke")]
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert story.is_synthetic("b", Synthetic.CANCELLED)


def test_a_failure_while_stopping_with_a_queue_goes_on_with_it_and_its_attempts_are_shown() -> None:
    story = interrupted(model_next)
    first = story.next_attempt()
    story.does(cmd.Fail(by=story.by, error=BOOM, attempt=first))
    assert (story.state, story.chat.worker, story.ids) == ("running", "w1", ["m1", "i1"])
    assert story.chat.attempt_ended == first
    story.says()


def test_a_stop_that_five_workers_did_not_survive_is_over() -> None:
    story = stopped(nearly_given_up)
    story.does(cmd.LeaseExpired(worker="w1"))
    assert (story.state, story.chat.cause, story.chat.error) == ("idle", Cause.USER, None)
    assert "5 workers in a row" in str(story.tells(Noted))


def test_a_stop_that_five_workers_did_not_survive_goes_on_with_the_queue() -> None:
    story = interrupted(nearly_given_up)
    story.does(cmd.LeaseExpired(worker="w1"))
    assert (story.state, story.ids, story.chat.unclean) == ("running", ["m1", "i1"], 0)
    assert (story.chat.worker, story.chat.wake_at) == (None, story.now)


# --- promise 5 --------------------------------------------------------------------------------------


def test_a_shutdown_leaves_the_chat_running_for_another_worker() -> None:
    story = call_started_beside_planned()
    story.does(cmd.Release(by=story.by))
    assert (story.state, story.chat.cause, story.chat.worker) == ("running", None, None)
    assert story.chat.wake_at == story.now


def test_a_shutdown_of_a_stopping_chat_leaves_it_stopping() -> None:
    story = stopped(model_next)
    story.does(cmd.Release(by=story.by))
    assert (story.state, story.chat.cause, story.chat.wake_at) == ("stopping", Cause.USER, story.now)


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.BUDGET, Cause.DEADLINE)])
def test_a_runner_cannot_end_a_turn_with_a_cause_that_is_not_its_own(cause: Cause) -> None:
    story = model_next().says()
    story.refuses(cmd.FinishTurn(by=story.by, cause=cause), reason="wrong_cause")


def test_a_stopping_chat_takes_what_really_happened_outside() -> None:
    story = stopped(call_external_beside_started).later(HOUR_MS)
    story.does(cmd.Due())
    assert story.is_synthetic("a", Synthetic.EXPIRED)
    assert story.state == "stopping"
