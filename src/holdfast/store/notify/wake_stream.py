"""Drives a wake stream through its life: the table is `core/wake.py`, the effects are here, the sources are given.

A wake is a hint. Duplicates, losses and another order change only how soon a waiter looks, so nothing here is ever
repeated or kept, and nothing here raises into a reader or a worker.

A stay in a state owns the tasks it started and the stream it reads. Leaving the state aborts them all, in one place
(`_enter`), whatever they are; no list is kept by hand. What was aborted may take its time to let go, or refuse
to: until it has, it is counted; only so many may be left over before the next connect waits for them, and `stop`
waits for them under a deadline. What an aborted task still says is not heard; a stream it still brings is closed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar, assert_never

from holdfast.core.deadlines import WAKE_DEADLINES, WakeDeadlines
from holdfast.core.records import Frozen
from holdfast.core.wake import Effect, WakeEvent, WakeState, reconnect_pause_s, step
from holdfast.errors import DrainFailed, StoreTimeout, StoreUnavailable
from holdfast.system.clock import Timing

T = TypeVar("T")

log = logging.getLogger(__name__)

LETTING_GO_MAX = 4  # more than this many that do not let go, and no further connection is made


class Wake(Frozen):
    """Something may have changed: these topics, or (None) anything."""

    topics: tuple[str, ...] | None = None


class SourceStream(Protocol):
    """One connection. `read` and `ping` run at the same time, never two of the same kind; both may be cancelled."""

    async def read(self) -> Wake | None:
        """The next wake; None when the other side ended the stream in good order. Raises when it is broken."""

    async def ping(self) -> None:
        """Returns when something that was sent has come back on this very stream, past the one who reads it."""

    async def close(self) -> None:
        """Returns when nothing of it is left. Called once, when no reader or ping is left."""


class Source(Protocol):
    async def connect(self) -> SourceStream:
        """From its return on, nothing is missed. May be cancelled, and then leaves nothing behind."""


class WakeFigures(Frozen):
    state: WakeState
    state_s: float  # how long it has been in it
    proven: bool  # streaming, and the last ping came back
    connects: int
    reconnects: int  # attempts after one that failed or a stream that was lost
    pings: int
    pings_failed: int
    wakes: int
    letting_go: int  # aborted, and not gone yet
    last_error: str | None


Reporter = Callable[[WakeState, str | None], None]


class _WakeHappening(NamedTuple):
    event: WakeEvent
    stay: "_Stay | None" = None  # None: from outside, at any time
    stream: SourceStream | None = None
    wake: Wake | None = None
    error: Exception | None = None


class _Stay:
    """One stay in a state, with everything it started."""

    def __init__(self, state: WakeState, entered_s: float, stream: SourceStream | None) -> None:
        self.state = state
        self.entered_s = entered_s
        self.stream = stream
        self.ping_asked = asyncio.Event()
        self.proven = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        _ = self.task(work)

    def task(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waits for it has seen it; a task that was aborted has no waiter

    @property
    def holds_anything(self) -> bool:
        """Besides the task that says so, which is at its end."""
        return self.stream is not None or bool(self._tasks - {asyncio.current_task()})

    def abort(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def gone(self) -> None:
        """After `abort`: returns when everything has let go. Raises what closing the stream raised."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self.stream is not None:
            await self.stream.close()


class WakeStream:
    """Not thread-safe: belongs to one event loop while it runs. May be started again after a stop."""

    def __init__(
        self,
        source: Source,
        ring: Callable[[Wake], None],
        deadlines: WakeDeadlines = WAKE_DEADLINES,
        *,
        report: Reporter | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._source = source
        self._ring = ring
        self._deadlines = deadlines
        self._report = report
        self._timing = timing or Timing()
        self._stay = _Stay(WakeState.STOPPED, self._timing.now_s(), None)
        self._inbox: deque[_WakeHappening] = deque()
        self._taking = False
        self._letting_go: set[asyncio.Task[None]] = set()
        self._stopped: asyncio.Future[DrainFailed | None] | None = None
        self._drain_errors: list[BaseException] = []
        self._failures = 0  # since a ping came back last
        self._last_error: str | None = None
        self._connects = self._reconnects = self._pings = self._pings_failed = self._wakes = 0

    # --- from outside -------------------------------------------------------------------------------------------

    @property
    def state(self) -> WakeState:
        return self._stay.state

    async def start(self) -> None:
        """Returns at once: connecting goes on by itself. While running it does nothing; a stop is waited for."""
        while self._stopped is not None:
            await asyncio.shield(self._stopped)
        self._post(_WakeHappening(WakeEvent.START))

    async def stop(self) -> None:
        """Bounded by `drain_s`. All who ask share one shutdown and get its `DrainFailed`, once it is complete."""
        self._post(_WakeHappening(WakeEvent.STOP))
        if self._stopped is not None:
            error = await asyncio.shield(self._stopped)
            if error is not None:
                raise error

    def reset(self) -> None:
        """Drop the connection, the attempt at one, or the pause before the next. Harmless when not running."""
        self._post(_WakeHappening(WakeEvent.RESET))

    def check(self) -> None:
        """Ping now. One ping is under way at a time; however often this is called meanwhile, one more follows."""
        self._stay.ping_asked.set()

    def figures(self) -> WakeFigures:
        return WakeFigures(
            state=self.state,
            state_s=self._timing.now_s() - self._stay.entered_s,
            proven=self._stay.proven,
            connects=self._connects,
            reconnects=self._reconnects,
            pings=self._pings,
            pings_failed=self._pings_failed,
            wakes=self._wakes,
            letting_go=len(self._letting_go),
            last_error=self._last_error,
        )

    # --- the table ------------------------------------------------------------------------------------------------

    def _post(self, happening: _WakeHappening) -> None:
        """One at a time: what a reporter or a ring causes is taken after what caused it."""
        self._inbox.append(happening)
        if self._taking:
            return
        self._taking = True
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        finally:
            self._taking = False

    def _take(self, happening: _WakeHappening) -> None:
        late = happening.stay is not None and happening.stay is not self._stay
        decision = None if late else step(self.state, happening.event)
        if decision is None:
            if happening.stream is not None:
                self._let_go(happening.stream.close())
            return
        if happening.error is not None:
            self._last_error = _describe(happening.error)
        if decision.leaves:
            self._enter(decision.state, happening.stream)
        for effect in decision.effects:
            self._do(effect, happening)
        if decision.leaves and self._report is not None:
            self._call(self._report, decision.state, _describe(happening.error) if happening.error else None)

    def _enter(self, state: WakeState, stream: SourceStream | None) -> None:
        before = self._stay
        if state is WakeState.CONNECTING and before.state is WakeState.RECONNECTING:
            self._reconnects += 1
        before.abort()
        self._stay = _Stay(state, self._timing.now_s(), stream)
        if before.holds_anything:
            self._let_go(before.gone())

    def _do(self, effect: Effect, happening: _WakeHappening) -> None:
        stay = self._stay
        match effect:
            case Effect.CONNECT:
                stay.start(self._connect(stay))
                stay.start(self._give_up_connecting(stay))
            case Effect.READ:
                self._connects += 1
                stay.start(self._read(stay))
            case Effect.PING:
                stay.start(self._keep_pinging(stay))
            case Effect.ARM_BACKOFF:
                stay.start(self._back_off(stay))
            case Effect.DRAIN:
                self._stopped = asyncio.get_running_loop().create_future()
                stay.start(self._drain(stay))
            case Effect.RING:
                assert happening.wake is not None
                self._wakes += 1
                self._call(self._ring, happening.wake)
            case Effect.RING_ALL:
                self._call(self._ring, Wake())
            case Effect.FINISH:
                self._finish(happening.error)
            case _:
                assert_never(effect)

    # --- what the states start ------------------------------------------------------------------------------------

    async def _connect(self, stay: _Stay) -> None:
        try:
            while len(self._letting_go) > LETTING_GO_MAX:
                await asyncio.wait(self._letting_go, return_when=asyncio.FIRST_COMPLETED)
            stream = await _unless_cancelled(self._source.connect)
        except Exception as error:  # noqa: BLE001  whatever it is, it is tried again
            self._post(_WakeHappening(WakeEvent.CONNECT_FAILED, stay, error=error))
        else:
            self._post(_WakeHappening(WakeEvent.CONNECTED, stay, stream=stream))

    async def _give_up_connecting(self, stay: _Stay) -> None:
        await self._timing.sleep(self._deadlines.connect_s)
        error = StoreTimeout(f"the wake stream was not connected within {self._deadlines.connect_s:g} s")
        self._post(_WakeHappening(WakeEvent.CONNECT_FAILED, stay, error=error))

    async def _read(self, stay: _Stay) -> None:
        assert stay.stream is not None
        try:
            while (wake := await _unless_cancelled(stay.stream.read)) is not None:
                self._post(_WakeHappening(WakeEvent.WAKE, stay, wake=wake))
        except Exception as error:  # noqa: BLE001  whatever it is, the stream is of no use any more
            self._post(_WakeHappening(WakeEvent.FAILED, stay, error=error))
        else:
            self._post(_WakeHappening(WakeEvent.ENDED, stay))

    async def _keep_pinging(self, stay: _Stay) -> None:
        """The first at once: only what came back proves that the other side is there."""
        failed = 0
        while True:
            stay.ping_asked.clear()
            error = await self._ping(stay)
            stay.proven = error is None
            if error is None:
                failed = self._failures = 0
                await self._first_of(stay, self._sleep(self._deadlines.ping_interval_s), stay.ping_asked.wait())
                continue
            failed += 1
            self._pings_failed += 1
            self._last_error = _describe(error)
            if failed >= self._deadlines.pings_failed_max:
                self._post(_WakeHappening(WakeEvent.RESET, stay, error=error))
                return

    async def _ping(self, stay: _Stay) -> Exception | None:
        assert stay.stream is not None
        self._pings += 1
        try:
            ping = _unless_cancelled(stay.stream.ping)
            if not await self._first_of(stay, ping, self._sleep(self._deadlines.ping_s)):
                return StoreTimeout(f"no ping came back on the wake stream within {self._deadlines.ping_s:g} s")
        except Exception as error:  # noqa: BLE001  whatever it is, it did not come back
            return error
        return None

    async def _back_off(self, stay: _Stay) -> None:
        deadlines = self._deadlines
        pause_s = reconnect_pause_s(
            self._failures, deadlines.backoff_first_s, deadlines.backoff_longest_s, self._timing.jitter()
        )
        self._failures += 1
        await self._timing.sleep(pause_s)
        self._post(_WakeHappening(WakeEvent.BACKOFF_ELAPSED, stay))

    async def _drain(self, stay: _Stay) -> None:
        late = stay.task(self._sleep(self._deadlines.drain_s))
        while self._letting_go and not late.done():
            await asyncio.wait({*self._letting_go, late}, return_when=asyncio.FIRST_COMPLETED)
        late.cancel()
        await asyncio.wait((late,))
        errors = list(self._drain_errors)
        if self._letting_go:
            errors.append(
                StoreTimeout(f"{len(self._letting_go)} did not let go within {self._deadlines.drain_s:g} s")
            )
        self._post(_WakeHappening(WakeEvent.DRAINED, stay, error=DrainFailed(errors) if errors else None))

    def _finish(self, error: Exception | None) -> None:
        stopped, self._stopped = self._stopped, None
        self._drain_errors = []
        self._failures = 0
        assert stopped is not None
        assert error is None or isinstance(error, DrainFailed)
        stopped.set_result(error)

    # --- small things ---------------------------------------------------------------------------------------------

    def _let_go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._letting_go.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._letting_go.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._last_error = _describe(error)
            if self.state is WakeState.STOPPING:
                self._drain_errors.append(error)

    def _call(self, function: Callable[..., None], *values: object) -> None:
        """A reporter's trouble is its own."""
        try:
            function(*values)
        except (Exception, asyncio.CancelledError):
            log.exception("a callback of the wake stream failed", extra={"action": "wake.callback_failed"})

    async def _sleep(self, seconds: float) -> None:
        await self._timing.sleep(seconds)

    async def _first_of(self, stay: _Stay, one: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> bool:
        """True if it was (also) `one`, whose error is raised; what is still under way is aborted."""
        first, second = stay.task(one), stay.task(other)
        await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        won = first.done()
        for task in (first, second):
            task.cancel()
        if won:
            first.result()
        return won


async def _unless_cancelled(work: Callable[[], Awaitable[T]]) -> T:
    """A cancellation that we did not ask for is the source's failure; it must not pass for our own and end us."""
    try:
        return await work()
    except asyncio.CancelledError:
        if _is_being_cancelled():
            raise
        raise StoreUnavailable("the source of the wake stream gave up by itself") from None


def _is_being_cancelled() -> bool:
    # Not in the frame above: a task that its own traceback refers to lives, with all it holds, until the next
    # collection of garbage.
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _describe(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return said or type(error).__name__
