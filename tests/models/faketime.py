"""Time that passes when somebody sleeps, time that a test puts forward, and chance that is always the same."""

import asyncio

import pytest

from holdfast.models.providers import Providers, Timing


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


class Leaps:
    """The running loop's clock, which goes on as it does, and leaps when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self._leapt_s = 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self._leapt_s)

    def leap(self, seconds: float) -> None:
        self._leapt_s += seconds
