"""A deadline for each of the many waits of one task.

`asyncio.timeout` sets a timer for each wait and takes it back: where a task waits hundreds of times a second, and
nearly always for a moment, that costs more than what it waits for.
"""

import asyncio
from types import TracebackType
from typing import Self


class Timeouts:
    """`with timeouts.within(10.0): await …`, as with `asyncio.timeout`, in the task that made it, one at a time. Its
    timer is set once; when it rings in the midst of a later wait, it is set anew for what is left.
    """

    __slots__ = ("_cancelling", "_due_at", "_ended", "_loop", "_seconds", "_task", "_timer")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = task.get_loop()
        self._seconds = 0.0
        self._due_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0
        self._ended = False

    def within(self, seconds: float) -> Self:
        assert self._due_at is None, "one wait at a time"
        self._seconds = seconds
        return self

    def __enter__(self) -> None:
        self._cancelling = self._task.cancelling()
        self._due_at = self._loop.time() + self._seconds
        if self._timer is None or self._timer.when() > self._due_at:
            self._arm(self._due_at)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._due_at = None
        if self._ended:
            self._ended = False
            # Where other code cancelled the task as well, that is what it hears of.
            if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float) -> None:
        self.close()
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._due_at is None:
            return
        if self._loop.time() < self._due_at:
            self._arm(self._due_at)
        else:
            self._ended = True
            self._task.cancel()
