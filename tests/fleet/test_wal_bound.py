"""Many small commits, in `make long` 100,000: the WAL stays under its bound, the file is sound; memory, threads and
files stay flat.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import Snapshot
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.store.sqlite import leases, writer
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.transactions import Transaction
from holdfast.system import threads
from tests.fleet.claimer import Runner
from tests.support.chats import Hand, new_chat
from tests.support.scale import scaled
from tests.support.waiting import until

COMMITS = scaled(20_000, 100_000)
CHATS = 32
WARM = COMMITS // 5
SLOW_READ_S = 0.15
RSS_GROWTH_BYTES_MAX = 4 << 20

MIB = 1 << 20


@asynccontextmanager
async def opened(path: Path, **options: object) -> AsyncIterator[SqliteStore]:
    async with open_store(f"sqlite:///{path}", StoreOptions(**options)) as store:  # type: ignore[arg-type]
        assert isinstance(store, SqliteStore)
        yield store


class Load:
    """Chats that commit, one small note after the other, all at once, until so many commits are done."""

    def __init__(self, store: SqliteStore, worker: str, snapshots: list[Snapshot]) -> None:
        self._runners = [Runner(store, worker, snapshot) for snapshot in snapshots]
        self.done = 0

    async def run(self, total: int) -> None:
        await asyncio.gather(*(self._commit_until(runner, total) for runner in self._runners))

    async def _commit_until(self, runner: Runner, total: int) -> None:
        while self.done < total:
            self.done += 1
            await runner.commit(cmd.Note(by=runner.by, topic="small", text=f"commit {self.done}"))


class WalGauge:
    """Watches the size of the WAL file from a thread, about a thousand times a second."""

    def __init__(self, path: Path) -> None:
        self._wal = Path(f"{path}-wal")
        self._stop = threading.Event()
        self.bytes_max = 0
        self.samples = 0
        self._thread = threads.start("wal-gauge", self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self.bytes_max = max(self.bytes_max, self._wal.stat().st_size)
            self.samples += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)


async def follow(store: SqliteStore, chat_ids: list[str], stop: asyncio.Event) -> int:
    """A client that reads what is new in one journal after the other, as fast as it can."""
    cursors: dict[str, str | None] = dict.fromkeys(chat_ids)
    pages = 0
    while not stop.is_set():
        for chat_id in chat_ids:
            page = await store.read_journal(chat_id, cursors[chat_id], limit=100)
            cursors[chat_id] = page.cursor
            pages += 1
    return pages


async def read_slowly(store: SqliteStore, stop: asyncio.Event) -> int:
    """A reader that keeps its transaction open for a while, again and again: a big page, a slow machine."""

    def slow(transaction: Transaction) -> int:
        counted = transaction.rows("SELECT count(*) FROM chats")
        time.sleep(SLOW_READ_S)
        return len(counted)

    reads = 0
    while not stop.is_set():
        await store._transactor.read(slow)
        reads += 1
    return reads


def rss() -> int:
    size: int = psutil.Process().memory_info().rss
    return size


@pytest.mark.timeout(600)
async def test_many_small_commits_keep_the_wal_and_the_memory_within_their_bounds(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Two clients read without pause, two readers are slow: there is hardly a moment without somebody in the WAL."""
    path = tmp_path / "holdfast.db"
    async with opened(path, lease_ttl_ms=600_000) as store:
        for n in range(CHATS):
            await store.create_chat(new_chat(id=f"c{n:02}"))
        hand = Hand(store)
        load = Load(store, hand.name, await hand.claim(limit=CHATS))
        stop, gauge = asyncio.Event(), WalGauge(path)
        chat_ids = [f"c{n:02}" for n in range(CHATS)]
        readers = [
            asyncio.ensure_future(reader)
            for reader in (
                follow(store, chat_ids, stop),
                follow(store, chat_ids[::-1], stop),
                read_slowly(store, stop),
                read_slowly(store, stop),
            )
        ]
        began = time.monotonic()
        await load.run(WARM)
        early = rss()
        for tenth in range(3, 11):
            await load.run(COMMITS // 10 * tenth)
            hand.line.renew(hand.name)  # after which the writer's page cache, which is bounded, begins anew
        late = rss()
        seconds = time.monotonic() - began
        stop.set()
        reads = await asyncio.gather(*readers)
        gauge.stop()
        stats = store.stats()
        figures = (
            f"{load.done:,} commits in {seconds:.1f} s ({load.done / seconds:,.0f}/s) beside {sum(reads):,} reads; "
            f"WAL at most {gauge.bytes_max / MIB:.1f} of {writer.WAL_BOUND_BYTES / MIB:.0f} MiB in {gauge.samples:,} "
            f"looks; {stats['checkpoints']} checkpoints, {stats['checkpoints_busy']} of them busy; "
            f"memory {early / MIB:.1f} MiB, then {late / MIB:.1f} MiB"
        )
        record_property("figures", figures)
        print(f"\n{figures}")  # noqa: T201
        assert load.done >= COMMITS
        written = sum([(await store.read_chat(chat_id)).chat.version for chat_id in chat_ids])
        assert written == load.done + 2 * CHATS, "every commit is one version; so are creation and claim"
        assert gauge.samples > 100
        assert gauge.bytes_max <= writer.WAL_BOUND_BYTES
        assert late - early < RSS_GROWTH_BYTES_MAX
        assert await store.check_integrity() == []
        hand.close()


async def test_a_foreign_reader_makes_the_wal_grow_and_nothing_else_and_it_comes_down_again(tmp_path: Path) -> None:
    """Somebody left a transaction open in another program. Every write goes on; what cannot be is shown."""
    path = tmp_path / "holdfast.db"
    async with opened(path) as store:
        for n in range(CHATS):
            await store.create_chat(new_chat(id=f"c{n:02}"))
        hand = Hand(store)
        load = Load(store, hand.name, await hand.claim(limit=CHATS))
        foreign = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        foreign.execute("BEGIN")
        assert foreign.execute("SELECT count(*) FROM chats").fetchall() == [(CHATS,)]
        while (store.stats()["wal_pages"] or 0) < 3 * writer.RESTART_PAGES:  # type: ignore[operator]
            await load.run(load.done + 500)
        stats = store.stats()
        assert int(stats["checkpoints_busy"] or 0) > 5
        assert int(stats["wal_bytes"] or 0) > 3 * writer.RESTART_PAGES * 4096
        foreign.close()
        grown = int(stats["wal_bytes"] or 0)
        await load.run(load.done + 2_000)
        assert int(store.stats()["wal_bytes"] or 0) < grown // 2
        assert await store.check_integrity() == []
        hand.close()


async def test_a_process_that_only_keeps_its_leases_keeps_the_wal_small_too(tmp_path: Path) -> None:
    """An idle worker writes nothing but renewals, for days: only the lease's own line is there to checkpoint."""
    path = tmp_path / "holdfast.db"
    async with opened(path, lease_ttl_ms=600_000) as store:
        hand = Hand(store)
        for _ in range(3 * leases.CHECKPOINT_PAGES):
            hand.line.renew(hand.name)
        assert Path(f"{path}-wal").stat().st_size < 2 * leases.CHECKPOINT_PAGES * 4096
        hand.close()


async def test_a_hundred_openings_leave_no_thread_and_no_file_behind(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    process = psutil.Process()

    async def once() -> None:
        async with opened(path) as store:
            hand = Hand(store)
            created = await store.create_chat(new_chat())
            await asyncio.gather(*(store.read_chat(created.chat_id) for _ in range(20)))
            await asyncio.gather(*(store.list_chats() for _ in range(20)))
            assert store.stats()["reader_threads"] == 4 + 2
            hand.close()

    threads_before = threading.active_count()
    await once()
    await until(lambda: threading.active_count() <= threads_before)  # which have their files open until they end
    files_before = process.num_fds()
    for _ in range(100):
        await once()
    await until(lambda: threading.active_count() <= threads_before)
    await until(lambda: process.num_fds() <= files_before)


async def test_openings_that_fail_leave_no_thread_and_no_file_behind(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    path.write_bytes(b"no database at all" * 100)
    process = psutil.Process()
    threads_before, files_before = threading.active_count(), process.num_fds()
    for _ in range(50):
        with pytest.raises(Exception, match="is not a SQLite database"):
            await open_store(f"sqlite:///{path}").open()
    await until(lambda: threading.active_count() <= threads_before)
    await until(lambda: process.num_fds() <= files_before)


async def test_a_pool_has_no_more_threads_than_it_may_and_none_after_it_was_stopped() -> None:
    loop = asyncio.get_running_loop()
    before, closed = threading.active_count(), list[int]()
    for n in range(100):
        pool = threads.Pool("test", 3, lambda n=n: n, closed.append)  # type: ignore[misc]
        jobs = [threads.Job(lambda resource: resource, loop) for _ in range(30)]
        for job in jobs:
            pool.submit(job)
        assert await asyncio.gather(*(job.future for job in jobs)) == [n] * 30
        assert pool.thread_count <= 3
        pool.stop()
        with pytest.raises(RuntimeError, match="stopped"):
            pool.submit(threads.Job(lambda _: None, loop))
    await until(lambda: threading.active_count() <= before)
    await until(lambda: set(closed) == set(range(100)))  # every resource that was opened is closed again
