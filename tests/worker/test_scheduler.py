"""A worker's scheduler: a look is one statement, what is due is fired, and one that fails is in health."""

import asyncio
from typing import Any

import pytest

from holdfast import Agent, App, Schedule, diagnostics
from holdfast.core import commands as cmd
from holdfast.core.records import Failure
from holdfast.core.schedules import FIRES_TOGETHER_MAX, Every
from holdfast.errors import ConfigError
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.store.schedule_records import NewSchedule
from holdfast.store.schedule_statements import LOOKED_AT_MAX, OCCURRENCE_COLUMNS
from holdfast.system.clock import FakeClock
from holdfast.testing import ScriptedModel
from holdfast.worker.scheduler import OPEN_POLL_S, Scheduler
from tests.support.chats import Hand
from tests.support.notices import hook, told
from tests.support.rows import execute
from tests.support.waiting import eventually

MINUTE = 60_000
POLL_S = 5.0


def no_trouble(action: str, error: Exception) -> None:
    raise AssertionError(action) from error


async def made(store: Store, name: str = "often", **fields: Any) -> str:
    given: dict[str, Any] = {"agent": "agent", "message": "go", "timing": Every(ms=MINUTE)} | fields
    return (await store.schedules.create(NewSchedule(name=name, **given))).id


async def test_it_fires_what_is_due_and_sleeps_until_the_next_instant_or_its_poll(
    store: Store, clock: FakeClock
) -> None:
    scheduler = Scheduler(store, POLL_S, no_trouble)
    assert POLL_S * 0.8 <= await scheduler.run_once() <= POLL_S * 1.2
    for n in range(30):
        await made(store, f"s{n}")
    record = (await store.schedules.page())[0]
    clock.advance((record.next_at or 0) - clock.wall_ms() - 2_000)
    assert await scheduler.run_once() == pytest.approx(2.0)
    clock.advance(2_000)
    await scheduler.run_once()
    assert (scheduler.fired, len(await store.list_chats())) == (30, 30)
    assert await scheduler.run_once() <= OPEN_POLL_S * 1.2
    figures = scheduler.figures()
    assert (figures["runs"], figures["errors"], figures["late_ms"], figures["open"]) == (4, 0, 0, 30)


async def test_what_has_ended_lets_the_next_one_go_without_an_instant_being_due(
    store: Store, clock: FakeClock
) -> None:
    scheduler, hand = Scheduler(store, POLL_S, no_trouble), Hand(store)
    schedule_id = await made(store, overlap="queue_one")
    for _ in range(2):
        clock.advance(MINUTE)
        await scheduler.run_once()
    ((held, fired), chats) = (await store.schedules.history(schedule_id), await store.list_chats())
    assert (held.state, fired.state, len(chats)) == ("held", "fired", 1)
    await hand.take(chats[0].id)
    await hand.end_turn()
    await scheduler.run_once()
    assert scheduler.settled == 1
    assert [one.state for one in await store.schedules.history(schedule_id)] == ["fired", "ended"]


async def test_a_backfill_that_allows_it_begins_at_once_beside_what_is_open(store: Store, clock: FakeClock) -> None:
    scheduler = Scheduler(store, POLL_S, no_trouble)
    schedule_id = await made(store)
    clock.advance(MINUTE)
    await scheduler.run_once()
    now = clock.wall_ms()
    filled = await store.schedules.backfill(schedule_id, now - 15 * MINUTE, now - 2 * MINUTE, overlap="allow")
    assert filled.waiting > FIRES_TOGETHER_MAX
    for _ in range(2):
        await scheduler.run_once()
    assert len(await store.list_chats()) == 1 + filled.waiting


async def test_what_waits_behind_an_open_one_keeps_no_other_schedule_from_going_on(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    scheduler = Scheduler(store, POLL_S, no_trouble)
    busy = await made(store, "busy", overlap="queue_all")
    for _ in range(2):
        clock.advance(MINUTE)
        await scheduler.run_once()
    names = {name: name for name in OCCURRENCE_COLUMNS} | {"at": "at + n", "upto": "upto + n"}
    execute(
        store_url,
        f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {LOOKED_AT_MAX}) "
        f"INSERT INTO occurrences ({', '.join(names)}) SELECT {', '.join(names.values())} "
        f"FROM occurrences, numbers WHERE state = 'held' AND schedule_id = '{busy}'",
    )
    other = await made(store, "other")
    now = clock.wall_ms()
    await store.schedules.backfill(other, now - MINUTE, now)
    for _ in range(2):
        await scheduler.run_once()
    assert [one.state for one in await store.schedules.history(other)] == ["fired"]


async def test_one_that_cannot_be_attended_to_keeps_the_others_from_nothing_and_is_told_of(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    broken = await made(store, "broken")
    await made(store, "sound")
    execute(store_url, f"UPDATE schedules SET timing = '{{\"kind\":\"lunar\"}}' WHERE id = '{broken}'")
    clock.advance(MINUTE)
    troubles: list[str] = []
    scheduler = Scheduler(store, POLL_S, lambda action, error: troubles.append(action))
    await scheduler.run_once()
    await scheduler.run_once()
    assert (scheduler.fired, scheduler.errors, troubles) == (1, 1, ["schedule_failed"])
    assert "lunar" in str(scheduler.figures()["last_error"])
    assert scheduler.figures()["left_alone"] == 1


async def test_a_skip_and_a_pause_are_told_to_endpoints_in_their_own_transaction(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    hook(store_url, "hook", owner="ada")
    scheduler, hand = Scheduler(store, POLL_S, no_trouble), Hand(store)
    schedule_id = await made(store, owner="ada", pause_after=1)
    await made(store, "another's", owner="bob")
    for _ in range(2):
        clock.advance(MINUTE)
        await scheduler.run_once()
    chat_id = (await store.schedules.history(schedule_id))[1].chat_id
    await hand.take(chat_id or "")
    await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="broken", message="it broke")))
    await scheduler.run_once()
    found = [(kind, data) for _, kind, data in told(store_url, "hook") if kind.startswith("schedule")]
    assert [(kind, data["schedule_id"], data["reason"]) for kind, data in found] == [
        ("schedule.skipped", schedule_id, "overlap"),
        ("schedule.paused", schedule_id, "paused after 1 failure in a row"),
    ]


async def test_a_scheduler_that_no_longer_looks_is_in_health(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(store_url, [Agent("a", ScriptedModel(after="echo"))], poll_s=0.05)
    async with app.worker() as worker:
        await eventually(lambda: _true(worker.scheduler.runs > 0))

        async def hang(after: str = "") -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(worker.store.schedules, "look", hang)
        monkeypatch.setattr("holdfast.worker.scheduler.SILENT_POLLS", 0.01)

        await eventually(lambda: _true("scheduler_silent" in diagnostics()["reasons"]))


async def _true(value: object) -> object:
    return value


async def test_what_a_program_declares_is_there_when_its_worker_is_and_paused_when_it_is_not(store_url: str) -> None:
    def app(*schedules: Schedule) -> App:
        return App(store_url, [Agent("a", ScriptedModel(after="echo"))], schedules=schedules)

    daily = Schedule("daily", agent="a", message="Report of {date}", cron="0 9 * * *", zone="Europe/Berlin")
    async with app(daily).worker():
        pass
    async with app().worker():
        pass
    async with app() as last:
        (found,) = await last.schedules.list()
        assert (found.source, found.state, found.note) == ("code", "paused", "no longer declared in code")


def test_what_is_wrong_with_a_declared_schedule_is_told_when_the_app_is_made() -> None:
    agents = [Agent("a", ScriptedModel(after="echo"))]
    wrong = Schedule("never", agent="a", message="go", cron="0 0 30 2 *")
    with pytest.raises(ConfigError, match=r"'never': cron.*never comes"):
        App("sqlite:///x.db", agents, schedules=[wrong])
    with pytest.raises(ConfigError, match="one of cron, every_s and at"):
        Schedule("both", agent="a", message="go", cron="0 0 * * *", every_s=5)
    once = Schedule("twice", agent="a", message="go", every_s=60)
    with pytest.raises(ConfigError, match="two schedules"):
        App("sqlite:///x.db", agents, schedules=[once, once])


async def test_a_schedule_for_an_agent_that_there_is_not_keeps_a_worker_from_starting(store_url: str) -> None:
    app = App(
        store_url,
        [Agent("a", ScriptedModel(after="echo"))],
        schedules=[Schedule("lost", agent="b", message="go", every_s=60)],
        options=StoreOptions(),
    )
    with pytest.raises(ConfigError, match="no agent 'b'"):
        async with app.worker():
            raise AssertionError("it started")
