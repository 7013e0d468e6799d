"""What a principal sees of schedules: those of its owner. One of another owner is not there."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.schedules import Occurrence, Overlap, ScheduleRecord
from holdfast.declared_schedules import Schedule
from holdfast.errors import NotFound
from holdfast.principals import Principal
from holdfast.schedules import AppSchedules, moment
from holdfast.server.owned_store import OwnedStore, need_no_limit
from holdfast.store.schedules import Backfilled


class OwnedSchedules:
    """For one request. A token for one chat has none."""

    def __init__(self, schedules: AppSchedules, store: OwnedStore, principal: Principal) -> None:
        need_no_limit(principal, "it has no schedules")
        self._schedules = schedules
        self._store = store
        self._principal = principal

    async def list(self, *, before: str | None, limit: int, owner: str | None) -> list[ScheduleRecord]:
        return await self._schedules.list(owner=self._store.owner_for(owner), before=before, limit=limit)

    async def create(self, schedule: Schedule, key: str | None) -> ScheduleRecord:
        own = replace(schedule, owner=self._store.owner_for(schedule.owner) or "")
        return await self._schedules.create(own, by=self._principal.key_space, key=key)

    async def get(self, schedule_id: str) -> ScheduleRecord:
        """Raises NotFound, also for one of another owner, as all of these."""
        found = await self._schedules.get(schedule_id)
        if self._principal.owner is not None and found.owner != self._principal.owner:
            raise NotFound("schedule", schedule_id)
        return found

    def next(self, schedule: ScheduleRecord) -> Sequence[int]:
        return [round(at.timestamp() * 1000) for at in self._schedules.next(schedule)]

    def preview(self, schedule: Schedule, count: int, after: int | None) -> Sequence[int]:
        start = moment(after) if after is not None else None
        return [round(at.timestamp() * 1000) for at in self._schedules.preview(schedule, count, after=start)]

    async def change(self, schedule_id: str, schedule: Schedule) -> ScheduleRecord:
        await self.get(schedule_id)
        return await self._schedules.change(schedule_id, schedule)

    async def remove(self, schedule_id: str) -> ScheduleRecord:
        await self.get(schedule_id)
        return await self._schedules.remove(schedule_id)

    async def pause(self, schedule_id: str, note: str) -> ScheduleRecord:
        await self.get(schedule_id)
        return await self._schedules.pause(schedule_id, note)

    async def resume(self, schedule_id: str) -> ScheduleRecord:
        await self.get(schedule_id)
        return await self._schedules.resume(schedule_id)

    async def trigger(self, schedule_id: str, overlap: Overlap | None, key: str | None) -> Occurrence:
        await self.get(schedule_id)
        by = self._principal.key_space
        return await self._schedules.trigger(schedule_id, overlap=overlap, key=key, by=by)

    async def backfill(self, schedule_id: str, since: int, until: int, overlap: Overlap) -> Backfilled:
        await self.get(schedule_id)
        return await self._schedules.backfill(schedule_id, moment(since), moment(until), overlap=overlap)

    async def history(self, schedule_id: str, *, before: int | None, limit: int) -> Sequence[Occurrence]:
        await self.get(schedule_id)
        return await self._schedules.history(schedule_id, before=before, limit=limit)
