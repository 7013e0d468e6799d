"""Schedules and their occurrences as the database has them: made, changed, fired, and looked at.

What each verb does inside its transaction is in `schedule_changes.py` and `schedule_firing.py`.
"""

from collections.abc import Callable, Sequence

from holdfast.core.codec import check_text
from holdfast.core.records import Frozen
from holdfast.core.schedules import (
    Occurrence,
    Overlap,
    ScheduleRecord,
    Source,
)
from holdfast.errors import NotFound
from holdfast.ids import new_id
from holdfast.store.checks import page_size
from holdfast.store.rows import Row
from holdfast.store.schedule_changes import Changes
from holdfast.store.schedule_firing import AttendedSome, Firing
from holdfast.store.schedule_records import Attended, Declared, NewSchedule, check_overlap
from holdfast.store.schedule_statements import LOOKED_AT_MAX, ScheduleStatements, occurrence_of, schedule_of
from holdfast.store.schedule_steps import Player
from holdfast.store.statements import StatementRunner

KEPT_DAYS = 90
PRUNED_MAX = 1_000
AHEAD_MS = 3_600_000  # a clock that was less ahead is waited for
TOGETHER_MAX = 100  # schedules of one transaction


class Backfilled(Frozen):
    schedule: ScheduleRecord
    waiting: int  # instants that are fired from now on
    known: int  # that were fired or waited already


class Work(Frozen):
    """What a look for work found."""

    due: tuple[tuple[str, int], ...]  # the schedules that are due, and behind them the next one, with the instant
    over: tuple[str, ...]  # with an occurrence whose turn is over
    released: tuple[str, ...]  # with one that waits for nothing
    open_count: int  # occurrences that were looked at
    after: str  # where the next look at open occurrences goes on
    after_held: str  # and at those that wait
    now: int


class Schedules:
    """Of one store. Each verb is one transaction, and raises as the store's verbs do."""

    def __init__(
        self,
        runner: StatementRunner,
        play: Player,
        statements: ScheduleStatements,
        changes: Changes,
        firing: Firing,
        now_ms: Callable[[], int],
        observe: Callable[[int], int] | None = None,
    ) -> None:
        """`observe` is told each reading of the server's clock, where there is one."""
        self._now_ms = now_ms
        self._observe = observe
        self._runner = runner
        self._play = play
        self._sql = statements
        self._changes = changes
        self._firing = firing

    async def create(
        self,
        new: NewSchedule,
        *,
        source: Source = "made",
        by: str = "",
        schedule_id: str | None = None,
        asked_as: str | None = None,
    ) -> ScheduleRecord:
        """With a `schedule_id` of the caller's the same one may be asked for again. Where there is another one whose
        id begins with `asked_as`, it is returned in its place. Raises InvalidInput, LimitReached.
        """
        new.check()
        check_text("by", by, bytes_max=1024)
        drawn = schedule_id or new_id("sched")
        return await self._play(lambda: self._changes.create(drawn, new, source, by, asked_as or drawn))

    async def change(self, schedule_id: str, new: NewSchedule) -> ScheduleRecord:
        """Everything but the owner. Raises NotFound, InvalidInput, RefusedError for one that is declared."""
        new.check()
        return await self._play(lambda: self._changes.change(schedule_id, new))

    async def declare(self, source: Source, agents: Sequence[str], wanted: Sequence[NewSchedule]) -> Declared:
        """Raises InvalidInput, ConfigError."""
        for new in wanted:
            new.check()
        return await self._play(lambda: self._changes.declare(source, frozenset(agents), wanted))

    async def read(self, schedule_id: str) -> ScheduleRecord:
        """Raises NotFound."""
        found = await self._runner.rows(self._sql.read, schedule_id)
        if not found:
            raise NotFound("schedule", schedule_id)
        return schedule_of(found[0])

    async def page(
        self, *, owner: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[ScheduleRecord]:
        """Newest first: `before` is the id of the last one of the page before."""
        values = (owner, owner, before, before, page_size(limit))
        return [schedule_of(row) for row in await self._runner.rows(self._sql.page, *values)]

    async def history(self, schedule_id: str, *, before: int | None = None, limit: int = 100) -> list[Occurrence]:
        """Newest first: `before` is the instant of the last one of the page before. Rows of one instant are on one
        page, so it may be a little longer than asked for.
        """
        values = (schedule_id, before, before, schedule_id, before, before, page_size(limit) - 1)
        return [occurrence_of(row) for row in await self._runner.rows(self._sql.history, *values)]

    async def pause(self, schedule_id: str, note: str = "") -> ScheduleRecord:
        """Raises NotFound, RefusedError for one that has ended."""
        check_text("note", note, bytes_max=4096)
        return await self._play(lambda: self._changes.pause(schedule_id, note))

    async def resume(self, schedule_id: str) -> ScheduleRecord:
        """From now on: what the pause left out is for `backfill`."""
        return await self._play(lambda: self._changes.resume(schedule_id))

    async def remove(self, schedule_id: str) -> ScheduleRecord:
        """It never fires again. Its chats stay. Raises NotFound."""
        found: list[ScheduleRecord] = []
        return await self._play(lambda: self._changes.remove(schedule_id, found))

    async def trigger(
        self, schedule_id: str, *, overlap: Overlap | None = None, message_id: str | None = None
    ) -> tuple[Attended, Occurrence]:
        """One occurrence now, whatever the schedule's state, by its policy or another. With a `message_id` of the
        caller's it may be asked for again.
        """
        check_overlap(overlap)
        drawn = message_id or new_id("msg")
        return await self._play(lambda: self._firing.trigger(schedule_id, drawn, overlap))

    async def backfill(
        self, schedule_id: str, since: int, until: int, *, overlap: Overlap = "queue_all"
    ) -> Backfilled:
        """The instants from `since` to `until` (ms) that were not fired, also those that were skipped. They wait,
        and go one after the other, or with `allow` at once.
        """
        check_overlap(overlap)
        schedule, taken, known = await self._play(lambda: self._firing.backfill(schedule_id, since, until, overlap))
        return Backfilled(schedule=schedule, waiting=taken, known=known)

    async def forget(self, owner: str) -> int:
        """All of an owner. Returns how many."""
        count = 0
        while some := await self._play(lambda: self._changes.forget(owner)):
            count += some
        return count

    async def prune(self, before_ms: int) -> int:
        """Forget occurrences that were over before that instant, about PRUNED_MAX. Returns how many."""
        return await self._play(lambda: self._firing.prune(before_ms, PRUNED_MAX))

    # --- for the scheduler ----------------------------------------------------------------------------------------

    async def look(self, after: str = "", after_held: str = "") -> Work:
        """One statement, however many schedules there are."""
        found: dict[str, list[Row]] = {"now": [], "due": [], "over": [], "open": [], "held": [], "waiting": []}
        now = self._now_ms()
        values = (now, now, after, after, after_held, after_held)
        for what, *row in await self._runner.rows(self._sql.look, *values):
            found[what].append(tuple(row))
        for _, server_ms in found["now"]:
            if self._observe is not None:
                self._observe(server_ms)
        ((last, count),) = found["open"]
        ((last_held, held_count),) = found["waiting"]
        return Work(
            due=tuple((id, at) for id, at in found["due"]),
            over=tuple(id for id, _ in found["over"]),
            released=tuple(id for id, _ in found["held"]),
            open_count=count,
            after=last if count >= LOOKED_AT_MAX else "",
            after_held=last_held if held_count >= LOOKED_AT_MAX else "",
            now=self._now_ms(),
        )

    async def rewind(self) -> list[str]:
        """Active schedules that a clock decided about which was more than AHEAD_MS ahead of this one's: they go on
        from now. Returns their ids. It reads all schedules.
        """
        now = self._now_ms()
        found = await self._runner.rows(self._sql.ahead, now, now + AHEAD_MS)
        ids = [schedule_id for (schedule_id,) in found]
        done = [await self._play(lambda id=id: self._firing.rewind(id)) for id in ids]
        return [one.id for one in done if one is not None]

    async def attend(self, schedule_id: str) -> Attended | None:
        """Settle, fire, hold and skip what there is of one schedule. None: it is gone, or another worker is at it."""
        return await self._play(lambda: self._firing.attend(schedule_id))

    async def attend_some(
        self, schedule_ids: Sequence[str], *, due_by: int | None = None, at_most: int = TOGETHER_MAX
    ) -> AttendedSome:
        """The same for several, in one transaction: the first ones that no other worker is at, with a `due_by` of
        those that are still due by then. Some have to go alone. Where one of them fails nothing is done for any: the
        caller then attends to each alone.
        """
        return await self._play(lambda: self._firing.attend_some(schedule_ids, due_by, at_most))
