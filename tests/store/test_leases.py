"""No lease ends by a clock: who looks ends those that stay silent meanwhile, and a renewal that comes first wins."""

import pytest

from holdfast.core.leases import LeaseWatch
from holdfast.core.records import LeaseEnd, State
from holdfast.errors import LeaseLost
from holdfast.store.claims import is_suspect
from holdfast.store.contract import Store
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand, call, new_chat
from tests.support.leases import silence

HOUR_MS = 3_600_000


async def test_time_that_nobody_watched_ends_no_lease(store: Store, clock: FakeClock) -> None:
    """The whole fleet slept, the database was away, a laptop was closed: whoever wakes first ends nobody."""
    hand = Hand(store)
    await store.create_chat(new_chat(id="c1"))
    clock.advance(HOUR_MS)
    assert await store.expire_workers(LeaseWatch()) == {}
    assert hand.line.renew(hand.name).renewal == 1
    await hand.take("c1")


@pytest.mark.parametrize("step_ms", [40_000, HOUR_MS, -HOUR_MS])
async def test_a_step_of_the_wall_clock_ends_no_lease_and_keeps_none(
    store: Store, clock: FakeClock, step_ms: int
) -> None:
    living, dead, watch = Hand(store), Hand(store), LeaseWatch()
    await store.expire_workers(watch)
    clock.step_wall(step_ms)
    assert await store.expire_workers(watch) == {}
    living.line.renew(living.name)
    assert await silence(store, clock, living) == {dead.name: 0}
    living.line.renew(living.name)


async def test_a_worker_that_observes_the_others_never_ends_itself(store: Store, clock: FakeClock) -> None:
    hand, watch = Hand(store), LeaseWatch()
    for _ in range(10):
        assert await store.expire_workers(watch, hand.name) == {}
        clock.advance(store.options.lease_ttl_ms // 4)
    hand.line.renew(hand.name)


async def test_a_renewal_that_comes_before_the_end_wins(store: Store) -> None:
    hand = Hand(store)
    (seen,) = await store.list_workers()
    hand.line.renew(hand.name)
    assert not await store.recovery.end_lease(hand.name, LeaseEnd.SILENT, seen.renewal)
    hand.line.renew(hand.name)
    assert await store.recovery.end_lease(hand.name, LeaseEnd.SILENT, seen.renewal + 2)
    with pytest.raises(LeaseLost, match=hand.name):
        hand.line.renew(hand.name)


async def test_an_end_is_final(store: Store) -> None:
    hand = Hand(store)
    assert await store.recovery.end_lease(hand.name, LeaseEnd.SILENT)
    assert not await store.recovery.end_lease(hand.name, LeaseEnd.DIED)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            hand.line.renew(hand.name)
    with pytest.raises(LeaseLost):
        await hand.claim()


# --- what counts as a death -------------------------------------------------------------------------


async def lost(store: Store, how: LeaseEnd, *, taken_back: bool = True) -> Hand:
    hand = Hand(store)
    await store.create_chat(new_chat(id="c1"))
    await hand.take("c1")
    await store.recovery.end_lease(hand.name, how)
    if taken_back:
        await store.expire_workers()
    return hand


@pytest.mark.parametrize(("how", "count"), [(LeaseEnd.DIED, 1), (LeaseEnd.SILENT, 1), (LeaseEnd.RETIRED, 0)])
async def test_a_death_counts_and_a_worker_that_gave_up_its_lease_did_not_die(
    store: Store, how: LeaseEnd, count: int
) -> None:
    await lost(store, how)
    chat = (await store.read_chat("c1")).chat
    assert (chat.state, chat.worker, chat.unclean) == (State.RUNNING, None, count)


@pytest.mark.parametrize("when", ["before it is taken back", "after", "when another holds it", "twice"])
async def test_a_worker_that_outlived_its_lease_is_counted_nowhere(store: Store, when: str) -> None:
    hand = await lost(store, LeaseEnd.SILENT, taken_back=when != "before it is taken back")
    successor = Hand(store)
    if when == "when another holds it":
        await successor.take("c1")
    await store.outlive_lease(hand.name)
    if when == "twice":
        await store.outlive_lease(hand.name)
    await store.sweep()
    chat = (await store.read_chat("c1")).chat
    assert (chat.unclean, chat.silent) == (0, "")
    if when != "when another holds it":
        await successor.take("c1")
    else:
        successor.snapshot = await store.read_chat("c1")
    assert (await successor.end_turn("done")).chat.state is State.IDLE
    assert await store.find_violations() == []


async def test_a_chat_that_was_given_up_goes_on_when_a_worker_that_was_taken_for_dead_lives(
    store: Store, clock: FakeClock
) -> None:
    await store.create_chat(new_chat(id="c1"))
    for how in (*[LeaseEnd.DIED] * 4, LeaseEnd.SILENT):
        hand = Hand(store)
        await hand.take("c1")
        await store.recovery.end_lease(hand.name, how)
        await store.expire_workers()
        clock.advance(20_000)
    assert (await store.read_chat("c1")).chat.state is State.FAILED
    await store.outlive_lease(hand.name)
    clock.advance(20_000)
    successor = Hand(store)
    await successor.take("c1")
    assert (await successor.end_turn("done")).chat.state is State.IDLE
    assert await store.find_violations() == []


async def test_what_a_worker_holds_without_knowing_is_handed_over_with_the_rest(store: Store) -> None:
    hand = await lost(store, LeaseEnd.SILENT, taken_back=False)
    await store.outlive_lease(hand.name)
    chat = (await store.read_chat("c1")).chat
    assert (chat.worker, chat.unclean) == (None, 0)


async def test_the_chats_of_a_worker_that_lives_are_told_from_those_of_others_that_went_silent(store: Store) -> None:
    """It learnt chat by chat that they are not its own any more, and brings no list of them."""
    hand, other = Hand(store), Hand(store)
    for chat_id, holder in (("c1", hand), ("c2", other)):
        await store.create_chat(new_chat(id=chat_id))
        await holder.take(chat_id)
    await store.recovery.end_lease(hand.name, LeaseEnd.SILENT)
    await store.recovery.end_lease(other.name, LeaseEnd.SILENT)
    await store.expire_workers()
    await store.outlive_lease(hand.name)
    counts = [(await store.read_chat(id)).chat.unclean for id in ("c1", "c2")]
    assert counts == [0, 1]


async def test_a_worker_that_died_is_never_taken_off_again(store: Store) -> None:
    hand = await lost(store, LeaseEnd.DIED)
    await store.outlive_lease(hand.name)
    assert (await store.read_chat("c1")).chat.unclean == 1


async def test_five_freezes_in_one_step_fail_no_chat(store: Store, clock: FakeClock) -> None:
    """Each frozen worker is taken for dead, wakes up, and says that it lives."""
    await store.create_chat(new_chat(id="c1"))
    for _ in range(store.options.limits.unclean_claims_max + 1):
        frozen = Hand(store)
        await frozen.take("c1")
        assert await silence(store, clock) == {frozen.name: 1}
        with pytest.raises(LeaseLost):
            frozen.line.renew(frozen.name)
        await store.outlive_lease(frozen.name)
    chat = (await store.read_chat("c1")).chat
    assert (chat.state, chat.unclean, is_suspect(await store.read_chat("c1"), store.options.limits)) == (
        State.RUNNING,
        0,
        False,
    )


async def test_five_hosts_that_never_come_back_fail_the_chat_they_died_with(store: Store, clock: FakeClock) -> None:
    await store.create_chat(new_chat(id="c1"))
    for _ in range(store.options.limits.unclean_claims_max):
        clock.advance(60_000)  # beyond any backoff
        await Hand(store).take("c1")
        await silence(store, clock)
    chat = (await store.read_chat("c1")).chat
    assert chat.state is State.FAILED
    assert chat.error is not None
    assert chat.error.code == "crash"


async def test_progress_forgets_the_silent_with_the_rest(store: Store) -> None:
    hand = await lost(store, LeaseEnd.SILENT)
    successor = Hand(store)
    await successor.take("c1")
    await successor.respond(call("k1"))
    await successor.finish("k1")
    chat = (await store.read_chat("c1")).chat
    assert (chat.unclean, chat.silent) == (0, "")
    await store.outlive_lease(hand.name)
    assert (await store.read_chat("c1")).chat.version == chat.version, "there was nothing to take back"
