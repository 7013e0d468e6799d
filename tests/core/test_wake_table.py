"""The wake stream's table: pinned pair by pair, so that a new state or event needs a decision here too."""

import pytest

from holdfast.core.wake import (
    IGNORED,
    RUNNING,
    STARTS,
    WAKING,
    Effect,
    Step,
    WakeEvent,
    WakeState,
    reconnect_pause_s,
    step,
)

MATRIX = """
event            stopped             running.connecting  running.streaming  running.reconnecting  stopping
start            >connecting         -                   -                  -                     -
stop             -                   >stopping           >stopping          >stopping             -
reset            -                   >reconnecting       >reconnecting      >connecting           -
connected        -                   ring_all>streaming  -                  -                     -
connect_failed   -                   >reconnecting       -                  -                     -
wake             -                   -                   ring               -                     -
ended            -                   -                   >reconnecting      -                     -
failed           -                   -                   >reconnecting      -                     -
backoff_elapsed  -                   -                   -                  >connecting           -
drained          -                   -                   -                  -                     finish>stopped
"""

HEADER, *LINES = [line.split() for line in MATRIX.strip().splitlines()]
PINNED = {
    (WakeState(state), WakeEvent(event)): text
    for event, *texts in LINES
    for state, text in zip(HEADER[1:], texts, strict=True)
}
EVERY_PAIR = [(state, event) for state in WakeState for event in WakeEvent]
BY_LAST_NAME = {state.rpartition(".")[2]: state for state in WakeState}


def test_every_state_and_every_event_has_been_decided_upon() -> None:
    assert set(PINNED) == set(EVERY_PAIR)
    assert set(WAKING) == set(STARTS) == set(WakeState)
    for cells in WAKING.values():
        assert set(cells) == set(WakeEvent)


@pytest.mark.parametrize(("state", "event"), EVERY_PAIR)
def test_the_table_says_what_is_pinned_here(state: WakeState, event: WakeEvent) -> None:
    text = PINNED[state, event]
    if text == "-":
        assert WAKING[state][event] is IGNORED
        assert step(state, event) is None
        return
    did, _, to = text.partition(">")
    effects = tuple(Effect(name) for name in did.split(",") if name)
    if not to:
        assert step(state, event) == Step(state=state, leaves=False, effects=effects)
    else:
        target = BY_LAST_NAME[to]
        assert step(state, event) == Step(state=target, leaves=True, effects=STARTS[target] + effects)


def test_only_ignored_cells_do_nothing() -> None:
    """A cell that is empty by accident would pass for a decision."""
    for cells in WAKING.values():
        assert all(cell is IGNORED or cell.to is not None or cell.effects for cell in cells.values())


def test_a_reset_and_a_stop_are_heard_in_every_state_that_runs() -> None:
    """A hung connect that nothing could abort, because reset worked only when connected [electric#4542]."""
    for state in WakeState:
        reset, stop = step(state, WakeEvent.RESET), step(state, WakeEvent.STOP)
        assert (reset is not None and reset.leaves) == (state in RUNNING)
        assert (stop is not None and stop.state is WakeState.STOPPING) == (state in RUNNING)


def test_from_every_state_a_stop_leads_to_stopped_and_a_start_to_connecting() -> None:
    for state in WakeState:
        after = step(state, WakeEvent.STOP)
        rest = after.state if after is not None else state
        if rest is WakeState.STOPPING:
            drained = step(rest, WakeEvent.DRAINED)
            assert drained is not None
            rest = drained.state
        assert rest is WakeState.STOPPED
        begun = step(rest, WakeEvent.START)
        assert begun is not None
        assert begun.state is WakeState.CONNECTING


def test_nobody_connects_twice_without_a_pause_between() -> None:
    """Whatever goes wrong leads through the backoff; only somebody outside can cut it short."""
    into_connecting = {
        (state, event) for state, event in EVERY_PAIR if WAKING[state][event].to is WakeState.CONNECTING
    }
    assert into_connecting == {
        (WakeState.STOPPED, WakeEvent.START),
        (WakeState.RECONNECTING, WakeEvent.BACKOFF_ELAPSED),
        (WakeState.RECONNECTING, WakeEvent.RESET),
    }


def test_the_pause_doubles_to_its_longest_and_chance_takes_up_to_half_of_it() -> None:
    assert [reconnect_pause_s(n, 0.1, 5.0, 0.0) for n in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert reconnect_pause_s(10_000, 0.1, 5.0, 0.0) == 5.0
    assert reconnect_pause_s(10_000, 0.1, 5.0, 1.0) == 2.5
    assert reconnect_pause_s(0, 0.1, 5.0, 0.5) == pytest.approx(0.075)
