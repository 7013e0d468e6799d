"""No instant of a schedule is lost without a word, fired though it is told as skipped, or fired again because its row
was forgotten; whatever people do in between, and whatever clocks say.
"""

import asyncio
from collections import Counter
from typing import Any

import psycopg
import pytest

from holdfast import faults, transfer
from holdfast.core import commands as cmd
from holdfast.core.records import Failure
from holdfast.core.schedules import Cron, Every, Occurrence, ScheduleRecord, ScheduleState
from holdfast.errors import InvalidInput, NotFound
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.store.schedule_statements import OCCURRENCE_COLUMNS
from holdfast.system.clock import FakeClock
from holdfast.worker.scheduler import Scheduler
from tests.support.aftermath import find_faults
from tests.support.chats import Hand, history
from tests.support.rows import execute
from tests.support.schedules import HOUR, MINUTE, attend, made, new

DAY = 24 * HOUR


async def rows_of(store: Store, schedule_id: str) -> list[Occurrence]:
    """Oldest first."""
    return (await store.schedules.history(schedule_id, limit=1_000))[::-1]


async def told(store: Store, schedule_id: str) -> list[str]:
    return [f"{one.state} {one.reason or ''}".strip() for one in await rows_of(store, schedule_id)]


def covered(rows: list[Occurrence], every_ms: int = MINUTE) -> list[int]:
    """The instants that rows tell of."""
    found = [at for row in rows for at in range(row.at, row.upto + 1, every_ms)]
    assert len(found) == sum(row.count for row in rows)
    return found


# --- what was due and is not decided any more -----------------------------------------------------------------------


async def test_what_is_due_when_a_schedule_is_paused_or_changed_or_not_declared_any_more_has_its_reason(
    store: Store, clock: FakeClock
) -> None:
    paused, changed = await made(store, "paused"), await made(store, "changed")
    await store.schedules.declare("code", ("agent",), (new("dropped"), new("sooner")))
    by_name = {one.name: one for one in await store.schedules.page()}
    clock.advance(3 * MINUTE)
    await store.schedules.pause(paused.id)
    await store.schedules.change(changed.id, new("changed", timing=Every(ms=HOUR)))
    await store.schedules.declare("code", ("agent",), (new("sooner", timing=Every(ms=MINUTE // 2)),))
    for name, reason in (("paused", "paused"), ("changed", "changed"), ("dropped", "paused"), ("sooner", "changed")):
        schedule = await store.schedules.read(by_name[name].id)
        rows = await rows_of(store, schedule.id)
        assert [row.reason for row in rows] == [reason] * 3, name
        assert covered(rows) == [(by_name[name].next_at or 0) + n * MINUTE for n in range(3)]
        assert schedule.skipped == 3
    await store.schedules.pause(paused.id, "again")
    await store.schedules.change(changed.id, new("changed", timing=Every(ms=HOUR), message="other"))
    assert [len(await rows_of(store, one.id)) for one in (paused, changed)] == [3, 3]


async def test_what_is_due_when_failures_pause_a_schedule_has_its_reason_however_much_it_is(
    store: Store, clock: FakeClock
) -> None:
    schedule, hand = await made(store, timing=Every(ms=1_000), pause_after=1), Hand(store)
    clock.advance(1_000)
    (first,) = (await attend(store, schedule.id)).fired
    await hand.take(first.chat_id or "")
    await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="broken", message="it broke")))
    clock.advance(700_000)
    done = await attend(store, schedule.id)
    assert (done.paused, done.schedule.state) == (True, ScheduleState.PAUSED)
    rows = await rows_of(store, schedule.id)
    assert covered(rows, 1_000) == [first.at + n * 1_000 for n in range(701)]
    assert {row.reason for row in rows[1:]} == {"paused"}
    assert done.schedule.skipped == 700


async def test_a_catch_up_of_nothing_fires_what_is_found_at_its_time(store: Store, clock: FakeClock) -> None:
    schedule = await made(store, catch_up_ms=0)
    clock.advance((schedule.next_at or 0) - clock.wall_ms() + 2_000)
    assert len((await attend(store, schedule.id)).fired) == 1


# --- rows of several ------------------------------------------------------------------------------------------------


async def missed(store: Store, clock: FakeClock, schedule_id: str, for_ms: int) -> ScheduleRecord:
    clock.advance(for_ms)
    while (done := await attend(store, schedule_id)).more:
        pass
    return done.schedule


async def test_an_instant_that_is_backfilled_is_not_told_as_skipped_any_more(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store), Hand(store)
    await missed(store, clock, schedule.id, 8 * HOUR)
    before = await rows_of(store, schedule.id)
    shared = next(row for row in before if row.count > 5)
    for since, until in ((shared.at + 2 * MINUTE, shared.at + 3 * MINUTE), (shared.at, shared.at)):
        filled = await store.schedules.backfill(schedule.id, since, until)
        assert (filled.waiting, filled.known) == ((until - since) // MINUTE + 1, 0)
    rows = await rows_of(store, schedule.id)
    assert covered(rows) == covered(before)
    assert [row.at for row in rows if row.state == "held"] == [shared.at + n * MINUTE for n in (0, 2, 3)]
    (newest,) = [row for row in rows if row.state == "fired"]
    await hand.take(newest.chat_id or "")
    await hand.end_turn()
    assert [one.at for one in (await attend(store, schedule.id)).fired] == [shared.at]
    assert covered(await rows_of(store, schedule.id)) == covered(before)


async def test_an_instant_that_comes_again_and_that_a_row_of_several_tells_of_does_not_fire(
    store: Store, clock: FakeClock
) -> None:
    schedule = await made(store, overlap="allow", catch_up_ms=0)
    await missed(store, clock, schedule.id, 8 * HOUR)
    before = await rows_of(store, schedule.id)
    clock.advance(-7 * HOUR)
    await store.schedules.change(schedule.id, new(overlap="allow", catch_up_ms=0, jitter_ms=1))
    for _ in range(30):
        clock.advance(MINUTE)
        assert (await attend(store, schedule.id)).fired == ()
    assert await rows_of(store, schedule.id) == before


async def test_rows_of_one_instant_are_on_one_page(store: Store, store_url: str, clock: FakeClock) -> None:
    schedule = await made(store)
    for _ in range(4):
        clock.advance(MINUTE)
        await attend(store, schedule.id)
    at = (await rows_of(store, schedule.id))[2].at
    names = {name: name for name in OCCURRENCE_COLUMNS} | {"upto": "upto + 1", "count": "2"}
    execute(
        store_url,
        f"INSERT INTO occurrences ({', '.join(names)}) SELECT {', '.join(names.values())} FROM occurrences "
        f"WHERE at = {at}",
    )
    for limit in range(1, 6):
        found: list[Occurrence] = []
        before: int | None = None
        while page := await store.schedules.history(schedule.id, before=before, limit=limit):
            found += page
            before = page[-1].at
        assert len(found) == len({(one.at, one.upto) for one in found}) == 5, limit


# --- what is forgotten ----------------------------------------------------------------------------------------------


async def test_a_backfill_fires_nothing_whose_row_was_forgotten(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store), Hand(store)
    clock.advance(MINUTE)
    (first,) = (await attend(store, schedule.id)).fired
    await hand.take(first.chat_id or "")
    await hand.end_turn()
    await attend(store, schedule.id)
    assert await store.schedules.prune(clock.wall_ms() + 1) == 1
    clock.advance(MINUTE)
    await attend(store, schedule.id)
    with pytest.raises(InvalidInput, match="forgotten, and they may have fired"):
        await store.schedules.backfill(schedule.id, first.at, clock.wall_ms())
    assert (await store.schedules.backfill(schedule.id, first.at + 1, clock.wall_ms())).waiting == 0
    clock.advance(-2 * MINUTE)
    await store.schedules.change(schedule.id, new(jitter_ms=1, overlap="allow"))
    clock.advance(2 * MINUTE)
    await attend(store, schedule.id)
    assert Counter(row.at for row in await rows_of(store, schedule.id))[first.at] == 0


async def test_nor_one_that_was_too_many(store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.schedule_firing.KEPT_MAX", 5)
    monkeypatch.setattr("holdfast.store.schedule_firing.TRIMMED_EVERY", 2)
    schedule = await made(store)
    for _ in range(10):
        clock.advance(MINUTE)
        await attend(store, schedule.id)
    rows = await rows_of(store, schedule.id)
    found = await store.schedules.read(schedule.id)
    assert rows[1].at > (schedule.next_at or 0) + MINUTE  # the first one is open, and stays
    assert (schedule.next_at or 0) < found.forgotten_to < rows[1].at
    with pytest.raises(InvalidInput, match="forgotten"):
        await store.schedules.backfill(schedule.id, (schedule.next_at or 0) + MINUTE, clock.wall_ms())


# --- clocks ---------------------------------------------------------------------------------------------------------


async def test_a_clock_that_was_a_year_ahead_and_came_back_leaves_no_schedule_silent(
    store: Store, clock: FakeClock
) -> None:
    schedule = await made(store, timing=Cron(expression="0 9 * * *"), overlap="allow", catch_up_ms=2 * DAY)
    scheduler = Scheduler(store, 5.0, lambda action, error: None)
    clock.advance(DAY)
    await scheduler.run_once()
    clock.advance(365 * DAY)
    while await scheduler.run_once() == 0.0:
        pass
    ahead = await store.schedules.read(schedule.id)
    fired_ahead = [row.at for row in await rows_of(store, schedule.id) if row.state == "fired"]
    assert len(fired_ahead) >= 3
    clock.advance(-365 * DAY)
    await scheduler.run_once()
    back = await store.schedules.read(schedule.id)
    assert clock.wall_ms() < (back.next_at or 0) <= clock.wall_ms() + DAY
    clock.advance(DAY)
    await scheduler.run_once()
    rows = await rows_of(store, schedule.id)
    now_fired = [row.at for row in rows if row.state == "fired"]
    assert len(now_fired) == len(fired_ahead) + 1
    assert back.next_at in now_fired
    assert len({row.at for row in rows}) == len(rows)
    assert ahead.fired + 1 == (await store.schedules.read(schedule.id)).fired


# --- connections, and people who come at the same moment ------------------------------------------------------------


def lose_connection() -> None:
    raise psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize("point", ["schedule.chat", "schedule.after", "commit.before", "commit.after"])
async def test_a_connection_that_is_lost_in_the_middle_of_a_firing_fires_it_once(
    store: Store, store_url: str, clock: FakeClock, point: str
) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("there is no connection to a file")
    ids = [(await made(store, f"s{n}")).id for n in range(3)]
    clock.advance(MINUTE)
    faults.arm(point, action=lose_connection)
    await store.schedules.attend_some(ids)
    faults.disarm()
    # The server may not have noticed yet that the connection is gone: what that one locked is passed over, and found
    # by the next look.
    while due := [id for id, at in (await store.schedules.look()).due if at <= clock.wall_ms()]:
        await store.schedules.attend_some(due)
    assert [await told(store, one) for one in ids] == [["fired"]] * 3
    assert len(await store.list_chats()) == 3


async def test_a_removal_whose_end_was_not_heard_is_a_removal(store: Store, store_url: str, clock: FakeClock) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("there is no connection to a file")
    schedule = await made(store)
    faults.arm("commit.after", action=lose_connection)
    assert (await store.schedules.remove(schedule.id)).id == schedule.id
    faults.disarm()
    with pytest.raises(NotFound):
        await store.schedules.remove(schedule.id)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_people_do_in_the_moment_of_a_firing_each_instant_is_told_once(
    store: Store, store_url: str, clock: FakeClock, seed: int
) -> None:
    overlaps = ("skip", "queue_all", "cancel", "allow")
    ids = [(await made(store, name, overlap=name, owner="ada")).id for name in overlaps]
    ids.append((await made(store, "same", chat="same", owner="ada")).id)
    start = clock.wall_ms()
    async with open_store(store_url, StoreOptions(clock=clock)) as other:
        for n in range(4):
            clock.advance(MINUTE)
            verbs: list[Any] = [one.schedules.attend_some(ids) for one in (store, other)]
            verbs += [one.schedules.attend(id) for id in ids[2:] for one in (store, other)]
            who = ids[(seed + n) % len(ids)]
            verbs.insert(seed, other.schedules.trigger(who))
            verbs.insert(2 * seed, other.schedules.backfill(who, start, clock.wall_ms()))
            verbs.insert(seed, other.schedules.pause(ids[(seed + n + 1) % len(ids)]))
            verbs.append(other.schedules.resume(ids[(seed + n + 1) % len(ids)]))
            await asyncio.gather(*verbs)
    for schedule_id in ids:
        rows = await rows_of(store, schedule_id)
        assert len({row.at for row in rows}) == len(rows)
        schedule = await store.schedules.read(schedule_id)
        assert schedule.fired == len([row for row in rows if row.fired_at is not None])
    sent: Counter[str] = Counter()
    for line in await store.list_chats():
        sent.update(message.id for message in await history(store, line.id) if message.role == "user")
        sent.update(queued.id for queued in (await store.read_chat(line.id)).queue)
    assert set(sent.values()) <= {1}
    assert await find_faults(store) == []


async def test_schedules_that_are_forgotten_in_the_moment_of_a_firing_are_gone_and_fire_no_more(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    ids = [(await made(store, f"s{n}", owner="ada")).id for n in range(8)]
    clock.advance(MINUTE)
    async with open_store(store_url, StoreOptions(clock=clock)) as other:
        one, two, _ = await asyncio.gather(
            other.schedules.attend_some(ids[:4]),
            store.schedules.attend_some(ids[::-1]),
            other.schedules.forget("ada"),
        )
    fired = [occurrence for done in (*one.done, *two.done) for occurrence in done.fired]
    assert sorted(line.id for line in await store.list_chats()) == sorted(str(one.chat_id) for one in fired)
    assert await store.schedules.page(owner="ada") == []
    assert [await store.schedules.history(one) for one in ids] == [[]] * 8
    clock.advance(MINUTE)
    assert (await store.schedules.attend_some(ids)).done == []


async def test_an_owner_whose_schedule_fires_while_it_is_deleted_leaves_no_chat_behind(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, hand = await made(store, owner="ada"), Hand(store)
    clock.advance(MINUTE)
    looked = transfer._some

    async def fires_behind_it(*given: Any) -> Any:
        found = await looked(*given)
        if (done := await store.schedules.attend(schedule.id)) is not None and done.fired:
            await hand.take(done.fired[0].chat_id or "")
            await hand.end_turn()
        return found

    monkeypatch.setattr(transfer, "_some", fires_behind_it)
    await transfer.delete_owner(store, "ada")
    assert await store.list_chats() == []
    assert await store.schedules.page(owner="ada") == []
