"""Lost workers: what a successor finds, what the model is told, when a chat is given up; and repairs."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.apply import apply
from holdfast.core.change import Change
from holdfast.core.journal import CallChanged, ChatHandedOver, ChatRepaired, ChatRetried, ChatTakenOver, PreviewReset
from holdfast.core.limits import LIMITS, UNCLEAN_BACKOFF_MS, Limits, unclean_backoff_ms
from holdfast.core.records import (
    Cause,
    External,
    LeaseEnd,
    Replay,
    Role,
    Snapshot,
    State,
    Synthetic,
    ToolCall,
    last_attempt_of,
)
from tests.support import invariants
from tests.support.situations import (
    SITUATIONS,
    answered,
    broken,
    call_started_beside_planned,
    calls_planned,
    given_up_in_silence,
    model_next,
    nearly_given_up,
    said,
    stopped,
    waiting,
)
from tests.support.story import BOOM, START, Story, asks_for, assistant, user

UNKNOWN = (
    "Outcome unknown: tool was started at 2023-11-14T22:13:20.000Z with the arguments {}, and its worker was lost "
    "before it reported. It may or may not have taken effect. Verify before you try again."
)

# --- what was started and never ended ---------------------------------------------------------------


def test_an_unsafe_call_that_was_lost_is_unknown_and_the_model_is_told_to_verify() -> None:
    story = call_started_beside_planned().lost().claimed("w2")
    assert (story.call("a").state, story.call("a").starts) == ("unknown", 1)
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert story.result("a").content == UNKNOWN
    assert story.call("b").state == "planned"


def test_what_is_told_of_a_lost_call_is_bounded_and_keeps_what_a_hook_made_of_it() -> None:
    story = Story(limits=Limits(excerpt_chars_max=20)).claimed()
    long = '{"text": "' + "x" * 90 + '"}'
    message = assistant("r1", ToolCall(call_id="a", name="pay", arguments=long), *asks_for("b"))
    story.does(story.response(message))
    changed = {"b": '{"amount": 7, "currency": "CHF"}'}
    story.does(cmd.StartCalls(by=story.by, call_ids=("a", "b"), arguments=changed))
    story.lost().claimed("w2")
    assert 'pay was started at 2023-11-14T22:13:20.000Z with the arguments {"text": "xxxxxxxxxx… (102 ' in (
        story.result("a").content
    )
    assert "with the arguments {} (a hook changed them), and its worker was lost" in story.result("b").content


def test_a_call_that_was_lost_once_and_then_cancelled_is_still_said_to_be_unknown() -> None:
    story = model_next().calls("a", start=True, replay=Replay.IDEMPOTENT).lost().claimed("w2")
    story.stops()
    story.finishes_stop()
    assert story.result("a").content == (
        "Outcome unknown: tool was started with the arguments {}, and its worker was lost before it reported. "
        "It may or may not have taken effect. Verify before you try again. Nothing more was done about it: "
        "stopped by the user."
    )


def test_an_unsafe_call_that_was_lost_can_be_put_before_a_person() -> None:
    story = model_next().calls("a", start=True, on_unknown="ask").lost().claimed("w2")
    call = story.call("a")
    assert (call.state, call.external) == ("external", External.QUESTION)
    assert call.question == UNKNOWN, "a person sees what the model would be told"
    story.parks()
    story.does(cmd.Submit(call_id="a", content="It went through.", by="ann"))
    assert (story.state, story.phase, story.result("a").content) == ("running", "model", "It went through.")


# --- and lost although its worker lives ---------------------------------------------------------------


def lost_outcome(story: Story, call_id: str = "a", *, again: bool = True) -> cmd.Outcome:
    why = "The connection was lost."
    return cmd.Outcome(by=story.by, call_id=call_id, content=why, error=True, unknown=True, again=again)


HERE = (
    "Outcome unknown: tool was started at 2023-11-14T22:13:20.000Z with the arguments {}. The connection was lost. "
    "It may or may not have taken effect. Verify before you try again."
)


def test_an_unsafe_call_whose_outcome_is_lost_in_a_living_worker_ends_like_one_whose_worker_was_lost() -> None:
    story = model_next().calls("a", start=True)
    story.does(lost_outcome(story))
    assert (story.call("a").state, story.phase) == ("unknown", "model")
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert story.result("a").content == HERE


def test_it_is_put_before_a_person_as_well() -> None:
    story = model_next().calls("a", start=True, on_unknown="ask")
    story.does(lost_outcome(story))
    call = story.call("a")
    assert (call.state, call.external, call.question) == ("external", External.QUESTION, HERE)
    story.parks()
    story.does(cmd.Submit(call_id="a", content="It went through.", by="ann"))
    assert (story.state, story.phase, story.result("a").content) == ("running", "model", "It went through.")


def test_a_stop_while_a_person_is_asked_keeps_what_was_known() -> None:
    story = model_next().calls("a", start=True, on_unknown="ask")
    story.does(lost_outcome(story))
    story.parks()
    story.stops()
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert story.result("a").content == f"{HERE} Nothing more was done about it: stopped by the user."


def test_a_stop_that_came_first_asks_nobody_and_runs_nothing_again() -> None:
    story = model_next().calls("a", start=True, on_unknown="ask", replay=Replay.IDEMPOTENT)
    story.stops()
    story.does(lost_outcome(story))
    assert story.is_synthetic("a", Synthetic.UNKNOWN)


def test_an_idempotent_call_whose_outcome_is_lost_runs_again_a_few_times_and_is_then_told() -> None:
    story = model_next().calls("a", start=True, replay=Replay.IDEMPOTENT)
    for starts in range(1, LIMITS.call_starts_max):
        story.does(lost_outcome(story))
        assert (story.call("a").state, story.call("a").starts) == ("planned", starts)
        assert story.journal[-1] == CallChanged(
            call_id="a", name="tool", state=story.call("a").state, detail="runs again: The connection was lost."
        )
        story.starts("a")
    story.does(lost_outcome(story))
    assert (story.call("a").state, story.result("a").content) == ("unknown", HERE)


def test_one_that_may_still_be_running_does_not_run_again_beside_itself() -> None:
    story = model_next().calls("a", start=True, replay=Replay.IDEMPOTENT)
    story.does(lost_outcome(story, again=False))
    assert (story.call("a").state, story.result("a").content) == ("unknown", HERE)


def test_an_outcome_that_is_lost_after_an_edit_goes_to_the_journal_alone() -> None:
    story = model_next().calls("a", start=True, on_unknown="ask")
    command = lost_outcome(story)
    story.does(cmd.Edit(pos=0, role=Role.USER, epoch=story.chat.epoch, message=user("edited", "other")))
    change = story.does(command)
    assert [line.pos for line in change.lines] == [None]
    assert story.call("a").state == "unknown"


# --- what may run again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("replay", [Replay.PURE, Replay.IDEMPOTENT])
def test_a_pure_or_idempotent_call_that_was_lost_simply_runs_again(replay: Replay) -> None:
    story = model_next().calls("a", start=True, replay=replay).lost().claimed("w2")
    assert (story.call("a").state, story.call("a").started_at) == ("planned", None)
    assert story.journal[-1] == CallChanged(
        call_id="a", name="tool", state=story.call("a").state, detail="runs again"
    )
    story.starts("a").returns("a")
    assert (story.call("a").starts, story.result("a").content) == (2, "ok")


def test_when_nothing_is_left_of_a_lost_batch_the_model_is_next_and_steering_joins() -> None:
    story = model_next().calls("a", start=True)
    story.sends("s1", "steer")
    story.lost().claimed("w2")
    assert (story.phase, story.ids) == ("model", ["m1", "calls-a", "a.result", "s1"])


def test_what_is_outside_stays_outside_when_a_worker_is_lost() -> None:
    story = calls_planned().asks("a").delegates("b").lost().claimed("w2")
    assert [call.state.value for call in story.snapshot.calls] == ["asking", "external"]


def test_a_result_that_was_committed_survives_its_worker() -> None:
    story = model_next().calls("a", "b", start=True).returns("a", "kept").lost().claimed("w2")
    assert story.result("a").content == "kept"
    assert story.call("a").state == "done"


def test_a_stop_asks_nobody_about_a_lost_call() -> None:
    story = model_next().calls("a", start=True, on_unknown="ask")
    story.stops()
    story.lost().claimed("w2")
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    story.finishes_stop()
    assert story.state == "idle"


def test_losing_a_worker_touches_only_ownership() -> None:
    story = call_started_beside_planned()
    before = story.snapshot
    story.does(cmd.LeaseExpired(worker="w1"))
    assert (story.state, story.snapshot.calls, story.chat.epoch) == ("running", before.calls, before.chat.epoch)
    assert (story.chat.worker, story.chat.wake_at) == (None, story.now)


def test_only_the_holders_lease_counts() -> None:
    story = model_next()
    story.refuses(cmd.LeaseExpired(worker="w2"), reason="stale_writer")
    Story().refuses(cmd.LeaseExpired(worker="w1"), reason="stale_writer")


def test_a_chat_that_nobody_needs_to_hold_loses_nothing_with_a_lease() -> None:
    for telling in (answered, waiting):
        telling().refuses(cmd.LeaseExpired(worker="w1"), reason="state")


# --- the preview ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cause", "clean"), [(Cause.SHUTDOWN, True), (Cause.CRASH, False)])
def test_clients_forget_the_preview_when_the_model_is_to_be_asked_again(cause: Cause, clean: bool) -> None:
    story = model_next()
    story.does(cmd.Release(by=story.by) if clean else cmd.LeaseExpired(worker="w1"))
    assert story.journal[-1] == PreviewReset(attempt=last_attempt_of(1), cause=cause)
    assert story.chat.attempt_ended == last_attempt_of(1)
    story.claimed("w2").says()


def test_clients_keep_the_preview_of_a_stopping_chat_for_it_becomes_the_partial_text() -> None:
    story = stopped(model_next)
    story.does(cmd.LeaseExpired(worker="w1"))
    assert story.tells(PreviewReset) == []
    assert story.chat.attempt_ended == 0


def test_there_is_no_preview_to_forget_while_calls_run() -> None:
    story = call_started_beside_planned().lost()
    assert story.tells(PreviewReset) == []


# --- who had it, and who goes on -----------------------------------------------------------------------


@pytest.mark.parametrize("telling", [model_next, call_started_beside_planned, lambda: stopped(model_next)])
@pytest.mark.parametrize(
    ("how", "cause"),
    [(LeaseEnd.DIED, Cause.CRASH), (LeaseEnd.SILENT, Cause.LEASE_LOST), (LeaseEnd.RETIRED, Cause.LEASE_LOST)],
)
def test_the_journal_says_which_worker_was_lost_when_it_was_last_heard_of_and_which_goes_on(
    telling: Callable[[], Story], how: LeaseEnd, cause: Cause
) -> None:
    story = telling()
    story.now += 5_000
    story.does(cmd.LeaseExpired(worker="w1", how=how, heard_at=story.now - 1_000))
    assert story.tells(ChatHandedOver) == [ChatHandedOver(worker="w1", cause=cause, heard_at=story.now - 1_000)]
    story.now += 60_000
    story.claimed("w2")
    assert story.tells(ChatTakenOver) == [ChatTakenOver(worker="w2")]


def test_a_worker_that_lets_go_by_itself_is_named_too() -> None:
    story = call_started_beside_planned()
    story.does(cmd.Release(by=story.by))
    assert story.tells(ChatHandedOver) == [ChatHandedOver(worker="w1", cause=Cause.SHUTDOWN)]


def test_the_loss_that_fails_a_chat_is_told_before_the_failure() -> None:
    story = nearly_given_up()
    worker = story.chat.worker
    assert worker is not None
    story.does(cmd.LeaseExpired(worker=worker))
    kinds = [type(entry).__name__ for entry in story.journal]
    assert story.state == "failed"
    assert kinds[-3:] == ["ChatHandedOver", "TurnEnded", "ChatFailed"]


def test_a_worker_that_begins_a_turn_is_no_news_and_one_that_goes_on_after_a_wait_is() -> None:
    story = model_next()
    assert (story.tells(ChatTakenOver), story.tells(ChatHandedOver)) == ([], [])
    story = waiting()
    story.now += 1_000
    story.does(cmd.Approve(call_id=story.snapshot.calls[0].id, by="ann"))
    story.claimed("w2")
    assert story.tells(ChatTakenOver) == [ChatTakenOver(worker="w2")]


# --- a clean handover -------------------------------------------------------------------------------


def test_a_clean_handover_turns_calls_that_never_began_back_to_planned() -> None:
    story = model_next().calls("a", "b", start=True)
    story.does(cmd.Release(by=story.by, never_begun=("a",)))
    assert [(call.state.value, call.starts) for call in story.snapshot.calls] == [("planned", 0), ("started", 1)]
    assert (story.chat.worker, story.chat.wake_at, story.chat.unclean) == (None, story.now, 0)
    assert story.journal[-1] == ChatHandedOver(worker="w1", cause=Cause.SHUTDOWN, never_begun=("a",))


def test_an_unsafe_call_that_never_began_may_start_under_the_next_worker() -> None:
    story = model_next().calls("a", start=True)
    story.does(cmd.Release(by=story.by, never_begun=("a",)))
    story.claimed("w2").starts("a").returns("a")
    assert (story.call("a").starts, story.result("a").content) == (1, "ok")


def test_a_tool_still_running_after_the_grace_counts_as_crashed() -> None:
    story = model_next().calls("a", start=True)
    story.does(cmd.Release(by=story.by))
    story.claimed("w2")
    assert story.is_synthetic("a", Synthetic.UNKNOWN)


def test_only_started_calls_can_have_never_begun() -> None:
    story = calls_planned()
    story.refuses(cmd.Release(by=story.by, never_begun=("a",)), reason="call_state")
    story.refuses(cmd.Release(by=story.by, never_begun=("x",)), reason="no_such_call")


# --- poison -----------------------------------------------------------------------------------------


def test_unclean_claims_are_counted_and_back_off() -> None:
    story = Story()
    waits = []
    for n in range(1, 5):
        story.claimed()
        story.does(cmd.LeaseExpired(worker="w1"))
        assert story.chat.unclean == n
        waits.append((story.chat.wake_at or 0) - story.now)
        story.later(waits[-1])
    assert waits == [0, 1_000, 5_000, 15_000]


def test_the_first_crash_costs_nothing_and_the_backoff_has_an_end() -> None:
    assert unclean_backoff_ms(1) == 0
    assert unclean_backoff_ms(99) == UNCLEAN_BACKOFF_MS[-1]


def test_after_five_unclean_claims_the_chat_has_failed_with_cause_crash() -> None:
    story = nearly_given_up()
    assert story.chat.unclean == 4
    story.does(cmd.LeaseExpired(worker="w1"))
    assert (story.state, story.chat.cause, story.chat.worker, story.chat.wake_at) == (
        "failed",
        Cause.CRASH,
        None,
        None,
    )
    assert story.chat.error is not None
    assert (story.chat.error.code, story.chat.error.cause) == ("crash", Cause.CRASH)
    assert "5 workers in a row" in story.chat.error.message


def test_when_a_chat_is_given_up_its_lost_calls_are_answered_by_their_class() -> None:
    story = Story(limits=Limits(unclean_claims_max=1)).claimed().calls("a", "b", start=True).lost()
    assert story.state == "failed"
    assert story.is_synthetic("a", Synthetic.UNKNOWN)


def test_the_preview_of_a_chat_that_is_given_up_is_over() -> None:
    story = nearly_given_up()
    story.does(cmd.LeaseExpired(worker="w1"))
    assert story.chat.attempt_ended == last_attempt_of(5)


def crashed_once() -> Story:
    return model_next().calls("a", "b", replay=Replay.PURE, start=True).lost().claimed()


def test_a_real_outcome_forgives_earlier_crashes() -> None:
    story = crashed_once()
    assert story.chat.unclean == 1
    assert story.starts("a").chat.unclean == 1
    assert story.returns("a").chat.unclean == 0


def test_parking_and_the_end_of_a_turn_or_stop_forgive_earlier_crashes() -> None:
    assert crashed_once().asks("a").asks("b").parks().chat.unclean == 0
    assert said().lost().claimed().finishes().chat.unclean == 0
    story = crashed_once()
    story.stops()
    story.finishes_stop()
    assert story.chat.unclean == 0


def test_a_response_alone_does_not_forgive_them() -> None:
    """A chat whose response makes the next step crash would otherwise never be given up."""
    story = model_next().lost().claimed().says()
    assert story.chat.unclean == 1


def test_a_new_turn_forgives_earlier_crashes() -> None:
    story = nearly_given_up()
    story.does(cmd.LeaseExpired(worker="w1"))
    story.sends("m2")
    assert story.chat.unclean == 0


# --- a worker that was taken for dead, and lives ----------------------------------------------------


def test_a_chat_that_was_given_up_goes_on_when_a_worker_that_it_was_given_up_for_lives() -> None:
    story = given_up_in_silence()
    assert (story.state, story.chat.unclean, story.chat.silent) == ("failed", 5, "w2 w1")
    worked_ms = story.chat.turn_ms
    story.does(cmd.LeaseOutlived(worker="w1"))
    assert (story.state, story.chat.error, story.chat.cause, story.chat.unclean) == ("running", None, None, 4)
    assert (story.chat.silent, story.chat.turn_ms) == ("w2", worked_ms)
    assert (story.chat.wake_at, story.chat.backoff_ms) == (story.now + 15_000, 15_000), "what four losses earned"
    assert len(story.tells(ChatRetried)) == 1
    story.does(cmd.LeaseOutlived(worker="w2"))
    assert (story.chat.unclean, story.chat.silent, story.chat.backoff_ms) == (3, "", 5_000)
    story.later(15_000).claimed("w2").says().finishes()
    assert (story.state, story.chat.turn) == ("idle", 1)


def test_a_worker_that_lives_changes_nothing_once_a_person_has_dealt_with_the_chat() -> None:
    for answer in (cmd.Retry(), cmd.Send(message=user("m2")), cmd.Compact()):
        story = given_up_in_silence()
        story.does(answer)
        story.refuses(cmd.LeaseOutlived(worker="w1"), reason="stale_writer")


def test_a_chat_that_was_given_up_and_then_stopped_does_not_go_on_when_a_worker_lives() -> None:
    """Nothing of it ran, and still the stop was heard: what nobody wants any more is not begun again."""
    story = given_up_in_silence()
    story.stops()
    assert (story.state, story.chat.silent) == ("failed", "")
    story.refuses(cmd.LeaseOutlived(worker="w1"), reason="stale_writer")
    story.does(cmd.Retry())
    assert (story.state, story.chat.unclean) == ("running", 0), "a person can"


def test_a_chat_that_a_person_has_put_away_stays_so_and_no_longer_counts_the_worker_that_lives() -> None:
    story = given_up_in_silence(archived=True)
    story.does(cmd.LeaseOutlived(worker="w1"))
    assert (story.state, story.chat.archived, story.chat.unclean, story.chat.silent) == ("failed", True, 4, "w2")


def test_a_child_that_was_given_up_stays_so_because_its_parent_was_told() -> None:
    story = given_up_in_silence()
    child = replace(story.snapshot, chat=replace(story.chat, parent_id="parent", parent_call="k", root_id="parent"))
    change = apply(child, cmd.LeaseOutlived(worker="w1"), story.now)
    assert isinstance(change, Change)
    assert (change.after.chat.state, change.after.chat.unclean) == ("failed", 4)


def test_a_chat_that_failed_for_a_reason_of_its_own_does_not_go_on() -> None:
    story = model_next().lost(LeaseEnd.SILENT).claimed("w2").fails()
    story.does(cmd.LeaseOutlived(worker="w1"))
    assert (story.state, story.chat.error, story.chat.unclean) == ("failed", BOOM, 0)


def test_a_worker_that_lives_takes_nothing_from_what_real_deaths_have_earned() -> None:
    story = model_next().lost().claimed().lost().claimed().lost(LeaseEnd.SILENT)
    lost_at = story.now - 5_000
    story.now = lost_at + 300
    assert (story.chat.wake_at, story.chat.backoff_ms) == (lost_at + 5_000, 5_000)
    story.does(cmd.LeaseOutlived(worker="w1"))
    assert (story.chat.unclean, story.chat.wake_at, story.chat.backoff_ms) == (2, lost_at + 1_000, 1_000)
    story.refuses(cmd.Claim(worker="w2"), reason="not_due")
    story.later(700).claimed("w2")


def test_a_chat_that_no_worker_died_with_is_due_at_once() -> None:
    story = model_next().lost(LeaseEnd.SILENT).claimed("w2").lost(LeaseEnd.SILENT)
    story.now -= 1_000
    story.refuses(cmd.Claim(worker="w3"), reason="not_due")
    story.does(cmd.LeaseOutlived(worker="w1"))
    story.does(cmd.LeaseOutlived(worker="w2"))
    assert (story.chat.unclean, story.chat.backoff_ms) == (0, 0)
    story.claimed("w1")


# --- repairs ----------------------------------------------------------------------------------------

BROKEN = [(state, reason) for state, reasons in broken().items() for reason in reasons]


def repaired(snapshot: Snapshot, *, lease_is_live: bool) -> Snapshot:
    change = apply(snapshot, cmd.Repair(reason="test", lease_is_live=lease_is_live), START)
    assert isinstance(change, Change)
    assert ChatRepaired(reason="test") in [line.entry for line in change.lines]
    return change.after


@pytest.mark.parametrize(("state", "reason"), BROKEN)
@pytest.mark.parametrize("lease_is_live", [True, False])
def test_the_sweeper_mends_every_broken_chat(state: State, reason: str, lease_is_live: bool) -> None:
    after = repaired(broken()[state][reason], lease_is_live=lease_is_live)
    live = {"w1"} if lease_is_live else set[str]()
    assert invariants.promise_7(after, live) == []
    assert invariants.consistency(after) == []


@pytest.mark.parametrize(("state", "reason"), BROKEN)
def test_what_the_sweeper_mends_was_broken(state: State, reason: str) -> None:
    snapshot = broken()[state][reason]
    live = set[str]() if reason == "dead holder" else {"w1"}
    assert invariants.promise_7(snapshot, live) + invariants.consistency(snapshot) != []


def test_a_repair_leaves_the_holder_of_a_live_lease_alone() -> None:
    story = model_next()
    story.does(cmd.Repair(reason="test", lease_is_live=True))
    assert (story.chat.worker, story.chat.fence, story.chat.wake_at) == ("w1", 1, None)


def test_a_repair_takes_the_chat_from_a_dead_holder_and_resets_its_preview() -> None:
    story = model_next()
    story.does(cmd.Repair(reason="test", lease_is_live=False))
    assert (story.chat.worker, story.chat.wake_at) == (None, story.now)
    assert PreviewReset(attempt=last_attempt_of(1), cause=Cause.LEASE_LOST) in story.journal
    story.refuses(story.response(assistant("late")), reason="stale_writer")


def test_a_repair_keeps_a_backoff() -> None:
    story = model_next().lost().claimed()
    story.does(cmd.LeaseExpired(worker="w1"))
    wake_at = story.chat.wake_at
    story.does(cmd.Repair(reason="test", lease_is_live=False))
    assert story.chat.wake_at == wake_at


@pytest.mark.parametrize("state", list(State))
def test_a_repair_does_not_harm_a_chat_that_needs_none(state: State) -> None:
    for name, telling in SITUATIONS[state].items():
        story = telling()
        before = story.snapshot
        story.does(cmd.Repair(reason="test", lease_is_live=True))
        after = story.snapshot
        assert (after.calls, after.queue) == (before.calls, before.queue), name
        assert (after.chat.state, after.chat.worker, after.chat.wake_at) == (
            before.chat.state,
            before.chat.worker,
            before.chat.wake_at,
        ), name
