"""Due is a flag: a clock that is set strands no chat. Only instants that people chose follow the clock."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import State
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.sqlite.sql import DUE_CHATS, DUE_CHATS_OF_OWNER
from holdfast.system.clock import FakeClock
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat, user

HOUR_MS = 3_600_000
Way = Callable[[Store, Hand], Awaitable[None]]


async def created(store: Store, hand: Hand) -> None:
    await store.create_chat(new_chat(id="c1"))


async def sent_to(store: Store, hand: Hand) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    await store.submit("c1", cmd.Send(message=user("hello")))


async def released(store: Store, hand: Hand) -> None:
    await created(store, hand)
    await hand.take("c1")
    await hand.commit(cmd.Release(by=hand.by))


async def released_for_a_while(store: Store, hand: Hand) -> None:
    """As one that newer code wrote."""
    await created(store, hand)
    await hand.take("c1")
    await hand.commit(cmd.Release(by=hand.by, delay_ms=5_000))


async def stopped(store: Store, hand: Hand) -> None:
    await created(store, hand)
    await store.submit("c1", cmd.Stop())


async def taken_back(store: Store, hand: Hand) -> None:
    await created(store, hand)
    await hand.take("c1")
    await hand.dies()


async def taken_back_often(store: Store, hand: Hand) -> None:
    """It backs off."""
    await taken_back(store, hand)
    again = Hand(store)
    await again.take("c1")
    await again.dies()
    assert await Hand(store).claim() == []


async def answered(store: Store, hand: Hand) -> None:
    await created(store, hand)
    await hand.take("c1")
    await hand.park_for_client("k1")
    await store.submit("c1", cmd.Submit(call_id="k1", content="here you are"))


WAYS = (created, sent_to, released, released_for_a_while, stopped, taken_back, taken_back_often, answered)


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
@pytest.mark.parametrize("step_ms", [-HOUR_MS, -60_000, HOUR_MS])
async def test_a_chat_that_runs_is_claimed_at_once_though_the_clock_was_set(
    store: Store, clock: FakeClock, way: Way, step_ms: int
) -> None:
    await way(store, Hand(store))
    clock.step_wall(step_ms)
    successor = Hand(store)
    assert [snapshot.chat.id for snapshot in await successor.claim()] == ["c1"]


async def test_a_backoff_lasts_as_long_as_it_is_and_no_longer(store: Store, clock: FakeClock) -> None:
    await taken_back_often(store, Hand(store))
    hand = Hand(store)
    clock.advance(999)
    assert await hand.claim() == []
    clock.step_wall(-500)
    assert await hand.claim() == [], "within its length nobody can tell that the clock was set"
    clock.step_wall(-500)
    assert len(await hand.claim()) == 1, "now it lies further ahead than it is long"


async def test_a_chat_in_backoff_hides_no_other(store: Store, clock: FakeClock) -> None:
    await taken_back_often(store, Hand(store))
    clock.advance(10)
    await store.create_chat(new_chat(id="c2"))
    hand = Hand(store)
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=1)] == ["c2"]
    clock.advance(1_000)
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=1)] == ["c1"]


async def test_an_expiry_that_people_chose_follows_the_clock(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    await created(store, hand)
    await hand.take("c1")
    await hand.park_for_client("k1", expires_at=clock.wall_ms() + HOUR_MS)
    clock.step_wall(-HOUR_MS)
    clock.advance(HOUR_MS)
    assert await hand.claim() == [], "by the clock that people read, it is an hour away"
    clock.step_wall(HOUR_MS)
    assert [snapshot.chat.state for snapshot in await hand.claim()] == [State.RUNNING]


async def test_what_is_ready_and_what_rang_come_in_the_order_of_their_times(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    await created(store, hand)
    await hand.take("c1")
    await hand.park_for_client("k1", expires_at=clock.wall_ms() + 500)
    for n in (2, 3):
        await store.create_chat(new_chat(id=f"c{n}"))
        clock.advance(1_000)
    taken = [(await hand.claim(limit=1))[0].chat.id for _ in range(3)]
    assert taken == ["c2", "c1", "c3"]


async def test_looking_for_work_uses_the_indexes_of_what_is_ready_and_of_what_rings(tmp_path: Path) -> None:
    """Twenty thousand approvals that may expire must not be read by every claim."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with open_store(url):
        values = {"agent": "agent", "owner": "ann", "now": 1, "limit": 5}
        plans = {
            kind: [str(row[3]) for row in sql(url, f"EXPLAIN QUERY PLAN {statement}", values)]
            for kind, statement in (("", DUE_CHATS), ("_owner", DUE_CHATS_OF_OWNER))
        }
    for kind, steps in plans.items():
        assert any(f"USING INDEX chats_ready{kind} " in step for step in steps)
        assert any(f"USING INDEX chats_timers{kind} " in step for step in steps)
        assert not any(step.startswith("SCAN chats") or "TEMP B-TREE" in step for step in steps)
