"""Answers from outside: approvals, results, timers, expiries; while siblings run and while the chat waits."""

import pytest

from holdfast.core import commands as cmd
from holdfast.core.journal import CallChanged, TurnResumed, TurnWaiting
from holdfast.core.records import Always, Call, External, NewChat, Synthetic
from tests.support.situations import (
    HOUR_MS,
    answered,
    call_asking_beside_started,
    calls_planned,
    failed,
    model_next,
    only_outside,
    stopped,
    waiting,
    waiting_for_approval,
    waiting_for_one,
)
from tests.support.story import Story


def states(story: Story) -> list[str]:
    return [call.state.value for call in story.snapshot.calls]


# --- approvals --------------------------------------------------------------------------------------


def test_an_approval_may_come_while_a_sibling_still_runs() -> None:
    story = call_asking_beside_started()
    story.does(cmd.Approve(call_id="a", by="ann"))
    assert (story.state, states(story), story.chat.worker) == ("running", ["approved", "started"], "w1")
    assert story.call("a").answered_by == "ann"


def test_an_approval_of_a_waiting_chat_and_its_resume_are_one_change() -> None:
    story = waiting()
    change = story.does(cmd.Approve(call_id="a", by="ann"))
    assert (story.state, states(story), story.chat.wake_at) == ("running", ["approved", "external"], story.now)
    assert [type(line.entry) for line in change.lines] == [CallChanged, TurnResumed]


def test_an_approved_call_has_no_question_and_no_expiry_left() -> None:
    story = waiting(expires_in_ms=HOUR_MS)
    story.does(cmd.Approve(call_id="a"))
    assert (story.call("a").question, story.call("a").expires_at) == (None, None)


def offering(*rules: str) -> Story:
    story = calls_planned()
    story.does(cmd.AskApproval(by=story.by, call_id="a", question="May I?", offer=rules))
    return story


@pytest.mark.parametrize(
    ("always", "agent", "chat_id"), [("chat", None, "c1"), ("agent", "agent", None), ("owner", None, None)]
)
def test_always_keeps_the_rules_that_the_call_offers_and_they_are_the_owners(
    always: Always, agent: str | None, chat_id: str | None
) -> None:
    story = offering("allow call(a)", "allow call(b)")
    chat = story.chat
    change = story.does(cmd.Approve(call_id="a", by="ann", always=always, always_ms=5))
    assert [rule.rule for rule in change.kept] == ["allow call(a)", "allow call(b)"]
    for rule in change.kept:
        assert (rule.owner, rule.made_by, rule.call_id) == (chat.owner, "ann", "a")
        assert (rule.agent, rule.chat_id) == (agent and chat.agent, chat_id and chat.id)
        assert (rule.made_at, rule.expires_at, rule.scope) == (story.now, story.now + 5, always)
    assert story.call("a").offer is None
    told = [line.entry.detail for line in change.lines if isinstance(line.entry, CallChanged)]
    assert told == [f"always for this {always}: allow call(a), allow call(b)"]


def test_without_always_nothing_is_kept_and_without_an_offer_always_is_refused() -> None:
    assert offering("allow call(a)").does(cmd.Approve(call_id="a")).kept == ()
    story = offering()
    story.refuses(cmd.Approve(call_id="a", always="chat"), reason="nothing_to_keep")
    assert story.call("a").state == "asking"
    (rule,) = offering("allow call(a)").does(cmd.Approve(call_id="a", always="owner")).kept
    assert rule.expires_at is None


def test_an_answer_that_comes_too_late_answers_nothing() -> None:
    """Silence until the expiry is an answer, also where nobody has yet had the time to say so."""
    approval = cmd.Approve(call_id="a")
    result = cmd.Submit(call_id="a", content="ok")
    for answer, story in (
        (approval, calls_planned().asks("a", 1_000).starts("b")),
        (approval, waiting(expires_in_ms=1_000)),
        (result, calls_planned().delegates("a", "client", 1_000).starts("b")),
        (result, waiting_for_one("client", expires_in_ms=1_000)),
    ):
        story.later(1_000).refuses(answer, reason="call_state")
        story.does(cmd.Due())
        assert story.is_synthetic("a", Synthetic.EXPIRED)


def test_an_approved_call_runs_and_its_result_completes_the_batch() -> None:
    story = waiting_for_approval()
    story.does(cmd.Approve(call_id="a"))
    story.claimed("w2").starts("a").returns("a")
    assert (story.state, story.phase, story.result("a").content) == ("running", "model", "ok")


def test_a_denial_is_the_calls_result_and_says_who_and_why() -> None:
    story = waiting_for_approval()
    story.does(cmd.Deny(call_id="a", words="Too dear.", by="ann"))
    assert (story.state, story.phase, states(story)) == ("running", "model", ["denied"])
    assert story.is_synthetic("a", Synthetic.DENIED)
    assert story.result("a").content == 'Denied: a person refused this call. They said: "Too dear."'
    assert story.call("a").answered_by == "ann"


def test_after_a_denial_the_chat_waits_on_if_others_are_still_outside() -> None:
    story = waiting()
    story.does(cmd.Deny(call_id="a"))
    assert (story.state, states(story)) == ("waiting", ["denied", "external"])


def test_a_denial_may_come_while_a_sibling_still_runs() -> None:
    story = call_asking_beside_started()
    story.does(cmd.Deny(call_id="a"))
    assert (story.state, states(story)) == ("running", ["denied", "started"])


@pytest.mark.parametrize("state", ["planned", "approved", "started", "external", "done"])
def test_a_person_denies_only_what_a_person_was_asked(state: str) -> None:
    story = calls_planned()
    if state == "approved":
        story.asks("a")
        story.does(cmd.Approve(call_id="a"))
    elif state in ("started", "done"):
        story.starts("a")
    elif state == "external":
        story.delegates("a")
    if state == "done":
        story.returns("a")
    assert story.call("a").state == state
    story.refuses(cmd.Deny(call_id="a"), reason="call_state")


def test_a_second_answer_to_an_approval_is_refused() -> None:
    story = call_asking_beside_started()
    story.does(cmd.Approve(call_id="a"))
    story.refuses(cmd.Approve(call_id="a"), reason="call_state")
    story.refuses(cmd.Deny(call_id="a"), reason="call_state")


@pytest.mark.parametrize(
    "command", [cmd.Approve(call_id="a"), cmd.Deny(call_id="a"), cmd.Submit(call_id="a", content="x")]
)
def test_a_chat_that_rests_or_stops_takes_no_answers(command: cmd.Command) -> None:
    for telling in (answered, failed, lambda: stopped(call_asking_beside_started)):
        telling().refuses(command, reason="state")


@pytest.mark.parametrize(
    "command", [cmd.Approve(call_id="x"), cmd.Deny(call_id="x"), cmd.Submit(call_id="x", content="x")]
)
def test_a_call_that_is_not_of_the_current_ones_takes_no_answers(command: cmd.Command) -> None:
    waiting().refuses(command, reason="no_such_call")
    model_next().refuses(command, reason="no_such_call")


def test_asking_again_with_changed_arguments_keeps_the_changed_ones() -> None:
    story = calls_planned()
    story.does(cmd.AskApproval(by=story.by, call_id="a", question="May I?", arguments='{"safe":true}'))
    assert (story.call("a").arguments, story.call("a").question) == ('{"safe":true}', "May I?")


# --- results from outside ---------------------------------------------------------------------------


@pytest.mark.parametrize("external", ["client", "question"])
def test_a_client_submits_a_result_and_the_chat_runs_again(external: str) -> None:
    story = waiting_for_one(external)
    story.does(cmd.Submit(call_id="a", content="42", by="ann"))
    assert (story.state, story.phase, story.chat.wake_at) == ("running", "model", story.now)
    assert story.result("a").content == "42"
    assert story.result("a").synthetic is None
    assert story.call("a").answered_by == "ann"


def test_a_submitted_error_is_an_error() -> None:
    story = waiting_for_one("client")
    story.does(cmd.Submit(call_id="a", content="no disk", error=True))
    assert story.result("a").error


def test_the_chat_waits_on_until_the_last_answer_is_there() -> None:
    story = only_outside().parks()
    story.does(cmd.Submit(call_id="b", content="42"))
    assert (story.state, states(story)) == ("waiting", ["asking", "done"])
    story.does(cmd.Deny(call_id="a"))
    assert (story.state, story.phase) == ("running", "model")


def test_a_submitted_result_may_come_while_a_sibling_still_runs() -> None:
    story = calls_planned().delegates("a").starts("b")
    story.does(cmd.Submit(call_id="a", content="42"))
    assert (story.state, story.phase, states(story)) == ("running", "calls", ["done", "started"])


def test_a_result_is_submitted_once() -> None:
    story = calls_planned().delegates("a").starts("b")
    story.does(cmd.Submit(call_id="a", content="42"))
    story.refuses(cmd.Submit(call_id="a", content="43"), reason="call_state")


@pytest.mark.parametrize("external", ["timer", "child"])
def test_nobody_submits_the_result_of_a_timer_or_a_child(external: str) -> None:
    if external == "timer":
        story = waiting_for_one("timer", expires_in_ms=HOUR_MS)
    else:
        story = model_next().calls("a", "b")
        spawn = NewChat(id="child", agent="agent")
        story.does(
            cmd.Delegate(by=story.by, call_id="a", external=External.CHILD, spawn=spawn, child_turn=1),
        )
    story.refuses(cmd.Submit(call_id="a", content="mine"), reason="call_state")


# --- parking ----------------------------------------------------------------------------------------


def test_a_chat_parks_unowned_and_wakes_at_the_earliest_expiry() -> None:
    story = calls_planned().asks("a", 2 * HOUR_MS).delegates("b", "client", HOUR_MS).parks()
    assert (story.state, story.chat.worker, story.chat.wake_at) == ("waiting", None, story.now + HOUR_MS)
    assert story.tells(TurnWaiting) == [TurnWaiting(call_ids=("a", "b"), wake_at=story.now + HOUR_MS)]


def test_a_chat_that_waits_for_what_cannot_expire_has_no_wake_at() -> None:
    assert waiting().chat.wake_at is None


def test_a_chat_does_not_park_while_something_is_runnable() -> None:
    story = calls_planned().asks("a")
    refused = story.refuses(cmd.Park(by=story.by), reason="runnable")
    assert "b" in refused.message


def test_a_chat_does_not_park_when_the_last_answer_came_just_before() -> None:
    """The race of a park with the answer it would wait for: it looks again and finds the model next."""
    story = model_next().calls("a").delegates("a")
    park = cmd.Park(by=story.by)
    story.does(cmd.Submit(call_id="a", content="42"))
    story.refuses(park, reason="nothing_outside")


def test_a_chat_does_not_park_when_its_approval_came_just_before() -> None:
    story = model_next().calls("a").asks("a")
    park = cmd.Park(by=story.by)
    story.does(cmd.Approve(call_id="a"))
    story.refuses(park, reason="runnable")


# --- time -------------------------------------------------------------------------------------------


def test_a_timer_rings_when_its_time_has_come() -> None:
    story = waiting_for_one("timer", expires_in_ms=1_000).later(1_000).claimed("w2")
    assert (story.state, story.phase, story.chat.worker) == ("running", "model", "w2")
    assert story.result("a").synthetic is None
    assert not story.result("a").error


def test_a_timer_needs_a_time() -> None:
    story = calls_planned()
    story.refuses(cmd.Delegate(by=story.by, call_id="a", external=External.TIMER), reason="wrong_message")


def test_an_approval_that_nobody_gives_in_time_is_a_denial() -> None:
    story = model_next().calls("a").asks("a", 1_000).parks().later(1_000)
    story.does(cmd.Due())
    assert (story.state, states(story)) == ("running", ["denied"])
    assert story.is_synthetic("a", Synthetic.EXPIRED)


def test_a_client_that_does_not_answer_in_time_is_not_waited_for() -> None:
    story = waiting_for_one("client", expires_in_ms=1_000).later(1_000)
    story.does(cmd.Due())
    assert (story.state, states(story)) == ("running", ["cancelled"])
    assert story.is_synthetic("a", Synthetic.EXPIRED)


def test_before_its_time_nothing_expires() -> None:
    story = waiting(expires_in_ms=1_000).later(999)
    story.does(cmd.Due())
    assert (story.state, states(story)) == ("waiting", ["asking", "external"])


def test_when_only_some_expire_the_chat_waits_on_unowned_for_the_next() -> None:
    story = calls_planned().asks("a", 1_000).delegates("b", "client", 5_000).parks().later(1_000)
    story.does(cmd.Claim(worker="w2"))
    assert (story.state, story.chat.worker, states(story)) == ("waiting", None, ["denied", "external"])
    assert story.chat.wake_at == story.now + 4_000
    assert story.chat.fence == 1


def test_what_is_due_all_at_once_is_answered_all_at_once() -> None:
    story = waiting(expires_in_ms=1_000).later(1_000)
    story.does(cmd.Due())
    assert (story.state, story.phase, states(story)) == ("running", "model", ["denied", "cancelled"])
    assert story.tells(TurnResumed) == [TurnResumed()]


def test_a_running_chats_calls_expire_too() -> None:
    story = calls_planned().asks("a", 1_000).starts("b").later(1_000)
    story.does(cmd.Due())
    assert (story.state, states(story), story.phase) == ("running", ["denied", "started"], "calls")


def test_a_chat_at_rest_ignores_the_clock() -> None:
    for telling in (answered, failed):
        story = telling()
        before = story.journal
        story.later(HOUR_MS).does(cmd.Due())
        assert story.journal == before


def test_expiry_is_judged_call_by_call() -> None:
    story = calls_planned().asks("a").delegates("b", "client", 1_000).parks().later(1_000)
    story.does(cmd.Due())
    calls: tuple[Call, ...] = story.snapshot.calls
    assert [call.state for call in calls] == ["asking", "cancelled"]
    assert (story.state, story.chat.wake_at) == ("waiting", None)
