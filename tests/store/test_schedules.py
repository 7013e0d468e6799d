"""Schedules in the database: an instant is fired once, with its chat and the next instant, or has a reason."""

import asyncio
from typing import Any

import pytest

from holdfast import faults
from holdfast.core import commands as cmd
from holdfast.core.limits import Limits
from holdfast.core.records import External, Failure, State
from holdfast.core.schedules import (
    FIRES_TOGETHER_MAX,
    Cron,
    Every,
    Occurrence,
    OccurrenceState,
    Once,
    ScheduleState,
)
from holdfast.errors import ConfigError, InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.store.schedule_records import Attended
from holdfast.system.clock import FakeClock
from holdfast.transfer import delete_owner
from tests.support.chats import Hand, call, history, user
from tests.support.schedules import HOUR, MINUTE, attend, made, new


async def minute_passes(store: Store, clock: FakeClock, schedule_id: str, minutes: int = 1) -> Attended:
    clock.advance(minutes * MINUTE)
    return await attend(store, schedule_id)


def told(occurrences: list[Occurrence]) -> list[str]:
    """Oldest first: state, with reason or outcome."""
    return [f"{one.state} {one.reason or one.outcome or ''}".strip() for one in reversed(occurrences)]


async def ends(store: Store, hand: Hand, occurrence: Occurrence, *, fail: bool = False) -> None:
    assert occurrence.chat_id is not None
    await hand.take(occurrence.chat_id)
    if fail:
        await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="broken", message="it broke")))
    else:
        await hand.end_turn()


async def test_an_instant_is_one_transaction_of_occurrence_chat_and_next_instant(
    store: Store, clock: FakeClock
) -> None:
    text = "{schedule} at {time} on {date}: {at}"
    timing = Every(ms=MINUTE, zone="Europe/Berlin")
    schedule = await made(store, owner="ada", timing=timing, message=text)
    assert schedule.next_at is not None
    assert (await attend(store, schedule.id)).fired == ()
    clock.advance(schedule.next_at - clock.wall_ms())
    done = await attend(store, schedule.id)
    (occurrence,) = done.fired
    assert occurrence.at == schedule.next_at
    assert done.schedule.next_at == schedule.next_at + MINUTE
    assert await store.schedules.history(schedule.id) == [occurrence]
    chat = (await store.read_chat(occurrence.chat_id or "")).chat
    assert (chat.owner, chat.agent, chat.state, chat.turn) == ("ada", "agent", State.RUNNING, 1)
    assert schedule.id.encode() in bytes(chat.metadata)
    (message,) = await history(store, chat.id)
    assert message.text.startswith("often at ")
    assert message.id == occurrence.message_id
    assert (await attend(store, schedule.id)).fired == ()


async def test_workers_that_come_at_once_fire_it_once(store_url: str, store: Store, clock: FakeClock) -> None:
    schedule = await made(store)
    clock.advance(MINUTE)
    async with open_store(store_url, StoreOptions(clock=clock)) as other:
        looks = [one.schedules.attend(schedule.id) for one in (store, other) * 5]
        fired = [one.fired for one in await asyncio.gather(*looks) if one is not None]
    assert sum(map(len, fired)) == 1
    assert len(await store.list_chats()) == 1


@pytest.mark.parametrize("point", ["schedule.before", "schedule.chat", "schedule.after", "commit.before"])
async def test_a_firing_that_fails_in_the_middle_leaves_nothing_and_comes_again(
    store: Store, clock: FakeClock, point: str
) -> None:
    schedule = await made(store)
    clock.advance(MINUTE)

    def fail() -> None:
        raise RuntimeError("in the middle")

    faults.arm(point, action=fail)
    with pytest.raises(RuntimeError):
        await store.schedules.attend(schedule.id)
    faults.disarm()
    assert await store.list_chats() == []
    assert await store.schedules.history(schedule.id) == []
    assert len((await attend(store, schedule.id)).fired) == 1
    assert len(await store.list_chats()) == 1


async def test_an_instant_whose_row_is_there_fires_nothing_again(store: Store, clock: FakeClock) -> None:
    """Also where the schedule was told to begin before it, by a clock that was set back."""
    schedule = await made(store, overlap="allow")
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    clock.advance(-2 * MINUTE)
    changed = await store.schedules.change(schedule.id, new(overlap="allow", jitter_ms=1))
    assert (changed.next_at or 0) < first.at
    again = await minute_passes(store, clock, schedule.id, 2)
    assert (again.schedule.next_at or 0) > first.at
    assert first.at not in [one.at for one in again.fired]
    assert again.schedule.fired == len(await store.list_chats()) == 1 + len(again.fired)


async def test_a_skip_whose_row_is_there_is_neither_counted_nor_told_again(store: Store, clock: FakeClock) -> None:
    schedule = await made(store)
    for _ in range(3):
        await minute_passes(store, clock, schedule.id)
    clock.advance(-2 * MINUTE)
    await store.schedules.change(schedule.id, new(jitter_ms=1))
    again = await minute_passes(store, clock, schedule.id, 2)
    rows = await store.schedules.history(schedule.id)
    assert told(rows) == ["fired", "skipped overlap", "skipped overlap"]
    assert (again.skipped, again.schedule.skipped, again.schedule.fired) == ((), 2, 1)


async def test_a_trigger_takes_no_instant_of_the_schedule_away(store: Store, clock: FakeClock) -> None:
    """Not even in the very millisecond in which one is due."""
    schedule = await made(store, overlap="allow")
    assert schedule.next_at is not None
    clock.advance(schedule.next_at - clock.wall_ms())
    await store.schedules.trigger(schedule.id)
    (fired,) = (await attend(store, schedule.id)).fired
    assert (fired.at, fired.kind) == (schedule.next_at, "scheduled")
    kinds = [one.kind for one in await store.schedules.history(schedule.id)]
    assert sorted(kinds) == ["scheduled", "triggered"]


# --- overlap --------------------------------------------------------------------------------------------------------


async def test_an_occurrence_is_open_until_its_turn_has_ended(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    (skipped,) = (await minute_passes(store, clock, schedule.id)).skipped
    assert skipped.reason == "overlap"
    await ends(store, hand, first)
    (second,) = (await minute_passes(store, clock, schedule.id)).fired
    assert told(await store.schedules.history(schedule.id)) == ["ended done", "skipped overlap", "fired"]
    assert second.chat_id != first.chat_id


async def test_what_a_person_asks_for_goes_before_all_that_a_pause_holds_back(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store, overlap="queue_all"), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    held = [await minute_passes(store, clock, schedule.id) for _ in range(FIRES_TOGETHER_MAX + 1)]
    assert all(len(one.held) == 1 for one in held)
    await store.schedules.pause(schedule.id)
    _, asked = await store.schedules.trigger(schedule.id)
    assert asked.state is OccurrenceState.HELD
    await ends(store, hand, first)
    (fired,) = (await attend(store, schedule.id)).fired
    assert (fired.kind, fired.at) == ("triggered", asked.at)
    assert (await store.schedules.look()).released == ()  # what waits for the end of the pause is left in peace


async def test_a_cancel_calls_off_all_that_is_open_in_a_chat_that_went_on_before(
    store: Store, clock: FakeClock
) -> None:
    schedule = await made(store, chat="same", overlap="allow")
    first, *_ = [(await minute_passes(store, clock, schedule.id)).fired[0] for _ in range(3)]
    await store.schedules.change(schedule.id, new(chat="new", overlap="cancel"))
    (fired,) = (await minute_passes(store, clock, schedule.id)).fired
    assert fired.chat_id != first.chat_id
    before = await store.read_chat(first.chat_id or "")
    assert before.queue == ()
    assert before.chat.state is State.STOPPING
    await attend(store, schedule.id)
    assert told(await store.schedules.history(schedule.id))[1:] == ["ended withdrawn", "ended withdrawn", "fired"]


async def test_one_waits_and_further_ones_are_skipped_or_all_wait(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    for overlap, then in (("queue_one", ["held", "skipped overlap"]), ("queue_all", ["held", "held"])):
        schedule = await made(store, overlap, overlap=overlap)
        (first,) = (await minute_passes(store, clock, schedule.id)).fired
        for _ in range(2):
            await minute_passes(store, clock, schedule.id)
        assert told(await store.schedules.history(schedule.id)) == ["fired", *then]
        await ends(store, hand, first)
        work = await store.schedules.look()
        assert schedule.id in work.over
        (second,) = (await attend(store, schedule.id)).fired
        assert second.at == first.at + MINUTE
        await store.schedules.remove(schedule.id)


async def test_cancel_stops_the_running_one_and_allow_lets_all_run(store: Store, clock: FakeClock) -> None:
    cancelling = await made(store, "cancelling", overlap="cancel")
    (first,) = (await minute_passes(store, clock, cancelling.id)).fired
    (second,) = (await minute_passes(store, clock, cancelling.id)).fired
    states = [(await store.read_chat(one.chat_id or "")).chat.state for one in (first, second)]
    assert states == [State.STOPPING, State.RUNNING]
    allowing = await made(store, "allowing", overlap="allow")
    for _ in range(3):
        await minute_passes(store, clock, allowing.id)
    assert told(await store.schedules.history(allowing.id)) == ["fired"] * 3


async def test_one_chat_goes_on_and_another_takes_its_place_when_it_is_deleted(
    store: Store, clock: FakeClock
) -> None:
    schedule, hand = await made(store, chat="same"), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    await ends(store, hand, first)
    (second,) = (await minute_passes(store, clock, schedule.id)).fired
    assert second.chat_id == first.chat_id
    assert [message.text for message in await history(store, first.chat_id or "")].count("go") == 2
    await ends(store, hand, second)
    await store.delete_chat(second.chat_id or "")
    (third,) = (await minute_passes(store, clock, schedule.id)).fired
    assert third.chat_id != second.chat_id
    assert (await store.schedules.read(schedule.id)).chat_id == third.chat_id


async def test_a_message_behind_a_persons_is_open_while_it_is_queued_and_until_its_own_turn_is_over(
    store: Store, clock: FakeClock
) -> None:
    schedule, hand = await made(store, chat="same"), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    await ends(store, hand, first)
    await store.submit(first.chat_id or "", cmd.Send(message=user("by hand")))
    (queued,) = (await minute_passes(store, clock, schedule.id)).fired
    assert queued.turn is None
    assert (await minute_passes(store, clock, schedule.id)).skipped[0].reason == "overlap"
    await hand.take(first.chat_id or "")
    await hand.end_turn()  # the person's
    assert (await minute_passes(store, clock, schedule.id)).ended == ()
    await hand.end_turn()  # and the next one, which the message began
    (ended,) = (await attend(store, schedule.id)).ended
    assert (ended.at, ended.outcome, ended.turn) == (queued.at, "done", 3)


async def test_a_message_that_is_taken_back_and_a_chat_that_is_deleted_end_their_occurrences(
    store: Store, clock: FakeClock
) -> None:
    schedule, hand = await made(store, chat="same"), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    await ends(store, hand, first)
    await store.submit(first.chat_id or "", cmd.Send(message=user("by hand")))
    (queued,) = (await minute_passes(store, clock, schedule.id)).fired
    await store.submit(first.chat_id or "", cmd.Withdraw(message_id=queued.message_id or ""))
    (ended,) = (await attend(store, schedule.id)).ended
    assert ended.outcome == "withdrawn"
    other = await made(store, "other")
    (only,) = (await minute_passes(store, clock, other.id)).fired
    await ends(store, hand, only)
    await store.delete_chat(only.chat_id or "")
    assert [one.outcome for one in (await attend(store, other.id)).ended] == ["deleted"]


async def test_a_schedule_does_not_answer_what_a_person_is_asked(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store, chat="same", overlap="allow"), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    await hand.take(first.chat_id or "")
    await hand.respond(call("ask"), start=False)
    question = cmd.Delegate(by=hand.by, call_id="ask", external=External.QUESTION, question="which?")
    await hand.commit(question, cmd.Park(by=hand.by))
    (held,) = (await minute_passes(store, clock, schedule.id)).held
    snapshot = await store.read_chat(first.chat_id or "")
    assert (snapshot.chat.state, len(snapshot.open_calls)) == (State.WAITING, 1)
    await store.submit(first.chat_id or "", cmd.Submit(call_id="ask", content="this one"))
    (second,) = (await attend(store, schedule.id)).fired
    assert second.at == held.at


# --- downtime, jitter, clocks ---------------------------------------------------------------------------------------


async def test_after_a_downtime_the_newest_fires_and_the_others_say_why_not(store: Store, clock: FakeClock) -> None:
    schedule = await made(store, catch_up_ms=3 * MINUTE)
    done = await minute_passes(store, clock, schedule.id, 10)
    assert len(done.fired) == 1
    reasons = [one.reason for one in done.skipped]
    assert reasons.count("late") >= 6
    assert reasons.count("superseded") >= 2
    assert len(reasons) + 1 == (done.schedule.next_at or 0) // MINUTE - (schedule.next_at or 0) // MINUTE
    once = await made(store, "once", timing=Once(at=clock.wall_ms() + MINUTE), catch_up_ms=MINUTE)
    late = await minute_passes(store, clock, once.id, 60)
    assert [one.reason for one in late.skipped] == ["late"]
    assert late.schedule.state is ScheduleState.ENDED


async def test_a_long_downtime_is_told_in_few_rows(store: Store, clock: FakeClock) -> None:
    schedule = await made(store)
    clock.advance(24 * HOUR)
    skipped = 0
    while (done := await attend(store, schedule.id)).more:
        skipped += sum(one.count for one in done.skipped)
    rows = await store.schedules.history(schedule.id, limit=1_000)
    assert len(rows) < 400
    assert sum(one.count for one in rows) == done.schedule.skipped + done.schedule.fired
    assert done.schedule.fired == 1


async def test_a_clock_that_is_set_back_fires_nothing_again(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    await ends(store, hand, first)
    clock.advance(-HOUR)
    for _ in range(60):
        assert (await minute_passes(store, clock, schedule.id)).fired == ()
    assert len((await minute_passes(store, clock, schedule.id)).fired) == 1


async def test_with_jitter_it_is_due_later_and_told_by_its_own_instant(store: Store, clock: FakeClock) -> None:
    schedule = await made(store, timing=Every(ms=HOUR), jitter_ms=30 * MINUTE)
    assert schedule.next_at is not None
    assert schedule.due_at is not None
    assert schedule.next_at < schedule.due_at < schedule.next_at + 30 * MINUTE
    clock.advance(schedule.due_at - clock.wall_ms() - 1)
    assert (await attend(store, schedule.id)).fired == ()
    clock.advance(1)
    (occurrence,) = (await attend(store, schedule.id)).fired
    assert occurrence.at == schedule.next_at


# --- people ---------------------------------------------------------------------------------------------------------


async def test_a_paused_schedule_fires_nothing_and_goes_on_from_when_it_is_resumed(
    store: Store, clock: FakeClock
) -> None:
    schedule = await made(store)
    paused = await store.schedules.pause(schedule.id, "until the contract is signed")
    assert (paused.state, paused.paused_by, paused.note) == (
        ScheduleState.PAUSED,
        "person",
        "until the contract is signed",
    )
    assert (await minute_passes(store, clock, schedule.id, 5)).fired == ()
    assert (await store.schedules.look()).due == ()
    resumed = await store.schedules.resume(schedule.id)
    assert resumed.next_at is not None
    assert resumed.next_at > clock.wall_ms()
    assert (resumed.state, resumed.note) == (ScheduleState.ACTIVE, "")
    assert len((await minute_passes(store, clock, schedule.id)).fired) == 1
    assert await store.schedules.resume(schedule.id) == await store.schedules.read(schedule.id)


async def test_failures_in_a_row_pause_it(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store, pause_after=2), Hand(store)
    for _ in range(2):
        (occurrence,) = (await minute_passes(store, clock, schedule.id)).fired
        await ends(store, hand, occurrence, fail=True)
    done = await minute_passes(store, clock, schedule.id)
    assert done.paused
    assert (done.schedule.state, done.schedule.paused_by) == (ScheduleState.PAUSED, "failures")
    assert told(await store.schedules.history(schedule.id)) == ["ended failed", "ended failed", "skipped paused"]
    assert (await store.schedules.resume(schedule.id)).failures == 0


async def test_a_trigger_fires_now_once_for_its_id_also_while_it_is_paused(store: Store, clock: FakeClock) -> None:
    schedule = await made(store)
    await store.schedules.pause(schedule.id)
    _, occurrence = await store.schedules.trigger(schedule.id, message_id="msg_1")
    assert (occurrence.kind, occurrence.state, occurrence.at) == ("triggered", OccurrenceState.FIRED, clock.wall_ms())
    assert (await store.schedules.trigger(schedule.id, message_id="msg_1"))[1] == occurrence
    _, refused = await store.schedules.trigger(schedule.id)
    assert (refused.state, refused.reason) == (OccurrenceState.SKIPPED, "overlap")
    _, beside = await store.schedules.trigger(schedule.id, overlap="allow")
    assert (beside.state, beside.at) == (OccurrenceState.FIRED, clock.wall_ms() + 2)
    assert len(await store.list_chats()) == 2


async def test_a_backfill_fires_what_was_skipped_one_after_the_other_and_nothing_twice(
    store: Store, clock: FakeClock
) -> None:
    schedule, hand = await made(store, catch_up_ms=0), Hand(store)
    since = schedule.next_at or 0
    clock.advance(30_000)
    await minute_passes(store, clock, schedule.id, 3)
    assert told(await store.schedules.history(schedule.id)) == ["skipped late"] * 3
    filled = await store.schedules.backfill(schedule.id, since, clock.wall_ms())
    assert (filled.waiting, filled.known) == (3, 0)
    again = await store.schedules.backfill(schedule.id, since, clock.wall_ms())
    assert (again.waiting, again.known) == (0, 3)
    assert (await store.schedules.look()).released == (schedule.id,)
    for n in range(3):
        (occurrence,) = (await attend(store, schedule.id)).fired
        assert (occurrence.at, occurrence.kind) == (since + n * MINUTE, "backfill")
        assert (await attend(store, schedule.id)).fired == ()
        await ends(store, hand, occurrence)
    with pytest.raises(InvalidInput, match="the past"):
        await store.schedules.backfill(schedule.id, since, clock.wall_ms() + HOUR)
    with pytest.raises(InvalidInput, match="more than 1,000"):
        await store.schedules.backfill(schedule.id, 0, clock.wall_ms())


# --- life -----------------------------------------------------------------------------------------------------------


async def test_a_schedule_that_was_removed_never_fires_again(store_url: str, store: Store, clock: FakeClock) -> None:
    """Also when a worker had found it due before."""
    schedule = await made(store, overlap="queue_all")
    clock.advance(MINUTE)
    assert [found for found, _ in (await store.schedules.look()).due] == [schedule.id]
    await store.schedules.remove(schedule.id)
    assert await store.schedules.attend(schedule.id) is None
    assert await store.list_chats() == []
    assert await store.schedules.history(schedule.id) == []
    for verb in (store.schedules.read, store.schedules.remove, store.schedules.pause, store.schedules.trigger):
        with pytest.raises(NotFound):
            await verb(schedule.id)


async def test_an_owner_that_is_deleted_takes_its_schedules_along(store: Store, clock: FakeClock) -> None:
    gone = [await made(store, f"s{n}", owner="ada") for n in range(3)]
    stays, hand = await made(store, owner="bob"), Hand(store)
    _, occurrence = await store.schedules.trigger(gone[0].id)
    with pytest.raises(RefusedError, match="run or wait"):
        await delete_owner(store, "ada")
    assert len(await store.schedules.page(owner="ada")) == 3
    await ends(store, hand, occurrence)
    await delete_owner(store, "ada")
    assert [one.id for one in await store.schedules.page()] == [stays.id]
    assert await store.schedules.page(owner="ada") == []
    clock.advance(MINUTE)
    assert [found for found, _ in (await store.schedules.look()).due] == [stays.id]


async def test_what_is_wrong_is_refused_before_anything_is_saved(store: Store, clock: FakeClock) -> None:
    wrong: list[dict[str, Any]] = [
        {"timing": Cron(expression="0 0 30 2 *")},
        {"timing": Cron(expression="0 9 * * *", zone="Europe/Berln")},
        {"timing": Cron(expression="0 9 * * *", zone="localtime")},
        {"timing": Cron(expression="0 9 * * *", zone="right/Europe/Berlin")},
        {"timing": Every(ms=999)},
        {"timing": Once(at=clock.wall_ms() - 1)},
        {"message": "{year}"},
        {"message": " "},
        {"agent": ""},
        {"overlap": "never"},
        {"chat": "old"},
        {"jitter_ms": -1},
        {"catch_up_ms": -1},
        {"pause_after": 0},
    ]
    for fields in wrong:
        with pytest.raises(InvalidInput):
            await made(store, **fields)
    await made(store)
    with pytest.raises(InvalidInput, match="already"):
        await made(store)
    assert len(await store.schedules.page()) == 1


async def test_an_owner_has_no_more_than_so_many(store_url: str, clock: FakeClock) -> None:
    async with open_store(store_url, StoreOptions(clock=clock, limits=Limits(schedules_max=2))) as store:
        for name in ("one", "two"):
            await made(store, name)
        with pytest.raises(LimitReached, match="schedules"):
            await made(store, "three")
        await made(store, "three", owner="bob")


async def test_a_change_begins_from_now_and_keeps_what_became_of_it(store: Store, clock: FakeClock) -> None:
    schedule = await made(store)
    await minute_passes(store, clock, schedule.id)
    changed = await store.schedules.change(schedule.id, new("seldom", timing=Every(ms=HOUR), overlap="allow"))
    assert (changed.name, changed.overlap, changed.fired) == ("seldom", "allow", 1)
    assert (changed.next_at or 0) > clock.wall_ms()
    assert (changed.next_at or 0) % HOUR == 0
    other = await store.schedules.change(schedule.id, new("seldom", timing=Every(ms=HOUR), message="other"))
    assert other.next_at == changed.next_at


# --- declared -------------------------------------------------------------------------------------------------------


async def test_what_code_no_longer_declares_is_paused_and_says_so_and_comes_back(
    store: Store, clock: FakeClock
) -> None:
    agents = ("agent",)
    first = await store.schedules.declare("code", agents, (new("kept"), new("dropped")))
    assert (first.made, first.changed, first.paused) == (("kept", "dropped"), (), ())
    same = await store.schedules.declare("code", agents, (new("kept"), new("dropped")))
    assert (same.made, same.changed, same.paused) == ((), (), ())
    gone = await store.schedules.declare("code", agents, (new("kept"),))
    assert gone.paused == ("dropped",)
    (dropped,) = [one for one in await store.schedules.page() if one.name == "dropped"]
    assert (dropped.state, dropped.paused_by, dropped.note) == (
        ScheduleState.PAUSED,
        "undeclared",
        "no longer declared in code",
    )
    back = await store.schedules.declare("code", agents, (new("kept"), new("dropped", message="again")))
    assert back.changed == ("dropped",)
    assert (await store.schedules.read(dropped.id)).state is ScheduleState.ACTIVE
    with pytest.raises(RefusedError, match="declared in code"):
        await store.schedules.change(dropped.id, new("dropped"))


async def test_sources_and_apps_do_not_pause_each_others_schedules(store: Store) -> None:
    made_by_hand = await made(store, "by hand")
    await store.schedules.declare("settings", ("agent",), (new("in the file"),))
    await store.schedules.declare("code", ("other",), (new("of another app", agent="other"),))
    nothing = await store.schedules.declare("code", ("agent",), ())
    assert nothing.paused == ()
    states = {one.name: one.state for one in await store.schedules.page()}
    assert set(states.values()) == {ScheduleState.ACTIVE}
    for name in ("by hand", "in the file", "of another app"):
        with pytest.raises(ConfigError, match="another name"):
            await store.schedules.declare("code", ("agent",), (new(name),))
    assert (await store.schedules.read(made_by_hand.id)).source == "made"


async def test_a_persons_pause_outlives_a_new_declaration(store: Store) -> None:
    await store.schedules.declare("code", ("agent",), (new(),))
    (schedule,) = await store.schedules.page()
    await store.schedules.pause(schedule.id, "for now")
    await store.schedules.declare("code", ("agent",), (new(message="another"),))
    found = await store.schedules.read(schedule.id)
    assert (found.state, found.note, found.message) == (ScheduleState.PAUSED, "for now", "another")


async def test_a_look_finds_the_soonest_first_and_nothing_that_is_not_to_be_done(
    store: Store, clock: FakeClock
) -> None:
    for n in range(5):
        await made(store, f"s{n}", timing=Every(ms=HOUR, anchor_at=n * MINUTE))
    work = await store.schedules.look()
    instants = [at for _, at in work.due]
    assert instants == sorted(instants)
    assert (work.over, work.released, work.open_count) == ((), (), 0)


async def test_occurrences_that_are_over_are_forgotten_after_a_while(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store), Hand(store)
    (first,) = (await minute_passes(store, clock, schedule.id)).fired
    await minute_passes(store, clock, schedule.id)
    assert await store.schedules.prune(clock.wall_ms() + 1) == 1  # the skipped one; the other is open
    await ends(store, hand, first)
    await attend(store, schedule.id)
    assert await store.schedules.prune(clock.wall_ms() + 1) == 1
    assert await store.schedules.history(schedule.id) == []
