"""What a runner does next, in every situation; and each budget at its limit, one below it and without one."""

import pytest
from msgspec.structs import replace

from holdfast.core.decide import (
    Action,
    AskModel,
    AwaitBodies,
    Budget,
    CompactNow,
    EndStop,
    EndTurn,
    Leave,
    ParkChat,
    RunCalls,
    exhausted_budget,
    next_action,
)
from holdfast.core.records import Cause, Snapshot, State
from tests.support import situations
from tests.support.situations import SITUATIONS, calls_planned, model_next, said, stopped
from tests.support.story import Story

UNBOUNDED = Budget()


def decided(story: Story, *, worker: str = "w1", budget: Budget = UNBOUNDED) -> Action:
    return next_action(story.snapshot, worker, budget, 0)


# --- whose it is, and what is owed --------------------------------------------------------------------

RUNNING: dict[str, Action | list[str]] = {
    "nobody's yet": Leave(),
    "the model is next": AskModel(),
    "the model is next, with a queue": AskModel(),
    "the model has said it all": EndTurn(),
    "the model has said it all, with a queue": EndTurn(),
    "calls planned": ["a", "b"],
    "a call started beside a planned one": ["b"],
    "a pure call started": AwaitBodies(),
    "a call started, with a queue": AwaitBodies(),
    "a call asks while another runs": AwaitBodies(),
    "a call approved": ["a", "b"],
    "a call is outside while another runs": AwaitBodies(),
    "all calls are outside": ParkChat(),
    "a call waits for a child": ParkChat(),
    "lost twice": Leave(),
    "lost four times": AskModel(),
    "compacting": CompactNow(),
}


def test_every_situation_of_a_running_chat_is_decided_here() -> None:
    assert RUNNING.keys() == SITUATIONS[State.RUNNING].keys()


@pytest.mark.parametrize("name", RUNNING)
def test_a_runner_does_what_its_chat_owes(name: str) -> None:
    action, expected = decided(SITUATIONS[State.RUNNING][name]()), RUNNING[name]
    if isinstance(expected, list):
        assert isinstance(action, RunCalls)
        assert [call.id for call in action.calls] == expected
    else:
        assert action == expected


@pytest.mark.parametrize("name", SITUATIONS[State.STOPPING])
def test_a_chat_that_is_to_stop_is_stopped_by_its_holder_and_by_no_other(name: str) -> None:
    story = SITUATIONS[State.STOPPING][name]()
    assert decided(story) == (EndStop() if story.chat.worker == "w1" else Leave())
    assert decided(story, worker="w2") == Leave()


@pytest.mark.parametrize("state", [State.IDLE, State.WAITING, State.FAILED])
def test_a_chat_that_is_not_at_work_is_left_even_if_it_names_this_worker(state: State) -> None:
    for telling in SITUATIONS[state].values():
        snapshot = telling().snapshot
        held = replace(snapshot, chat=replace(snapshot.chat, worker="w1"))
        assert next_action(held, "w1", UNBOUNDED, 0) == Leave()


@pytest.mark.parametrize("name", SITUATIONS[State.RUNNING])
def test_a_chat_of_another_worker_is_left_whatever_it_owes(name: str) -> None:
    assert decided(SITUATIONS[State.RUNNING][name](), worker="w2") == Leave()


def test_calls_come_before_a_compaction_and_a_compaction_before_the_end_of_the_turn() -> None:
    with_calls, at_rest, stopping = calls_planned(), said(), stopped(model_next)

    def owing(story: Story) -> Snapshot:
        return replace(story.snapshot, chat=replace(story.chat, compact=True))

    assert isinstance(next_action(owing(with_calls), "w1", UNBOUNDED, 0), RunCalls)
    assert next_action(owing(at_rest), "w1", UNBOUNDED, 0) == CompactNow()
    assert next_action(owing(stopping), "w1", UNBOUNDED, 0) == EndStop()


# --- budgets at their limit -----------------------------------------------------------------------------


def used(*, step: int = 0, tokens: int = 0, cost: float = 0.0, ms: int = 0) -> Snapshot:
    """A chat whose model is next, and that has used so much in its turn."""
    snapshot = model_next().snapshot
    return replace(snapshot, chat=replace(snapshot.chat, step=step, turn_tokens=tokens, turn_cost=cost, turn_ms=ms))


@pytest.mark.parametrize(
    ("below", "at", "budget", "detail"),
    [
        (used(step=2), used(step=3), Budget(steps=3), "max_steps: 3 of 3 model responses"),
        (used(tokens=999), used(tokens=1000), Budget(tokens=1000), "max_tokens: 1,000 of 1,000 tokens"),
        (used(cost=0.4999), used(cost=0.5), Budget(cost=0.5), "max_cost: 0.5000 of 0.5"),
        (used(), used(step=1), Budget(steps=1), "max_steps: 1 of 1 model responses"),
    ],
    ids=["steps", "tokens", "cost", "one step"],
)
def test_a_budget_is_used_up_when_it_is_reached_and_not_before(
    below: Snapshot, at: Snapshot, budget: Budget, detail: str
) -> None:
    assert next_action(below, "w1", budget, 0) == AskModel()
    assert next_action(at, "w1", budget, 0) == EndTurn(cause=Cause.BUDGET, detail=detail)


@pytest.mark.parametrize("committed_ms", [0, 1_000, 2_499])
def test_the_time_of_a_turn_is_what_was_committed_and_what_was_worked_since_and_is_used_up_when_it_is_reached(
    committed_ms: int,
) -> None:
    budget = Budget(seconds=2.5)
    assert next_action(used(ms=committed_ms), "w1", budget, 2_499 - committed_ms) == AskModel()
    assert next_action(used(ms=committed_ms), "w1", budget, 2_500 - committed_ms) == EndTurn(
        cause=Cause.BUDGET, detail="max_seconds: 2 of 2.5 s"
    )


@pytest.mark.parametrize(
    "budget", [Budget(steps=10**9), Budget(steps=10**9, tokens=10**9, seconds=10**9, cost=10**9)]
)
def test_what_has_no_limit_or_is_far_from_it_is_never_used_up(budget: Budget) -> None:
    assert exhausted_budget(used(step=10**6, tokens=10**6, cost=10.0**6), budget, 10**6) is None


def test_without_a_word_a_turn_has_two_hundred_steps_and_no_other_limit() -> None:
    far = 10 * 365 * 24 * situations.HOUR_MS
    assert exhausted_budget(used(step=199, tokens=10**9, cost=10.0**9), UNBOUNDED, far) is None
    assert exhausted_budget(used(step=200), UNBOUNDED, 0) == "max_steps: 200 of 200 model responses"


def test_at_a_limit_open_calls_still_run_and_a_turn_that_is_done_ends_as_done() -> None:
    """A budget gates the next response of the model, and nothing else."""
    spent = Budget(steps=1)
    assert isinstance(decided(calls_planned(), budget=spent), RunCalls)
    assert decided(said(), budget=spent) == EndTurn()
    assert decided(stopped(said), budget=spent) == EndStop()
    assert decided(situations.compacting(), budget=Budget(steps=0)) == CompactNow()
