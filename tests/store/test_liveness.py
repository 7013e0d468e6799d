"""Promise 7: no chat is stranded. Every way to break it is found by the one query, repaired by the sweeper, counted.

The store itself never brings a chat into these states; an administrator's UPDATE, a bug or a bad disk may.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from holdfast.core import commands as cmd
from holdfast.core.journal import ChatRepaired
from holdfast.core.records import External, Failure, LeaseEnd, NewChat, State
from holdfast.errors import StoreCorrupt, StoreTimeout
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.liveness import REASONS, UNDER_DEAD_LEASE, liveness_query
from holdfast.store.records import StoreOptions, Violation
from holdfast.store.rows import CHAT_COLUMNS
from holdfast.store.survey import EVERYTHING, Survey
from holdfast.system.clock import FakeClock
from tests.support import invariants
from tests.support.behind import path_of, sql
from tests.support.chats import Hand, call, history, journal, new_chat, texts, user

Before = Callable[[Store, Hand, str], Awaitable[None]]


async def unclaimed(store: Store, hand: Hand, chat_id: str) -> None:
    await store.create_chat(new_chat("hello", id=chat_id))


async def held(store: Store, hand: Hand, chat_id: str) -> None:
    await store.create_chat(new_chat("hello", id=chat_id))
    await hand.take(chat_id)


async def stopping(store: Store, hand: Hand, chat_id: str) -> None:
    await held(store, hand, chat_id)
    await hand.respond("trying", call(f"{chat_id}-k1"))
    await store.submit(chat_id, cmd.Stop())


async def waiting(store: Store, hand: Hand, chat_id: str) -> None:
    await held(store, hand, chat_id)
    await hand.park_for_client(f"{chat_id}-k1")


async def waiting_until(store: Store, hand: Hand, chat_id: str) -> None:
    await held(store, hand, chat_id)
    await hand.park_for_client(f"{chat_id}-k1", expires_at=store.options.clock.wall_ms() + 60_000)


async def asking_until(store: Store, hand: Hand, chat_id: str) -> None:
    await held(store, hand, chat_id)
    await hand.respond(call(f"{chat_id}-k1"), start=False)
    expires_at = store.options.clock.wall_ms() + 60_000
    ask = cmd.AskApproval(by=hand.by, call_id=f"{chat_id}-k1", question="May I?", expires_at=expires_at)
    await hand.commit(ask, cmd.Park(by=hand.by))


async def idle(store: Store, hand: Hand, chat_id: str) -> None:
    await held(store, hand, chat_id)
    await hand.end_turn("hi")


async def failed(store: Store, hand: Hand, chat_id: str) -> None:
    await held(store, hand, chat_id)
    await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="boom", message="it broke")))


@dataclass(frozen=True)
class Breach:
    """A chat in order, what is done to it behind the store's back, and what it is called then."""

    reason: str
    before: Before
    damage: str
    ends: State = State.RUNNING  # after the sweep


QUEUE_ONE = (
    "INSERT INTO queue (chat_id, id, rank, mode, body) VALUES ('c1', 'q1', 1, 'queue', "
    """'{"id":"q1","role":"user","parts":[{"kind":"text","text":"left behind"}]}')"""
)

BREACHES = {
    "unclaimed without wake_at": Breach(
        "running_without_owner_or_wake_at", unclaimed, "UPDATE chats SET wake_at = NULL WHERE id = 'c1'"
    ),
    "owner wiped out": Breach(
        "running_without_owner_or_wake_at", held, "UPDATE chats SET worker = NULL WHERE id = 'c1'"
    ),
    "stopping, owner wiped out": Breach(
        "running_without_owner_or_wake_at",
        stopping,
        "UPDATE chats SET worker = NULL WHERE id = 'c1'",
        State.STOPPING,
    ),
    "held, and due": Breach("running_with_owner_and_wake_at", held, "UPDATE chats SET wake_at = 1 WHERE id = 'c1'"),
    "stopping, held, and due": Breach(
        "running_with_owner_and_wake_at", stopping, "UPDATE chats SET wake_at = 1 WHERE id = 'c1'", State.STOPPING
    ),
    "waiting, and owned": Breach(
        "waiting_but_owned", waiting, "UPDATE chats SET worker = 'w-live' WHERE id = 'c1'", State.WAITING
    ),
    "waiting for a call that is over": Breach(
        "waiting_for_nobody", waiting, "UPDATE calls SET state = 'planned', external = NULL WHERE chat_id = 'c1'"
    ),
    "client's expiry forgotten": Breach(
        "waiting_without_wake_at_for_an_expiry",
        waiting_until,
        "UPDATE chats SET wake_at = NULL WHERE id = 'c1'",
        State.WAITING,
    ),
    "approval's expiry forgotten": Breach(
        "waiting_without_wake_at_for_an_expiry",
        asking_until,
        "UPDATE chats SET wake_at = NULL WHERE id = 'c1'",
        State.WAITING,
    ),
    "idle, and owned": Breach(
        "resting_but_owned", idle, "UPDATE chats SET worker = 'w-live' WHERE id = 'c1'", State.IDLE
    ),
    "idle, and owned by nobody we know": Breach(
        "resting_but_owned", idle, "UPDATE chats SET worker = 'w-ghost' WHERE id = 'c1'", State.IDLE
    ),
    "failed, and owned": Breach(
        "resting_but_owned", failed, "UPDATE chats SET worker = 'w-live' WHERE id = 'c1'", State.FAILED
    ),
    "idle, and due": Breach("resting_with_wake_at", idle, "UPDATE chats SET wake_at = 1 WHERE id = 'c1'", State.IDLE),
    "failed, and due": Breach(
        "resting_with_wake_at", failed, "UPDATE chats SET wake_at = 1 WHERE id = 'c1'", State.FAILED
    ),
    "idle with a message in its queue": Breach("idle_with_queued_messages", idle, QUEUE_ONE),
}
# Not a breach that the sweeper's repairs ever see: a dead worker's chats are taken back before, and that is counted
# where it belongs, on the worker.
TAKEN_BACK = UNDER_DEAD_LEASE


def test_every_reason_is_tried() -> None:
    assert {breach.reason for breach in BREACHES.values()} | {TAKEN_BACK} == set(REASONS)


async def reasons(store: Store) -> dict[str, str]:
    return {violation.chat_id: violation.reason for violation in await store.find_violations()}


async def check(store: Store, chat_id: str) -> None:
    live = [lease.worker for lease in await store.list_workers() if lease.ended is None]
    entries = list(enumerate(await journal(store, chat_id), start=1))
    snapshot = await store.read_chat(chat_id)
    assert invariants.everything(snapshot, await history(store, chat_id), entries, live) == []


async def carry_on(store: Store, hand: Hand, chat_id: str, clock: FakeClock) -> None:
    """Whatever the state: a message, or the clock, leads to an answered turn."""
    snapshot = await store.read_chat(chat_id)
    if snapshot.chat.state in (State.IDLE, State.FAILED):
        await store.submit(chat_id, cmd.Send(message=user("go on")))
    elif snapshot.chat.state is State.WAITING:
        if snapshot.chat.wake_at is not None:
            clock.advance(snapshot.chat.wake_at - clock.wall_ms())
            hand = Hand(store)
        else:
            await store.submit(chat_id, cmd.Submit(call_id=f"{chat_id}-k1", content="here you are"))
    snapshot = await store.read_chat(chat_id)
    if snapshot.chat.worker is None:
        await hand.take(chat_id)
    else:
        hand.snapshot = snapshot
    if hand.held.chat.state is State.STOPPING:
        stopped = await hand.commit(cmd.FinishStop(by=hand.by))
        assert stopped.chat.state is State.IDLE
        return
    for planned in hand.held.open_calls:
        await hand.commit(cmd.StartCalls(by=hand.by, call_ids=(planned.id,)))
        await hand.finish(planned.id, "run again")
    await hand.end_turn("all is well")
    await check(store, chat_id)
    assert hand.held.chat.state in (State.IDLE, State.RUNNING)


@pytest.mark.parametrize("name", BREACHES)
async def test_a_broken_promise_is_found_repaired_counted_and_work_goes_on(
    store: Store, store_url: str, clock: FakeClock, name: str
) -> None:
    breach = BREACHES[name]
    hand = Hand(store, name="w-live")
    await breach.before(store, hand, "c1")
    await store.create_chat(new_chat(None, id="bystander"))
    assert await store.find_violations() == []
    assert await store.sweep() == {}
    sql(store_url, breach.damage)
    assert await reasons(store) == {"c1": breach.reason}
    assert await store.sweep() == {breach.reason: 1}
    assert await store.find_violations() == []
    assert await store.read_repairs() == {breach.reason: 1}
    chat = (await store.read_chat("c1")).chat
    assert chat.state is breach.ends
    assert ChatRepaired(reason=breach.reason) in await journal(store, "c1")
    await check(store, "c1")
    assert await store.sweep() == {}
    assert await store.read_repairs() == {breach.reason: 1}
    await carry_on(store, hand, "c1", clock)
    assert await store.find_violations() == []
    hand.close()


@pytest.mark.parametrize("holder", ["expired", "forgotten"])
async def test_a_dead_workers_chat_is_found_and_taken_back(
    store: Store, store_url: str, clock: FakeClock, holder: str
) -> None:
    lost, hand = Hand(store), Hand(store)
    await held(store, lost, "c1")
    if holder == "expired":
        await store.recovery.end_lease(lost.name, LeaseEnd.SILENT)
    else:
        sql(store_url, "DELETE FROM workers WHERE id = ?", (lost.name,))
    assert await reasons(store) == {"c1": TAKEN_BACK}
    await store.sweep()
    assert await store.find_violations() == []
    chat = (await store.read_chat("c1")).chat
    assert (chat.state, chat.worker, chat.unclean) == (State.RUNNING, None, 1)
    assert [lease.worker for lease in await store.list_workers()] == [hand.name]
    await carry_on(store, hand, "c1", clock)
    lost.close()
    hand.close()


async def test_a_worker_that_dies_while_somebody_sweeps_is_expired_by_the_next_sweep_not_repaired(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair would not count as unclean: a chat that kills its workers could go on for ever."""
    hand = Hand(store)
    await held(store, hand, "c1")
    with monkeypatch.context() as patch:

        async def dies_just_after(*_: object) -> dict[str, int]:
            await store.recovery.end_lease(hand.name, LeaseEnd.DIED)
            return {"another one": 0}  # so that the sweep looks again

        patch.setattr(store.recovery, "expire_seen", dies_just_after)
        assert await store.sweep() == {}
    assert (await store.read_chat("c1")).chat.worker == hand.name
    assert await store.sweep() == {}
    chat = (await store.read_chat("c1")).chat
    assert (chat.worker, chat.unclean) == (None, 1)
    assert await store.read_repairs() == {}
    hand.close()


@pytest.mark.parametrize("reason", [TAKEN_BACK, "running_without_owner_or_wake_at"])
async def test_a_sweeper_that_acts_on_an_old_list_takes_no_chat_from_a_worker_that_lives(
    store: Store, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Another sweeper was faster, and a worker has claimed the chat already."""
    hand = Hand(store)
    await held(store, hand, "c1")

    async def old_list(_waiting: list[str], _queued: list[str]) -> list[Violation]:
        return [Violation(chat_id="c1", state=State.RUNNING, reason=reason)]

    async def seen_when_it_was_so(_: int) -> Survey:
        return EVERYTHING

    monkeypatch.setattr(store.recovery, "find_violations_among", old_list)
    with monkeypatch.context() as patch:
        patch.setattr(store.recovery, "survey", seen_when_it_was_so)
        await store.sweep()
    assert (await store.read_chat("c1")).chat.worker == hand.name
    await hand.end_turn("still mine")
    hand.close()


async def test_a_store_in_use_has_no_violations(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    for n, before in enumerate((unclaimed, held, stopping, waiting, waiting_until, asking_until, idle, failed)):
        await before(store, hand, f"c{n}")
        assert await store.find_violations() == []
    assert await store.sweep() == {}
    assert await store.read_repairs() == {}
    hand.close()


async def test_many_broken_chats_are_repaired_one_by_one_past_one_that_cannot_be_read(
    store: Store, store_url: str
) -> None:
    """One bad row aborted a whole sweep [trinity#2434]. Here each is a transaction of its own."""
    for n in range(20):
        await store.create_chat(new_chat("hello", id=f"c{n:02}"))
    sql(store_url, "UPDATE chats SET wake_at = NULL")
    sql(store_url, "UPDATE chats SET phase = 'of the future' WHERE id = 'c07'")
    sql(store_url, "UPDATE chats SET error = 'not json' WHERE id = 'c13'")
    assert len(await store.find_violations()) == 20
    assert await store.sweep() == {"running_without_owner_or_wake_at": 18}
    assert await reasons(store) == dict.fromkeys(("c07", "c13"), "running_without_owner_or_wake_at")
    assert await store.read_repairs() == {"running_without_owner_or_wake_at": 18}
    hand = Hand(store)
    assert len(await hand.claim()) == 18
    hand.close()


async def test_a_repair_starts_the_turn_of_a_message_that_was_left_behind(store: Store, store_url: str) -> None:
    hand = Hand(store)
    await idle(store, hand, "c1")
    sql(store_url, QUEUE_ONE)
    await store.sweep()
    await hand.take("c1")
    await hand.end_turn("found it")
    assert texts(await history(store, "c1")) == ["hello", "hi", "left behind", "found it"]
    hand.close()


async def test_an_idle_chat_with_an_open_call_is_closed_by_the_next_repair(store: Store, store_url: str) -> None:
    """Two breaches at once: what is found first is repaired first, and nothing of the rest is lost."""
    hand = Hand(store)
    await waiting(store, hand, "c1")
    sql(store_url, "UPDATE chats SET state = 'idle', worker = 'w-ghost', wake_at = 1 WHERE id = 'c1'")
    assert await reasons(store) == {"c1": "resting_but_owned"}
    await store.sweep()
    assert await store.find_violations() == []
    assert texts(await history(store, "c1"))[-1] != ""
    await store.submit("c1", cmd.Send(message=user("go on")))
    await hand.take("c1")
    await hand.end_turn("fine")
    hand.close()


async def test_a_repair_leaves_a_chat_that_was_mended_meanwhile_as_it_is(store: Store, store_url: str) -> None:
    """The sweeper's list is a moment old when it acts: it acts on what it finds then."""
    hand = Hand(store)
    await waiting_until(store, hand, "c1")
    sql(store_url, "UPDATE chats SET wake_at = NULL WHERE id = 'c1'")
    [violation] = await store.find_violations()
    await store.submit("c1", cmd.Submit(call_id="c1-k1", content="here you are"))
    before = (await store.read_chat("c1")).chat
    await store.recovery.apply_alone("c1", cmd.Repair(reason=violation.reason))
    after = (await store.read_chat("c1")).chat
    assert (after.state, after.worker, after.wake_at) == (before.state, before.worker, before.wake_at)
    await hand.take("c1")
    assert External.CLIENT not in {open_call.external for open_call in hand.held.open_calls}
    hand.close()


async def test_looking_for_the_stranded_reads_no_chat_that_rests(store: Store, store_url: str) -> None:
    """Every worker looks every few seconds, and of a service's chats nearly all rest."""
    await store.create_chat(NewChat(id="c1", agent="agent"))
    columns = ", ".join(CHAT_COLUMNS[1:])
    numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000) "
    sql(store_url, f"{numbers}INSERT INTO chats (id, {columns}) SELECT 'r' || n, {columns} FROM chats, n")
    query = liveness_query()
    if store_url.startswith("sqlite"):
        steps = [str(row[3]) for row in sql(store_url, f"EXPLAIN QUERY PLAN {query}")]
        whole = [step for step in steps if step.startswith("SCAN chats") and "INDEX chats_" not in step]
    else:
        sql(store_url, "ANALYZE")
        steps = [str(row[0]) for row in sql(store_url, f"EXPLAIN {query}")]
        whole = [step for step in steps if "Seq Scan on chats" in step]
    assert "chats_unwatched" in "\n".join(steps)
    assert whole == []
    assert await store.find_violations() == []


@contextmanager
def unreadable(url: str, table: str) -> Iterator[None]:
    """A table that no answer comes from: its page is damaged, or an administrator has locked it."""
    if not url.startswith("sqlite"):
        with psycopg.connect(url) as foreign:
            foreign.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield
        return
    ((page,),) = sql(url, "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
    ((size,),) = sql(url, "PRAGMA page_size")
    sql(url, "PRAGMA wal_checkpoint(TRUNCATE)")
    with Path(path_of(url)).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    yield


async def test_a_table_that_cannot_be_read_keeps_no_chat_under_a_dead_worker(
    store_url: str, clock: FakeClock
) -> None:
    """A sweep looks at everything in one statement; where that has no answer, at each thing by itself."""
    async with open_store(store_url, StoreOptions(clock=clock)) as store:
        lost = Hand(store)
        await held(store, lost, "c1")
        await store.recovery.end_lease(lost.name, LeaseEnd.DIED)
        lost.close()
    hasty = StoreOptions(clock=clock, deadline_s=1.0 if store_url.startswith("postgres") else 8.0)
    with unreadable(store_url, "unused_files"):
        async with open_store(store_url, hasty) as store:
            for _ in range(10):  # a slow machine may take a sweep more
                with pytest.raises((StoreTimeout, StoreCorrupt)):
                    await store.sweep()
                if (await store.read_chat("c1")).chat.worker is None:
                    return
    pytest.fail("it is held by the dead")
