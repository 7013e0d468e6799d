"""Leases on SQLite: kept over a connection of their own, expiring by boot time under this machine's boot id."""

from typing import Any

import apsw
from msgspec import Raw

from holdfast.core.records import Lease
from holdfast.errors import ConfigError, LeaseLost
from holdfast.faults import reach
from holdfast.store.base import LeaseLine, StoreOptions, WorkerInfo
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.connection import WriteLock, connect, translated


class SqliteLeaseLine(LeaseLine):
    """Use from one thread at a time."""

    def __init__(self, path: str, host: str, options: StoreOptions, *, vfs: str | None, synchronous: str) -> None:
        self._path = path
        self._host = host
        self._options = options
        self._connection = connect(path, vfs=vfs, synchronous=synchronous)
        self._lock = WriteLock(path)

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
        with self._lock, translated(self._path):
            reach("lease.before")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                rows = self._connection.execute(statement, values).fetchall()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            reach("lease.after")
        return rows


def check_single_machine(connection: apsw.Connection, path: str, host: str, options: StoreOptions) -> None:
    """A lease that another machine keeps renewing means that the file is shared over a network."""
    now = options.clock.wall_ms()
    for worker, other, pid, *_, renewed_at, _, _ in connection.execute(sql.LIST_WORKERS):
        age_ms = now - renewed_at
        if other != host and 0 <= age_ms < options.lease_ttl_ms:
            raise ConfigError(
                f"{path} is in use by worker {worker!r} (pid {pid}) of another machine, which renewed its lease "
                f"{age_ms / 1000:.1f} s ago: a SQLite file belongs to one machine; use PostgreSQL for several. "
                f"(If this machine was just restarted, try again in {options.lease_ttl_ms / 1000:g} s.)"
            )
