"""The life of a wake stream, as data: the stream through which a process learns that there is something to do.

STARTS  what a state starts when it is entered. A state owns what it started: leaving it aborts all of that.
WAKING  (state, event) -> WakeCell. A cell names the state that is entered and what else is to be done. A cell without
        a state stays where it is, and aborts nothing; one that names its own state leaves and enters it anew.

`IGNORED` is a decision like any other: nothing changes, and a stream that came with the event is closed. Events of a
state that was left meanwhile are ignored, whatever the table says of the state that rules by then.

The driver is `store/notify/wake_stream.py`. The diagram in ARCHITECTURE.md is drawn from this table; a test walks
every pair.
"""

from enum import StrEnum

from holdfast.core.backoff import doubled_s
from holdfast.core.records import Frozen


class WakeState(StrEnum):
    STOPPED = "stopped"
    CONNECTING = "running.connecting"
    STREAMING = "running.streaming"
    RECONNECTING = "running.reconnecting"
    STOPPING = "stopping"


class WakeEvent(StrEnum):
    START = "start"
    STOP = "stop"
    RESET = "reset"  # what there is is not to be trusted: two pings did not come back, or the owner knows better
    CONNECTED = "connected"
    CONNECT_FAILED = "connect_failed"  # or took too long
    WAKE = "wake"
    ENDED = "ended"  # by the other side, in good order
    FAILED = "failed"
    BACKOFF_ELAPSED = "backoff_elapsed"
    DRAINED = "drained"  # what was aborted has let go, or was given up


class Effect(StrEnum):
    CONNECT = "connect"  # under a deadline, whose end is `connect_failed`
    READ = "read"  # whatever the stream says
    PING = "ping"  # again and again; two that do not come back are a `reset`
    ARM_BACKOFF = "arm_backoff"
    DRAIN = "drain"  # wait, under a deadline, for everything that was aborted
    RING = "ring"  # for what the wake names
    RING_ALL = "ring_all"  # what was said while the stream was down is not said again
    FINISH = "finish"  # tell every caller that asked to stop


STOPPED, CONNECTING, STREAMING, RECONNECTING, STOPPING = WakeState
RUNNING = frozenset({CONNECTING, STREAMING, RECONNECTING})


class WakeCell(Frozen):
    to: WakeState | None = None
    effects: tuple[Effect, ...] = ()


IGNORED = WakeCell()


def _to(state: WakeState, *effects: Effect) -> WakeCell:
    return WakeCell(to=state, effects=effects)


def _stay(*effects: Effect) -> WakeCell:
    return WakeCell(effects=effects)


STARTS: dict[WakeState, tuple[Effect, ...]] = {
    STOPPED: (),
    CONNECTING: (Effect.CONNECT,),
    STREAMING: (Effect.READ, Effect.PING),
    RECONNECTING: (Effect.ARM_BACKOFF,),
    STOPPING: (Effect.DRAIN,),
}

WAKING: dict[WakeState, dict[WakeEvent, WakeCell]] = {
    STOPPED: {
        WakeEvent.START: _to(CONNECTING),
        WakeEvent.STOP: IGNORED,
        WakeEvent.RESET: IGNORED,
        WakeEvent.CONNECTED: IGNORED,
        WakeEvent.CONNECT_FAILED: IGNORED,
        WakeEvent.WAKE: IGNORED,
        WakeEvent.ENDED: IGNORED,
        WakeEvent.FAILED: IGNORED,
        WakeEvent.BACKOFF_ELAPSED: IGNORED,
        WakeEvent.DRAINED: IGNORED,
    },
    CONNECTING: {
        WakeEvent.START: IGNORED,
        WakeEvent.STOP: _to(STOPPING),
        WakeEvent.RESET: _to(RECONNECTING),
        WakeEvent.CONNECTED: _to(STREAMING, Effect.RING_ALL),
        WakeEvent.CONNECT_FAILED: _to(RECONNECTING),
        WakeEvent.WAKE: IGNORED,
        WakeEvent.ENDED: IGNORED,
        WakeEvent.FAILED: IGNORED,
        WakeEvent.BACKOFF_ELAPSED: IGNORED,
        WakeEvent.DRAINED: IGNORED,
    },
    STREAMING: {
        WakeEvent.START: IGNORED,
        WakeEvent.STOP: _to(STOPPING),
        WakeEvent.RESET: _to(RECONNECTING),
        WakeEvent.CONNECTED: IGNORED,
        WakeEvent.CONNECT_FAILED: IGNORED,
        WakeEvent.WAKE: _stay(Effect.RING),
        WakeEvent.ENDED: _to(RECONNECTING),
        WakeEvent.FAILED: _to(RECONNECTING),
        WakeEvent.BACKOFF_ELAPSED: IGNORED,
        WakeEvent.DRAINED: IGNORED,
    },
    RECONNECTING: {
        WakeEvent.START: IGNORED,
        WakeEvent.STOP: _to(STOPPING),
        WakeEvent.RESET: _to(CONNECTING),  # all there is to drop is the timer
        WakeEvent.CONNECTED: IGNORED,
        WakeEvent.CONNECT_FAILED: IGNORED,
        WakeEvent.WAKE: IGNORED,
        WakeEvent.ENDED: IGNORED,
        WakeEvent.FAILED: IGNORED,
        WakeEvent.BACKOFF_ELAPSED: _to(CONNECTING),
        WakeEvent.DRAINED: IGNORED,
    },
    STOPPING: {
        WakeEvent.START: IGNORED,  # the caller that starts waits for the stop first
        WakeEvent.STOP: IGNORED,  # a second caller shares the stop under way
        WakeEvent.RESET: IGNORED,
        WakeEvent.CONNECTED: IGNORED,
        WakeEvent.CONNECT_FAILED: IGNORED,
        WakeEvent.WAKE: IGNORED,
        WakeEvent.ENDED: IGNORED,
        WakeEvent.FAILED: IGNORED,
        WakeEvent.BACKOFF_ELAPSED: IGNORED,
        WakeEvent.DRAINED: _to(STOPPED, Effect.FINISH),
    },
}


class Step(Frozen):
    """What an event does in a state: where it leads, whether that is a new stay, and what is to be done, in order."""

    state: WakeState
    leaves: bool
    effects: tuple[Effect, ...]


def step(state: WakeState, event: WakeEvent) -> Step | None:
    """None: ignored."""
    cell = WAKING[state][event]
    if cell is IGNORED:
        return None
    if cell.to is None:
        return Step(state=state, leaves=False, effects=cell.effects)
    return Step(state=cell.to, leaves=True, effects=STARTS[cell.to] + cell.effects)


def reconnect_pause_s(failures: int, first_s: float, longest_s: float, chance: float) -> float:
    """`chance`, in [0, 1), takes up to half of the doubled pause away, so that a fleet spreads."""
    return doubled_s(first_s, longest_s, failures) * (1 - chance / 2)
