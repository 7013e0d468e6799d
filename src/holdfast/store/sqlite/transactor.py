"""Runs work: writes in the one writer thread, reads in a few reader threads, none awaited beyond the deadline.

Work that was taken goes on without its waiter; work that was not is withdrawn. A reader's statement whose waiter gave
up is interrupted, so that its thread is free for the next one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.errors import StoreClosed, StoreError, StoreGone, StoreTimeout
from holdfast.store.notify.bell import Bell
from holdfast.store.records import Lane, StoreOptions
from holdfast.store.rows import Row
from holdfast.store.sqlite.checkpoints import leave
from holdfast.store.sqlite.connection import DAMAGED, FileIdentity, connect, reading, translated
from holdfast.store.sqlite.read_only import look
from holdfast.store.sqlite.transactions import Transaction, Work
from holdfast.store.sqlite.writer import WriterThread
from holdfast.system import threads

T = TypeVar("T")

# A lane each, with threads of its own: what may read the whole table never stands in the way of what reads one chat.
LANES: Mapping[Lane, int] = {"reads": 4, "lists": 2, "searches": 2}
# How often a reader asks whether its waiter is still there: some milliseconds of SQLite's work.
STEPS_BETWEEN_LOOKS = 20_000


class _Waiter(NamedTuple):
    """Who waits for a job."""

    until: float
    give_up: Callable[[threads.Job[Any]], bool]  # true if it had not begun


class Transactor:
    def __init__(self, path: str, options: StoreOptions, bell: Bell, *, vfs: str | None, synchronous: str) -> None:
        self._path = path
        self._options = options
        self._bell = bell
        self._vfs = vfs
        self._synchronous = synchronous
        self.writer: WriterThread | None = None
        self.why_read_only: StoreError | None = None
        self._readers: dict[Lane, threads.Pool] = {}
        self._identity: FileIdentity | None = None  # of the file that was opened
        self._told_gone = False
        self._waiting: dict[threads.Job[Any], _Waiter] = {}  # the soonest first
        self._alarm: asyncio.TimerHandle | None = None  # while any caller waits

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return bool(self._readers)

    @property
    def gone(self) -> bool:
        identity = self._identity
        return self.writer is not None and identity is not None and not identity.holds

    @property
    def reader_count(self) -> int:
        return sum(pool.thread_count for pool in self._readers.values())

    @property
    def lost_reader_count(self) -> int:
        return sum(pool.lost_count for pool in self._readers.values())

    def open(self, writer: WriterThread) -> None:
        self.writer = writer
        writer.start()
        self._identity = writer.identity
        self._told_gone = False
        self._readers = {
            lane: threads.Pool(f"sqlite-{lane}", size, self.open_reader, self._leave) for lane, size in LANES.items()
        }

    def open_to_look(self, why: StoreError) -> None:
        """Without a writer. Each read opens the file anew."""
        self._readers = {lane: threads.Pool(f"sqlite-{lane}", size) for lane, size in LANES.items()}
        self.why_read_only = why

    def open_reader(self) -> apsw.Connection:
        """Never of another file that was put in the place of ours: SQLite would take our WAL for that file's own, and
        write what is in it into a database that it does not belong to.
        """
        identity = self._identity
        assert identity is not None
        identity.check()
        connection = connect(self._path, read_only=True, vfs=self._vfs, synchronous=self._synchronous)
        try:
            identity.check()
        except BaseException:
            leave(connection, self._path)
            raise
        return connection

    def _leave(self, connection: apsw.Connection) -> None:
        leave(connection, self._path)

    async def close(self) -> None:
        writer, readers = self.writer, self._readers
        self.writer = self.why_read_only = None
        self._readers = {}
        until = asyncio.get_running_loop().time() + self._options.deadline_s
        for pool in readers.values():
            pool.stop()
        await self._ended(lambda: not any(pool.thread_count for pool in readers.values()), until)
        # After the readers: the last connection to be closed removes the WAL, and a reader that had still to open its
        # own would take that for a database that was deleted.
        if writer is not None:
            writer.stop()
            await self._ended(lambda: not writer.running, until)
        for job, waiter in self._waiting.items():
            self._give_up(job, waiter)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._bell.ring_all()

    async def _ended(self, ended: Callable[[], bool], until: float) -> None:
        """Or stuck in the kernel at the deadline: daemon threads, left behind."""
        while not ended():
            if asyncio.get_running_loop().time() > until:
                break
            await asyncio.sleep(0.002)

    # --- work -----------------------------------------------------------------------------------------------------

    async def read(self, work: Work[T], lane: Lane = "reads") -> T:
        if not self._readers:
            raise StoreClosed("the store is not open")

        def in_one_transaction(connection: apsw.Connection) -> T:
            assert self._identity is not None
            self._identity.check()  # an open connection goes on reading a file that was deleted, as if nothing were
            connection.set_progress_handler(lambda: job.unwanted, STEPS_BETWEEN_LOOKS)
            with translated(self._path):
                try:
                    with reading(connection):
                        return work(Transaction(connection, self._options))
                except DAMAGED:
                    # What was read may have been wrong, and not what is there: nothing of it is kept for the second.
                    connection.release_memory()
                    with reading(connection):
                        return work(Transaction(connection, self._options))

        def at_a_look(_: None) -> T:
            with translated(self._path), look(self._path, self._vfs) as connection:
                connection.set_progress_handler(lambda: job.unwanted, STEPS_BETWEEN_LOOKS)
                return work(Transaction(connection, self._options))

        how = in_one_transaction if self.why_read_only is None else at_a_look
        job: threads.Job[T] = threads.Job(how, asyncio.get_running_loop())
        pool = self._readers[lane]
        pool.submit(job)
        return await self._wait(job, pool.give_up)

    async def rows(self, statement: str, *values: Any, lane: Lane = "reads") -> list[Row]:
        return await self.read(lambda transaction: transaction.rows(statement, *values), lane)

    async def named_rows(self, statement: str, lane: Lane = "reads", **values: Any) -> list[Row]:
        return await self.read(lambda transaction: transaction.named_rows(statement, **values), lane)

    async def write(self, work: Work[T]) -> T:
        """What the work tells of is rung once it is committed."""

        def in_the_batch(connection: apsw.Connection) -> tuple[T, Iterable[str]]:
            transaction = Transaction(connection, self._options)
            return work(transaction), transaction.topics

        job = threads.Job(in_the_batch, asyncio.get_running_loop())
        self.check_writable().submit(job)
        answer, topics = await self._wait(job, lambda job: job.withdraw())
        self._bell.ring(topics)
        return answer

    async def write_alone(self, statement: str, *values: Any) -> list[Row]:
        return await self.write(lambda transaction: transaction.rows(statement, *values))

    def check_writable(self) -> WriterThread:
        if self.writer is None:
            raise self.why_read_only or StoreClosed("the store is not open")
        return self.writer

    def scrub(self) -> None:
        """In work that deleted something, and left nothing of it for later work: it leaves the WAL, too."""
        assert self.writer is not None
        self.writer.scrub()

    # --- deadlines ------------------------------------------------------------------------------------------------

    async def _wait(self, job: threads.Job[T], give_up: Callable[[threads.Job[Any]], bool]) -> T:
        until = job.loop.time() + self._options.deadline_s
        self._waiting[job] = _Waiter(until, give_up)
        if self._alarm is None:
            self._alarm = job.loop.call_at(until, self._end_overdue)
        try:
            return await job.future
        except asyncio.CancelledError:
            give_up(job)
            raise
        except StoreGone:
            self._tell_gone()
            raise
        finally:
            # At once, not when its deadline is looked at: memory that is used again while it is warm is cheaper.
            del self._waiting[job]

    def _tell_gone(self) -> None:
        """Every waiter looks, and learns of it. Once: a waiter that is told looks, and would tell all again."""
        if not self._told_gone:
            self._told_gone = True
            self._bell.ring_all()

    def _end_overdue(self) -> None:
        """One timer for all: jobs wait in the order of their deadlines, because all have the same. It is set for the
        oldest that waits, so a deadline costs a store that is idle, or a busy one, no more than a look each.
        """
        self._alarm = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for job, waiter in self._waiting.items():
            if waiter.until > now:
                self._alarm = loop.call_at(waiter.until, self._end_overdue)
                return
            self._give_up(job, waiter)

    def _give_up(self, job: threads.Job[Any], waiter: _Waiter) -> None:
        withdrawn = waiter.give_up(job)
        why = f"{self._path} did not answer within {self._options.deadline_s:g} s: is the disk, or a process, stuck?"
        job.deliver(None, StoreTimeout(why, outcome="not_written" if withdrawn else "unknown"))
