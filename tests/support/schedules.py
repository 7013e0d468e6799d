"""Schedules as tests make and attend to them."""

from typing import Any

from holdfast.core.schedules import Every, ScheduleRecord
from holdfast.store.contract import Store
from holdfast.store.schedule_records import Attended, NewSchedule

MINUTE = 60_000
HOUR = 60 * MINUTE


def new(name: str = "often", **fields: Any) -> NewSchedule:
    given: dict[str, Any] = {"agent": "agent", "message": "go", "timing": Every(ms=MINUTE)} | fields
    return NewSchedule(name=name, **given)


async def made(store: Store, name: str = "often", **fields: Any) -> ScheduleRecord:
    return await store.schedules.create(new(name, **fields))


async def attend(store: Store, schedule_id: str) -> Attended:
    done = await store.schedules.attend(schedule_id)
    assert done is not None
    return done
