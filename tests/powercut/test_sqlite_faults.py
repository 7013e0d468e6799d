"""The SQLite store on a disk that is full, or fails: who is told what, and that work goes on without a restart.

A write that failed is there wholly or not at all, its waiters know which or know that they do not know, and asking
again with the same key or commit id makes it happen once. Readers go on. A checkpoint that fails costs nobody
anything.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import faults
from holdfast.core import commands as cmd
from holdfast.core.records import NewChat, State
from holdfast.errors import NotFound, RefusedError, StoreCorrupt, StoreFull, StoreUnavailable
from holdfast.health.checks import STORE_DEGRADED
from holdfast.store.records import Key, StoreOptions, WorkerInfo
from holdfast.store.remnants import Slice
from holdfast.store.sqlite import writer as sqlite_writer
from holdfast.store.sqlite.store import SqliteStore
from holdfast.system.clock import FakeClock
from tests.crash.reference import Reference, portion
from tests.powercut.images import PREFIXES, SHARED_STEPS, judge_all
from tests.support.aftermath import Successor, find_faults
from tests.support.chats import Hand, call, history, new_chat, texts, unique, user
from tests.support.leases import silence
from tests.support.powercut import FaultyCall, FileKind, PowerCutVFS, materialise
from tests.support.rows import difference, read_rows
from tests.support.scenario import Run, Step

SOON_S = 30


@pytest.fixture(autouse=True)
def writes_that_wait_share_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is. A batch ends after 20 ms, and the rest would get a transaction of their own."""
    monkeypatch.setattr(sqlite_writer, "BATCH_S_MAX", 60.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


@pytest.fixture
async def store(disk: PowerCutVFS, tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"/{tmp_path}/holdfast.db", StoreOptions(clock=clock), vfs=disk.name)
    async with store:
        await _unwatched(store)
        yield store
        disk.faults.clear()


async def _unwatched(store: SqliteStore) -> None:
    """A fault is to hit what the test does, not the thread that watches the file for other processes."""
    assert store.wakes is not None
    await store.wakes.stop()


@pytest.fixture
async def hand(store: SqliteStore) -> AsyncIterator[Hand]:
    """Holds chat c1, which waits for the model."""
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    await hand.take("c1")
    yield hand
    hand.close()


async def work_goes_on(store: SqliteStore, clock: FakeClock) -> None:
    """Without a restart: everything that a store is for, and everything that is there, can be finished."""
    chat_id, worker = unique("chat"), Hand(store)
    await store.create_chat(new_chat("hello", id=chat_id))
    await worker.take(chat_id)
    await worker.respond("let me see", call(f"{chat_id}.k"))
    await worker.finish(f"{chat_id}.k", "seen")
    await store.submit(chat_id, cmd.Send(message=user("and then?")))
    assert (await worker.end_turn("done")).chat.state is State.RUNNING
    await worker.end_turn("nothing more")
    said = texts(await history(store, chat_id))
    assert said == ["hello", "let me see", "seen", "done", "and then?", "nothing more"]
    worker.line.retire(worker.name)
    worker.close()
    await silence(store, clock)
    await store.sweep()
    await Successor(store, clock).finish_everything()
    assert await find_faults(store) == []
    assert await store.check_integrity() == []


async def in_one_transaction(store: SqliteStore, *writes: Awaitable[Any]) -> list[Any]:
    """Hold the writer until all of them wait, so that they share a transaction. Returns results or errors."""
    begun, all_wait = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert all_wait.wait(SOON_S)

    faults.arm("write.begun", hold)
    tasks = [asyncio.ensure_future(write) for write in writes]
    # No event says that they wait: the queue is a thread's.
    while not begun.is_set() or store.stats()["write_jobs_queued"] != len(tasks) - 1:  # noqa: ASYNC110
        await asyncio.sleep(0)
    all_wait.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


# --- no room --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room_bytes", [0, 1, 100, 4_000, 4_200, 9_000, 14_000])
async def test_on_a_full_disk_every_waiter_is_told_nothing_is_half_written_and_room_is_all_it_takes(
    disk: PowerCutVFS, store: SqliteStore, hand: Hand, clock: FakeClock, url: str, room_bytes: int
) -> None:
    before = read_rows(url)
    key = Key(principal="p", key="k")
    message, response, held = user("next"), hand.response("let me see", call("k1"), call("k2")), hand.held

    def writes() -> list[Awaitable[Any]]:
        return [
            store.submit("c1", cmd.Send(message=message), key),
            store.commit(held, [response], "x1"),
            store.create_chat(new_chat("x" * 6_000, id="c2")),
            store.submit("c1", cmd.Approve(call_id="nobody asked")),
        ]

    disk.faults.disk_full_after(room_bytes)
    *told, refused = await in_one_transaction(store, *writes())
    assert disk.faults.tripped
    assert [type(error) for error in told] == [StoreFull] * 3
    assert isinstance(refused, RefusedError), "the full disk does not make a wrong request right"
    assert read_rows(url) == before
    assert (await store.read_chat("c1")).chat.version == held.chat.version, "readers go on"
    with pytest.raises(StoreFull, match="no room left"):
        await store.create_chat(new_chat("still no room", id="c3"))

    disk.faults.clear()
    answer, after, created, _ = await in_one_transaction(store, *writes())
    assert (answer.chat_id, created.chat_id) == ("c1", "c2")
    assert texts(await history(store, "c1")) == ["hello", "let me see"]
    assert [queued.id for queued in after.queue or (await store.read_chat("c1")).queue] == [message.id]
    await work_goes_on(store, clock)


async def test_a_disk_that_is_full_in_the_middle_of_a_large_fork_or_deletion_leaves_no_half_chat(
    disk: PowerCutVFS, store: SqliteStore, clock: FakeClock
) -> None:
    store.large_chats.slice = Slice(rows=4, bytes=1 << 20)
    past = tuple(user(f"{n} " + "x" * 6_000) for n in range(30))
    await store.create_chat(NewChat(id="large", agent="agent", past=past))
    before = await store.read_history("large")
    disk.faults.disk_full_after(120_000)
    with pytest.raises(StoreFull):
        await store.fork_chat("large", "copy")
    assert disk.faults.tripped
    # Whether its rows are still a fork's or already on their way out: the store gives it up beside us.
    assert [left.chat_id for left in await store.large_chats.read_remnants()] == ["copy"], "it was in the middle"
    with pytest.raises(NotFound):
        await store.read_chat("copy")
    disk.faults.clear()
    await store.fork_chat("large", "copy")
    assert [row.body for row in await store.read_history("copy")] == [row.body for row in before]

    disk.faults.disk_full_after(120_000)
    assert await store.delete_chat("large") == ("large",), "it is deleted, though not all of its rows are removed"
    assert disk.faults.tripped
    assert [left.source_id for left in await store.large_chats.read_remnants()] == [None]
    with pytest.raises(NotFound):
        await store.read_chat("large")
    disk.faults.clear()
    await store.sweep()
    assert await store.large_chats.read_remnants() == []
    await work_goes_on(store, clock)


async def test_a_lease_on_a_full_disk_is_not_renewed_and_then_is(
    disk: PowerCutVFS, store: SqliteStore, hand: Hand, clock: FakeClock
) -> None:
    disk.faults.disk_full_after(0)
    with pytest.raises(StoreFull):
        hand.line.renew(hand.name)
    disk.faults.clear()
    assert hand.line.renew(hand.name).renewal == 1
    assert await silence(store, clock, hand) == {}


async def test_a_store_that_has_no_room_to_begin_with_says_so_and_opens_when_there_is_some(
    disk: PowerCutVFS, tmp_path: Path, clock: FakeClock
) -> None:
    for room_bytes in (0, 5_000, 30_000):
        disk.faults.disk_full_after(room_bytes)
        store = SqliteStore(f"/{tmp_path}/{room_bytes}.db", StoreOptions(clock=clock), vfs=disk.name)
        with pytest.raises(StoreFull):
            await store.open()
        disk.faults.clear()
        async with store:
            await work_goes_on(store, clock)


# --- errors of our own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["write.chat.after", "write.journal.after", "write.receipt.before", "commit.before"]
)
async def test_a_write_that_breaks_half_way_leaves_nothing_and_harms_no_neighbour(
    store: SqliteStore, clock: FakeClock, url: str, point: str
) -> None:
    """A mistake in the code, say. Before the commit itself it hits all of them: then all are told."""

    def break_down() -> None:
        if len(broke) == 0 and point != "commit.before":
            faults.arm(point, break_down, at=2)  # each is tried again by itself: the same one breaks again
        broke.append(point)
        raise ZeroDivisionError("a mistake")

    broke: list[str] = []
    await store.create_chat(new_chat(None, id="c1"))
    before, new = read_rows(url), [new_chat("hi", id=f"c{n}") for n in range(2, 5)]
    faults.arm(point, break_down, at=1 if point == "commit.before" else 2)
    outcomes = await in_one_transaction(store, *(store.create_chat(chat) for chat in new))
    broken = [isinstance(outcome, ZeroDivisionError) for outcome in outcomes]
    if point == "commit.before":
        assert broken == [True, True, True]
        assert read_rows(url) == before
    else:
        assert broken == [False, True, False]
        assert sorted(line.id for line in await store.list_chats()) == ["c1", "c2", "c4"]
        assert "chat c3" not in read_rows(url)
    await work_goes_on(store, clock)


async def test_a_rollback_that_fails_is_made_up_for_and_the_writer_lives(
    store: SqliteStore, clock: FakeClock, url: str
) -> None:
    def no_rollback(operation: int, what: str | None, *_: str | None) -> int:
        forbidden = operation == apsw.SQLITE_TRANSACTION and what == "ROLLBACK"
        return apsw.SQLITE_DENY if forbidden else apsw.SQLITE_OK

    def break_down() -> None:
        raise ZeroDivisionError("a mistake")

    assert store._transactor.writer is not None
    before, connection = read_rows(url), store._transactor.writer._connection
    connection.authorizer = no_rollback
    faults.arm("commit.before", break_down)
    with pytest.raises(ZeroDivisionError):
        await store.create_chat(new_chat("hello", id="c1"))
    connection.authorizer = None
    with pytest.raises(StoreUnavailable, match="within a transaction"):
        await store.create_chat(new_chat("hello", id="c2"))
    assert read_rows(url) == before
    await work_goes_on(store, clock)


# --- I/O errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize(("op", "nth"), [("write", 1), ("write", 2), ("write", 5), ("write", 9), ("sync", 1)])
async def test_a_write_that_failed_on_its_way_to_the_disk_is_unknown_and_happens_once_when_asked_again(
    disk: PowerCutVFS, store: SqliteStore, hand: Hand, clock: FakeClock, url: str, tmp_path: Path,
    op: FaultyCall, nth: int, torn: bool,
) -> None:  # fmt: skip
    before, since = read_rows(url), disk.recorder.position
    key, message, new = Key(principal="p", key="k"), user("next"), new_chat("hi", id="c2")
    response, held = hand.response("let me see", call("k1")), hand.held

    def writes() -> list[Awaitable[Any]]:
        return [
            store.commit(held, [response], "x1"),
            store.submit("c1", cmd.Send(message=message), key),
            store.create_chat(new, Key(principal="p", key="c2")),
        ]

    disk.faults.fail(op, file="wal", nth=nth, torn=torn)
    told = await in_one_transaction(store, *writes())
    assert disk.faults.tripped
    assert [(type(error), error.outcome) for error in told] == [(StoreUnavailable, "unknown")] * 3
    assert read_rows(url) == before
    assert (await store.read_chat("c1")).chat.version == held.chat.version, "readers go on"

    for _ in range(2):  # the second time as one who did not hear the answer
        after, answer, created = await in_one_transaction(store, *writes())
        assert (after.chat.commit_id, answer.chat_id, created.chat_id) == ("x1", "c1", "c2")
        assert texts(await history(store, "c1")) == ["hello", "let me see"]
        assert [queued.id for queued in (await store.read_chat("c1")).queue] == [message.id]
    done = read_rows(url)
    for number, crash in enumerate(disk.recorder.crashes(seed=nth, count=60, since=since)):
        image = materialise(crash.files, tmp_path / f"image-{number}")
        found = read_rows(f"sqlite:///{image}/holdfast.db")
        assert found in (before, done), f"{crash.point}: {difference(found, done)}"
    await work_goes_on(store, clock)


async def test_a_lease_that_failed_on_its_way_to_the_disk_is_unknown_and_can_be_asked_for_again(
    disk: PowerCutVFS, store: SqliteStore, clock: FakeClock
) -> None:
    line, worker = store.lease_line(), WorkerInfo(worker="w", host="", pid=1)
    for ask in (lambda: line.register(worker), lambda: line.renew("w"), lambda: line.retire("w")):
        clock.advance(1_000)  # else a renewal changes nothing, and nothing is written
        disk.faults.fail("sync", file="wal")
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.outcome == "unknown"
        ask()
    assert [lease.ended is None for lease in await store.list_workers()] == [False]
    line.close()
    await work_goes_on(store, clock)


@pytest.mark.parametrize(("op", "file"), [("write", "db"), ("sync", "db"), ("sync", "wal"), ("truncate", "wal")])
async def test_a_checkpoint_that_fails_fails_no_write_and_is_told_once(
    disk: PowerCutVFS,
    store: SqliteStore,
    hand: Hand,
    clock: FakeClock,
    tmp_path: Path,
    op: FaultyCall,
    file: FileKind,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A deletion is followed by a checkpoint that also empties the WAL."""
    await store.create_chat(new_chat(None, id="unwanted"))
    busy, done = store.stats()["checkpoints_busy"], store.stats()["checkpoints"]
    since = disk.recorder.position
    # The deletion itself syncs the WAL once, and must not be what fails.
    disk.faults.fail(op, file=file, nth=2 if (op, file) == ("sync", "wal") else 1)
    assert await store.delete_chat("unwanted") == ("unwanted",)
    disk.recorder.mark("deleted")
    await hand.respond("let me see", call("k1"))
    disk.recorder.mark("responded")
    await store.prune_receipts()  # answered when the checkpoint behind the response is over
    assert disk.faults.tripped == [f"{op} {file}" + (", 0 of 4096 bytes landed" if op == "write" else "")]
    told = [record.action for record in caplog.records if record.name == "holdfast.store"]  # type: ignore[attr-defined]
    if op == "sync":
        assert store.stats()["checkpoints"] == done, "none is made of a file in doubt"
        assert told == ["store.in_doubt", "store.checkpoint_failed"]
    else:
        assert store.stats()["checkpoints_busy"] > busy  # type: ignore[operator]  # a reader in its way counts, too
        assert store.stats()["checkpoints"] > done, "tried again after the next write"  # type: ignore[operator]
        assert told == ["store.checkpoint_failed"]
    for number, crash in enumerate(disk.recorder.crashes(seed=1, count=60, since=since)):
        await _keeps_its_word(materialise(crash.files, tmp_path / f"image-{number}"), crash.acknowledged)
    await work_goes_on(store, clock)


async def test_a_last_checkpoint_that_fails_is_told_and_ends_no_close(
    disk: PowerCutVFS, tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    location = f"/{tmp_path}/holdfast.db"
    async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        disk.faults.fail("sync", file="db")
    assert disk.faults.tripped == ["sync db"]
    told = [record for record in caplog.records if record.name == "holdfast.store"]
    assert [record.action for record in told] == ["store.in_doubt", "store.checkpoint_failed"]  # type: ignore[attr-defined]
    async with SqliteStore(location, StoreOptions(clock=clock)) as again:
        assert again.stats()["in_doubt"] is False
        assert texts(await history(again, "c1")) == ["hello"]


async def _keeps_its_word(image: Path, acknowledged: Sequence[str]) -> None:
    async with SqliteStore(f"/{image}/holdfast.db", StoreOptions()) as store:
        assert await store.check_integrity() == []
        if "deleted" in acknowledged:
            with pytest.raises(NotFound):
                await store.read_chat("unwanted")
        if "responded" in acknowledged:
            assert texts(await history(store, "c1")) == ["hello", "let me see"]


@pytest.mark.parametrize("file", ["db", "wal"])
async def test_a_read_that_fails_is_told_to_its_reader_alone(
    disk: PowerCutVFS, tmp_path: Path, clock: FakeClock, file: FileKind
) -> None:
    location = f"/{tmp_path}/holdfast.db"
    async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as first:
        await first.create_chat(new_chat("hello", id="c1"))
        await first.create_chat(new_chat(None, id="unwanted"))
        async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as store:
            await _unwatched(first)
            await _unwatched(store)
            await store.find_violations()
            # What the other store writes, this one has to read: from the WAL, or after a checkpoint from the file.
            await first.create_chat(new_chat("there is something new to read", id="c2"))
            if file == "db":
                await first.delete_chat("unwanted")
                await first.create_chat(new_chat(None, id="c3"))  # answered when the checkpoint is done
            disk.faults.fail("read", file=file)
            with pytest.raises(StoreUnavailable, match=f"injected: read {file}") as caught:
                await store.read_chat("c2")
            assert disk.faults.tripped == [f"read {file}"]
            assert caught.value.outcome == "not_written"
            assert (await store.read_chat("c2")).chat.id == "c2"
            await work_goes_on(store, clock)


@asynccontextmanager
async def one_of_two(
    disk: PowerCutVFS, folder: Path, clock: FakeClock
) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    """Two stores on one file. The first one's disk can fail; it has to read what the other wrote."""
    location = f"/{folder}/holdfast.db"
    async with (
        SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as store,
        SqliteStore(location, StoreOptions(clock=clock)) as other,
    ):
        await _unwatched(store)
        yield store, other


async def test_a_read_that_went_wrong_once_is_not_a_damaged_file(
    disk: PowerCutVFS, tmp_path: Path, clock: FakeClock, url: str
) -> None:
    """Neither for a reader nor for a writer: only what is still wrong at a second look is to be restored."""
    async with one_of_two(disk, tmp_path, clock) as (store, other):
        for n in range(3):
            await other.create_chat(new_chat("what the first one has to read", id=f"c{n}"))
            disk.faults.fail("read", file="wal", error=apsw.SQLITE_CORRUPT)
            assert (await store.read_chat(f"c{n}")).chat.id == f"c{n}"
            await other.create_chat(new_chat("and before it writes, too", id=f"d{n}"))
            disk.faults.fail("read", file="wal", error=apsw.SQLITE_CORRUPT)
            await store.submit(f"d{n}", cmd.Send(message=user("next")))
            assert len(disk.faults.tripped) == 2 * n + 2
        await other.create_chat(new_chat("one that stays wrong", id="c9"))
        disk.faults.fail("read", file="wal", error=apsw.SQLITE_CORRUPT, times=None)
        with pytest.raises(StoreCorrupt, match="restore it from a backup"):
            await store.read_chat("c9")
        disk.faults.clear()


async def test_a_read_that_fails_inside_a_write_is_told_and_leaves_nothing(
    disk: PowerCutVFS, tmp_path: Path, clock: FakeClock, url: str
) -> None:
    """At its first read, its second, …: whatever a write has to read before it can write."""
    async with one_of_two(disk, tmp_path, clock) as (store, other):
        for nth in range(1, 20):
            await other.create_chat(new_chat("what the first one has to read", id=f"c{nth}"))
            before = read_rows(url)
            disk.faults.fail("read", nth=nth, times=None)
            try:
                await store.submit(f"c{nth}", cmd.Send(message=user("next")))
            except StoreUnavailable:
                disk.faults.clear()
                assert read_rows(url) == before
            else:
                disk.faults.clear()
                break
        assert nth > 5, "it never had to read as often"
        assert len(disk.faults.tripped) >= nth - 1
        await work_goes_on(store, clock)


async def test_nothing_is_lost_behind_a_failed_sync_after_a_checkpoint_that_a_reader_cut_short(
    disk: PowerCutVFS, tmp_path: Path, clock: FakeClock, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite alone loses it (test_the_simulator.py). Nobody makes a checkpoint until the file was written anew."""
    location, made = f"/{tmp_path}/holdfast.db", []

    async def create(store: SqliteStore, count: int) -> None:
        for _ in range(count):
            made.append(unique("chat"))
            await store.create_chat(new_chat("x" * 20_000, id=made[-1]))  # in pages of its own
            disk.recorder.mark(made[-1])

    async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as store:
        await _unwatched(store)
        await create(store, 5)
        reader = apsw.Connection(f"{tmp_path}/holdfast.db", vfs=disk.name)
        reader.execute("BEGIN; SELECT * FROM chats").fetchall()
        monkeypatch.setattr(sqlite_writer, "CHECKPOINT_PAGES", 1)
        assert store._transactor.writer is not None
        store._transactor.writer._next_checkpoint = 1
        await create(store, 5)  # each followed by a checkpoint that the reader cuts short
        reader.execute("ROLLBACK")
        reader.close()
        since = disk.recorder.position
        disk.faults.fail("sync", file="db")
        await create(store, 5)
        assert disk.faults.tripped == ["sync db"]
        assert store.stats()["in_doubt"] is True
        assert STORE_DEGRADED["wal_in_doubt"](store)
        done = store.stats()["checkpoints"]
        await create(store, 5)
        assert store.stats()["checkpoints"] == done
    assert Path(f"{tmp_path}/holdfast.db-wal").stat().st_size, "closing made no checkpoint either"
    async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as store:
        assert store.stats()["in_doubt"] is False
        assert not STORE_DEGRADED["wal_in_doubt"](store)
        await create(store, 5)
        assert store.stats()["checkpoints"]
    for number, crash in enumerate(disk.recorder.crashes(seed=1, count=300, since=since)):
        image = materialise(crash.files, tmp_path / f"image-{number}")
        if crash.acknowledged:
            async with SqliteStore(f"/{image}/holdfast.db", StoreOptions()) as found:
                assert await found.check_integrity() == [], crash.point
                there = {line.id for line in await found.list_chats(limit=1000)}
                assert set(crash.acknowledged) <= there, crash.point


async def test_a_file_in_doubt_is_not_written_anew_while_others_have_it_open(
    disk: PowerCutVFS, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_PAGES", 1)
    location = f"/{tmp_path}/holdfast.db"
    async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as store:
        await _unwatched(store)
        disk.faults.fail("sync", file="db")
        await store.create_chat(new_chat(None, id="c1"))
        await store.prune_receipts()
        async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as other:
            assert other.stats()["in_doubt"] is True
            await other.create_chat(new_chat(None, id="c2"))
            assert other.stats()["checkpoints"] == 0
        assert Path(f"{tmp_path}/holdfast.db-wal").stat().st_size
    async with SqliteStore(location, StoreOptions(clock=clock), vfs=disk.name) as again:
        assert again.stats()["in_doubt"] is False
        assert len(await again.list_chats()) == 2


# --- all of it at once --------------------------------------------------------------------------------------------

STORM: tuple[tuple[FaultyCall, FileKind], ...] = (
    *(("write", "wal"), ("write", "wal"), ("sync", "wal"), ("sync", "wal"), ("read", "wal"), ("read", "db")),
    *(("write", "db"), ("sync", "db"), ("sync", "db"), ("truncate", "wal")),
)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_fails_on_the_way_asking_again_makes_everything_happen_once(
    disk: PowerCutVFS,
    store: SqliteStore,
    clock: FakeClock,
    url: str,
    tmp_path: Path,
    references: dict[str, Reference],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Several runs at once on a disk that fails all the time; each asks again until it is answered."""
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_PAGES", 40)
    rng = random.Random(seed)
    failures: list[str] = []

    def strike() -> None:
        if rng.random() < 0.1:
            disk.faults.disk_full_after(rng.randrange(20_000))
        else:
            op, file = rng.choice(STORM)
            disk.faults.fail(op, file=file, nth=rng.randint(1, 6), torn=rng.random() < 0.5)

    async def insist(run: Run, step: Step, expected: Reference) -> None:
        repeating = False
        while True:
            if rng.random() < 0.5:
                strike()
            error = await _error_of(run.play(step, repeating=repeating))
            if error is None:
                break
            failures.append(f"{step.name}: {error!r}")
            repeating = True
            disk.faults.clear()
            found, states = portion(read_rows(url), run.prefix), expected.committed[step.name]
            maybe = isinstance(error, StoreUnavailable) and error.outcome == "unknown"
            assert found in (states if maybe else states[:1]), f"{step.name} after {error!r}"
        disk.recorder.mark((run.prefix, step.name))

    async def play(run: Run) -> None:
        for step in SHARED_STEPS:
            await insist(run, step, references[run.prefix])

    runs = [Run(store, clock, url, prefix=prefix) for prefix in PREFIXES]
    await asyncio.gather(*(play(run) for run in runs))
    disk.faults.clear()
    for run in runs:
        expected = references[run.prefix].after(SHARED_STEPS[-1].name)
        assert difference(portion(read_rows(url), run.prefix), expected) == []
        run.close()
    assert len(failures) > 20
    verdicts = await judge_all(disk.recorder, tmp_path, references, seed=seed, count=60)
    assert verdicts.keys() == {"ok"}, verdicts
    await work_goes_on(store, clock)


async def _error_of(verb: Awaitable[object]) -> StoreFull | StoreUnavailable | None:
    try:
        await verb
    except (StoreFull, StoreUnavailable) as error:
        return error
    return None


async def test_a_disk_that_fails_every_sync_is_told_by_health(
    disk: PowerCutVFS, store: SqliteStore, clock: FakeClock
) -> None:
    await store.pulse.beat()
    disk.faults.fail("sync", file="wal", times=None)
    await store.pulse.beat()
    clock.advance(5_000)
    assert store.pulse.failing_s >= 5
    assert await store.list_chats() == [], "reads answer"
    disk.faults.clear()
    await store.pulse.beat()
    assert (store.pulse.failing_s, store.pulse.error) == (0, None)
