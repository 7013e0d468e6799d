"""Leases on SQLite: kept over a connection of their own, expiring by boot time under this machine's boot id."""

import time
from typing import Any

import apsw
from msgspec import Raw

from holdfast.core.records import Lease
from holdfast.errors import ConfigError, LeaseLost
from holdfast.faults import reach
from holdfast.store.base import RENEWAL_DEADLINE_S, LeaseLine, StoreOptions, WorkerInfo
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.connection import FileIdentity, TimedWriteLock, connect, translated

# The writer checkpoints at half of this. In a process that is idle but for its leases, nobody else does: at two pages
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
        wall, boot = self._options.clock.wall_ms(), self._options.clock.boot_ms()
        ttl = self._options.lease_ttl_ms
        info = bytes(worker.info).decode()
        row = (worker.worker, self._host, worker.pid, worker.lock_path, wall, wall, boot + ttl, info)
        self._write(sql.REGISTER_WORKER, row)
        return self._lease(worker.worker, worker.pid, worker.lock_path, wall, info)

    def renew(self, worker: str, info: Raw | None = None) -> Lease:
        wall, boot = self._options.clock.wall_ms(), self._options.clock.boot_ms()
        text = bytes(info).decode() if info is not None else None
        rows = self._write(
            sql.RENEW_WORKER, (wall, boot + self._options.lease_ttl_ms, text, worker, self._host, boot)
        )
        if not rows:
            raise LeaseLost(worker)
        return self._lease(worker, *rows[0])

    def retire(self, worker: str) -> None:
        self._write(sql.RETIRE_WORKER, (worker,))

    def close(self) -> None:
        self._connection.close()
        self._lock.close()

    def _lease(self, worker: str, pid: int, lock_path: str | None, started_at: int, info: str) -> Lease:
        return Lease(
            worker=worker,
            host=self._host,
            pid=pid,
            lock_path=lock_path,
            started_at=started_at,
            expires_in_ms=self._options.lease_ttl_ms,
            info=Raw(info.encode()),
        )

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
        self._identity.check()
        self._checkpoint()
        return rows

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return int(apsw.SQLITE_OK)

    def _checkpoint(self) -> None:
        """Never fails a renewal: that is done."""
        if self._wal_pages >= CHECKPOINT_PAGES:
            try:
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.Error:
                return  # the next one tries again


def check_single_machine(connection: apsw.Connection, path: str, host: str, options: StoreOptions) -> None:
    """A lease that another machine keeps renewing means that the file is shared over a network.

    The clocks of two machines do not agree, so a renewal a moment in the future counts as well.
    """
    now = options.clock.wall_ms()
    for worker, other, pid, *_, renewed_at, _, _ in connection.execute(sql.LIST_WORKERS):
        age_ms = now - renewed_at
        if other != host and abs(age_ms) < options.lease_ttl_ms:
            raise ConfigError(
                f"{path} is in use by worker {worker!r} (pid {pid}) of another machine, which renewed its lease "
                f"{max(0, age_ms) // 1000} s ago: a SQLite file belongs to one machine; use PostgreSQL for several. "
                f"(If this machine was just restarted, try again in {options.lease_ttl_ms / 1000:g} s.)"
            )
