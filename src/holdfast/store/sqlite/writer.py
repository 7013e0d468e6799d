"""The one writer thread: group commit, checkpoints, and the promise that what was acknowledged is on disk.

Jobs that wait while a transaction is being synced share the next one. A job that fails takes nothing with it: nearly
always it failed before its first write, and in the rare other case the transaction is undone and the rest of the
batch get one each, which costs less than a savepoint around every job. A batch is capped by count and by time, so
that other processes get their turn.

Checkpoints go by pages, not by transactions: a batch of 32 chats writes as much as 100 single commits, and what a
checkpoint costs and a reader has to search is pages. Passive at 1,000 pages (about 4 MiB). Readers keep the WAL from
starting over, and of four that read without pause one always does: from 4,000 pages on it is restarted at a moment
when none is in the way, and at 6,000 pages the writer waits for those that are, at most `READERS_WAIT_MS`. Who begins
to read meanwhile needs the WAL no more and is neither waited for nor held up. Waiting in vain is not repeated until
the WAL has grown by half, so a reader that never leaves costs disk, not time. `WAL_BOUND_BYTES` is what the file
stays under as long as no reader keeps a transaction open for longer than that.
"""

import logging
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from holdfast.errors import StoreClosed, StoreCorrupt, StoreError
from holdfast.faults import reach
from holdfast.store.sqlite.checkpoints import InDoubt, checkpoint, leave
from holdfast.store.sqlite.connection import BUSY_TIMEOUT_MS, FileIdentity, WriteLock
from holdfast.store.sqlite.errors import DAMAGED, explain, translated
from holdfast.system import threads

log = logging.getLogger("holdfast.store")

BATCH_JOBS_MAX = 256
BATCH_S_MAX = 0.02
CHECKPOINT_PAGES = 1_000
RESTART_PAGES = 4_000
WAIT_PAGES = 6_000  # then 9,000 and 13,500: three times below the bound
READERS_WAIT_MS = 1_000
SCRUB_RETRY_S = 0.25
WAL_BOUND_BYTES = 64 << 20

JobOutcome = tuple[threads.Job[Any], Any, BaseException | None]


class _HalfWritten(Exception):
    """A job failed after its first write, or found the file damaged: the jobs of the batch are tried one by one."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class WriterThread:
    def __init__(self, path: str, connection: apsw.Connection) -> None:
        """The connection is the writer's from here on. Raises what opening the side files raises."""
        self._path = path
        self._connection = connection
        self._lock = WriteLock(path)
        self.identity = FileIdentity(path)
        self._jobs: SimpleQueue[threads.Job[Any] | None] = SimpleQueue()
        self._wal_pages = 0
        self._next_checkpoint = CHECKPOINT_PAGES
        self._next_wait = WAIT_PAGES
        self._scrub = False
        self._failing = False
        self._closed = False
        self.transactions = 0
        self.jobs = 0
        self.checkpoints = 0
        self.checkpoints_busy = 0
        self.wal_pages_max = 0
        self.wal_pages_written = 0
        self._thread: Any = None

    def discard(self) -> None:
        """Instead of `start`, where its caller is gone."""
        leave(self._connection, self._path)
        self._lock.close()

    def start(self) -> None:
        self._thread = threads.start("sqlite-writer", self._serve)

    @property
    def queued(self) -> int:
        return self._jobs.qsize()

    @property
    def wal_pages(self) -> int:
        return self._wal_pages

    def submit(self, job: threads.Job[Any]) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        self._jobs.put(job)

    def scrub(self) -> None:
        """Ask that deleted content leaves the WAL too. Called from inside a job."""
        self._scrub = True

    def stop(self) -> None:
        """What is queued is still done. Does not wait: look at `running`."""
        self._closed = True
        self._jobs.put(None)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # --- in the writer's thread ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        connection, lock, identity = self._connection, self._lock, self.identity
        connection.set_wal_hook(self._note_wal)
        try:
            while True:
                try:
                    job = self._jobs.get(timeout=SCRUB_RETRY_S if self._scrub else None)
                except Empty:
                    self._checkpoint(connection, lock)
                    continue
                if job is None:
                    break
                threads.deliver(self._batch(connection, lock, identity, job))
                self._checkpoint(connection, lock)
        finally:
            self._last_checkpoint(connection, lock)
            leave(connection, self._path)
            lock.close()

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # the WAL was started over
            self._next_checkpoint = CHECKPOINT_PAGES
            self._next_wait = WAIT_PAGES
            self._wal_pages = 0
        self.wal_pages_written += pages - self._wal_pages
        self._wal_pages = pages
        self.wal_pages_max = max(self.wal_pages_max, pages)
        return int(apsw.SQLITE_OK)

    def _batch(
        self, connection: apsw.Connection, lock: WriteLock, identity: FileIdentity, first: threads.Job[Any]
    ) -> list[JobOutcome]:
        taken: list[threads.Job[Any]] = []
        outcomes: list[JobOutcome] = []
        try:
            with lock:
                self._begin(connection)
                # A job is taken only now: one whose waiter gave up before we had the lock is not begun at all.
                until = time.monotonic() + BATCH_S_MAX
                job: threads.Job[Any] | None = first
                while job is not None:
                    if job.take():
                        taken.append(job)
                        self._run(connection, job, outcomes)
                    job = self._next() if len(taken) < BATCH_JOBS_MAX and time.monotonic() < until else None
                self._commit(connection, identity)
        except _HalfWritten as half:
            self._roll_back(connection)
            if isinstance(half.error, StoreCorrupt):
                connection.release_memory()  # a second look is at the file
            elif len(taken) == 1:
                return [(taken[0], None, half.error)]
            # One job spoilt the transaction of all: the others get one each.
            return [outcome for job in taken for outcome in self._alone(connection, lock, identity, job)]
        except BaseException as error:  # noqa: BLE001  the batch failed as one: every waiter in it is told
            self._roll_back(connection)
            if not taken and first.take():
                return [(first, None, error)]
            refused = {job: own for job, _, own in outcomes if own is not None}
            return [(job, None, refused.get(job, error)) for job in taken]
        self.jobs += len(outcomes)
        reach("ack.before")
        return outcomes

    def _next(self) -> threads.Job[Any] | None:
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        if job is None:
            self._jobs.put(None)  # the end is for `_serve` to see
        return job

    def _alone(
        self, connection: apsw.Connection, lock: WriteLock, identity: FileIdentity, job: threads.Job[Any]
    ) -> list[JobOutcome]:
        outcomes: list[JobOutcome] = []
        try:
            with lock:
                self._begin(connection)
                self._run(connection, job, outcomes, alone=True)
                self._commit(connection, identity)
        except BaseException as error:  # noqa: BLE001  it is the job's own and goes to its waiter
            self._roll_back(connection)
            return [(job, None, error.error if isinstance(error, _HalfWritten) else error)]
        self.jobs += 1
        return outcomes

    def _begin(self, connection: apsw.Connection) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except DAMAGED:
            connection.release_memory()  # a second look is at the file
            with translated(self._path):
                connection.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise explain(error, self._path) from error
        reach("write.begun")

    def _commit(self, connection: apsw.Connection, identity: FileIdentity) -> None:
        reach("commit.before")
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            raise explain(error, self._path, committing=True) from error
        reach("commit.after")
        identity.check()
        self.transactions += 1

    def _run(
        self, connection: apsw.Connection, job: threads.Job[Any], outcomes: list[JobOutcome], *, alone: bool = False
    ) -> None:
        """A job that fails before its first write, as a refused one does, leaves nothing to undo."""
        written = connection.total_changes()
        try:
            outcomes.append((job, job.work(connection), None))
        except Exception as caught:
            error = explain(caught, self._path) if isinstance(caught, apsw.Error | UnicodeError) else caught
            if isinstance(caught, DAMAGED) and not alone:
                raise _HalfWritten(error) from caught
            # A full disk or an I/O error may have ended the whole transaction: then the batch fails with it.
            if not connection.in_transaction:
                raise error from caught
            if connection.total_changes() != written:
                raise _HalfWritten(error) from caught
            outcomes.append((job, None, error))

    def _roll_back(self, connection: apsw.Connection) -> None:
        """One that fails is tried again after the next transaction could not begin: the thread must live."""
        if connection.in_transaction:
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")

    def _checkpoint(self, connection: apsw.Connection, lock: WriteLock) -> None:
        """Never fails a write: the write is done. A busy or failing one is counted and tried again later."""
        if self._wal_pages < self._next_checkpoint and not self._scrub:
            return
        reach("checkpoint.before")
        mode = apsw.SQLITE_CHECKPOINT_PASSIVE
        if self._scrub:
            mode = apsw.SQLITE_CHECKPOINT_TRUNCATE
        elif self._wal_pages >= RESTART_PAGES:
            mode = apsw.SQLITE_CHECKPOINT_RESTART
        try:
            if mode == apsw.SQLITE_CHECKPOINT_PASSIVE:
                with lock:
                    total, moved = checkpoint(connection, self._path, mode)
            else:
                total, moved = self._exclusive_checkpoint(connection, lock, mode)
            self.checkpoints += 1
            complete = total == moved
            self._scrub = self._scrub and not complete
            self._failing = False
        except InDoubt:
            complete = False
            self._scrub = False  # what was deleted leaves the WAL when the file is written anew
        except (apsw.Error, StoreError) as error:
            complete = False
            self._tell(error)
        if not complete:
            self.checkpoints_busy += 1
        # If it was complete the next write starts the WAL over, unless a reader is in the way: look again later.
        self._next_checkpoint = self._wal_pages + CHECKPOINT_PAGES // 4
        reach("checkpoint.after")

    def _tell(self, error: apsw.Error | StoreError) -> None:
        """Of the first in a row: what fails is tried again after every few writes."""
        if not isinstance(error, apsw.BusyError) and not self._failing:
            self._failing = True
            why = f"{type(error).__name__}: {error}"
            log.error("a checkpoint failed", extra={"action": "store.checkpoint_failed", "error": why})

    def _exclusive_checkpoint(self, connection: apsw.Connection, lock: WriteLock, mode: int) -> tuple[int, int]:
        wait_ms = 0
        if self._wal_pages >= self._next_wait:
            wait_ms = READERS_WAIT_MS
            self._next_wait = self._wal_pages * 3 // 2
        try:
            with lock:
                connection.set_busy_timeout(wait_ms)
                return checkpoint(connection, self._path, mode)
        finally:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)

    def _last_checkpoint(self, connection: apsw.Connection, lock: WriteLock) -> None:
        """Left to others where they are at work."""
        try:
            if not lock.try_enter():
                return
            try:
                checkpoint(connection, self._path, apsw.SQLITE_CHECKPOINT_PASSIVE)
                self.checkpoints += 1
            finally:
                lock.__exit__()
        except InDoubt:
            self.checkpoints_busy += 1
        except (apsw.Error, StoreError) as error:
            self.checkpoints_busy += 1
            self._tell(error)
