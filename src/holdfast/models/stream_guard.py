"""Ends a model's stream that does not keep its deadlines by itself.

One timer looks at all streams of a caller, every now and then: one for each stream, set anew for every piece or only
once, costs more than it guards.
"""

import asyncio
from types import TracebackType
from typing import Self

from holdfast.models.assembler import Assembler
from holdfast.models.base import Alive, Opened, Progress, StreamPart
from holdfast.models.deadline_watch import Watch

STEP_S = 0.5


class GuardRound:
    """The streams that are read now. It belongs to the loop that reads them; the next loop begins anew."""

    def __init__(self) -> None:
        self._streams: set[GuardedStream] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, stream: "GuardedStream") -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer, self._streams = loop, None, set()
        self._streams.add(stream)
        self._arm(min(stream.due_at, loop.time() + STEP_S))

    def leave(self, stream: "GuardedStream") -> None:
        """The timer stays: the next stream, which comes soon or not at all, has it."""
        self._streams.discard(stream)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        assert self._loop is not None
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        assert self._loop is not None
        now = self._loop.time()
        for stream in list(self._streams):
            stream.look(now)
        if self._streams:
            self._arm(min(now + STEP_S, *(stream.due_at for stream in self._streams)))


class GuardedStream:
    """Around the reading of one, in the task that reads it. Raises the watch's error where a deadline passed."""

    __slots__ = ("_assembler", "_cancelling", "_ended", "_round", "_task", "_watch", "last")

    def __init__(self, round: GuardRound, watch: Watch, task: "asyncio.Task[object]", assembler: Assembler) -> None:
        self._round = round
        self._watch = watch
        self._task = task
        self._assembler = assembler
        self._ended = False
        self.last: StreamPart | None = None  # what came since the last look

    @property
    def due_at(self) -> float:
        return self._watch.due_at

    def __enter__(self) -> Self:
        self._cancelling = self._task.cancelling()
        self._round.enter(self)
        return self

    def look(self, now: float) -> None:
        last, self.last = self.last, None
        if isinstance(last, Opened | Progress):
            self._watch.sent()
        elif isinstance(last, Alive):
            self._watch.alive()
        elif last is not None:
            self._watch.progressed()
        if now >= self._watch.due_at:
            self._round.leave(self)
            self._ended = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._round.leave(self)
        # Where other code cancelled the task as well, that is what it hears of.
        if self._ended and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._watch.late(self._assembler.request_id) from error
