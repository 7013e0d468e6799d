"""Leases on SQLite: kept over a connection of their own; and which of them are another machine's."""

import os
import time
from contextlib import suppress
from typing import Any

import apsw
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.records import Lease
from holdfast.errors import ConfigError, LeaseLost
from holdfast.faults import reach
from holdfast.store.contract import RENEWAL_DEADLINE_S, LeaseLine
from holdfast.store.records import StoreOptions, WorkerInfo
from holdfast.store.rows import lease_of
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.checkpoints import InDoubt, checkpoint, leave
from holdfast.store.sqlite.connection import FileIdentity, TimedWriteLock, connect
from holdfast.store.sqlite.errors import translated

# The writer checkpoints at half of this. In a process that is idle but for its leases, no writer does: at two pages
# and one renewal every ten seconds the WAL would pass its bound within a day.
CHECKPOINT_PAGES = 2_000


class SqliteLeaseLine(LeaseLine):
    """Use from one thread at a time. No call takes longer than the renewal's deadline."""

    def __init__(self, path: str, host: str, options: StoreOptions, *, vfs: str | None, synchronous: str) -> None:
        self._path = path
        self._host = host
        self._options = options
        self._deadline_s = min(RENEWAL_DEADLINE_S, options.deadline_s)
        self._wal_pages = 0
        self._connection = connect(path, vfs=vfs, synchronous=synchronous)
        try:
            self._connection.set_wal_hook(self._note_wal)
            self._identity = FileIdentity(path)
            self._lock = TimedWriteLock(path)
        except BaseException:
            self._connection.close()
            raise

    def register(self, worker: WorkerInfo) -> Lease:
        wall, ttl_ms = self._options.clock.wall_ms(), self._options.lease_ttl_ms
        info = bytes(worker.info).decode()
        row = (worker.worker, self._host, worker.pid, worker.lock_path, wall, wall, ttl_ms, info)
        return lease_of(self._write(sql.REGISTER_WORKER, row)[0])

    def renew(self, worker: str, info: Raw | None = None) -> Lease:
        text = bytes(info).decode() if info is not None else None
        rows = self._write(sql.RENEW_WORKER, (self._options.clock.wall_ms(), text, worker))
        if not rows:
            raise LeaseLost(worker)
        return lease_of(rows[0])

    def retire(self, worker: str) -> None:
        self._write(sql.RETIRE_WORKER, (worker,))

    def close(self) -> None:
        leave(self._connection, self._path)
        self._lock.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        until = time.monotonic() + self._deadline_s
        with self._lock.within(self._deadline_s), translated(self._path):
            self._connection.set_busy_timeout(max(1, int((until - time.monotonic()) * 1000)))
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                reach("lease.before")
                rows = self._connection.execute(statement, values).fetchall()
                with translated(self._path, committing=True):
                    self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            reach("lease.after")
            self._checkpoint()
        self._identity.check()
        return rows

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return int(apsw.SQLITE_OK)

    def _checkpoint(self) -> None:
        """Under the lock. Never fails a renewal: that is done."""
        if self._wal_pages >= CHECKPOINT_PAGES:
            with suppress(apsw.Error, InDoubt):  # the next one tries again
                checkpoint(self._connection, self._path, apsw.SQLITE_CHECKPOINT_PASSIVE)


def located(lease: Lease, lock_folder: str, host: str) -> Lease:
    """With the path of its lock as it is seen from here: beside the database, wherever that is mounted. A path of
    elsewhere says nothing on another boot: there it is another file.
    """
    if lease.lock_path is None:
        return lease
    beside = os.path.join(lock_folder, os.path.basename(lease.lock_path))
    if os.path.exists(beside):
        return replace(lease, lock_path=beside)
    return lease if lease.host == host else replace(lease, lock_path=None)


def in_use_elsewhere(path: str, lease: Lease) -> ConfigError:
    return ConfigError(
        f"{path} is in use by worker {lease.worker!r} (pid {lease.pid}) of another machine, which has just renewed "
        "its lease: a SQLite file belongs to one machine; use PostgreSQL for several"
    )
