"""The scheduler: every worker fires what is due, settles what has ended, and lets go what waited for it.

Any worker fires any schedule: its chat is claimed by one that has the agent. A look is one statement, however many
schedules there are; between two looks it sleeps until the next instant or its poll, whichever comes first, and a hint
wakes it when a schedule is made or changed. Nothing is remembered between looks that the store does not know.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from holdfast.errors import StoreClosed, StoreUnavailable
from holdfast.log_context import logger
from holdfast.store.contract import Store
from holdfast.store.schedule_records import Attended
from holdfast.store.schedule_steps import SCHEDULES
from holdfast.store.schedules import AHEAD_MS, TOGETHER_MAX, Work
from holdfast.system.clock import dice

log = logger("holdfast.scheduler")

OPEN_POLL_S = 1.0  # while occurrences are open: an end may be awaited by the next one
SIDE_BY_SIDE = 2  # transactions of several schedules at once: claims of chats want a connection, too
AT_ONCE_MAX = 8  # of those that have a transaction each
TAKEN_MAX = 200  # of those that are not due, but have something to settle, until the next look
HINTS_S = 0.2  # two looks that hints ask for are at least so far apart
BROKEN_S = 30.0  # until one that could not be attended to is tried again
BROKEN_MAX = 1_000
SILENT_POLLS = 6  # without a look that came to its end: then health says so


class _Taken(NamedTuple):
    ids: set[str]
    more: bool  # to do at once


class Scheduler:
    """One per worker. `run_once` is one look, and all that it found to do."""

    def __init__(self, store: Store, poll_s: float, on_trouble: Callable[[str, Exception], None]) -> None:
        self._store = store
        self._poll_s = poll_s
        self._on_trouble = on_trouble
        self._after = ""  # where the next look at open occurrences goes on
        self._after_held = ""  # and at those that wait
        self._broken: dict[str, float] = {}  # schedules that failed, and until when they are left alone
        self._latest: int | None = None  # the latest time that a look was made at
        self._ran_at: float | None = None
        self._started_at: float | None = None
        self.runs = 0
        self.fired = 0
        self.skipped = 0
        self.settled = 0
        self.errors = 0
        self.last_error: str | None = None
        self.latest_ms: int | None = None  # how late the last one was fired
        self.open_count = 0

    # --- figures, from any thread -----------------------------------------------------------------------------

    @property
    def silent_s(self) -> float | None:
        """Since a look came to its end; None: it was not started."""
        since = self._ran_at if self._ran_at is not None else self._started_at
        return None if since is None else time.monotonic() - since

    @property
    def is_silent(self) -> bool:
        silent_s = self.silent_s
        return silent_s is not None and silent_s > SILENT_POLLS * max(self._poll_s, OPEN_POLL_S)

    def figures(self) -> dict[str, int | float | str | None]:
        silent_s = self.silent_s
        return {
            "last_run_s": None if silent_s is None else round(silent_s, 1),
            "last_run_s_max": SILENT_POLLS * max(self._poll_s, OPEN_POLL_S),
            "runs": self.runs,
            "fired": self.fired,
            "skipped": self.skipped,
            "settled": self.settled,
            "open": self.open_count,
            "late_ms": self.latest_ms,
            "errors": self.errors,
            "left_alone": len(self._broken),
            "left_alone_max": BROKEN_MAX,
            "last_error": self.last_error,
        }

    # --- work -------------------------------------------------------------------------------------------------

    async def run_forever(self) -> None:
        self._started_at = time.monotonic()
        with self._store.bell.listen(SCHEDULES) as listener:
            while True:
                pause_s = self._poll_s
                try:
                    pause_s = await self.run_once()
                except Exception as error:  # noqa: BLE001  a scheduler that has died fires nothing, and says nothing
                    self._tell("schedules_failed", error)
                began = time.monotonic()
                with suppress(TimeoutError):
                    if await listener.wait(pause_s) and (left_s := HINTS_S - (time.monotonic() - began)) > 0:
                        await asyncio.sleep(left_s)

    async def run_once(self) -> float:
        """Returns how long there is nothing to do, in seconds, as far as is known."""
        work = await self._store.schedules.look(self._after, self._after_held)
        if self._latest is None or work.now < self._latest - AHEAD_MS:
            await self._store.schedules.rewind()  # at the start, and when the clock was set far back
            self._latest = work.now
        self._latest = max(self._latest, work.now)
        self._after, self._after_held, self.open_count = work.after, work.after_held, work.open_count
        due, others = self._wanted(work)
        more = await self._attend_due(due, work.now)
        more |= len(others) > TAKEN_MAX
        for start in range(0, min(len(others), TAKEN_MAX), TOGETHER_MAX):
            more |= (await self._attend_some(others[start : start + TOGETHER_MAX], None)).more
        self.runs += 1
        self._ran_at = time.monotonic()
        return 0.0 if more else self._pause_s(work)

    def _wanted(self, work: Work) -> tuple[list[str], list[str]]:
        """What is due, the first one first; and the rest, in an order of this worker's own: those that come at the
        same moment begin at different ends.
        """
        now = time.monotonic()
        self._broken = {id: until for id, until in self._broken.items() if until > now}
        due = [id for id, at in work.due if at <= work.now and id not in self._broken]
        left_alone = self._broken.keys() | set(due)
        others = [id for id in dict.fromkeys((*work.over, *work.released)) if id not in left_alone]
        dice.shuffle(others)
        return due, others

    def _pause_s(self, work: Work) -> float:
        poll_s = min(self._poll_s, OPEN_POLL_S) if work.open_count or work.released else self._poll_s
        poll_s *= dice.uniform(0.8, 1.2)
        now = self._store.now_ms()
        ahead = [(at - now) / 1000 for id, at in work.due if id not in self._broken and at > work.now]
        return max(0.0, min([poll_s, *ahead[:1]]))

    async def _attend_due(self, due: list[str], due_by: int) -> bool:
        """Whether there is more to do at once. Each transaction takes the first ones that no other worker has, until
        there are none: workers that come at the same moment share them out.
        """
        more = False
        left = due
        for _ in range(0, len(due), TOGETHER_MAX):
            looks = (self._attend_some(left, due_by) for _ in range(min(SIDE_BY_SIDE, 1 + len(left) // TOGETHER_MAX)))
            done = await asyncio.gather(*looks)
            more |= any(one.more for one in done)
            taken = {id for one in done for id in one.ids}
            left = [id for id in left if id not in taken]
            if not taken or not left:
                break
        return more

    async def _attend_some(self, schedule_ids: Sequence[str], due_by: int | None) -> _Taken:
        """In one transaction; where that fails, and not because the database is away, in one each: then the others
        are done, and the one at fault is known.
        """
        ids: set[str] = set()
        more = False
        try:
            found = await self._store.schedules.attend_some(schedule_ids, due_by=due_by)
        except (StoreUnavailable, StoreClosed):
            raise
        except Exception:  # noqa: BLE001  told of when it fails alone
            alone: Sequence[str] = schedule_ids
        else:
            alone = found.alone
            for done in found.done:
                self._count(done)
                ids.add(done.schedule.id)
                more |= done.more
        for start in range(0, len(alone), AT_ONCE_MAX):
            some = alone[start : start + AT_ONCE_MAX]
            more |= any(await asyncio.gather(*map(self._attend, some)))
        return _Taken(ids | set(alone), more)

    async def _attend(self, schedule_id: str) -> bool:
        """Whether there is more to do at once. One that fails keeps the others from nothing."""
        try:
            done = await self._store.schedules.attend(schedule_id)
        except Exception as error:  # noqa: BLE001  as above
            if len(self._broken) < BROKEN_MAX:
                self._broken[schedule_id] = time.monotonic() + BROKEN_S
            self._tell("schedule_failed", error)
            return False
        if done is None:
            return False
        self._count(done)
        return done.more

    def _count(self, done: Attended) -> None:
        self.fired += len(done.fired)
        self.settled += len(done.ended)
        self.skipped += sum(one.count for one in done.skipped)
        for one in done.fired:
            self.latest_ms = done.now - one.at
        tell(done)

    def _tell(self, action: str, error: Exception) -> None:
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"[:500]
        self._on_trouble(action, error)


def tell(done: Attended) -> None:
    """In the log: what was skipped, and what was paused."""
    schedule = done.schedule
    for one in done.skipped:
        extra = {"action": "schedule.skipped", "schedule": schedule.id, "reason": one.reason, "count": one.count}
        log.info("schedule %s: an occurrence is skipped: %s", schedule.name, one.reason, extra=extra)
    if done.paused:
        extra = {"action": "schedule.paused", "schedule": schedule.id, "reason": schedule.note}
        log.warning("schedule %s is paused: %s", schedule.name, schedule.note, extra=extra)
