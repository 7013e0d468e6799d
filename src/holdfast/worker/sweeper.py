"""The sweep: every few seconds a worker brings back what no worker drives.

Chats of workers that ended, timers that are due, chats that are stranded for a reason that `store/liveness.py` knows.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.store.contract import Store
from holdfast.system.clock import dice

SWEEP_S = 5.0


class Sweeper:
    def __init__(
        self,
        store: Store,
        on_trouble: Callable[[str, Exception], None],
        tidy: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._tidy = tidy  # what this worker has of its own to look after
        self._on_trouble = on_trouble
        self._wanted = asyncio.Event()
        self._swept_at = -math.inf
        self.repairs: Counter[str] = Counter()  # by reason

    def want(self) -> None:
        """A lease was ended: its chats are to be taken back now."""
        self._wanted.set()

    async def run_forever(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001  a worker that no longer sweeps leaves chats of the dead behind
                self._on_trouble("sweep_failed", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S * dice.uniform(0.8, 1.2)):
                    await self._wanted.wait()

    async def run_once(self) -> None:
        """The whole sweep, or between two of them only what an ended lease leaves."""
        if time.monotonic() - self._swept_at >= SWEEP_S * 0.8:
            self.repairs.update(await self._store.sweep())
            self._swept_at = time.monotonic()
            if self._tidy is not None:
                await self._tidy()
        else:
            await self._store.expire_workers()
