"""Leases, claims and death: who may act on a chat, and what happens when they are gone."""

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import Cause, External, LeaseEnd, State
from holdfast.errors import ConfigError, LeaseLost
from holdfast.faults import arm
from holdfast.store.contract import Store
from holdfast.store.host_lock import HostLock, is_dead
from holdfast.store.notify.bell import WORK
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand, call, history, new_chat, texts, unique, user
from tests.support.leases import silence


async def test_a_due_chat_is_claimed_once(store: Store) -> None:
    for n in range(10):
        await store.create_chat(new_chat(id=f"c{n}"))
    hands = [Hand(store) for _ in range(4)]
    claims = await asyncio.gather(*(hand.claim(limit=5) for hand in hands for _ in range(3)))
    taken = [snapshot.chat.id for snapshots in claims for snapshot in snapshots]
    assert sorted(taken) == sorted({f"c{n}" for n in range(10)})
    assert all(snapshot.chat.fence == 1 for snapshots in claims for snapshot in snapshots)


async def test_the_oldest_due_chat_comes_first(store: Store, clock: FakeClock) -> None:
    for n in range(5):
        await store.create_chat(new_chat(id=f"c{n}"))
        clock.advance(10)
    hand = Hand(store)
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=2)] == ["c0", "c1"]
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=2)] == ["c2", "c3"]


async def test_claims_are_fair_between_agents(store: Store, clock: FakeClock) -> None:
    for n in range(20):
        await store.create_chat(new_chat(id=f"busy{n}", agent="busy"))
    clock.advance(1_000)
    await store.create_chat(new_chat(id="quiet", agent="quiet"))
    claimed = await Hand(store).claim("busy", "quiet", limit=4)
    assert "quiet" in {snapshot.chat.id for snapshot in claimed}


async def test_a_limit_of_one_starves_no_agent(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    for n in range(3):
        for agent in ("a", "b", "c"):
            await store.create_chat(new_chat(id=f"{agent}{n}", agent=agent))
            clock.advance(10)
    taken = [(await hand.claim("a", "b", "c", limit=1))[0].chat.id for _ in range(9)]
    assert taken == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


async def test_only_the_agents_a_worker_has_are_claimed_and_no_more_than_it_has_room_for(store: Store) -> None:
    for n in range(4):
        await store.create_chat(new_chat(id=f"a{n}", agent="a"))
        await store.create_chat(new_chat(id=f"b{n}", agent="b"))
    hand = Hand(store)
    claimed = await store.claim_chats(hand.name, {"a": 2, "other": 5, "b": 0}, 10)
    assert sorted(snapshot.chat.id for snapshot in claimed) == ["a0", "a1"]


async def test_a_claim_without_a_live_lease_is_refused(store: Store, clock: FakeClock) -> None:
    await store.create_chat(new_chat(id="c1"))
    with pytest.raises(LeaseLost, match="'nobody'"):
        await store.claim_chats("nobody", {"agent": 1}, 1)
    hand = Hand(store)
    await silence(store, clock)
    with pytest.raises(LeaseLost):
        await hand.claim()
    assert (await store.read_chat("c1")).chat.worker is None


async def test_an_expired_workers_chats_go_to_others_with_their_state_untouched(
    store: Store, clock: FakeClock
) -> None:
    await store.create_chat(new_chat(id="c1"))
    lost = Hand(store)
    await lost.take("c1")
    assert await silence(store, clock) == {lost.name: 1}
    chat = (await store.read_chat("c1")).chat
    assert (chat.state, chat.worker, chat.unclean) == (State.RUNNING, None, 1)
    assert await store.list_workers() == []
    assert (await Hand(store).take("c1")).chat.fence == 2


async def test_a_worker_that_died_on_this_host_is_noticed_at_once(store: Store, tmp_path: Path) -> None:
    lock = HostLock(str(tmp_path / "workers" / "w1"))
    hand = Hand(store, lock_path=lock.path)
    await store.create_chat(new_chat(id="c1"))
    await hand.take("c1")
    assert await store.expire_workers() == {}
    # What the kernel does when the process is gone: the descriptor is closed, the file stays.
    assert lock._fd is not None
    os.close(lock._fd)
    assert is_dead(lock.path)
    assert await store.expire_workers() == {hand.name: 1}
    assert not Path(lock.path).exists()


async def test_a_chat_that_cannot_be_taken_back_keeps_no_other_from_it(store: Store, clock: FakeClock) -> None:
    """Whatever it is that breaks: a fault of ours that one chat meets must not stop the sweep of all."""
    hand = Hand(store)
    for chat_id in ("c1", "c2", "c3"):
        await store.create_chat(new_chat(id=chat_id))
    await hand.claim(limit=3)
    await store.recovery.end_lease(hand.name, LeaseEnd.SILENT)
    arm("write.chat.before", fail)
    await store.sweep()
    owners = {chat_id: (await store.read_chat(chat_id)).chat.worker for chat_id in ("c1", "c2", "c3")}
    assert owners == {"c1": hand.name, "c2": None, "c3": None}
    await store.sweep()
    assert (await store.read_chat("c1")).chat.worker is None


def fail() -> None:
    raise RuntimeError("nobody foresaw this")


@pytest.mark.parametrize("whose", ["another user's", "open to everybody"])
def test_a_lock_is_not_taken_where_others_could_replace_it(tmp_path: Path, whose: str) -> None:
    """Who can put another file in its place can have a living worker taken for dead."""
    folder = tmp_path / "locks"
    folder.mkdir(mode=0o700)
    if whose == "open to everybody":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, 65_534, -1)
    else:
        pytest.skip("only root can give a folder to somebody else")
    with pytest.raises(ConfigError, match="TMPDIR"):
        HostLock(str(folder / "w1.lock"))
    assert list(folder.iterdir()) == []


async def test_a_missing_lock_file_says_nothing(store: Store, tmp_path: Path) -> None:
    hand = Hand(store, lock_path=str(tmp_path / "in-another-container"))
    assert await store.expire_workers() == {}
    hand.line.renew(hand.name)


async def test_a_retired_worker_is_gone_with_the_next_sweep(store: Store) -> None:
    hand = Hand(store)
    hand.line.retire(hand.name)
    await store.sweep()
    assert await store.list_workers() == []


async def test_a_released_chat_can_be_taken_at_once_and_is_not_unclean(store: Store) -> None:
    await store.create_chat(new_chat(id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    await hand.commit(cmd.Release(by=hand.by))
    successor = Hand(store)
    chat = (await successor.take("c1")).chat
    assert (chat.unclean, chat.fence) == (0, 2)


async def test_a_chat_that_loses_every_worker_backs_off_and_fails_after_five(store: Store, clock: FakeClock) -> None:
    await store.create_chat(new_chat(id="c1"))
    waits = []
    for _ in range(5):
        hand = Hand(store)
        chat = (await store.read_chat("c1")).chat
        assert chat.wake_at is not None
        waits.append(chat.wake_at - clock.wall_ms())
        if waits[-1] > 0:
            assert await hand.claim() == [], "it rests before the next worker is risked"
        clock.advance(max(0, waits[-1]))
        hand.line.renew(hand.name)
        await hand.take("c1")
        await hand.dies()
    chat = (await store.read_chat("c1")).chat
    assert (chat.state, chat.wake_at, chat.worker) == (State.FAILED, None, None)
    assert chat.error is not None
    assert (chat.error.code, chat.error.cause) == ("crash", Cause.CRASH)
    assert waits == [0, 0, 1_000, 5_000, 15_000]
    assert await Hand(store).claim() == []
    await store.submit("c1", cmd.Retry())
    assert (await Hand(store).take("c1")).chat.unclean == 0


async def test_a_claim_takes_no_more_suspects_than_it_is_told_and_everybody_else(
    store: Store, clock: FakeClock
) -> None:
    """Whoever dies with two chats that lost several workers in a row would count against both of them."""
    for n in range(4):
        await store.create_chat(new_chat(id=f"c{n}"))
    for _ in range(store.options.limits.suspect_claims_min):
        hand = Hand(store)
        assert len(await hand.claim()) == 4
        await hand.dies()
        clock.advance(60_000)  # beyond any backoff
    for n in range(4, 8):
        await store.create_chat(new_chat(id=f"c{n}"))
    hand = Hand(store)

    async def take(suspects: int) -> set[str]:
        found = await store.claim_chats(hand.name, {"agent": 100}, 100, suspects)
        return {snapshot.chat.id for snapshot in found}

    suspects, others = {"c0", "c1", "c2", "c3"}, {"c4", "c5", "c6", "c7"}
    first = await take(1)
    assert first > others
    assert len(first & suspects) == 1
    assert await take(0) == set()
    assert len(await take(2)) == 2
    assert {snapshot.chat.id for snapshot in await hand.claim()} < suspects, "without a limit, all"
    assert await take(1) == set()


async def test_a_waiting_chat_holds_no_worker_and_wakes_when_its_call_expires(store: Store, clock: FakeClock) -> None:
    await store.create_chat(new_chat(id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    parked = await hand.park_for_client("k1", expires_at=clock.wall_ms() + 5_000)
    assert (parked.chat.state, parked.chat.worker) == (State.WAITING, None)
    assert await hand.claim() == []
    clock.advance(5_000)
    assert [snapshot.chat.state for snapshot in await hand.claim()] == [State.RUNNING]
    assert texts(await history(store, "c1"))[-1] == "Expired: nobody answered in time."


async def test_a_waiting_chat_that_still_has_to_wait_is_not_claimed(store: Store, clock: FakeClock) -> None:
    await store.create_chat(new_chat(id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    await hand.respond(call("timer"), call("client"), start=False)
    await hand.commit(
        cmd.Delegate(by=hand.by, call_id="timer", external=External.TIMER, expires_at=clock.wall_ms() + 1_000),
        cmd.Delegate(by=hand.by, call_id="client", external=External.CLIENT),
        cmd.Park(by=hand.by),
    )
    clock.advance(1_000)
    assert await hand.claim() == []
    snapshot = await store.read_chat("c1")
    assert (snapshot.chat.state, snapshot.chat.worker, snapshot.chat.wake_at) == (State.WAITING, None, None)
    await store.submit("c1", cmd.Submit(call_id="client", content="here you are"))
    assert (await hand.take("c1")).chat.state is State.RUNNING
    assert texts(await history(store, "c1"))[-2:] == ["The time has come.", "here you are"]


async def test_a_childs_end_wakes_its_parent_in_the_same_transaction(store: Store) -> None:
    await store.create_chat(new_chat("do it", id="parent"))
    hand = Hand(store)
    await hand.take("parent")
    await hand.respond(call("spawn"))
    child = new_chat("sub task", id="child")
    await hand.commit(
        cmd.Outcome(
            by=hand.by,
            call_id="spawn",
            content="child",
            spawn=replace(child, parent_id="parent", parent_call="spawn"),
        )
    )
    await hand.respond(call("wait"), start=False)
    await hand.commit(
        cmd.Delegate(by=hand.by, call_id="wait", external=External.CHILD, child_id="child", child_turn=1),
        cmd.Park(by=hand.by),
    )
    assert (await store.read_chat("parent")).chat.state is State.WAITING
    other = Hand(store)
    await other.take("child")
    await other.end_turn("the answer is 42")
    parent = (await store.read_chat("parent")).chat
    assert parent.state is State.RUNNING
    assert parent.wake_at is not None
    assert texts(await history(store, "parent"))[-1] == "the answer is 42"
    assert await store.find_violations() == []


async def test_a_stop_reaches_the_children(store: Store) -> None:
    await store.create_chat(new_chat("do it", id="parent"))
    below = replace(new_chat("sub task", id="child"), parent_id="parent", root_id="parent", depth=1)
    await store.create_chat(below)
    await store.submit("parent", cmd.Stop())
    child = (await store.read_chat("child")).chat
    assert (child.state, child.cause) == (State.STOPPING, Cause.USER)


async def test_a_message_wakes_those_who_wait_for_work(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    with store.bell.listen(WORK) as listener:
        await store.submit("c1", cmd.Send(message=user(unique("hi"))))
        assert await listener.wait(5)
