"""Parents and children: one transaction reaches both, an empty answer is an answer, nobody waits for the dead."""

from collections.abc import Callable

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.change import Change
from holdfast.core.journal import CallChanged, DescendantAnswered, DescendantAsking, MessageAdded
from holdfast.core.limits import Limits
from holdfast.core.records import Cause, External, NewChat, Snapshot, State, Text
from holdfast.core.transaction import Need, ReadBelow, ReadChat, transact
from tests.support.situations import calls_planned, model_next
from tests.support.story import BOOM, SIGNED, START, Story, assistant, user

CHILD = NewChat(id="child", agent="helper", message=user("task"))


def waits_for_child(story: Story, call_id: str = "a", spawn: NewChat = CHILD, turn: int | None = None) -> Story:
    story.does(cmd.Delegate(by=story.by, call_id=call_id, external=External.CHILD, spawn=spawn, child_turn=turn))
    return story


def parked() -> Story:
    """A parent that waits for its child, which runs under w2."""
    story = waits_for_child(model_next().calls("a")).parks()
    story.chat_id = "child"
    story.claimed("w2")
    story.chat_id = "chat"
    return story


def of_child(story: Story) -> Story:
    story.chat_id = "child"
    return story


def of_parent(story: Story) -> Story:
    story.chat_id = "chat"
    return story


def child_state(story: Story) -> State:
    return story.store.get("child").chat.state


# --- spawning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "has"),
    [
        (b"{}", b'{"unattended":true,"team":"red"}'),
        (b'{"team":"blue"}', b'{"unattended":true,"team":"blue"}'),
    ],
)
def test_a_child_has_the_metadata_of_its_parent_under_its_own(own: bytes, has: bytes) -> None:
    story = model_next().calls("a")
    chats = story.store.chats
    chats["chat"] = replace(chats["chat"], metadata=Raw(b'{"unattended":true,"team":"red"}'))
    waits_for_child(story, spawn=replace(CHILD, metadata=Raw(own)))
    assert bytes(story.store.get("child").chat.metadata) == has


def test_a_child_and_the_call_that_waits_for_it_are_one_transaction() -> None:
    story = waits_for_child(model_next().calls("a"))
    child = story.store.get("child").chat
    assert (child.state, child.parent_id, child.parent_call, child.depth) == ("running", "chat", "a", 1)
    assert (story.call("a").state, story.call("a").child_id) == ("external", "child")
    changed = CallChanged(
        call_id="a", name="tool", state=story.call("a").state, external=External.CHILD, child_id="child"
    )
    assert story.journal[-1] == changed


def test_a_child_that_nobody_waits_for_is_spawned_with_its_calls_outcome() -> None:
    story = model_next().calls("a", start=True)
    story.does(cmd.Outcome(by=story.by, call_id="a", content="spawned child", spawn=CHILD))
    child = story.store.get("child").chat
    assert (child.state, child.parent_id, child.parent_call, child.depth) == ("running", "chat", "a", 1)
    assert (story.phase, story.result("a").content) == ("model", "spawned child")


def test_who_a_childs_parent_is_does_not_depend_on_what_the_runner_says() -> None:
    story = model_next().calls("a", start=True)
    liar = NewChat(id="child", agent="helper", parent_id="other", parent_call="x", depth=7)
    story.does(cmd.Outcome(by=story.by, call_id="a", content="ok", spawn=liar))
    child = story.store.get("child").chat
    assert (child.parent_id, child.parent_call, child.depth) == ("chat", "a", 1)


@pytest.mark.parametrize("said", ["", "eve"])
def test_a_childs_owner_is_that_of_its_parent_whatever_the_runner_says(said: str) -> None:
    story = model_next().calls("a")
    chats = story.store.chats
    chats["chat"] = replace(chats["chat"], owner="ada")
    waits_for_child(story, spawn=replace(CHILD, owner=said))
    assert story.store.get("child").chat.owner == "ada"


def test_a_child_with_a_message_that_no_user_sends_is_refused_with_everything_else() -> None:
    story = model_next().calls("a", start=True)
    wrong = NewChat(id="child", agent="helper", message=assistant("x"))
    story.refuses(cmd.Outcome(by=story.by, call_id="a", content="ok", spawn=wrong), reason="wrong_message")
    assert "child" not in story.store.chats


def test_depth_grows_with_every_generation() -> None:
    story = of_child(waits_for_child(model_next().calls("a"))).claimed("w2").calls("x", start=True)
    grandchild = NewChat(id="grandchild", agent="helper")
    story.does(cmd.Outcome(by=story.by, call_id="x", content="ok", spawn=grandchild))
    assert story.store.get("grandchild").chat.depth == 2


def spawn_of(story: Story, call_id: str, child_id: str, message: str | None = "task") -> cmd.Delegate:
    child = NewChat(id=child_id, agent="helper", message=user(f"{child_id}-{message}") if message else None)
    return cmd.Delegate(by=story.by, call_id=call_id, external=External.CHILD, spawn=child)


def test_a_family_has_as_many_open_chats_as_the_limit_says_and_not_one_more() -> None:
    story = Story(limits=Limits(family_open_max=2)).claimed().calls("a", "b", "c")
    story.does(spawn_of(story, "a", "first"))
    story.does(spawn_of(story, "b", "second"))
    refused = story.refuses(spawn_of(story, "c", "third"), reason="family_full")
    assert refused.message == "2 chats are open in this family, which is the limit"
    story.does(spawn_of(story, "c", "idle", None))
    assert story.store.get("idle").chat.state == "idle", "one without a task is not at work"


def test_children_of_one_transaction_count_for_each_other() -> None:
    story = Story(limits=Limits(family_open_max=2)).claimed().calls("a", "b", "c")
    story.refuses(*(spawn_of(story, call_id, f"child-{call_id}") for call_id in "abc"), reason="family_full")
    story.does(*(spawn_of(story, call_id, f"child-{call_id}") for call_id in "ab"))
    assert {"child-a", "child-b"} <= story.store.chats.keys()


# --- the end of a child -----------------------------------------------------------------------------


def test_a_childs_end_and_its_parents_wake_are_one_transaction() -> None:
    story = of_child(parked()).says(text="42")
    changes = story.all_of(cmd.FinishTurn(by=story.by))
    assert [change.after.chat.id for change in changes] == ["child", "chat"]
    of_parent(story)
    assert (story.state, story.phase, story.chat.wake_at) == ("running", "model", story.now)
    assert (story.result("a").content, story.result("a").error) == ("42", False)
    assert story.call("a").answered_by == "child"


def test_an_answer_that_is_given_and_reported_in_one_transaction_is_the_answer() -> None:
    story = of_child(parked())
    said = story.response(assistant("said", Text(text="42")))
    story.does(cmd.Note(by=story.by, topic="x"), said, cmd.FinishTurn(by=story.by))
    assert (of_parent(story).result("a").content, story.state) == ("42", "running")


def test_a_childs_end_answers_no_call_that_waits_for_somebody_else() -> None:
    story = waits_for_child(calls_planned()).delegates("b").parks()
    of_child(story).claimed("w2").says(text="42").finishes()
    assert (of_parent(story).state, story.call("a").state, story.call("b").state) == ("waiting", "done", "external")


def test_an_empty_answer_is_an_answer_and_said_to_be_one() -> None:
    story = of_parent(of_child(parked()).says("said", SIGNED).finishes())
    assert (story.result("a").content, story.result("a").error) == ("It ended, and said nothing.", False)


def test_an_answer_that_was_lost_is_said_to_be_lost_and_is_not_an_empty_one() -> None:
    story = of_child(parked()).says(text="so far")
    story.does(cmd.FinishTurn(by=story.by, cause=Cause.BUDGET))
    of_parent(story)
    assert story.result("a").content == "The sub-agent reached its limit before it had an answer."
    assert story.result("a").error


def test_a_childs_failure_reaches_its_parent_with_the_reason() -> None:
    story = of_parent(of_child(parked()).fails())
    assert (story.result("a").content, story.result("a").error) == ("The sub-agent failed: it broke", True)
    assert (story.state, story.phase) == ("running", "model")


def test_a_child_given_up_after_crashes_wakes_its_parent() -> None:
    story = of_child(parked())
    for _ in range(4):
        story.lost().claimed("w2")
    story.does(cmd.LeaseExpired(worker="w2"))
    assert story.state == "failed"
    assert of_parent(story).state == "running"


def test_a_child_that_a_user_stopped_has_no_answer() -> None:
    story = of_child(parked())
    story.stops()
    story.finishes_stop()
    of_parent(story)
    assert (story.state, story.result("a").error) == ("running", True)
    assert story.result("a").content == "The sub-agent was stopped by the user before it had an answer."


@pytest.mark.parametrize("how", ["interrupt", "promote", "edit"])
def test_a_child_whose_turn_was_superseded_does_not_pass_off_an_older_answer_as_this_turns(how: str) -> None:
    """Its last answer was given to another question."""
    story = of_child(waits_for_child(model_next().calls("a"))).claimed("w2").says(text="the first answer").finishes()
    story.sends("m2")
    story.claimed("w2").calls("x").delegates("x").parks()
    of_parent(story).calls("b")
    story.does(cmd.Delegate(by=story.by, call_id="b", external=External.CHILD, child_id="child", child_turn=2))
    of_child(story)
    story.sends("m3")
    if how == "interrupt":
        story.sends("i1", "interrupt")
    elif how == "promote":
        story.does(cmd.Promote(message_id="m3"))
    else:
        story.edits(0)
    result = of_parent(story).result("b")
    assert (result.error, result.content) == (True, "The sub-agent ended without a recorded answer.")


def test_a_parent_that_still_runs_records_its_childs_end() -> None:
    story = of_child(waits_for_child(calls_planned()).starts("b")).claimed("w2").says(text="42").finishes()
    of_parent(story)
    assert (story.state, story.phase, story.result("a").content) == ("running", "calls", "42")
    assert story.chat.worker == "w1"


def test_a_childs_end_bumps_its_parents_version_so_that_a_racing_park_looks_again() -> None:
    story = waits_for_child(model_next().calls("a"))
    version, park = story.chat.version, cmd.Park(by=story.by)
    of_child(story).claimed("w2").says(text="42").finishes()
    of_parent(story)
    assert story.chat.version > version
    story.refuses(park, reason="nothing_outside")


def test_a_stopping_parent_records_its_childs_end_for_it_is_real() -> None:
    story = waits_for_child(model_next().calls("a"))
    story.sends("i1", "interrupt")
    of_child(story).claimed("w2").says(text="42").finishes()
    of_parent(story)
    assert (story.state, story.result("a").content) == ("stopping", "42")
    story.finishes_stop()
    assert story.result("a").content == "42"


def test_a_parent_at_rest_ignores_its_childs_end() -> None:
    story = model_next().calls("a", start=True)
    story.does(cmd.Outcome(by=story.by, call_id="a", content="ok", spawn=CHILD))
    story.says().finishes()
    entries = story.journal
    of_child(story).claimed("w2").says(text="42").finishes()
    of_parent(story)
    assert (story.state, story.journal) == ("idle", entries)


def test_two_calls_that_wait_for_one_child_are_both_answered() -> None:
    story = waits_for_child(calls_planned())
    story.does(cmd.Delegate(by=story.by, call_id="b", external=External.CHILD, child_id="child"))
    story.parks()
    of_child(story).claimed("w2").says(text="42").finishes()
    of_parent(story)
    assert (story.result("a").content, story.result("b").content, story.phase) == ("42", "42", "model")


# --- ended before anybody waited --------------------------------------------------------------------


def spawned() -> Story:
    """A parent with a child that it does not wait for yet, and a call to do so."""
    story = model_next().calls("a", start=True)
    story.does(cmd.Outcome(by=story.by, call_id="a", content="ok", spawn=CHILD))
    return story


def begins_to_wait(story: Story, turn: int | None = None, child_id: str = "child") -> Story:
    of_parent(story).calls("b")
    story.does(cmd.Delegate(by=story.by, call_id="b", external=External.CHILD, child_id=child_id, child_turn=turn))
    return story


@pytest.mark.parametrize("turn", [None, 1])
def test_a_child_that_ended_before_its_parent_began_to_wait_has_answered(turn: int | None) -> None:
    story = of_child(spawned()).claimed("w2").says(text="42").finishes()
    begins_to_wait(story, turn)
    assert (story.phase, story.result("b").content) == ("model", "42")


@pytest.mark.parametrize("turn", [None, 1])
def test_a_child_that_still_runs_is_waited_for(turn: int | None) -> None:
    story = begins_to_wait(spawned(), turn).parks()
    assert (story.state, story.call("b").state) == ("waiting", "external")
    of_child(story).claimed("w2").says(text="42").finishes()
    assert of_parent(story).result("b").content == "42"


def test_an_earlier_turn_of_a_child_that_runs_again_is_over_and_its_answer_there() -> None:
    story = of_child(spawned()).claimed("w2").says(text="42").finishes()
    story.sends("m2")
    begins_to_wait(story, 1)
    assert story.result("b").content == "42"


def test_a_later_turn_of_a_child_is_waited_for() -> None:
    story = of_child(spawned()).claimed("w2").says(text="42").finishes()
    begins_to_wait(story, 2).parks()
    of_child(story).sends("m2")
    story.claimed("w2").says(text="43").finishes()
    assert of_parent(story).result("b").content == "43"


def test_the_end_of_an_earlier_turn_does_not_answer_for_a_later_one() -> None:
    story = begins_to_wait(spawned(), 2).parks()
    of_child(story).claimed("w2").says(text="the first answer").finishes()
    assert of_parent(story).state == "waiting"
    of_child(story).sends("m2")
    story.claimed("w2").says(text="the second answer").finishes()
    assert of_parent(story).result("b").content == "the second answer"


def test_a_child_that_was_never_given_a_task_is_not_waited_for() -> None:
    story = model_next().calls("a", start=True)
    story.does(cmd.Outcome(by=story.by, call_id="a", content="ok", spawn=NewChat(id="child", agent="helper")))
    begins_to_wait(story)
    assert story.result("b").error


@pytest.mark.parametrize("child_id", ["nobody", "chat", "stranger"])
def test_a_chat_that_will_never_report_here_is_not_waited_for(child_id: str) -> None:
    story = spawned()
    story.store.create(NewChat(id="stranger", agent="helper", message=user("task")), START)
    begins_to_wait(story, child_id=child_id)
    assert (story.phase, story.result("b").error) == ("model", True)


def test_a_deleted_child_is_waited_for_no_longer() -> None:
    story = of_child(spawned()).claimed("w2").says(text="42").finishes()
    begins_to_wait(story, 2).parks()
    of_child(story)
    story.store.apply("child", cmd.Delete(), now=story.now)
    assert story.store.load("child") is None
    of_parent(story)
    assert (story.state, story.result("b").error) == ("running", True)


# --- stopping ---------------------------------------------------------------------------------------


def test_a_stop_reaches_the_children_and_theirs() -> None:
    story = of_child(parked()).calls("x")
    waits_for_child(story, "x", NewChat(id="grandchild", agent="helper", message=user("task"))).parks()
    of_parent(story).stops()
    assert story.state == "idle"
    assert child_state(story) == "idle", "it waited, so it rests at once"
    assert story.store.get("grandchild").chat.state == "stopping"
    assert story.store.get("grandchild").chat.cause is Cause.USER


def test_a_stop_clears_the_queues_of_the_children() -> None:
    story = of_child(parked())
    story.sends("m2")
    of_parent(story).stops()
    of_child(story).finishes_stop()
    assert (story.state, story.queue) == ("idle", [])


def test_a_stop_of_a_parent_at_rest_reaches_the_children_that_it_left_at_work() -> None:
    story = model_next().calls("a").starts("a")
    story.does(cmd.Outcome(by=story.by, call_id="a", content="spawned", spawn=CHILD))
    story.says(text="It is at work.").finishes()
    assert (story.store.get("chat").chat.state, child_state(story)) == (State.IDLE, State.RUNNING)
    story.does(cmd.Stop())
    assert child_state(story) in (State.STOPPING, State.IDLE)


def test_a_stop_reaches_children_that_nobody_waits_for() -> None:
    story = spawned()
    story.stops()
    assert child_state(story) == "stopping"


def test_a_child_born_while_its_parent_stops_is_stopped_at_birth() -> None:
    """The stop had gone through the children before this one existed."""
    story = model_next().calls("a", start=True)
    story.stops()
    story.does(cmd.Outcome(by=story.by, call_id="a", content="spawned child", spawn=CHILD))
    assert child_state(story) == "stopping"


def test_a_child_born_while_its_parent_is_superseded_lives_like_its_siblings() -> None:
    story = model_next().calls("a", start=True)
    story.sends("i1", "interrupt")
    story.does(cmd.Outcome(by=story.by, call_id="a", content="spawned child", spawn=CHILD))
    assert child_state(story) == "running"


@pytest.mark.parametrize("how", ["interrupt", "edit", "promote"])
def test_a_child_whose_call_is_cancelled_is_stopped(how: str) -> None:
    story = parked()
    if how == "interrupt":
        story.sends("i1", "interrupt")
    elif how == "edit":
        story.edits(0)
    else:
        story.sends("q1")
        story.does(cmd.Promote(message_id="q1"))
    assert (story.state, child_state(story)) == ("running", "stopping")


def test_a_child_whose_call_expires_is_stopped() -> None:
    story = model_next().calls("a")
    story.does(
        cmd.Delegate(by=story.by, call_id="a", external=External.CHILD, spawn=CHILD, expires_at=story.now + 1_000)
    )
    story.parks().later(1_000).does(cmd.Due())
    assert (story.state, child_state(story)) == ("running", "stopping")


def test_a_child_of_a_turn_that_failed_is_stopped_if_it_was_waited_for() -> None:
    story = waits_for_child(model_next().calls("a")).fails()
    assert (story.state, child_state(story)) == ("failed", "stopping")


def test_a_child_that_rests_is_not_touched_by_a_stop() -> None:
    story = of_child(spawned()).claimed("w2").says(text="42").finishes()
    before = story.snapshot
    of_parent(story).stops()
    assert of_child(story).snapshot == before


# --- the transaction itself -------------------------------------------------------------------------


def needs(snapshot: Snapshot, *commands: cmd.Command, answers: dict[Need, object]) -> tuple[list[Need], object]:
    steps = transact(snapshot, commands, START)
    asked: list[Need] = []
    try:
        need = next(steps)
        while True:
            asked.append(need)
            need = steps.send(answers[need])
    except StopIteration as done:
        return asked, done.value


def test_a_command_that_reaches_no_other_chat_reads_nothing() -> None:
    story = model_next()
    asked, changes = needs(story.snapshot, cmd.Note(by=story.by, topic="x"), answers={})
    assert asked == []
    assert isinstance(changes, tuple)


def test_a_turn_that_ends_in_a_chat_without_a_parent_reads_nothing() -> None:
    story = model_next().says()
    asked, _ = needs(story.snapshot, cmd.FinishTurn(by=story.by), answers={})
    assert asked == []


def test_a_stop_asks_which_children_are_at_work() -> None:
    story = spawned()
    child = story.store.get("child")
    answers: dict[Need, object] = {
        ReadBelow("chat", "chat"): ("child",),
        ReadChat("child"): child,
    }
    asked, changes = needs(story.snapshot, cmd.Stop(), answers=answers)
    assert asked == [ReadBelow("chat", "chat"), ReadChat("child")], "once, however deep the family is"
    assert isinstance(changes, tuple)
    assert [change.after.chat.id for change in changes] == ["chat", "child"]


def test_several_commands_are_one_transaction_and_all_or_none() -> None:
    story = model_next()
    response = story.response(assistant("r"))
    story.refuses(response, response, reason="not_the_models_turn")
    changes = story.all_of(response, cmd.FinishTurn(by=story.by))
    assert [change.after.chat.state.value for change in changes] == ["running", "idle"]
    assert (story.state, story.ids) == ("idle", ["m1", "r"])


def test_a_parent_that_was_deleted_is_told_nothing() -> None:
    story = spawned()
    child = story.store.get("child")
    claimed = transact(child, [cmd.Claim(worker="w2")], START)
    with pytest.raises(StopIteration) as done:
        next(claimed)
    (change,) = done.value.value
    assert isinstance(change, Change)
    by = cmd.Writer("w2", 1, 0)
    command = cmd.Fail(by=by, error=BOOM)
    asked, changes = needs(change.after, command, answers={ReadChat("chat"): None})
    assert asked == [ReadChat("chat")]
    assert isinstance(changes, tuple)
    assert len(changes) == 1


def test_a_result_that_reaches_a_parent_is_a_message_of_its_history() -> None:
    story = of_parent(of_child(parked()).says(text="42").finishes())
    last = [entry for entry in story.journal if isinstance(entry, MessageAdded)][-1]
    assert (last.call_state, last.off_history) == ("done", False)


# --- what is asked below ----------------------------------------------------------------------------


def grandchild_at_work() -> Story:
    """A grandchild that is about to ask, under a child, under the root."""
    story = of_child(waits_for_child(model_next().calls("a")).parks()).claimed("w2").calls("x", start=True)
    story.does(cmd.Outcome(by=story.by, call_id="x", content="ok", spawn=NewChat(id="g", agent="deep", message=ASK)))
    story.chat_id = "g"
    return story.claimed("w2").calls("p", "q")


ASK = user("do it")


def told_at_the_root(story: Story) -> list[tuple[str, ...]]:
    told: list[tuple[str, ...]] = []
    for entry in story.store.journal("chat"):
        if isinstance(entry, DescendantAsking):
            told.append(("asking", entry.chat_id, entry.agent, entry.call_id, entry.state, entry.question or ""))
        elif isinstance(entry, DescendantAnswered):
            told.append(("answered", entry.chat_id, entry.call_id, entry.state, entry.by or ""))
    return told


def test_what_a_grandchild_asks_is_told_at_the_root_in_the_same_transaction_and_so_is_the_answer() -> None:
    story = grandchild_at_work()
    changes = story.all_of(cmd.AskApproval(by=story.by, call_id="p", question="May I?"))
    assert [change.after.chat.id for change in changes] == ["g", "chat"]
    story.delegates("q", "question").parks()
    changes = story.all_of(cmd.Approve(call_id="p", by="ann"))
    assert [change.after.chat.id for change in changes] == ["g", "chat"]
    story.does(cmd.Submit(call_id="q", content="That one."))
    assert told_at_the_root(story) == [
        ("asking", "g", "deep", "p", "asking", "May I?"),
        ("asking", "g", "deep", "q", "external", ""),
        ("answered", "g", "p", "approved", "ann"),
        ("answered", "g", "q", "done", ""),
    ]
    assert of_parent(story).state == "waiting", "it is only told"


ENDS: dict[str, Callable[[Story], object]] = {
    "denied": lambda story: story.does(cmd.Deny(call_id="p", words="no")),
    "stopped": lambda story: story.stops(),
    "stopped from above": lambda story: of_parent(story).stops(),
    "interrupted": lambda story: story.sends("i", "interrupt"),
    "edited": lambda story: story.edits(0),
    "expired": lambda story: story.does(cmd.Due()),
    "found to be late by a claim": lambda story: story.claimed("w2"),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_question_below_is_told_at_the_root(end: str) -> None:
    story = grandchild_at_work().starts("q").returns("q").asks("p", 1_000).parks()
    story.now += 1_000
    ENDS[end](story)
    asked, answered = told_at_the_root(story)
    state = "denied" if end in ("denied", "expired", "found to be late by a claim") else "cancelled"
    assert (asked[:5], answered[:4]) == (("asking", "g", "deep", "p", "asking"), ("answered", "g", "p", state))


def test_a_person_who_is_asked_about_a_lost_call_below_is_asked_at_the_root_too() -> None:
    story = of_child(parked()).calls("x", start=True, on_unknown="ask").lost().claimed("w2")
    (told,) = told_at_the_root(story)
    assert told[:5] == ("asking", "child", "helper", "x", "external")
    assert told[5].startswith("Outcome unknown: tool was started at ")


def test_a_chat_at_the_top_tells_only_itself() -> None:
    story = model_next().calls("a").asks("a").parks()
    assert told_at_the_root(story) == []
