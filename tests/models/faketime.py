"""Time that passes when somebody sleeps, and chance that is always the same."""

import asyncio

from holdfast.models.providers import Providers
from holdfast.system.clock import Timing


class FakeTime:
    def __init__(self, jitter: float = 1.0) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []
        self.jitter = jitter

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now_s += seconds
        await asyncio.sleep(0)

    @property
    def timing(self) -> Timing:
        return Timing(now_s=lambda: self.now_s, sleep=self.sleep, jitter=lambda: self.jitter)

    def providers(self, **limits: int) -> Providers:
        return Providers(limits=limits, timing=self.timing)
