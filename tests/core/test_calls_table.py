"""The call table: pinned, and walked with the commands that cause each of its moves."""

from collections.abc import Callable

import pytest

from holdfast.core import commands as cmd
from holdfast.core.change import Refused
from holdfast.core.records import FINAL, CallState, External
from holdfast.core.states import CALLS, OPEN, OUTSIDE, RUNNABLE, CallMove
from tests.support.story import Story

MATRIX = """
move      planned    asking     approved   started    external   done     denied   unknown  cancelled
ask       asking     refused    refused    refused    refused    refused  refused  refused  refused
approve   refused    approved   refused    refused    refused    refused  refused  refused  refused
deny      denied     denied     refused    refused    refused    refused  refused  refused  refused
start     started    refused    started    refused    refused    refused  refused  refused  refused
delegate  external   refused    external   refused    refused    refused  refused  refused  refused
finish    refused    refused    refused    done       done       refused  refused  refused  refused
refuse    done       refused    done       refused    refused    refused  refused  refused  refused
revert    refused    refused    refused    planned    refused    refused  refused  refused  refused
lose      refused    refused    refused    unknown    refused    refused  refused  refused  refused
doubt     refused    refused    refused    external   refused    refused  refused  refused  refused
cancel    cancelled  cancelled  cancelled  cancelled  cancelled  refused  refused  refused  refused
"""

HEADER, *LINES = [line.split() for line in MATRIX.strip().splitlines()]
PINNED = {
    (CallMove(row), CallState(state)): None if target == "refused" else CallState(target)
    for row, *targets in LINES
    for state, target in zip(HEADER[1:], targets, strict=True)
}


def test_every_call_state_and_every_call_move_has_been_decided_upon() -> None:
    assert HEADER[1:] == [state.value for state in CallState]
    assert [row for row, *_ in LINES] == [move.value for move in CallMove]


@pytest.mark.parametrize(("move", "state"), list(PINNED))
def test_the_table_says_what_is_pinned_here(move: CallMove, state: CallState) -> None:
    assert CALLS[move].get(state) == PINNED[move, state]


def test_every_call_state_is_runnable_or_outside_or_final() -> None:
    assert set(CallState) == RUNNABLE | OUTSIDE | FINAL
    assert len(RUNNABLE) + len(OUTSIDE) + len(FINAL) == len(CallState)
    assert OPEN == RUNNABLE | OUTSIDE


def test_nothing_leads_out_of_a_final_state_and_something_out_of_every_other() -> None:
    left = {state for row in CALLS.values() for state in row}
    assert left == set(CallState) - FINAL


# --- the walk ---------------------------------------------------------------------------------------

# A chat whose call `a` is in each state; `b` stays planned, so that the batch stays open. Where the outcome of `a`
# is lost, its class decides, so both are told.


def planned(**how: str) -> Story:
    return Story().claimed().calls("a", "b", **how)  # type: ignore[arg-type]


def asking() -> Story:
    return planned().asks("a", expires_in_ms=1_000)


def approved() -> Story:
    story = asking()
    story.does(cmd.Approve(call_id="a"))
    return story


def started(**how: str) -> Story:
    return planned(**how).starts("a")


def external() -> Story:
    return planned().delegates("a", expires_in_ms=1_000)


def denied() -> Story:
    story = asking()
    story.does(cmd.Deny(call_id="a"))
    return story


def cancelled() -> Story:
    story = external().later(1_000)
    story.does(cmd.Due())
    return story


CHATS: dict[CallState, Callable[[], Story]] = {
    CallState.PLANNED: planned,
    CallState.ASKING: asking,
    CallState.APPROVED: approved,
    CallState.STARTED: started,
    CallState.EXTERNAL: external,
    CallState.DONE: lambda: started().returns("a"),
    CallState.DENIED: denied,
    CallState.UNKNOWN: lambda: started().lost().claimed(),
    CallState.CANCELLED: cancelled,
}


@pytest.mark.parametrize("state", list(CallState))
def test_there_is_a_call_to_try_in_every_state(state: CallState) -> None:
    assert CHATS[state]().call("a").state is state


def try_(story: Story, command: cmd.Command) -> None:
    """Refused or not; whatever else it does, a refusal must be about the call's state."""
    outcome = story.store.apply(story.chat_id, command, now=story.now)
    if isinstance(outcome, Refused):
        assert outcome.reason == "call_state"
        assert "'a'" in outcome.message


# What asks for one call to move is refused where the table refuses; what happens to a whole chat passes by the calls
# that it does not concern.
ASKED: dict[CallMove, list[Callable[[Story], cmd.Command]]] = {
    CallMove.ASK: [lambda story: cmd.AskApproval(by=story.by, call_id="a", question="May I?")],
    CallMove.APPROVE: [lambda story: cmd.Approve(call_id="a")],
    CallMove.DENY: [lambda story: cmd.Refuse(by=story.by, call_id="a", content="no", denied=True)],
    CallMove.START: [lambda story: cmd.StartCalls(by=story.by, call_ids=("a",))],
    CallMove.DELEGATE: [lambda story: cmd.Delegate(by=story.by, call_id="a", external=External.CLIENT)],
    CallMove.FINISH: [
        lambda story: cmd.Outcome(by=story.by, call_id="a", content="ok"),
        lambda story: cmd.Submit(call_id="a", content="ok"),
    ],
    CallMove.REFUSE: [lambda story: cmd.Refuse(by=story.by, call_id="a", content="no")],
    CallMove.REVERT: [lambda story: cmd.Release(by=story.by, never_begun=("a",))],
}


def lose(story: Story) -> None:
    story.lost().claimed()


def lose_here(story: Story) -> None:
    """Its worker lives, and does not know either."""
    try_(story, cmd.Outcome(by=story.by, call_id="a", content="gone", error=True, unknown=True, again=True))


def stop(story: Story) -> None:
    story.stops()
    story.finishes_stop()


@pytest.mark.parametrize(("move", "state"), [pair for pair in PINNED if pair[0] in ASKED])
def test_a_call_moves_when_asked_to_if_the_table_says_so(move: CallMove, state: CallState) -> None:
    story = CHATS[state]()
    before = story.snapshot
    for asking in ASKED[move]:
        try_(story, asking(story))
    assert story.call("a").state is (PINNED[move, state] or state)
    assert (story.snapshot == before) is (PINNED[move, state] is None)


@pytest.mark.parametrize("how", [lose, lose_here])
@pytest.mark.parametrize("state", list(CallState))
def test_a_call_whose_outcome_is_lost_is_unknown_if_it_had_started(
    state: CallState, how: Callable[[Story], None]
) -> None:
    story = CHATS[state]()
    how(story)
    assert story.call("a").state is (PINNED[CallMove.LOSE, state] or state)


@pytest.mark.parametrize("how", [lose, lose_here])
@pytest.mark.parametrize("state", list(CallState))
def test_a_call_whose_outcome_is_lost_is_doubted_if_it_had_started_and_a_person_is_to_be_asked(
    state: CallState, how: Callable[[Story], None]
) -> None:
    story = started(on_unknown="ask") if state is CallState.STARTED else CHATS[state]()
    how(story)
    assert story.call("a").state is (PINNED[CallMove.DOUBT, state] or state)


@pytest.mark.parametrize("state", list(CallState))
def test_a_stop_cancels_a_call_that_is_open_and_leaves_one_that_is_over(state: CallState) -> None:
    story = CHATS[state]()
    stop(story)
    assert story.call("a").state is (PINNED[CallMove.CANCEL, state] or state)


def test_the_walk_covers_the_table() -> None:
    assert set(ASKED) | {CallMove.LOSE, CallMove.DOUBT, CallMove.CANCEL} == set(CallMove)
    assert set(CHATS) == set(CallState)
