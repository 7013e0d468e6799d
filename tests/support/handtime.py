"""Time that passes when the test says so, and chance that is what the test says."""

import asyncio
import heapq
import itertools

from holdfast.system.clock import Timing


class HandTime:
    def __init__(self, chance: float = 0.0) -> None:
        self.now_s = 1_000.0
        self.chance = chance
        self.slept: list[float] = []
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    @property
    def timing(self) -> Timing:
        return Timing(now_s=lambda: self.now_s, sleep=self.sleep, jitter=lambda: self.chance)

    @property
    def sleepers(self) -> list[float]:
        """How long each of those who sleep has left, the first to wake first."""
        return [round(at - self.now_s, 6) for at, _, sleeper in sorted(self._sleepers) if not sleeper.done()]

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now_s + seconds, next(self._order), sleeper))
        await sleeper

    async def advance(self, seconds: float) -> None:
        """Whoever is due wakes, in order, and does what follows before the next one does."""
        await quiet()
        until_s = self.now_s + seconds
        while self._sleepers and self._sleepers[0][0] <= until_s:
            self.now_s, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)
                await quiet()
        self.now_s = until_s


async def quiet() -> None:
    """Lets everything happen that waits for nothing but its turn; for what must not happen, and for fakes alone."""
    for _ in range(50):
        await asyncio.sleep(0)
