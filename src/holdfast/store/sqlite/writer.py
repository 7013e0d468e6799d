"""The one writer thread: group commit, checkpoints, and the promise that what was acknowledged is on disk.

Jobs that wait while a transaction is being synced share the next one, each in a savepoint of its own, so a job that
fails takes nothing with it. A batch is capped by count and by time, so that other processes get their turn.

Checkpoints go by pages, not by transactions: a batch of 32 chats writes as much as 100 single commits, and what a
checkpoint costs and a reader has to search is pages. Passive at 1,000 pages (about 4 MiB); from 4,000 pages on, when
readers kept it from completing, the WAL is restarted once they are out of the way, without waiting for them.
`WAL_BOUND_BYTES` is what the file stays under as long as no foreign program holds a read transaction open.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from holdfast import threads
from holdfast.errors import StoreClosed, StoreUnavailable
from holdfast.faults import reach
from holdfast.store.sqlite.connection import FileIdentity, WriteLock, explain, translated

BATCH_JOBS_MAX = 256
BATCH_S_MAX = 0.02
CHECKPOINT_PAGES = 1_000
RESTART_PAGES = 4_000
WAL_BOUND_BYTES = 64 << 20

Work = Callable[[apsw.Connection], Any]
Outcome = tuple[threads.Job[Any], Any, BaseException | None]


class Writer:
    def __init__(self, path: str, connection: apsw.Connection) -> None:
        self._path = path
        self._connection = connection
        self._jobs: SimpleQueue[threads.Job[Any] | None] = SimpleQueue()
        self._wal_pages = 0
        self._next_checkpoint = CHECKPOINT_PAGES
        self._scrub = False
        self._closed = False
        self.transactions = 0
        self.jobs = 0
        self.checkpoints = 0
        self.checkpoints_busy = 0
        self.wal_pages_max = 0
        self._thread: Any = None

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

    def stop(self, wait_s: float) -> bool:
        """Finish what is queued, then end. False if it had to be left behind."""
        self._closed = True
        self._jobs.put(None)
        if self._thread is None:
            return True
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # --- in the writer's thread ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        connection = self._connection
        connection.set_wal_hook(self._note_wal)
        lock = WriteLock(self._path)
        identity = FileIdentity(self._path)
        try:
            while (job := self._jobs.get()) is not None:
                if job.take():
                    threads.deliver(self._batch(connection, lock, identity, job))
                    self._checkpoint(connection, lock)
        finally:
            self._last_checkpoint(connection)
            connection.close()
            lock.close()

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # the WAL was started over
            self._next_checkpoint = CHECKPOINT_PAGES
        self._wal_pages = pages
        self.wal_pages_max = max(self.wal_pages_max, pages)
        return int(apsw.SQLITE_OK)

    def _batch(
        self, connection: apsw.Connection, lock: WriteLock, identity: FileIdentity, first: threads.Job[Any]
    ) -> list[Outcome]:
        taken = [first]
        outcomes: list[Outcome] = []
        try:
            with lock:
                with translated(self._path):
                    connection.execute("BEGIN IMMEDIATE")
                reach("write.begun")
                self._run(connection, first, outcomes)
                until = time.monotonic() + BATCH_S_MAX
                while len(outcomes) < BATCH_JOBS_MAX and time.monotonic() < until:
                    try:
                        job = self._jobs.get_nowait()
                    except Empty:
                        break
                    if job is None:
                        self._jobs.put(None)
                        break
                    if job.take():
                        taken.append(job)
                        self._run(connection, job, outcomes)
                reach("commit.before")
                with translated(self._path, committing=True):
                    connection.execute("COMMIT")
                reach("commit.after")
            identity.check()
            self.transactions += 1
            self.jobs += len(outcomes)
            reach("ack.before")
        except BaseException as error:  # noqa: BLE001  the batch failed as one: everybody in it is told
            self._roll_back(connection)
            refused = {job: own for job, _, own in outcomes if own is not None}
            return [(job, None, refused.get(job, error)) for job in taken]
        return outcomes

    def _run(
        self,
        connection: apsw.Connection,
        job: threads.Job[Any],
        outcomes: list[Outcome],
    ) -> None:
        connection.execute("SAVEPOINT job")
        try:
            result = job.work(connection)
            connection.execute("RELEASE job")
        except Exception as caught:
            error = explain(caught, self._path) if isinstance(caught, apsw.Error) else caught
            # A full disk or an I/O error may have ended the whole transaction: then the batch fails with it.
            if not connection.in_transaction:
                raise error from caught
            connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
            outcomes.append((job, None, error))
        else:
            outcomes.append((job, result, None))

    def _roll_back(self, connection: apsw.Connection) -> None:
        if connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except apsw.Error as error:
                raise StoreUnavailable(f"{self._path}: the transaction could not be rolled back: {error}") from error

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
                total, moved = connection.wal_checkpoint(mode=mode)
            else:
                total, moved = self._exclusive_checkpoint(connection, lock, mode)
            self.checkpoints += 1
            complete = total == moved
            self._scrub = self._scrub and not complete
        except apsw.Error:
            complete = False
        if not complete:
            self.checkpoints_busy += 1
        # If it was complete the next write starts the WAL over, unless a reader is in the way: look again later.
        self._next_checkpoint = self._wal_pages + CHECKPOINT_PAGES // 4
        reach("checkpoint.after")

    def _exclusive_checkpoint(self, connection: apsw.Connection, lock: WriteLock, mode: int) -> tuple[int, int]:
        connection.set_busy_timeout(0)
        try:
            with lock:
                return connection.wal_checkpoint(mode=mode)
        finally:
            connection.set_busy_timeout(5_000)

    def _last_checkpoint(self, connection: apsw.Connection) -> None:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self.checkpoints += 1
        except apsw.Error:
            self.checkpoints_busy += 1
