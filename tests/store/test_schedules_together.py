"""Several schedules in one transaction: each instant fired once, one that is refused or broken takes no other along,
and what waits for others' chats goes alone.
"""

import asyncio
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import faults
from holdfast.core.limits import Limits
from holdfast.core.schedules import OccurrenceState
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.postgres.connection import ServerConnection
from holdfast.store.records import StoreOptions
from holdfast.store.schedule_records import Attended
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand
from tests.support.schedules import MINUTE, made


async def several(store: Store, count: int, **fields: Any) -> list[str]:
    return [(await made(store, f"s{n}", **fields)).id for n in range(count)]


async def attend(store: Store, ids: list[str]) -> dict[str, Attended]:
    return {done.schedule.id: done for done in (await store.schedules.attend_some(ids)).done}


async def test_several_are_fired_in_one_transaction_each_with_its_own_chat_and_next_instant(
    store: Store, clock: FakeClock
) -> None:
    ids = await several(store, 5, message="{schedule}")
    clock.advance(MINUTE)
    done = await attend(store, ids)
    assert sorted(done) == sorted(ids)
    for schedule_id, one in done.items():
        (fired,) = one.fired
        assert await store.schedules.history(schedule_id) == [fired]
        assert schedule_id.encode() in bytes((await store.read_chat(fired.chat_id or "")).chat.metadata)
        found = await store.schedules.read(schedule_id)
        assert (found, found.next_at, found.fired) == (one.schedule, fired.at + MINUTE, 1)
    assert len(await store.list_chats()) == 5
    assert [one.fired for one in (await attend(store, ids)).values()] == [()] * 5


async def test_the_round_trips_of_a_firing_are_shared(
    store: Store, store_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("there are no round trips to a file")
    asked = 0
    execute = ServerConnection.execute
    ours = ContextVar("ours", default=False)  # the sender of hints, which began before, asks for itself

    async def counted(self: ServerConnection, *given: Any, **more: Any) -> Any:
        nonlocal asked
        asked += ours.get()
        return await execute(self, *given, **more)

    ids, hand = await several(store, 20), Hand(store)
    clock.advance(MINUTE)
    ours.set(True)
    monkeypatch.setattr(ServerConnection, "execute", counted)
    done = await attend(store, ids)
    firing, asked = asked, 0
    assert sum(len(one.fired) for one in done.values()) == 20
    assert 0 < firing <= 6
    for snapshot in await hand.claim():
        hand.snapshot = snapshot
        await hand.end_turn()
    asked = 0
    assert sum(len(one.ended) for one in (await attend(store, ids)).values()) == 20
    assert 0 < asked <= 6


async def test_workers_that_come_at_once_fire_each_of_several_once(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    ids = await several(store, 12)
    clock.advance(MINUTE)
    async with open_store(store_url, StoreOptions(clock=clock)) as other:
        looks = [one.schedules.attend_some(ids[n:] + ids[:n]) for n in range(4) for one in (store, other)]
        looks += [other.schedules.attend_some(ids[:3])]
        done = [one for found in await asyncio.gather(*looks) for one in found.done]
    fired = Counter(one.schedule.id for one in done for _ in one.fired)
    assert fired == Counter(ids)
    assert len(await store.list_chats()) == 12


async def test_of_several_the_one_that_is_refused_is_skipped_with_the_reason_and_the_others_fire(
    store_url: str, clock: FakeClock
) -> None:
    async with open_store(store_url, StoreOptions(clock=clock, limits=Limits(message_bytes_max=2_000))) as store:
        large = (await made(store, "large", message="x" * 5_000)).id
        ids = [large, *await several(store, 3)]
        clock.advance(MINUTE)
        done = await attend(store, ids)
        (refused,) = done[large].skipped
        assert (refused.state, refused.reason, refused.chat_id) == (OccurrenceState.SKIPPED, "refused", None)
        assert (done[large].schedule.fired, done[large].schedule.skipped) == (0, 1)
        assert [len(done[other].fired) for other in ids[1:]] == [1, 1, 1]
        assert len(await store.list_chats()) == 3


@pytest.mark.parametrize("point", ["schedule.chat", "schedule.after"])
async def test_a_transaction_of_several_that_fails_leaves_nothing_of_any_and_each_comes_again(
    store: Store, clock: FakeClock, point: str
) -> None:
    ids = await several(store, 3)
    clock.advance(MINUTE)

    def fail() -> None:
        raise RuntimeError("in the middle")

    faults.arm(point, action=fail)
    with pytest.raises(RuntimeError):
        await store.schedules.attend_some(ids)
    faults.disarm()
    assert await store.list_chats() == []
    assert [await store.schedules.history(one) for one in ids] == [[], [], []]
    assert sum(len(one.fired) for one in (await attend(store, ids)).values()) == 3


async def test_what_sends_to_chats_that_are_there_already_goes_alone(store: Store, clock: FakeClock) -> None:
    """It may have to wait for them, and others would wait with it."""
    same = (await made(store, "same", chat="same")).id
    cancels = (await made(store, "cancels", overlap="cancel")).id
    ids = [same, cancels, *await several(store, 2)]
    clock.advance(MINUTE)
    found = await store.schedules.attend_some(ids)
    assert (sorted(found.alone), len(found.done)) == (sorted([same, cancels]), 2)
    assert await store.schedules.history(same) == await store.schedules.history(cancels) == []
    for one in found.alone:
        done = await store.schedules.attend(one)
        assert done is not None
        assert len(done.fired) == 1


async def test_schedules_in_every_situation_are_looked_at_together_as_if_they_were_alone(
    store: Store, clock: FakeClock
) -> None:
    hand = Hand(store)
    names = ("skip", "queue_one", "queue_all", "allow")
    ids = {name: (await made(store, name, overlap=name)).id for name in names}
    for _ in range(3):
        clock.advance(MINUTE)
        await attend(store, [*ids.values()])
    first = (await store.schedules.history(ids["queue_one"]))[-1]
    await hand.take(first.chat_id or "")
    await hand.end_turn()
    clock.advance(MINUTE)
    await attend(store, [*ids.values()])
    states = {
        name: [f"{one.state} {one.reason or ''}".strip() for one in (await store.schedules.history(one_id))[::-1]]
        for name, one_id in ids.items()
    }
    assert states == {
        "skip": ["fired", "skipped overlap", "skipped overlap", "skipped overlap"],
        "queue_one": ["ended", "fired", "skipped overlap", "held"],
        "queue_all": ["fired", "held", "held", "held"],
        "allow": ["fired", "fired", "fired", "fired"],
    }
