"""A worker's part in keeping the database small: receipts that are too old and, where a retention is set, the rest.

A slice at a time, with a pause behind each: chats come first.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from msgspec.structs import asdict

from holdfast.config import Retention
from holdfast.owner_limits import KEEP_DAYS
from holdfast.store.contract import Store
from holdfast.store.deliveries import KEPT_DAYS as TOLD_DAYS
from holdfast.store.receipts import PRUNED_MAX
from holdfast.store.retention import KINDS, Amount, PrunedKind, Pruning, cutoffs_of
from holdfast.store.schedules import KEPT_DAYS
from holdfast.store.tokens import ENDED_DAYS
from holdfast.system.clock import dice

HOUR_MS = 3_600_000  # how long the sums of a turn that is over are kept: those it spawned may still draw
RECEIPTS_S = 600.0  # how often each worker looks for receipts that are too old
WALK_S = 3600.0  # from the end of one walk over all chats to the next
SLICE_S = 0.2  # between two slices


class Pruner:
    """`run_once` is one slice of whatever is next."""

    def __init__(
        self,
        store: Store,
        policy: Retention,
        on_trouble: Callable[[str, Exception], None],
        *,
        keep_days: int = KEEP_DAYS,
    ) -> None:
        self._store = store
        self._policy = policy
        self._keep_days = keep_days  # sums of what was spent on a day
        self._on_trouble = on_trouble
        self._walk: Pruning | None = None
        self._receipts_left_s = 0.0  # until the next look at receipts
        self._walk_left_s = 0.0
        self.walks = 0  # that came to their end
        self.pruned: dict[PrunedKind, Amount] = dict.fromkeys(KINDS, Amount())

    async def run_forever(self) -> None:
        while True:
            pause_s = RECEIPTS_S
            try:
                pause_s = await self.run_once()
            except Exception as error:  # noqa: BLE001  a worker that keeps nothing small still drives its chats
                self._walk = None
                self._on_trouble("prune_failed", error)
            pause_s *= dice.uniform(0.8, 1.2)
            self._receipts_left_s -= pause_s
            self._walk_left_s -= pause_s
            await asyncio.sleep(pause_s)

    async def run_once(self) -> float:
        """Returns how long to wait before the next one, in seconds."""
        if self._receipts_left_s <= 0:
            await self._prune_receipts()
        if self._policy.is_set and self._walk_left_s <= 0:
            await self._go_on()
        left_s = min(self._receipts_left_s, self._walk_left_s if self._policy.is_set else self._receipts_left_s)
        return max(left_s, SLICE_S)

    async def _prune_receipts(self) -> None:
        """Every client's call leaves one, with or without a key: no other service removes them."""
        count = await self._store.prune_receipts()
        aged_ms = await self._store.aged_ms()
        await self._store.tokens.prune(aged_ms - ENDED_DAYS * 86_400_000)
        await self._store.kept_rules.prune(aged_ms)
        await self._store.schedules.prune(aged_ms - KEPT_DAYS * 86_400_000)
        oldest = datetime.fromtimestamp(aged_ms / 1000, UTC).date() - timedelta(days=self._keep_days)
        await self._store.budgets.prune(oldest.isoformat(), aged_ms - HOUR_MS)
        told = await self._store.deliveries.prune(aged_ms - TOLD_DAYS * 86_400_000)
        await self._store.deliveries.forget_gone()
        self._add("receipts", Amount(count))
        # If there are more: others want to write as well.
        self._receipts_left_s = 1.0 if max(count, told) >= PRUNED_MAX else RECEIPTS_S

    async def _go_on(self) -> None:
        if self._walk is None:
            self._walk = Pruning(self._store, cutoffs_of(self._policy, await self._store.aged_ms()))
        walk = self._walk
        before = dict(walk.freed)
        more = await walk.run_once()
        for kind, amount in walk.freed.items():
            self._add(kind, Amount(amount.rows - before[kind].rows, amount.bytes - before[kind].bytes))
        if not more:
            self._walk, self._walk_left_s = None, WALK_S
            self.walks += 1

    def _add(self, kind: PrunedKind, amount: Amount) -> None:
        self.pruned[kind] = self.pruned[kind].plus(amount)

    def figures(self) -> dict[str, int | float | None]:
        """From any thread: what went, beside how long it is kept."""
        counts = {f"{kind}_pruned": amount.rows for kind, amount in self.pruned.items() if kind != "receipts"}
        size = sum(amount.bytes for amount in self.pruned.values())
        return {**asdict(self._policy), **counts, "bytes_pruned": size, "walks": self.walks}
