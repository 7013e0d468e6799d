"""A stop reaches the whole tree: whatever its top, a child and a grandchild are doing. And a parent speaks to its
child, or cancels it.
"""

import json
from collections.abc import Callable
from itertools import product

import pytest

from holdfast.core import commands as cmd
from holdfast.core.journal import StopRequested
from holdfast.core.limits import Limits
from holdfast.core.records import Cause, External, NewChat, State
from tests.support.scale import FULL
from tests.support.situations import HOUR_MS
from tests.support.story import START, Story, assistant, user

LEVELS = ("chat", "child", "grandchild")
HOLDERS = dict(zip(LEVELS, ("w1", "w2", "w1"), strict=True))


def at(story: Story, chat_id: str) -> Story:
    """Tell of this one, whose attempts are numbered on."""
    story.chat_id = chat_id
    story.attempts = max(0, story.chat.attempt_ended - (story.chat.fence << 20))
    return story


def lost(story: Story, times: int) -> None:
    for _ in range(times - 1):
        story.lost().claimed(HOLDERS[story.chat_id])
    worker = story.chat.worker
    assert worker is not None
    story.does(cmd.LeaseExpired(worker=worker))


def waits(story: Story, external: str, expires_in_ms: int | None = None) -> None:
    story.calls(f"{story.chat_id}-w").delegates(f"{story.chat_id}-w", external, expires_in_ms).parks()


def asks(story: Story) -> None:
    story.calls(f"{story.chat_id}-w").asks(f"{story.chat_id}-w").parks()


def awaits_below(story: Story) -> None:
    """Of one that has nothing below it, it is answered at once: then the chat runs."""
    below = {"chat": "child", "child": "grandchild"}.get(story.chat_id, "nobody")
    call_id = f"{story.chat_id}-w"
    story.calls(call_id)
    story.does(cmd.Delegate(by=story.by, call_id=call_id, external=External.CHILD, child_id=below, child_turn=2))
    if below != "nobody":
        story.parks()


def compacts(story: Story) -> None:
    story.says(f"{story.chat_id}-said").finishes()
    story.does(cmd.Compact())
    story.claimed(HOLDERS[story.chat_id])


def fails_with_a_queue(story: Story) -> None:
    story.sends(f"{story.chat_id}-q")
    story.fails()


def queues(story: Story) -> None:
    story.sends(f"{story.chat_id}-q")


def runs(story: Story) -> None:
    pass


STATES: dict[str, Callable[[Story], object]] = {
    "running": runs,
    "running, with a queue": queues,
    "running a call": lambda story: story.calls(f"{story.chat_id}-w", start=True),
    "nobody's": lambda story: story.does(cmd.Release(by=story.by)),
    "in a backoff": lambda story: lost(story, 2),
    "a suspect": lambda story: lost(story, 4),
    "superseded": lambda story: story.sends(f"{story.chat_id}-i", "interrupt"),
    "stopping": lambda story: story.stops(),
    "compacting": compacts,
    "waiting for an approval": asks,
    "waiting for a person": lambda story: waits(story, "question"),
    "waiting for a timer": lambda story: waits(story, "timer", HOUR_MS),
    "waiting for what is below": awaits_below,
    "idle": lambda story: story.says(f"{story.chat_id}-said").finishes(),
    "failed": lambda story: story.fails(),
    "failed, with a queue": fails_with_a_queue,
}
AT_WORK = (State.RUNNING, State.WAITING)
# In `make test`: each state beside these, which are what the ways of a stop differ by.
TELLING = tuple(STATES) if FULL else ("running a call", "superseded", "waiting for what is below", "idle", "failed")
TREES = sorted(
    {*product(STATES, TELLING, TELLING), *product(TELLING, STATES, TELLING), *product(TELLING, TELLING, STATES)}
)


def tree(*states: str) -> Story:
    """Three generations, each in its state; the lowest came into its own first."""
    story = Story().claimed("w1")
    for above, below in (LEVELS[:2], LEVELS[1:]):
        at(story, above)
        story.calls(f"{above}-spawn", start=True)
        new = NewChat(id=below, agent="helper", message=user(f"{below}-task"))
        story.does(cmd.Outcome(by=story.by, call_id=f"{above}-spawn", content="spawned", spawn=new))
        at(story, below)
        story.claimed(HOLDERS[below])
    for chat_id, state in reversed(list(zip(LEVELS, states, strict=True))):
        at(story, chat_id)
        STATES[state](story)
    at(story, "chat")
    return story


def stopped_user(story: Story, chat_id: str) -> bool:
    chat = story.store.get(chat_id).chat
    return chat.state not in AT_WORK and not (chat.state is State.STOPPING and story.store.get(chat_id).queue)


@pytest.mark.parametrize("top", STATES)
def test_a_stop_of_the_top_reaches_every_state_below(top: str) -> None:
    """Also through one that rests: what it left at work is below the top as well."""
    for _, child, grandchild in [states for states in TREES if states[0] == top]:
        story = tree(top, child, grandchild)
        before = {chat_id: story.store.get(chat_id).chat for chat_id in LEVELS}
        story.stops(clear_queue=True)
        for chat_id in LEVELS:
            chat = story.store.get(chat_id).chat
            assert stopped_user(story, chat_id), (top, child, grandchild, chat_id, chat.state)
            if chat.state is State.STOPPING:
                assert story.store.get(chat_id).stop_cause is Cause.USER, (top, child, grandchild, chat_id)
                due = chat.wake_at is not None and chat.wake_at <= story.now and not chat.backoff_ms
                assert chat.worker is not None or due, "a worker ends it now, backoff or not"
            elif before[chat_id].state not in (State.WAITING, State.STOPPING):
                assert chat.state is before[chat_id].state, "what rests, rests"


@pytest.mark.parametrize("child", STATES)
def test_a_stop_in_the_middle_reaches_what_is_below_and_leaves_what_is_above(child: str) -> None:
    for grandchild in TELLING:
        story = tree("running", child, grandchild)
        above = story.store.get("chat").chat.state
        at(story, "child")
        story.stops(clear_queue=True)
        assert stopped_user(story, "child"), (child, grandchild)
        assert stopped_user(story, "grandchild"), (child, grandchild)
        assert story.store.get("chat").chat.state is above


def test_a_tree_that_is_stopped_twice_is_told_so_once() -> None:
    story = tree("running", "running", "running")
    story.stops()
    story.stops()
    for story.chat_id in LEVELS:
        assert story.tells(StopRequested) == [StopRequested(cause=Cause.USER)]


def test_a_chat_beside_the_one_that_is_stopped_goes_on() -> None:
    story = tree("running", "running", "running")
    story.calls("again", start=True)
    new = NewChat(id="sibling", agent="helper", message=user("more"))
    story.does(cmd.Outcome(by=story.by, call_id="again", content="spawned", spawn=new))
    at(story, "child")
    story.stops()
    assert story.store.get("sibling").chat.state is State.RUNNING
    assert story.store.get("grandchild").chat.state is State.STOPPING


# --- a parent speaks to its child, or cancels it ----------------------------------------------------------


def reaching(story: Story, child_id: str = "child", **said: object) -> dict[str, object]:
    """What a call of the top comes to. Its chat must run."""
    at(story, "chat")
    story.calls("r", start=True)
    changes = story.all_of(cmd.Reach(by=story.by, call_id="r", child_id=child_id, **said))  # type: ignore[arg-type]
    assert (story.call("r").state, story.state) == ("done", "running")
    assert changes[0].after.chat.id == "chat"
    result = story.result("r")
    told: dict[str, object] = {"error": result.content} if result.error else json.loads(result.content)
    return told


@pytest.mark.parametrize("child", STATES)
def test_a_cancelled_child_is_stopped_with_all_that_is_below_it_and_its_parent_told(child: str) -> None:
    for grandchild in TELLING:
        story = tree("running", child, grandchild)
        was = story.store.get("child").chat.state
        told = reaching(story)
        assert told == {"agent_id": "child", "was": was, "state": story.store.get("child").chat.state}
        for chat_id in LEVELS[1:]:
            assert stopped_user(story, chat_id), (child, grandchild, chat_id)
            snapshot = story.store.get(chat_id)
            if snapshot.chat.state is State.STOPPING:
                at_rest = snapshot.chat.turn_started_at is None  # a compaction: no turn is cut short
                by_user = child == "stopping" or (chat_id, grandchild) == ("grandchild", "stopping")
                assert snapshot.stop_cause is (Cause.USER if by_user or at_rest else Cause.PARENT)


def test_a_cancelled_child_says_so_to_who_waits_for_it() -> None:
    story = tree("running", "waiting for a person", "idle")
    story.calls("w", "r")
    story.does(cmd.Delegate(by=story.by, call_id="w", external=External.CHILD, child_id="child"))
    story.starts("r")
    story.does(cmd.Reach(by=story.by, call_id="r", child_id="child"))
    assert story.result("w").content == "The sub-agent was cancelled before it had an answer."
    assert json.loads(story.result("r").content) == {"agent_id": "child", "was": "waiting", "state": "idle"}
    assert story.store.get("child").chat.cause is Cause.PARENT
    at(story, "child")
    assert story.tells(StopRequested) == [StopRequested(cause=Cause.PARENT)]


def test_a_user_who_stops_what_its_parent_cancelled_is_the_cause() -> None:
    story = tree("running", "running", "idle")
    reaching(story)
    at(story, "child")
    story.stops()
    assert story.snapshot.stop_cause is Cause.USER
    at(story, "chat")
    story.calls("again", start=True)
    story.does(cmd.Reach(by=story.by, call_id="again", child_id="child"))
    assert story.store.get("child").stop_cause is Cause.USER, "and stays it"


def test_a_child_born_to_one_that_is_being_cancelled_is_cancelled_at_birth() -> None:
    story = tree("running", "running a call", "idle")
    reaching(story)
    at(story, "child")
    new = NewChat(id="late", agent="helper", message=user("late-task"))
    story.does(cmd.Outcome(by=story.by, call_id="child-w", content="spawned", spawn=new))
    assert story.store.get("late").stop_cause is Cause.PARENT
    assert story.store.get("late").chat.state is State.STOPPING


@pytest.mark.parametrize("child_id", ["nobody", "chat", "grandchild", "stranger"])
@pytest.mark.parametrize("message", [user("psst"), None])
def test_a_chat_that_is_not_its_child_is_not_reached(child_id: str, message: object) -> None:
    story = tree("running", "running", "running")
    story.store.create(NewChat(id="stranger", agent="helper", message=user("task")), START)
    others = ("child", "grandchild", "stranger")
    before = [story.store.get(one) for one in others]
    told = reaching(story, child_id, message=message)
    assert told == {"error": f"{child_id!r} is none of your agents: list_agents names them."}
    assert [story.store.get(one) for one in others] == before


# What a message to a child in this state comes to: the turn that takes it, and the child's state.
TAKEN = {
    "running": (2, "running"),
    "running, with a queue": (3, "running"),
    "running a call": (2, "running"),
    "nobody's": (2, "running"),
    "in a backoff": (2, "running"),
    "a suspect": (2, "running"),
    "superseded": (3, "stopping"),
    "stopping": (2, "stopping"),
    "compacting": (2, "running"),
    "waiting for an approval": (2, "waiting"),
    "waiting for a person": (2, "waiting"),
    "waiting for a timer": (2, "waiting"),
    "waiting for what is below": (2, "waiting"),
    "idle": (2, "running"),
    "failed": (2, "running"),
    "failed, with a queue": (3, "running"),
}


@pytest.mark.parametrize("child", STATES)
def test_a_message_to_a_child_is_taken_in_the_turn_that_its_parent_is_told(child: str) -> None:
    story = tree("running", child, "idle")
    told = reaching(story, message=user("more"))
    turn, state = TAKEN[child]
    assert told == {"agent_id": "child", "turn": turn, "state": state}
    snapshot = story.store.get("child")
    begun = [message.id for message in story.store.history("child")]
    assert ("more" in begun) == (snapshot.chat.turn == turn)
    assert ("more" in [queued.id for queued in snapshot.queue]) == (snapshot.chat.turn < turn)


def test_what_steers_a_child_joins_its_turn_and_that_turn_is_told() -> None:
    story = tree("running", "running a call", "idle")
    assert reaching(story, message=user("rather"), mode="steer") == {
        "agent_id": "child", "turn": 1, "state": "running",
    }  # fmt: skip
    at(story, "child")
    story.returns("child-w")
    assert story.ids[-1] == "rather"


def test_a_parent_does_not_answer_what_its_child_asks_a_person() -> None:
    story = tree("running", "waiting for a person", "idle")
    reaching(story, message=user("I say yes"))
    assert story.store.get("child").chat.state is State.WAITING
    assert [queued.id for queued in story.store.get("child").queue] == ["I say yes"]


def test_a_message_that_would_wake_one_chat_too_many_of_a_family_is_refused_in_words() -> None:
    story = Story(limits=Limits(family_open_max=1)).claimed().calls("a", start=True)
    story.does(cmd.Outcome(by=story.by, call_id="a", content="ok", spawn=NewChat(id="child", agent="helper")))
    story.calls("b", start=True)
    other = NewChat(id="other", agent="helper", message=user("task"))
    story.does(cmd.Outcome(by=story.by, call_id="b", content="ok", spawn=other))
    full = {"error": "1 chats are open in this family, which is the limit: wait for some of them first."}
    assert reaching(story, message=user("work")) == full
    assert story.store.get("child").chat.state is State.IDLE


def test_a_message_that_its_child_does_not_take_is_told_as_an_error() -> None:
    story = Story(limits=Limits(queue_messages_max=1)).claimed().calls("a", start=True)
    new = NewChat(id="child", agent="helper", message=user("task"))
    story.does(cmd.Outcome(by=story.by, call_id="a", content="ok", spawn=new))
    at(story, "child")
    story.sends("q")
    assert "It was not taken: the chat has 1 queued messages" in str(reaching(story, message=user("more"))["error"])


def test_only_a_started_call_reaches_a_child_and_only_with_what_a_user_says() -> None:
    story = tree("running", "running", "idle").calls("r")
    story.refuses(cmd.Reach(by=story.by, call_id="r", child_id="child"), reason="call_state")
    story.starts("r")
    wrong = cmd.Reach(by=story.by, call_id="r", child_id="child", message=assistant("x"))
    story.refuses(wrong, reason="wrong_message")
