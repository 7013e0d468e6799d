"""The routes of schedules: made, shown, paused, triggered, and what became of each instant."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.core.schedules import Cron, Every, Occurrence, Once, ScheduleRecord
from holdfast.declared_schedules import Schedule
from holdfast.errors import ConfigError, InvalidInput
from holdfast.schedules import moment
from holdfast.server import views
from holdfast.server.chats import PROBLEMS, as_json
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf, KeyGiven
from holdfast.server.owned_schedules import OwnedSchedules

routes = Routes(prefix="/api", tags=["schedules"], responses=PROBLEMS)

ScheduleId = Annotated[str, Path(max_length=200)]
MS_MAX = 253_402_300_799_000
Instant = Annotated[int, Field(ge=0, le=MS_MAX, description="milliseconds since 1970")]
Policy = Literal["skip", "queue_one", "queue_all", "cancel", "allow"]
Seconds = Annotated[float, Field(ge=0, le=40_000_000)]


class ScheduleGiven(views.Given):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    agent: Annotated[str, Field(min_length=1, max_length=200)]
    message: Annotated[str, Field(min_length=1, max_length=65536)] = Field(
        description="what the agent is started with; {at}, {date}, {time} and {schedule} stand for the occurrence's"
    )
    cron: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="five fields; or give `every_s`, or `at`"
    )
    every_s: Annotated[float, Field(ge=1, le=40_000_000_000)] | None = None
    starting: Instant | None = Field(default=None, description="from when `every_s` is counted; null: from 1970")
    at: Instant | None = Field(default=None, description="once")
    zone: Annotated[str, Field(max_length=100)] = Field(default="UTC", description="such as Europe/Berlin")
    chat: Literal["new", "same"] = "new"
    overlap: Policy = "skip"
    catch_up_s: Seconds = 3600.0
    jitter_s: Seconds = 0.0
    pause_after: Annotated[int, Field(ge=1, le=1000)] | None = Field(default=None, description="failures in a row")
    owner: Annotated[str, Field(max_length=200)] = ""


class PauseGiven(views.Given):
    note: Annotated[str, Field(max_length=1000)] = ""


class TriggerGiven(views.Given):
    overlap: Policy | None = Field(default=None, description="null: as the schedule has it")


class BackfillGiven(views.Given):
    since: Instant
    until: Instant
    overlap: Policy = "queue_all"


class ScheduleShown(BaseModel):
    id: str
    owner: str
    name: str
    agent: str
    message: str
    cron: str | None
    every_s: float | None
    at: views.Ms | None
    zone: str
    chat: Literal["new", "same"]
    overlap: Policy
    catch_up_s: float
    jitter_s: float
    pause_after: int | None
    source: Literal["made", "code", "settings"] = Field(description="`made`: at run time; the others are declared")
    state: Literal["active", "paused", "ended"]
    paused_by: Literal["person", "failures", "undeclared"] | None
    note: str
    failures: int = Field(description="in a row")
    fired: int
    skipped: int
    chat_id: str | None = Field(description="the chat that goes on, once there is one")
    created_at: views.Ms
    next: list[views.Ms] = Field(description="the next instants; none unless it is active")


class ScheduleList(BaseModel):
    schedules: list[ScheduleShown]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


class PreviewShown(BaseModel):
    next: list[views.Ms]


class OccurrenceShown(BaseModel):
    at: views.Ms
    upto: views.Ms = Field(description="the same as `at`, unless one row stands for several that were skipped")
    count: int
    kind: Literal["scheduled", "triggered", "backfill"]
    state: Literal["held", "fired", "ended", "skipped"]
    reason: Literal["late", "superseded", "overlap", "queue_full", "refused", "paused", "changed"] | None = Field(
        description="of a skip"
    )
    detail: str
    chat_id: str | None
    message_id: str | None
    turn: int | None
    decided_at: views.Ms
    fired_at: views.Ms | None
    ended_at: views.Ms | None
    outcome: (
        Literal["done", "failed", "stopped", "budget", "deadline", "superseded", "withdrawn", "deleted"] | None
    ) = Field(description="what became of its turn")


class OccurrenceList(BaseModel):
    occurrences: list[OccurrenceShown]
    next: views.Ms | None = Field(description="give it as `before` for the next page; null: there is none")


class BackfillShown(BaseModel):
    waiting: int = Field(description="instants that are fired from now on")
    known: int = Field(description="that were fired, or waited, already")


def given_schedule(given: ScheduleGiven) -> Schedule:
    """Raises InvalidInput."""
    values = given.model_dump()
    for name in ("at", "starting"):
        values[name] = moment(values[name]) if values[name] is not None else None
    try:
        return Schedule(**values)
    except ConfigError as error:
        raise InvalidInput("schedule", str(error)) from None


def shown(schedule: ScheduleRecord, schedules: OwnedSchedules) -> dict[str, Any]:
    timing = schedule.timing
    told = {name: getattr(schedule, name) for name in ScheduleShown.model_fields if hasattr(schedule, name)}
    return told | {
        "cron": timing.expression if isinstance(timing, Cron) else None,
        "every_s": timing.ms / 1000 if isinstance(timing, Every) else None,
        "at": timing.at if isinstance(timing, Once) else None,
        "zone": timing.zone,
        "catch_up_s": schedule.catch_up_ms / 1000,
        "jitter_s": schedule.jitter_ms / 1000,
        "next": schedules.next(schedule),
    }


def occurrence_shown(occurrence: Occurrence) -> dict[str, Any]:
    return {name: getattr(occurrence, name) for name in OccurrenceShown.model_fields}


@routes.get("/schedules", scope="read", response_model=ScheduleList)
async def list_schedules(
    app: AppOf,
    owner: Annotated[str | None, Query(max_length=200)] = None,
    before: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Newest first."""
    schedules = app.schedules
    found = await schedules.list(owner=owner, before=before, limit=limit)
    return as_json(
        {"schedules": [shown(one, schedules) for one in found], "next": found[-1].id if len(found) == limit else None}
    )


@routes.post("/schedules", scope="chat", response_model=ScheduleShown, status_code=201)
async def create_schedule(app: AppOf, given: ScheduleGiven, key: KeyGiven) -> Response:
    """A cron that never comes, a zone that is none and a placeholder that is unknown are refused, with the reason."""
    schedules = app.schedules
    made = await schedules.create(given_schedule(given), key)
    return as_json(shown(made, schedules), 201)


@routes.post("/schedules/preview", scope="read", response_model=PreviewShown)
async def preview_schedule(
    app: AppOf,
    given: ScheduleGiven,
    count: Annotated[int, Query(ge=1, le=100)] = 5,
    after: Annotated[int | None, Query(ge=0, le=MS_MAX)] = None,
) -> Response:
    """The next instants of a schedule, before it is saved."""
    return as_json({"next": app.schedules.preview(given_schedule(given), count, after)})


@routes.get("/schedules/{schedule_id}", scope="read", response_model=ScheduleShown)
async def show_schedule(app: AppOf, schedule_id: ScheduleId) -> Response:
    schedules = app.schedules
    return as_json(shown(await schedules.get(schedule_id), schedules))


@routes.put("/schedules/{schedule_id}", scope="chat", response_model=ScheduleShown)
async def change_schedule(app: AppOf, schedule_id: ScheduleId, given: ScheduleGiven) -> Response:
    """All of it but its owner. Another time begins now. One that is declared is changed where it is declared."""
    schedules = app.schedules
    await schedules.get(schedule_id)  # first: what is wrong with the body tells nothing of one that is not there
    return as_json(shown(await schedules.change(schedule_id, given_schedule(given)), schedules))


@routes.delete("/schedules/{schedule_id}", scope="chat", response_model=ScheduleShown)
async def remove_schedule(app: AppOf, schedule_id: ScheduleId) -> Response:
    """It never fires again. Its chats stay."""
    schedules = app.schedules
    return as_json(shown(await schedules.remove(schedule_id), schedules) | {"next": []})


@routes.post("/schedules/{schedule_id}/pause", scope="chat", response_model=ScheduleShown)
async def pause_schedule(app: AppOf, schedule_id: ScheduleId, given: PauseGiven) -> Response:
    """What it has begun goes on."""
    schedules = app.schedules
    return as_json(shown(await schedules.pause(schedule_id, given.note), schedules))


@routes.post("/schedules/{schedule_id}/resume", scope="chat", response_model=ScheduleShown)
async def resume_schedule(app: AppOf, schedule_id: ScheduleId) -> Response:
    """From now on: `backfill` is for what the pause left out."""
    schedules = app.schedules
    return as_json(shown(await schedules.resume(schedule_id), schedules))


@routes.post("/schedules/{schedule_id}/trigger", scope="chat", response_model=OccurrenceShown)
async def trigger_schedule(app: AppOf, schedule_id: ScheduleId, given: TriggerGiven, key: KeyGiven) -> Response:
    """One occurrence now, also of a paused one. Where the policy skips it, the answer says so."""
    return as_json(occurrence_shown(await app.schedules.trigger(schedule_id, given.overlap, key)))


@routes.post("/schedules/{schedule_id}/backfill", scope="chat", response_model=BackfillShown)
async def backfill_schedule(app: AppOf, schedule_id: ScheduleId, given: BackfillGiven) -> Response:
    """The instants of a time that is past and that were not fired, those included that were skipped."""
    done = await app.schedules.backfill(schedule_id, given.since, given.until, given.overlap)
    return as_json({"waiting": done.waiting, "known": done.known})


@routes.get("/schedules/{schedule_id}/occurrences", scope="read", response_model=OccurrenceList)
async def list_occurrences(
    app: AppOf,
    schedule_id: ScheduleId,
    before: Annotated[int | None, Query(ge=0, le=MS_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """What became of each instant, newest first."""
    found = await app.schedules.history(schedule_id, before=before, limit=limit)
    last = found[-1].at if len(found) >= limit else None
    return as_json({"occurrences": [occurrence_shown(one) for one in found], "next": last})
