"""A claim whose answer nobody heard: the worker holds chats that it does not know of, and must get to know them.

Its lease is alive, so nobody else would ever take them. (A connection that was lost: `tests/crash`.)
"""

import asyncio
import gc
import threading

import pytest

from holdfast import faults
from holdfast.core.records import LeaseEnd, Snapshot
from holdfast.errors import LeaseLost, StoreTimeout
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand, new_chat
from tests.support.leases import silence
from tests.support.looptime import LoopTime
from tests.support.waiting import until

SOON_S = 30


async def claim_until_heard(hand: Hand, count: int) -> list[Snapshot]:
    """One claim too early may find nothing: the lost one is still on its way."""
    heard: list[Snapshot] = []
    async with asyncio.timeout(SOON_S):
        while len(heard) < count:
            heard += await hand.claim()
    return heard


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_what_a_cancelled_claim_took_is_handed_over_by_the_next(store: Store, turns: int) -> None:
    hand = Hand(store)
    for n in range(5):
        await store.create_chat(new_chat(id=f"c{n}"))
        claim = asyncio.ensure_future(hand.claim())
        for _ in range(turns):
            await asyncio.sleep(0)
        claim.cancel()
        await asyncio.wait((claim,))
        heard = [] if claim.cancelled() else claim.result()
        heard = heard or await claim_until_heard(hand, 1)
        assert [snapshot.chat.id for snapshot in heard] == [f"c{n}"]
        assert await store.read_chat(f"c{n}") == heard[0]
        assert await hand.claim() == [], "handed over once"
        hand.snapshot = heard[0]
        await hand.end_turn()
    hand.close()


async def test_what_a_claim_took_after_its_caller_gave_up_is_handed_over_by_the_next(
    store_url: str, clock: FakeClock
) -> None:
    """A slow disk, say: the claim happens, its caller has gone at the deadline."""
    if not store_url.startswith("sqlite"):
        pytest.skip("only a SQLite claim goes on behind its deadline; lost answers of the server: tests/crash")
    loop_time = LoopTime()
    async with open_store(store_url, StoreOptions(clock=clock)) as store:
        hand, other = Hand(store), Hand(store)
        for n in range(3):
            await store.create_chat(new_chat(id=f"c{n}"))
        begun, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert go_on.wait(SOON_S)

        faults.arm("claim.after", hold)
        claim = asyncio.ensure_future(hand.claim())
        await until(begun.is_set)
        loop_time.advance(store.options.deadline_s)
        with pytest.raises(StoreTimeout) as caught:
            await claim
        assert caught.value.outcome == "unknown"
        go_on.set()
        assert await other.claim() == [], "they are held"
        heard = await hand.claim()
        assert sorted(snapshot.chat.id for snapshot in heard) == ["c0", "c1", "c2"]
        assert await hand.claim() == []
        hand.close()
        other.close()


async def test_a_lost_claim_of_a_worker_whose_lease_is_over_is_forgotten(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="c1"))
    claim = asyncio.ensure_future(hand.claim())
    for _ in range(8):
        await asyncio.sleep(0)
    claim.cancel()
    await asyncio.wait((claim,))
    await silence(store, clock)
    with pytest.raises(LeaseLost):
        await hand.claim()
    successor = Hand(store)
    assert [snapshot.chat.id for snapshot in await claim_until_heard(successor, 1)] == ["c1"]
    hand.close()
    successor.close()


@pytest.mark.parametrize("turns", range(0, 40, 4))
async def test_claims_at_the_same_time_hand_over_each_chat_once(store: Store, turns: int) -> None:
    hand = Hand(store)
    for n in range(12):
        await store.create_chat(new_chat(id=f"c{n}"))
    claims = [asyncio.ensure_future(hand.claim(limit=2)) for _ in range(6)]
    for _ in range(turns):
        await asyncio.sleep(0)
    for claim in claims[::2]:
        claim.cancel()
    await asyncio.wait(claims)
    heard = [snapshot for claim in claims if not claim.cancelled() for snapshot in claim.result()]
    heard += await claim_until_heard(hand, 12 - len(heard))
    assert sorted(snapshot.chat.id for snapshot in heard) == sorted(f"c{n}" for n in range(12))
    hand.close()


@pytest.mark.parametrize("turns", range(1, 20, 3))
async def test_a_claim_that_was_cancelled_and_then_refused_complains_to_nobody(store: Store, turns: int) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    hand = Hand(store)
    await store.recovery.end_lease(hand.name, LeaseEnd.SILENT)
    claim = asyncio.ensure_future(hand.claim())
    for _ in range(turns):
        await asyncio.sleep(0)
    claim.cancel()
    await asyncio.wait((claim,))
    if not claim.cancelled():
        assert isinstance(claim.exception(), LeaseLost)
    hand.close()
    await store.close()
    gc.collect()
    assert complaints == []
