"""The raw limits: the same driver, the same durability, the same rows, and nothing of ours around it."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import apsw
import psycopg

from bench.chats import Lane
from bench.figures import rate
from holdfast.core.apply import apply
from holdfast.core.change import Change
from holdfast.store.decisions import ChatWrite, decided
from holdfast.store.postgres.connection import ServerConnection
from holdfast.store.postgres.swaps import swap as postgres_swap
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.transactions import swap


def prepared(lanes: Sequence[Lane], steps: int) -> list[list[ChatWrite]]:
    """What `steps` commits of each lane write, decided beforehand: one list of writes per round of all lanes."""
    rounds = []
    snapshots = {lane: lane.snapshot for lane in lanes}
    for _ in range(steps):
        writes = []
        for lane in lanes:
            change = apply(snapshots[lane], lane.next_event(), 1)
            assert isinstance(change, Change), change
            made = decided((change,), "raw")
            snapshots[lane] = made.after
            writes += made.writes
        rounds.append(writes)
    return rounds


class RawSqlite:
    def __init__(self, path: Path) -> None:
        self._connection = connect(str(path))
        self._connection.wal_autocheckpoint(1000)
        self._connection.execute("CREATE TABLE raw (a INTEGER, b TEXT)")

    async def commit_one_row(self) -> None:
        self._connection.execute("INSERT INTO raw VALUES (1, 'a row of about a hundred bytes, as small as they get')")

    def close(self) -> None:
        self._connection.close()


def raw_sqlite_groups(connection: apsw.Connection, rounds: list[list[ChatWrite]]) -> int:
    """One transaction per round, as tight as Python and the driver allow."""
    done = 0
    for writes in rounds:
        connection.execute("BEGIN IMMEDIATE")
        for write in writes:
            assert swap(connection, write)
        connection.execute("COMMIT")
        done += len(writes)
    return done


class RawLanes:
    """Group commit and nothing else: lanes hand finished rows to a thread, which writes all that wait at once."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(str(path))
        self._connection.wal_autocheckpoint(1000)
        self._jobs: SimpleQueue[tuple[ChatWrite, asyncio.Future[None]] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    async def write(self, row: ChatWrite) -> None:
        done = self._loop.create_future()
        self._jobs.put((row, done))
        await done

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            futures = []
            self._connection.execute("BEGIN IMMEDIATE")
            while job is not None:
                assert swap(self._connection, job[0])
                futures.append(job[1])
                job = None if self._jobs.empty() else self._jobs.get()
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(self._deliver, futures)
        self._connection.close()

    def _deliver(self, futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()


class RawPostgresLanes:
    """The same on PostgreSQL: lanes hand finished rows over, and all that wait go as one statement."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._waiting: list[tuple[ChatWrite, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def write(self, row: ChatWrite) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())
        await done

    async def _serve(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            self._connection.deadline = asyncio.get_running_loop().time() + 8
            await self._connection.ask(postgres_swap([row for row, _ in batch]))
            for _, done in batch:
                done.set_result(None)
        self._task = None


Bare = RawLanes | RawPostgresLanes


async def raw_rate(bare: Bare, lanes: Sequence[Lane], each: int) -> float:
    """How many commits a second, of rows that were decided beforehand."""
    columns = [iter(column) for column in zip(*prepared(lanes, each), strict=True)]
    return await rate([partial(_write_next, bare, column) for column in columns], each)


async def _write_next(bare: Bare, writes: Iterator[ChatWrite]) -> None:
    await bare.write(next(writes))


class RawPostgres:
    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, url: str) -> "RawPostgres":
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=1)
        await connection.execute("CREATE TABLE raw (a BIGINT, b TEXT)")
        return cls(connection)

    async def commit_one_row(self) -> None:
        await self._connection.execute(
            "INSERT INTO raw VALUES (%s, %s)", (1, "a row of about a hundred bytes, as small as they get")
        )

    async def close(self) -> None:
        await asyncio.wait_for(self._connection.close(), 5)
