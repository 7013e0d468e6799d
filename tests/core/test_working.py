"""What a runner commits: responses, attempts, calls, outcomes, compactions, the end of a turn."""

import math

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core import history
from holdfast.core.codec import decode_keepsakes
from holdfast.core.journal import (
    AttemptFailed,
    CallsStarted,
    ChatFailed,
    ChatRenamed,
    ChatRetried,
    Compacted,
    CompactionFailed,
    MessageAdded,
    Noted,
    PreviewReset,
    TurnEnded,
)
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import (
    Cause,
    Compaction,
    External,
    Failure,
    Message,
    Replay,
    Role,
    Synthetic,
    ToolResult,
    attempt_id,
    fence_of,
    last_attempt_of,
)
from tests.support.situations import (
    answered,
    call_started_beside_planned,
    calls_planned,
    compacting,
    failed,
    model_next,
    only_outside,
    said,
    said_with_queue,
    stopped,
    waiting,
)
from tests.support.story import BOOM, SIGNED, Story, asks_for, assistant, user

# --- a response -------------------------------------------------------------------------------------


def test_a_response_without_calls_leaves_nothing_owed() -> None:
    story = said()
    assert (story.state, story.phase, story.ids, story.chat.step) == ("running", "rest", ["m1", "said"], 1)
    assert story.snapshot.calls == ()


def test_a_response_with_calls_plans_them_and_keeps_their_results_places_free() -> None:
    story = calls_planned()
    assert (story.phase, [call.state.value for call in story.snapshot.calls]) == ("calls", ["planned"] * 2)
    assert [call.pos for call in story.snapshot.calls] == [2, 3]
    assert (story.chat.length, len(story.history)) == (4, 2)


def test_a_batch_is_numbered_by_the_journal_entry_of_its_response() -> None:
    story = calls_planned()
    entry = story.journal[(story.chat.batch or 0) - 1]
    assert isinstance(entry, MessageAdded)
    assert b"calls-a-b" in bytes(entry.raw)


def test_bodies_that_nothing_can_come_before_start_with_the_response() -> None:
    story = model_next()
    story.does(story.response(assistant("r", *asks_for("a", "b")), start=("b",)))
    assert [(call.state.value, call.starts) for call in story.snapshot.calls] == [("planned", 0), ("started", 1)]
    entry = story.journal[-1]
    assert isinstance(entry, MessageAdded)
    assert entry.started == ("b",)


def test_results_are_durable_as_they_finish_and_stand_in_the_order_of_the_calls() -> None:
    story = model_next().calls("a", "b", "c", start=True)
    story.returns("c")
    assert story.ids == ["m1", "calls-a-b-c", "c.result"]
    story.returns("a").returns("b")
    assert story.ids == ["m1", "calls-a-b-c", "a.result", "b.result", "c.result"]
    assert history.problems(story.history) == []


def test_the_model_is_next_when_the_last_result_is_there_and_not_before() -> None:
    story = model_next().calls("a", "b", start=True).returns("b")
    assert story.phase == "calls"
    assert story.returns("a").phase == "model"


def test_a_response_that_nobody_asked_for_is_refused() -> None:
    for story in (calls_planned(), said()):
        story.refuses(story.response(assistant("again")), reason="not_the_models_turn")


def test_a_committed_step_does_not_happen_again() -> None:
    """Promise 2: the same response once more, with another commit id."""
    story = model_next()
    response = story.response(assistant("r"))
    story.does(response)
    story.refuses(response, reason="not_the_models_turn")


@pytest.mark.parametrize("telling", [answered, waiting, failed])
def test_a_chat_that_nobody_holds_takes_no_response(telling: type[Story]) -> None:
    story = telling()
    story.refuses(story.response(assistant("r")), reason="stale_writer")


@pytest.mark.parametrize(
    "message",
    [
        Message(id="r", role=Role.USER, parts=()),
        Message(id="r", role=Role.TOOL, parts=(ToolResult(call_id="a", name="t"),)),
        Message(id="r", role=Role.ASSISTANT, parts=(ToolResult(call_id="a", name="t"),)),
        Message(id="r", role=Role.ASSISTANT, parts=asks_for("a", "a")),
    ],
)
def test_a_response_is_an_assistant_message_with_calls_of_its_own(message: Message) -> None:
    story = model_next()
    story.refuses(story.response(message), reason="wrong_message")


def test_every_call_of_a_response_has_exactly_one_plan() -> None:
    story = model_next()
    message, attempt = assistant("r", *asks_for("a", "b")), story.next_attempt()
    for plans in ((), (cmd.PlannedCall(id="a"),), tuple(cmd.PlannedCall(id=id) for id in "abc")):
        command = cmd.Respond(by=story.by, message=message, attempt=attempt, plans=plans)
        story.refuses(command, reason="wrong_message")


def test_a_response_with_too_many_calls_is_refused_and_the_limit_named() -> None:
    story = Story(limits=Limits(batch_calls_max=2)).claimed()
    story.refuses(story.response(assistant("r", *asks_for("a", "b", "c"))), reason="limit")
    story.calls("a", "b")


# --- attempts ---------------------------------------------------------------------------------------


def test_attempts_are_numbered_by_fence_and_order() -> None:
    assert attempt_id(1, 1) < attempt_id(1, 2) < last_attempt_of(1) < attempt_id(2, 1)
    assert [fence_of(attempt_id(7, n)) for n in (1, 2, (1 << 20) - 1)] == [7, 7, 7]
    assert fence_of(last_attempt_of(7)) == 7


@pytest.mark.parametrize("n", [0, -1, 1 << 20])
def test_an_attempt_out_of_range_is_an_error(n: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        attempt_id(1, n)


def test_the_last_attempt_number_is_at_or_above_every_attempt_of_its_fence() -> None:
    assert last_attempt_of(3) == attempt_id(3, (1 << 20) - 1)


def test_a_response_ends_its_attempt_and_those_before_it() -> None:
    story = model_next()
    story.next_attempt()
    change = story.does(story.response(assistant("r")))
    assert story.chat.attempt_ended == attempt_id(1, 2)
    assert change.ended_attempt == attempt_id(1, 2)


def test_a_lost_attempt_is_recorded_with_its_whole_story_and_the_turn_goes_on() -> None:
    story = model_next()
    attempt = story.next_attempt()
    story.does(
        cmd.AttemptLost(
            by=story.by, attempt=attempt, model="m", error="overloaded", code="busy", status=529, retry_in_ms=900
        )
    )
    failed_entry = AttemptFailed(
        attempt=attempt, model="m", error="overloaded", code="busy", status=529, retry_in_ms=900
    )
    assert story.journal[-2:] == [failed_entry, PreviewReset(attempt=attempt)]
    assert (story.state, story.phase, story.chat.attempt_ended) == ("running", "model", attempt)
    story.says()


def test_an_attempt_that_is_over_neither_responds_nor_is_lost_again() -> None:
    story = model_next()
    attempt = story.next_attempt()
    lost = cmd.AttemptLost(by=story.by, attempt=attempt, model="m", error="x")
    story.does(lost)
    story.refuses(lost, reason="wrong_message")
    story.refuses(cmd.Respond(by=story.by, message=assistant("r"), attempt=attempt), reason="wrong_message")


@pytest.mark.parametrize("fence", [1, 3])
def test_an_attempt_of_another_fence_neither_responds_nor_is_lost(fence: int) -> None:
    story = model_next().lost().claimed("w2")
    attempt = attempt_id(fence, 1)
    story.refuses(cmd.Respond(by=story.by, message=assistant("r"), attempt=attempt), reason="wrong_message")
    story.refuses(cmd.AttemptLost(by=story.by, attempt=attempt, model="m", error="x"), reason="wrong_message")


def test_an_error_that_comes_because_we_stopped_the_stream_is_no_failed_attempt() -> None:
    story = stopped(model_next)
    command = cmd.AttemptLost(by=story.by, attempt=story.next_attempt(), model="m", error="cancelled")
    story.refuses(command, reason="state")


def test_when_a_chat_rests_all_its_attempts_are_over() -> None:
    for story in (answered(), failed()):
        assert story.chat.attempt_ended == last_attempt_of(story.chat.fence)


# --- calls ------------------------------------------------------------------------------------------


def test_a_start_is_recorded_before_the_body_begins() -> None:
    story = calls_planned().starts("a", "b")
    assert [(c.state.value, c.started_at, c.starts) for c in story.snapshot.calls] == [("started", story.now, 1)] * 2
    assert story.journal[-1] == CallsStarted(call_ids=("a", "b"))


def test_an_unsafe_call_starts_at_most_once() -> None:
    """Promise 3."""
    story = call_started_beside_planned()
    story.refuses(cmd.StartCalls(by=story.by, call_ids=("a",)), reason="call_state")
    story.refuses(cmd.StartCalls(by=story.by, call_ids=("b", "b")), reason="call_state")
    story.refuses(cmd.StartCalls(by=story.by, call_ids=("b", "a")), reason="call_state")
    assert story.call("b").state == "planned"


def test_only_a_started_call_has_an_outcome() -> None:
    story = call_started_beside_planned()
    story.refuses(cmd.Outcome(by=story.by, call_id="b", content="?"), reason="call_state")
    story.returns("a")
    story.refuses(cmd.Outcome(by=story.by, call_id="a", content="twice"), reason="call_state")


def test_nobody_brings_the_outcome_of_a_call_that_somebody_outside_answers() -> None:
    story = calls_planned().delegates("a")
    story.refuses(cmd.Outcome(by=story.by, call_id="a", content="mine"), reason="call_state")


def test_an_outcome_keeps_what_the_tool_said_and_whether_it_was_an_error() -> None:
    story = call_started_beside_planned()
    story.does(cmd.Outcome(by=story.by, call_id="a", content="no such file", error=True))
    assert story.result("a") == ToolResult(call_id="a", name="tool", content="no such file", error=True)


def test_a_call_can_be_answered_without_running() -> None:
    story = calls_planned()
    story.does(cmd.Refuse(by=story.by, call_id="a", content="There is no such tool."))
    story.does(cmd.Refuse(by=story.by, call_id="b", content="The guard said no.", denied=True))
    assert [call.state.value for call in story.snapshot.calls] == ["done", "denied"]
    assert story.is_synthetic("a", Synthetic.REFUSED)
    assert story.is_synthetic("b", Synthetic.DENIED)
    assert story.phase == "model"


@pytest.mark.parametrize("unknown", [False, True])
def test_what_a_call_spent_counts_in_its_turn_whatever_came_of_it(unknown: bool) -> None:
    story = call_started_beside_planned()
    before = story.chat
    story.does(cmd.Outcome(by=story.by, call_id="a", content="?", unknown=unknown, tokens=1_200, cost=0.25))
    assert (story.chat.turn_tokens, story.chat.turn_cost) == (before.turn_tokens + 1_200, before.turn_cost + 0.25)
    told = [entry for entry in story.journal if isinstance(entry, Noted)]
    assert told == [Noted(topic="spent", text="1,200 tokens, 0.2500", call_id="a", tokens=1_200, cost=0.25)]
    story.does(cmd.Stop())
    story.does(cmd.Note(by=story.by, topic="spent", call_id="b", cost=0.5))
    assert story.chat.turn_cost == before.turn_cost + 0.75


@pytest.mark.parametrize(("tokens", "cost"), [(-1, 0.0), (0, -0.01), (0, math.inf), (0, math.nan)])
def test_nothing_is_unspent(tokens: int, cost: float) -> None:
    story = call_started_beside_planned()
    wrong = cmd.Outcome(by=story.by, call_id="a", content="?", tokens=tokens, cost=cost)
    story.refuses(wrong, reason="wrong_message")
    story.refuses(cmd.Note(by=story.by, topic="spent", tokens=tokens, cost=cost), reason="wrong_message")


def test_a_call_waits_for_a_child_exactly_when_it_names_one() -> None:
    story = calls_planned()
    nameless = cmd.Delegate(by=story.by, call_id="a", external=External.CHILD)
    named = cmd.Delegate(by=story.by, call_id="a", external=External.CLIENT, child_id="c")
    story.refuses(nameless, reason="wrong_message")
    story.refuses(named, reason="wrong_message")


def test_a_note_is_seen_by_clients_and_changes_nothing_else() -> None:
    story = model_next()
    story.does(cmd.Note(by=story.by, topic="news", text="50 %", call_id="a"))
    assert story.journal[-1] == Noted(topic="news", text="50 %", call_id="a")
    assert (story.state, story.phase) == ("running", "model")


def test_what_a_body_keeps_stays_with_the_chat_the_newest_last_and_bounded() -> None:
    story = Story(limits=replace(LIMITS, keepsakes_max=2, keepsake_chars_max=10)).claimed().calls("a", start=True)
    for key, text in (("x", "1"), ("y", "2"), ("x", "3"), ("z", "4")):
        story.does(cmd.Keep(by=story.by, key=key, text=text))
    assert decode_keepsakes(story.chat.keepsakes) == {"x": "3", "z": "4"}, "y was kept longest ago"
    assert isinstance(story.journal[-1], MessageAdded), "no reader is told of it"
    story.refuses(cmd.Keep(by=story.by, key="x", text="12345678901"), reason="limit")
    story.refuses(cmd.Keep(by=story.by, key="", text="1"), reason="limit")
    story.lost().claimed("w2")
    assert decode_keepsakes(story.chat.keepsakes) == {"x": "3", "z": "4"}, "a successor finds it"
    for key in ("x", "z"):
        story.does(cmd.Keep(by=story.by, key=key, text=""))
    assert story.chat.keepsakes == ""


def test_what_calls_that_run_have_kept_is_not_what_gives_way() -> None:
    """A long call among many short ones has to find its own after a crash."""
    limits = replace(LIMITS, keepsakes_max=2, keepsake_chars_max=10)
    story = Story(limits=limits).claimed().calls("a", start=True)
    for key in ("long", "x", "y", "z"):
        story.does(cmd.Keep(by=story.by, key=key, text="1", spared=frozenset({"long"})))
    assert list(decode_keepsakes(story.chat.keepsakes)) == ["long", "z"]
    every = frozenset({"long", "z"})
    story.refuses(cmd.Keep(by=story.by, key="more", text="1", spared=every), reason="limit")
    story.does(cmd.Keep(by=story.by, key="long", text="2", spared=every))
    assert decode_keepsakes(story.chat.keepsakes) == {"z": "1", "long": "2"}


# --- the end of a turn ------------------------------------------------------------------------------


def test_a_turn_ends_idle_and_unowned() -> None:
    story = answered()
    assert (story.state, story.phase, story.chat.worker, story.chat.wake_at) == ("idle", "rest", None, None)
    assert (story.chat.cause, story.answer, story.chat.turn_started_at) == (None, "Well.", None)


def test_a_turn_with_a_queue_ends_in_the_next_turn() -> None:
    story = said_with_queue().finishes()
    assert (story.state, story.phase, story.ids, story.queue) == ("running", "model", ["m1", "said", "q1"], [])


def test_a_turn_does_not_end_while_the_model_owes_a_response() -> None:
    story = model_next()
    story.refuses(cmd.FinishTurn(by=story.by), reason="model_is_next")
    story.calls("a", start=True).returns("a")
    story.refuses(cmd.FinishTurn(by=story.by), reason="model_is_next")


def test_a_turn_does_not_end_while_a_call_is_open_whatever_the_cause() -> None:
    for story in (calls_planned(), only_outside()):
        story.refuses(cmd.FinishTurn(by=story.by), reason="open_calls")
        story.refuses(cmd.FinishTurn(by=story.by, cause=Cause.BUDGET), reason="open_calls")


@pytest.mark.parametrize("cause", [Cause.BUDGET, Cause.DEADLINE])
def test_a_turn_at_its_budget_or_deadline_ends_though_the_model_would_go_on(cause: Cause) -> None:
    story = model_next().calls("a", start=True).returns("a")
    story.does(cmd.FinishTurn(by=story.by, cause=cause, detail="200 steps"))
    assert (story.state, story.chat.cause) == ("idle", cause)
    assert TurnEnded(turn=1, state=story.state, cause=cause, detail="200 steps", tokens=0, cost=0.0) in story.journal
    assert history.problems(story.history) == []


def test_cause_and_answer_are_those_of_the_last_turn() -> None:
    story = model_next().says(text="so far")
    story.does(cmd.FinishTurn(by=story.by, cause=Cause.BUDGET))
    assert (story.chat.cause, story.answer) == (Cause.BUDGET, None)
    story.sends("m2")
    story.claimed().says("said", SIGNED).finishes()
    assert (story.chat.cause, story.answer) == (None, "")
    story.sends("m3")
    assert story.answer == "", "until the next turn is over"


# --- compaction -------------------------------------------------------------------------------------


def test_a_compaction_of_an_idle_chat_runs_without_a_turn_and_leaves_the_last_turn_alone() -> None:
    story = answered()
    story.does(cmd.Compact())
    assert (story.state, story.phase, story.chat.compact, story.chat.wake_at) == ("running", "rest", True, story.now)
    story.claimed().does(cmd.FinishCompaction(by=story.by, upto=1, summary="short"))
    story.finishes()
    assert (story.state, story.chat.turn, story.chat.cause) == ("idle", 1, None)
    assert story.answer == "Well."
    assert len(story.tells(TurnEnded)) == 1


def test_a_compaction_is_a_record_and_the_history_stays() -> None:
    story = compacting()
    change = story.does(cmd.FinishCompaction(by=story.by, upto=2, summary="short"))
    assert change.compaction == Compaction(upto=2, summary="short", created_at=story.now)
    assert (story.ids, story.journal[-1]) == (["m1", "said"], Compacted(upto=2, summary="short"))
    assert not story.chat.compact


def test_a_compaction_that_fails_is_recorded_and_the_chat_goes_on() -> None:
    story = compacting()
    change = story.does(cmd.FinishCompaction(by=story.by, error="no summary"))
    assert (change.compaction, story.journal[-1]) == (None, CompactionFailed(error="no summary"))
    assert story.finishes().state == "idle"


def test_a_compaction_asked_for_while_running_is_noted_and_done_before_the_rest() -> None:
    """Also when it was asked for in the last moment, when the runner was already ending the turn."""
    story = model_next().says(text="Well.")
    story.does(cmd.Compact())
    assert (story.state, story.chat.compact) == ("running", True)
    story.finishes()
    assert (story.state, story.phase, story.chat.turn_started_at) == ("running", "rest", None)
    assert (story.chat.worker, story.answer) == ("w1", "Well.")
    story.does(cmd.FinishCompaction(by=story.by, upto=1, summary="short"))
    assert story.finishes().state == "idle"
    assert (story.answer, len(story.tells(TurnEnded))) == ("Well.", 1)


def test_a_chat_woken_for_a_compaction_does_not_rest_before_it_is_done() -> None:
    story = compacting()
    story.refuses(cmd.FinishTurn(by=story.by), reason="compaction_is_next")


def test_a_users_stop_ends_a_compaction_as_well() -> None:
    story = compacting()
    story.stops()
    change = story.finishes_stop()
    assert (story.state, story.chat.compact) == ("idle", False)
    assert [line.entry for line in change.lines] == [CompactionFailed(error="stopped by the user")]


def test_the_stop_of_a_compaction_at_rest_leaves_the_last_turn_what_it_was() -> None:
    done = compacting()
    short = model_next().says(text="Well.")
    short.does(cmd.FinishTurn(by=short.by, cause=Cause.BUDGET))
    short.does(cmd.Compact())
    for story, cause in ((done, None), (short.claimed(), Cause.BUDGET)):
        story.stops()
        assert (story.state, story.chat.cause, story.snapshot.stop_cause) == ("stopping", cause, Cause.USER)
        story.lost().claimed("w2").finishes_stop()
        assert (story.state, story.chat.cause, story.chat.compact) == ("idle", cause, False)
        assert story.tells(CompactionFailed) == [CompactionFailed(error="stopped by the user")]


def test_a_message_that_supersedes_a_compaction_at_rest_leaves_it_owed_and_the_last_turn_what_it_was() -> None:
    story = compacting()
    story.does(cmd.Send(message=user("m2"), mode="interrupt"))
    assert (story.state, story.chat.cause, story.snapshot.stop_cause) == ("stopping", None, Cause.SUPERSEDED)
    story.does(cmd.Withdraw(message_id="m2"))
    story.finishes_stop()
    assert (story.state, story.chat.compact, story.chat.turn_started_at) == ("running", True, None)
    story.does(cmd.FinishCompaction(by=story.by, upto=1, summary="short"))
    assert (story.finishes().state, story.chat.cause) == ("idle", None)


def test_a_users_stop_of_a_compaction_beats_the_message_that_superseded_it() -> None:
    story = compacting()
    story.does(cmd.Send(message=user("m2"), mode="interrupt"))
    story.stops()
    assert story.snapshot.stop_cause is Cause.USER
    story.finishes_stop()
    assert (story.state, story.chat.compact, story.ids[-1]) == ("running", False, "m2")
    assert story.tells(CompactionFailed) == [CompactionFailed(error="stopped by the user")]


def test_the_stop_of_a_compaction_at_rest_that_older_code_began_ends_it() -> None:
    """It wrote the stop's cause over the turn's, and forgot the compaction only at the end."""
    story = compacting()
    story.stops()
    story.store.chats["chat"] = replace(story.chat, cause=Cause.USER, compact=True)
    assert story.snapshot.stop_cause is Cause.USER
    story.finishes_stop()
    assert (story.state, story.chat.compact) == ("idle", False)


def test_a_users_stop_of_a_waiting_chat_forgets_the_compaction_that_was_noted() -> None:
    story = only_outside()
    story.does(cmd.Compact())
    story.parks().stops()
    assert (story.state, story.chat.compact) == ("idle", False)


def test_a_compaction_does_not_cover_calls_that_have_no_result() -> None:
    story = calls_planned()
    for upto in (2, 3, 4):
        command = cmd.FinishCompaction(by=story.by, upto=upto, summary="short")
        story.refuses(command, reason="open_calls")
    story.does(cmd.FinishCompaction(by=story.by, upto=1, summary="short"))


@pytest.mark.parametrize("upto", [0, -1, 3])
def test_a_compaction_covers_positions_that_exist(upto: int) -> None:
    story = compacting()
    story.refuses(cmd.FinishCompaction(by=story.by, upto=upto, summary="short"), reason="no_such_message")


@pytest.mark.parametrize("telling", [waiting, lambda: stopped(model_next)])
def test_a_chat_that_waits_or_stops_is_not_compacted(telling: type[Story]) -> None:
    telling().refuses(cmd.Compact(), reason="state")


def test_a_compaction_of_a_failed_chat_clears_the_error_and_the_turn_goes_on_where_it_failed() -> None:
    story = failed()
    turn = story.chat.turn
    story.does(cmd.Compact())
    assert (story.state, story.chat.error, story.chat.compact) == ("running", None, True)
    story.claimed().does(cmd.FinishCompaction(by=story.by, upto=1, summary="short"))
    assert (story.phase, story.chat.turn) == ("model", turn)
    story.refuses(cmd.FinishTurn(by=story.by), reason="model_is_next")
    story.says("late").finishes()
    assert (story.state, story.chat.turn, len(story.tells(ChatRetried))) == ("idle", turn, 1)


def test_a_compaction_of_a_chat_that_failed_after_its_answer_owes_nothing_more() -> None:
    story = said()
    story.fails()
    story.does(cmd.Compact())
    assert (story.state, story.phase, story.chat.turn_started_at) == ("running", "rest", None)
    assert story.tells(ChatRetried) == []


def test_what_a_summary_cost_counts_in_the_turn_that_is_open() -> None:
    story = model_next()
    story.does(cmd.FinishCompaction(by=story.by, upto=1, summary="short", tokens=70, cost=0.5))
    assert (story.chat.turn_tokens, story.chat.turn_cost) == (70, 0.5)
    story.does(cmd.FinishCompaction(by=story.by, error="none", tokens=30, cost=0.25))
    assert (story.chat.turn_tokens, story.chat.turn_cost) == (100, 0.75)
    at_rest = compacting()
    before = at_rest.chat.turn_tokens
    at_rest.does(cmd.FinishCompaction(by=at_rest.by, upto=1, summary="short", tokens=70))
    assert at_rest.chat.turn_tokens == before


def test_messages_that_were_left_out_for_want_of_a_summary_are_told_as_both() -> None:
    story = compacting()
    change = story.does(
        cmd.FinishCompaction(by=story.by, upto=2, summary="left out", error="no summary", why="too_long")
    )
    assert change.compaction is not None
    assert [line.entry for line in change.lines] == [
        CompactionFailed(error="no summary", why="too_long"),
        Compacted(upto=2, summary="left out", why="too_long", trimmed=True),
    ]


def test_a_compaction_that_finds_nothing_to_do_says_so_and_is_no_failure() -> None:
    story = compacting()
    change = story.does(cmd.FinishCompaction(by=story.by))
    assert [type(line.entry) for line in change.lines] == [Noted]
    assert not story.chat.compact


def test_a_compaction_never_parts_a_call_from_its_results() -> None:
    story = calls_planned().starts("a", "b").returns("a").returns("b")
    assert story.phase == "model"
    for upto in (2, 3):
        story.refuses(cmd.FinishCompaction(by=story.by, upto=upto, summary="short"), reason="wrong_message")
    story.does(cmd.FinishCompaction(by=story.by, upto=4, summary="short"))
    story.does(cmd.FinishCompaction(by=story.by, upto=1, summary="short"))


def test_a_compaction_is_progress_that_a_lost_worker_does_not_take_back() -> None:
    story = model_next().lost().claimed()
    assert story.chat.unclean == 1
    story.does(cmd.FinishCompaction(by=story.by, error="no summary"))
    assert story.chat.unclean == 1
    story.does(cmd.FinishCompaction(by=story.by, upto=1, summary="short"))
    assert story.chat.unclean == 0


def test_a_compaction_takes_the_chat_out_of_the_archive() -> None:
    story = answered()
    story.does(cmd.Archive())
    story.does(cmd.Compact())
    assert not story.chat.archived


# --- failing, and trying again ----------------------------------------------------------------------


def test_a_failure_rests_with_its_error_and_every_call_answered() -> None:
    story = model_next().calls("a", "b", replay=Replay.PURE).starts("a")
    story.fails()
    assert (story.state, story.chat.error, story.chat.worker, story.chat.wake_at) == ("failed", BOOM, None, None)
    assert story.result("a").content.startswith("Cancelled while it ran: the turn failed")
    assert story.result("b").content == "Never ran: the turn failed."
    assert story.journal[-1] == ChatFailed(error=BOOM)
    assert history.problems(story.history) == []


def test_an_unsafe_call_that_ran_when_the_turn_failed_is_unknown() -> None:
    story = call_started_beside_planned().fails()
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert story.call("a").state == "unknown"


def test_a_failure_keeps_the_queue() -> None:
    assert failed(queued=True).queue == ["q1", "q2"]


def test_a_failure_keeps_the_whole_story_of_its_error() -> None:
    error = Failure(code="boom", message="it broke", cause=Cause.DEADLINE, chain=("because", "of that"))
    story = model_next()
    story.does(cmd.Fail(by=story.by, error=error))
    assert (story.chat.error, story.chat.cause) == (error, Cause.DEADLINE)


def test_a_retry_goes_on_where_the_turn_failed_and_asks_for_nothing_again() -> None:
    story = model_next().calls("a", start=True).returns("a").fails()
    story.does(cmd.Retry())
    assert (story.state, story.phase, story.chat.error, story.chat.turn) == ("running", "model", None, 1)
    assert story.ids == ["m1", "calls-a", "a.result"]
    assert story.chat.wake_at == story.now
    story.claimed("w2").says().finishes()
    assert story.state == "idle"


def test_a_retry_of_a_turn_that_failed_after_its_answer_asks_the_model_nothing() -> None:
    story = said().fails()
    story.does(cmd.Retry())
    assert story.claimed("w2").phase == "rest"
    assert story.finishes().state == "idle"


def test_a_retry_forgives_earlier_crashes() -> None:
    story = model_next().lost().claimed().fails()
    assert story.chat.unclean == 1
    story.does(cmd.Retry())
    assert story.chat.unclean == 0


def test_only_a_failed_chat_is_retried() -> None:
    for telling in (answered, model_next, waiting, lambda: stopped(model_next)):
        telling().refuses(cmd.Retry(), reason="state")


# --- at rest ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("telling", [answered, failed])
def test_a_chat_at_rest_can_be_archived_and_taken_back(telling: type[Story]) -> None:
    story = telling()
    state = story.state
    story.does(cmd.Archive())
    assert (story.state, story.chat.archived) == (state, True)
    entries = len(story.journal)
    story.does(cmd.Archive())
    assert len(story.journal) == entries, "told once"
    story.does(cmd.Archive(archived=False))
    assert not story.chat.archived


@pytest.mark.parametrize("command", [cmd.Archive(), cmd.Delete()])
def test_a_chat_that_is_not_at_rest_is_neither_archived_nor_deleted(command: cmd.Command) -> None:
    for telling in (model_next, waiting, lambda: stopped(model_next)):
        telling().refuses(command, reason="state")


@pytest.mark.parametrize("telling", [answered, model_next, waiting, failed, lambda: stopped(model_next)])
def test_a_chat_can_be_forked_in_any_state_and_is_not_changed_by_it(telling: type[Story]) -> None:
    story = telling()
    state, entries, ids = story.state, story.journal, story.ids
    story.does(cmd.Fork())
    assert (story.state, story.journal, story.ids) == (state, entries, ids)


# --- asking again, titles, what a turn cost ------------------------------------------------------------


def again(message_id: str = "again") -> Message:
    return replace(user(message_id, "That does not fit."), synthetic=Synthetic.INVALID_OUTPUT)


def test_an_answer_that_will_not_do_stays_and_the_model_is_asked_again_in_the_same_turn() -> None:
    story = said()
    story.does(cmd.AskAgain(by=story.by, message=again()))
    assert (story.state, story.phase, story.ids) == ("running", "model", ["m1", "said", "again"])
    assert (story.chat.turn, story.chat.turn_from) == (1, 0)
    story.refuses(cmd.FinishTurn(by=story.by), reason="model_is_next")


def test_the_model_is_asked_again_only_about_a_response_and_only_by_the_runtime() -> None:
    model_next().refuses(cmd.AskAgain(by=model_next().by, message=again()), reason="model_is_next")
    story = said()
    story.refuses(cmd.AskAgain(by=story.by, message=user("mine")), reason="wrong_message")
    story.refuses(cmd.AskAgain(by=story.by, message=replace(again(), parts=())), reason="wrong_message")
    story.refuses(cmd.Send(message=again()), reason="wrong_message")


def test_a_turn_remembers_where_it_began() -> None:
    story = answered()
    story.sends("m2")
    assert story.chat.turn_from == 2
    story.does(cmd.Edit(pos=0, role=Role.USER, epoch=story.chat.epoch, message=user("m3")))
    story.claimed()
    story.does(cmd.FinishStop(by=story.by))
    assert (story.ids, story.chat.turn_from) == (["m3"], 0)


def test_what_failed_attempts_used_counts_in_the_turn_and_the_next_turn_begins_at_nothing() -> None:
    story = model_next()
    lost = cmd.AttemptLost(by=story.by, attempt=story.next_attempt(), model="m", error="cut", tokens=7, cost=0.5)
    story.does(lost)
    story.does(cmd.Respond(by=story.by, message=assistant("r"), attempt=story.next_attempt(), tokens=3, cost=0.25))
    assert (story.chat.turn_tokens, story.chat.turn_cost) == (10, 0.75)
    story.does(cmd.FinishTurn(by=story.by))
    story.sends("m2")
    assert (story.chat.turn_tokens, story.chat.turn_cost) == (0, 0.0)


def worked(story: Story, ms: int) -> cmd.Writer:
    return replace(story.by, worked_ms=ms)


def test_the_time_that_runners_worked_adds_up_over_claims_whatever_the_clock_says() -> None:
    story = model_next().later(50_000_000)
    story.does(replace(story.response(assistant("r", *asks_for("a"))), by=worked(story, 300)))
    story.later(-90_000_000)
    story.does(cmd.Release(by=worked(story, 40)))
    story.claimed("w2")
    story.does(cmd.Refuse(by=worked(story, 2), call_id="a", content="no"))
    assert story.chat.turn_ms == 342


def test_the_time_of_a_turn_begins_at_nothing_with_the_next_turn_and_with_a_retry() -> None:
    story = said()
    story.does(cmd.FinishTurn(by=worked(story, 300)))
    assert story.chat.turn_ms == 300
    story.sends("m2")
    assert story.chat.turn_ms == 0
    story.claimed()
    story.does(cmd.Fail(by=worked(story, 5), error=BOOM))
    assert story.chat.turn_ms == 5
    story.does(cmd.Retry())
    assert story.chat.turn_ms == 0


def test_what_is_done_outside_of_a_turn_takes_nothing_of_its_time() -> None:
    story = answered()
    story.does(cmd.Compact())
    story.claimed()
    story.does(cmd.FinishCompaction(by=worked(story, 300)))
    assert story.chat.turn_ms == 0


def test_arguments_that_a_hook_changed_are_durable_with_the_start_and_told() -> None:
    story = calls_planned()
    story.does(cmd.StartCalls(by=story.by, call_ids=("a", "b"), arguments={"a": '{"x":1}'}))
    assert [call.arguments for call in story.snapshot.calls] == ['{"x":1}', None]
    assert story.tells(CallsStarted) == [CallsStarted(call_ids=("a", "b"), arguments={"a": '{"x":1}'})]


def test_a_title_is_given_once_by_the_runtime_and_any_time_by_a_person() -> None:
    story = said()
    story.does(cmd.Rename(title="  On the \n weather ", unless_titled=True))
    assert (story.chat.title, story.tells(ChatRenamed)) == ("On the weather", [ChatRenamed(title="On the weather")])
    story.refuses(cmd.Rename(title="Another", unless_titled=True), reason="titled")
    story.does(cmd.Rename(title="Mine"))
    assert story.chat.title == "Mine"
    story.refuses(cmd.Rename(title=" "), reason="wrong_title")
    story.refuses(cmd.Rename(title="x" * 201), reason="wrong_title")
