"""Looking at the leases of the fleet: one that is seen silent for its whole TTL is ended, whichever worker holds it.

Apart from the sweep: a chat that another process keeps locked holds that up for seconds, and a look that comes late
begins its count anew.
"""

import asyncio
import time
from collections.abc import Callable

from holdfast.core.leases import LeaseWatch
from holdfast.store.contract import Store
from holdfast.store.host_lock import is_dead
from holdfast.system.clock import dice

LOOK_S_MAX = 5.0
NEIGHBOURS_S = 0.5  # how often the locks of the workers on this host are tried


class LeaseObserver:
    """`worker` says under which id the looking worker goes now; `on_ended` is told when a lease was ended."""

    def __init__(
        self,
        store: Store,
        worker: Callable[[], str],
        on_ended: Callable[[], None],
        on_trouble: Callable[[str, Exception], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_ended = on_ended
        self._on_trouble = on_trouble
        self._watch = LeaseWatch()

    async def run_forever(self) -> None:
        while True:
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001  a worker that no longer looks never takes over
                self._on_trouble("look_failed", error)
            await self._until_next_look()

    async def run_once(self) -> None:
        if await self._store.end_leases(self._watch, self._worker()):
            self._on_ended()

    async def _until_next_look(self) -> None:
        """Often enough to see each lease without a break; at once where a neighbour's lock tells that it died."""
        pause_s = min(LOOK_S_MAX, self._watch.pause_ms / 1000)
        look_at = time.monotonic() + pause_s * dice.uniform(0.8, 1.2)
        while (left_s := look_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, NEIGHBOURS_S))
            if any(map(is_dead, self._watch.lock_paths)):
                return
