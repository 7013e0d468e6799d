"""A source of wakes that does as it is told, well or badly."""

import asyncio
from collections import deque
from typing import Literal

from holdfast.errors import StoreUnavailable
from holdfast.store.notify.wake_stream import Wake

Outcome = Literal["connected", "failed", "hung", "deaf"]


class ToldStream:
    def __init__(self, source: "ToldSource") -> None:
        self._source = source
        self.said: asyncio.Queue[Wake | Exception | None] = asyncio.Queue()
        self.pings: list[asyncio.Future[None]] = []
        self.closed = 0
        self.reading = False

    async def read(self) -> Wake | None:
        self.reading = True
        try:
            said = await self.said.get()
        finally:
            self.reading = False
        if isinstance(said, Exception):
            raise said
        return said

    async def ping(self) -> None:
        returns = asyncio.get_running_loop().create_future()
        self.pings.append(returns)
        if self._source.answering:
            returns.set_result(None)
        await returns

    async def close(self) -> None:
        assert not self.reading, "closed under its reader"
        assert not [ping for ping in self.pings if not ping.done()], "closed under its ping"
        self.closed += 1
        if self._source.close_error is not None:
            raise self._source.close_error
        if self._source.close_gate is not None:
            await self._source.close_gate.wait()


class ToldSource:
    """`plan` says how the next attempts go; after it, all connect. `answering`: pings come back by themselves."""

    def __init__(self, *plan: Outcome, answering: bool = True) -> None:
        self.plan = deque(plan)
        self.answering = answering
        self.attempts = 0
        self.aborted = 0
        self.streams: list[ToldStream] = []
        self.close_error: Exception | None = None
        self.close_gate: asyncio.Event | None = None
        self.deaf_until = asyncio.Event()

    @property
    def stream(self) -> ToldStream:
        return self.streams[-1]

    async def connect(self) -> ToldStream:
        self.attempts += 1
        match self.plan.popleft() if self.plan else "connected":
            case "failed":
                raise StoreUnavailable("nobody there")
            case "hung":
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.aborted += 1
            case "deaf":
                await self._deaf()
        self.streams.append(ToldStream(self))
        return self.stream

    async def _deaf(self) -> None:
        """Does not hear that it was cancelled, and connects after all."""
        while not self.deaf_until.is_set():
            try:
                await self.deaf_until.wait()
            except asyncio.CancelledError:
                self.aborted += 1
