"""Ending work with a reason. Python's `task.cancel(msg)` loses its message on the way; a `StopSignal` keeps it.

The owner of the work holds a `StopSignal` and sets it once, with a cause. The code that does it waits inside
`stop.scope()`: the wait ends at once, the cancellation does not leave the scope, and `stop.cause` says why.
A cancellation from elsewhere passes through untouched.
"""

import asyncio
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

C = TypeVar("C", bound=str)

TICK_S = 0.1


async def ended_within(work: "asyncio.Future[Any]", limit_s: float) -> bool:
    """Whether it ended in time, which passes only while this process runs: after a pause (a suspended machine, a
    stopped process) a timer is due at once, and so is the work that only needs its turn. A pause counts as a tick.
    """
    left_s = limit_s
    while left_s > 0:
        done, _ = await asyncio.wait((work,), timeout=min(TICK_S, left_s))
        if done:
            return True
        left_s -= TICK_S
    return False


class StopSignal(Generic[C]):
    """Set at most once; belongs to one event loop."""

    __slots__ = ("_scopes", "cause")

    def __init__(self) -> None:
        self.cause: C | None = None
        self._scopes: set[StopScope[C]] = set()

    def __bool__(self) -> bool:
        return self.cause is not None

    def set(self, cause: C) -> bool:
        """End what waits in a scope of this stop, now and later. False: it was set before, and its cause stays."""
        if self.cause is not None:
            return False
        self.cause = cause
        for scope in self._scopes:
            scope.fire()
        return True

    def scope(self) -> "StopScope[C]":
        return StopScope(self)

    def enter(self, scope: "StopScope[C]") -> None:
        self._scopes.add(scope)
        if self.cause is not None:
            scope.fire()

    def leave(self, scope: "StopScope[C]") -> None:
        self._scopes.discard(scope)


class StopScope(Generic[C]):
    """`with stop.scope() as scope:` around awaits. Afterwards `scope.ended` says whether the stop ended them.

    What else the body raises while it is being ended comes out as it is: look at `stop` before believing it.
    """

    __slots__ = ("_cancelled", "_cancelling", "_handle", "_loop", "_stop", "_task", "ended")

    def __init__(self, stop: StopSignal[C]) -> None:
        self._stop = stop
        self._handle: asyncio.Handle | None = None
        self._cancelled = False
        self.ended = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stop's scope belongs into a task")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._stop.enter(self)
        return self

    def fire(self) -> None:
        # From the loop, never from here: then the task is suspended in the scope, and the cancellation arrives
        # in it. Cancelling the running task would hit whatever it awaits next, perhaps outside.
        if self._handle is None:
            self._handle = self._loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._stop.leave(self)
        if self._handle is not None:
            self._handle.cancel()
        if not self._cancelled:
            return False
        if self._task.uncancel() > self._cancelling:
            return False  # other code cancelled the task as well, and wants it gone
        self.ended = isinstance(error, asyncio.CancelledError)
        return self.ended
