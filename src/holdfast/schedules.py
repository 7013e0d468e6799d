"""`app.schedules`: schedules made and changed at run time, and what is declared, brought into the store."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING

from holdfast.core.schedules import Cron, Every, Occurrence, Once, Overlap, ScheduleRecord, Source, Timing
from holdfast.declared_schedules import Schedule
from holdfast.errors import ConfigError, InvalidInput, KeyReused
from holdfast.log_context import logger
from holdfast.store.receipts import request_hash
from holdfast.store.schedule_records import Declared, NewSchedule
from holdfast.store.schedules import Backfilled
from holdfast.timetable import instant_of, shown_instants

if TYPE_CHECKING:
    from holdfast.app import App

log = logger("holdfast.schedules")

SHOWN = 5


class AppSchedules:
    """What `app.schedules` is. A schedule is named by its id; times are `datetime`s, with or without an offset: then
    they are UTC.
    """

    def __init__(self, app: "App", declared: Sequence[Schedule]) -> None:
        self._app = app
        self.declared = tuple(declared)
        for source, some in (("code", self.declared), ("settings", app.config.schedules)):
            _check(source, some)

    async def declare(self) -> None:
        """Bring what code and settings declare into the store; what they do not declare any more is paused. A worker
        does this when it starts. Of the schedules in the store it looks after those of its own source and of this
        app's agents: other apps on the database, and what was made at run time, are left alone. Raises ConfigError.
        """
        app = self._app
        sources: tuple[tuple[Source, Sequence[Schedule]], ...] = (
            ("code", self.declared),
            ("settings", app.config.schedules),
        )
        for source, declared in sources:
            for one in declared:
                if one.agent not in app.agents:
                    known = ", ".join(sorted(app.agents)) or "none"
                    words = f"there is no agent {one.agent!r}; this app has: {known}"
                    raise ConfigError(f"schedule {one.name!r}: {words}")
            wanted = [as_new(one) for one in declared]
            _tell(source, await app.store.schedules.declare(source, [*app.agents], wanted))

    async def create(self, schedule: Schedule, *, by: str = "", key: str | None = None) -> ScheduleRecord:
        """With a `key` the same one is made once. Raises InvalidInput, LimitReached, UnknownAgent, and KeyReused
        where the key came with another schedule before.
        """
        self._app.agent(schedule.agent)
        new = as_new(schedule)
        if key is None:
            return await self._app.store.schedules.create(new, by=by)
        asked_as = f"sched_{_digest(by, key)}"
        drawn = f"{asked_as}{request_hash(new)[:8]}"
        found = await self._app.store.schedules.create(new, by=by, schedule_id=drawn, asked_as=asked_as)
        if found.id not in (drawn, asked_as):
            raise KeyReused(key)
        return found

    async def change(self, schedule_id: str, schedule: Schedule) -> ScheduleRecord:
        """All of it but its owner; another time begins now. Raises NotFound, InvalidInput, RefusedError for one that
        is declared: that is changed where it is declared.
        """
        self._app.agent(schedule.agent)
        return await self._app.store.schedules.change(schedule_id, as_new(schedule))

    def preview(self, schedule: Schedule, count: int = SHOWN, *, after: datetime | None = None) -> list[datetime]:
        """Its next instants, before anything is saved. Raises InvalidInput."""
        new = as_new(schedule)
        new.check()
        start = self._app.store.now_ms() if after is None else instant_of(after, "UTC")
        return [moment(at) for at in shown_instants(new.timing, start, count)]

    def next(self, schedule: ScheduleRecord, count: int = SHOWN) -> list[datetime]:
        """The next instants of one that is saved and active."""
        if schedule.next_at is None:
            return []
        return [moment(at) for at in shown_instants(schedule.timing, schedule.next_at - 1, count)]

    async def list(
        self, *, owner: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[ScheduleRecord]:
        """Newest first, in pages: `before` is the id of the last one of the page before."""
        return await self._app.store.schedules.page(owner=owner, before=before, limit=limit)

    async def get(self, schedule_id: str) -> ScheduleRecord:
        """Raises NotFound."""
        return await self._app.store.schedules.read(schedule_id)

    async def history(self, schedule_id: str, *, before: int | None = None, limit: int = 100) -> Sequence[Occurrence]:
        """What became of each instant, newest first; `before` is the instant, in ms, of the last one of the page
        before.
        """
        return await self._app.store.schedules.history(schedule_id, before=before, limit=limit)

    async def pause(self, schedule_id: str, note: str = "") -> ScheduleRecord:
        """What it has begun goes on. Raises NotFound, RefusedError for one that has ended."""
        return await self._app.store.schedules.pause(schedule_id, note)

    async def resume(self, schedule_id: str) -> ScheduleRecord:
        """From now on: `backfill` is for what the pause left out."""
        return await self._app.store.schedules.resume(schedule_id)

    async def trigger(
        self, schedule_id: str, *, overlap: Overlap | None = None, key: str | None = None, by: str = ""
    ) -> Occurrence:
        """One occurrence now, also of a paused one, by its policy or the one given. With a `key` it is one, however
        often it is asked for. Raises NotFound, and KeyReused where the key came with another `overlap` before.
        """
        drawn = None if key is None else f"msg_{_digest(schedule_id, by, key)}"
        _, occurrence = await self._app.store.schedules.trigger(schedule_id, overlap=overlap, message_id=drawn)
        if key is not None and occurrence.overlap != overlap:
            raise KeyReused(key)
        return occurrence

    async def backfill(
        self, schedule_id: str, since: datetime, until: datetime, *, overlap: Overlap = "queue_all"
    ) -> Backfilled:
        """The instants of a time that is past and that were not fired, those included that were skipped. One after
        the other, unless `overlap` says otherwise. At most 1,000 at once.
        """
        since_ms, until_ms = (instant_of(when, "UTC") for when in (since, until))
        return await self._app.store.schedules.backfill(schedule_id, since_ms, until_ms, overlap=overlap)

    async def remove(self, schedule_id: str) -> ScheduleRecord:
        """It never fires again; its chats stay. One that is declared comes back with the next worker. Raises
        NotFound.
        """
        return await self._app.store.schedules.remove(schedule_id)


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def as_new(schedule: Schedule) -> NewSchedule:
    """Raises InvalidInput."""
    return NewSchedule(
        name=schedule.name,
        agent=schedule.agent,
        message=schedule.message,
        timing=_timing(schedule),
        owner=schedule.owner,
        chat=schedule.chat,
        overlap=schedule.overlap,
        catch_up_ms=_ms("catch_up_s", schedule.catch_up_s),
        jitter_ms=_ms("jitter_s", schedule.jitter_s),
        pause_after=schedule.pause_after,
    )


def _timing(schedule: Schedule) -> Timing:
    zone = schedule.zone
    if schedule.cron is not None:
        return Cron(expression=" ".join(schedule.cron.split()), zone=zone)
    if schedule.at is not None:
        return Once(at=instant_of(schedule.at, zone), zone=zone)
    assert schedule.every_s is not None
    anchor = 0 if schedule.starting is None else instant_of(schedule.starting, zone)
    return Every(ms=_ms("every_s", schedule.every_s), anchor_at=anchor, zone=zone)


def _ms(field: str, seconds: float) -> int:
    if not -1e12 < seconds < 1e12:
        raise InvalidInput(field, "is a number of seconds")
    return round(seconds * 1000)


def _check(source: str, declared: Sequence[Schedule]) -> None:
    """When the app is made: what is wrong is told before anything runs."""
    names = set()
    for one in declared:
        try:
            as_new(one).check()
        except InvalidInput as error:
            raise ConfigError(f"schedule {one.name!r}: {error}") from None
        if (one.owner, one.name) in names:
            raise ConfigError(f"two schedules are named {one.name!r} in {source}: give one of them another name")
        names.add((one.owner, one.name))


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=13).hexdigest()


def _tell(source: str, found: Declared) -> None:
    for name in found.made:
        extra = {"action": "schedule.made", "schedule": name}
        log.info("schedule %s is declared in %s: it is made", name, source, extra=extra)
    for name in found.changed:
        extra = {"action": "schedule.changed", "schedule": name}
        log.info("schedule %s is declared in %s: it is changed", name, source, extra=extra)
    for name in found.paused:
        extra = {"action": "schedule.paused", "schedule": name}
        log.warning("schedule %s is not declared in %s any more: it is paused", name, source, extra=extra)
