"""Promise 12: a schedule's occurrence fires once, across all workers, or is recorded as skipped, with the reason."""

from contextlib import ExitStack

import pytest

from holdfast import Agent, App, Schedule, ScheduleRecord
from holdfast.testing import ScriptedModel
from tests.support.occurrences import judge
from tests.support.programs import Program
from tests.support.scale import scaled
from tests.support.waiting import eventually

WORKERS = 3
KILLS = scaled(WORKERS, 8)  # each of the first ones is killed
EVERY_MS = 1_000


def schedules() -> list[Schedule]:
    """One for each policy, and one for the chat that goes on, each due every second."""
    given = {"agent": "echo", "message": "{schedule} {at}", "every_s": EVERY_MS / 1000}
    policies = ("skip", "queue_one", "queue_all", "cancel", "allow")
    each = [Schedule(policy, overlap=policy, **given) for policy in policies]  # type: ignore[arg-type]
    return [*each, Schedule("same", chat="same", overlap="queue_all", **given)]  # type: ignore[arg-type]


@pytest.mark.timeout(120)
async def test_workers_that_are_killed_fire_each_occurrence_once_or_say_why_not(store_url: str) -> None:
    async with App(store_url, [Agent("echo", ScriptedModel(after="echo"))]) as app:
        made = [await app.schedules.create(schedule) for schedule in schedules()]
        with ExitStack() as stack:
            workers = [stack.enter_context(Program("tests.promises.scheduled", store_url)) for _ in range(WORKERS)]
            for n in range(KILLS):
                await more_are_decided(app, made)
                victim = n % WORKERS
                assert workers[victim].hear() == "ready"
                workers[victim].process.kill()
                workers[victim] = stack.enter_context(Program("tests.promises.scheduled", store_url))
            await more_are_decided(app, made)
            for schedule in made:
                await app.schedules.pause(schedule.id, "the test is over")
        for schedule in made:
            ends = await judge(app, await app.schedules.get(schedule.id), EVERY_MS)
            assert ends.total() >= KILLS


async def more_are_decided(app: App, made: list[ScheduleRecord]) -> None:
    """One more instant of each: the next one is another. One question for all takes little from the workers."""
    wanted = {schedule.id for schedule in made}

    async def next_instants() -> dict[str, int]:
        return {one.id: one.next_at or 0 for one in await app.schedules.list() if one.id in wanted}

    known = await next_instants()

    async def further() -> bool:
        return all(at > known[schedule_id] for schedule_id, at in (await next_instants()).items())

    await eventually(further, 60.0)


async def test_what_is_removed_or_paused_never_fires_again_however_many_workers_there_are(store_url: str) -> None:
    async with App(store_url, [Agent("echo", ScriptedModel(after="echo"))]) as app:
        removed = await app.schedules.create(Schedule("removed", agent="echo", message="go", every_s=1))
        other = await app.schedules.create(Schedule("other", agent="echo", message="go", every_s=1))
        with Program("tests.promises.scheduled", store_url) as first, Program("tests.promises.scheduled", store_url):
            assert first.hear() == "ready"
            await more_are_decided(app, [removed, other])
            await app.schedules.remove(removed.id)
            chats = {line.id for line in await app.chats(limit=500) if removed.id in bytes(line.metadata).decode()}
            for _ in range(2):
                await more_are_decided(app, [other])
            later = {line.id for line in await app.chats(limit=500) if removed.id in bytes(line.metadata).decode()}
            assert later == chats
            await app.schedules.pause(other.id, "enough")
        assert await app.schedules.history(removed.id) == []
