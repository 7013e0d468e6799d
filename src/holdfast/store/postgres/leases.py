"""Leases on PostgreSQL: kept over a synchronous connection of their own."""

import contextlib
import selectors
import time
from collections.abc import Generator
from typing import Any, TypeVar, cast

import psycopg
from msgspec import Raw

from holdfast.core.records import Lease
from holdfast.errors import ConfigError, InvalidInput, LeaseLost, Outcome, StoreAuth
from holdfast.faults import reach
from holdfast.store.contract import RENEWAL_DEADLINE_S, LeaseLine
from holdfast.store.postgres import sql
from holdfast.store.postgres.address import DatabaseAddress
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.connection import Row
from holdfast.store.postgres.errors import Fate, NoAnswer, explain, explain_connecting, fate_of
from holdfast.store.postgres.pauses import pauses
from holdfast.store.records import StoreOptions, WorkerInfo
from holdfast.store.rows import lease_of
from holdfast.system.clock import boot_id

T = TypeVar("T")

# libpq waits at least two seconds for a connection, so with less left none is begun.
_CONNECT_S_MIN = 2.0


class _LeaseConnection(psycopg.Connection[Row]):
    """As `connection.Connection`, without an event loop. `deadline` is by `time.monotonic`."""

    deadline = 0.0

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.0, timeout: float | None = None) -> T:
        try:
            wanted = next(gen)
            with selectors.DefaultSelector() as selector:
                selector.register(self.pgconn.socket, wanted)
                while True:
                    ready = selector.select(self.deadline - time.monotonic())
                    if not ready:
                        raise NoAnswer("no answer before the deadline")
                    wanted = gen.send(ready[0][1])
                    selector.modify(self.pgconn.socket, wanted)
        except StopIteration as done:
            return cast(T, done.value)


class PostgresLeaseLine(LeaseLine):
    """Use from one thread at a time. No call takes longer than the renewal deadline, but for the name server."""

    def __init__(self, address: DatabaseAddress, clock: DatabaseClock, options: StoreOptions) -> None:
        self._connection: _LeaseConnection | None = None
        self._address = address
        self._clock = clock
        self._options = options
        self._host = boot_id()
        timeout_ms = int(RENEWAL_DEADLINE_S * 1000)
        self._look = sql.look(settings=not address.pooled, schema=address.schema, timeout_ms=timeout_ms)

    def register(self, worker: WorkerInfo) -> Lease:
        values = {
            **self._times(),
            "worker": worker.worker,
            "host": self._host,
            "pid": worker.pid,
            "lock_path": worker.lock_path,
            "info": bytes(worker.info).decode(),
        }
        rows, asked_before = self._ask(sql.REGISTER_WORKER, values)
        if not rows and asked_before:
            rows, _ = self._ask(sql.READ_WORKER, values)  # it may be ours, from the time that was not answered
        if not rows:
            raise InvalidInput("worker", f"{worker.worker!r} is registered already; every worker takes a new id")
        return self._lease(rows[0])

    def renew(self, worker: str, info: Raw | None = None) -> Lease:
        text = bytes(info).decode() if info is not None else None
        rows, _ = self._ask(sql.RENEW_WORKER, {**self._times(), "worker": worker, "info": text})
        if not rows:
            raise LeaseLost(worker)
        return self._lease(rows[0])

    def retire(self, worker: str) -> None:
        self._ask(sql.RETIRE_WORKER, (worker,))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def __del__(self) -> None:
        self.close()  # a line that is dropped says nothing, as a dropped SQLite connection does

    def _times(self) -> dict[str, int | None]:
        return {**self._clock.values(), "ttl": self._options.lease_ttl_ms}

    def _lease(self, row: Row) -> Lease:
        *columns, server_ms = row
        self._clock.observe(server_ms)
        return lease_of(columns)

    def _ask(self, statement: str, values: dict[str, Any] | tuple[Any, ...]) -> tuple[list[Row], bool]:
        """The rows, and whether an earlier try may have been written. All of these can be asked again."""
        deadline = time.monotonic() + RENEWAL_DEADLINE_S
        maybe_written = False
        reach("lease.before")
        for pause in pauses():
            connection = self._connected(deadline)
            try:
                cursor = connection.execute(statement, values)
                rows = cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                lost = fate_of(error, None) is Fate.LOST or connection.closed
                if lost:
                    maybe_written = True
                    self.close()
                if fate_of(error, None) is Fate.FINAL or time.monotonic() + pause >= deadline:
                    outcome: Outcome = "unknown" if maybe_written else "not_written"
                    raise explain(error, self._address, outcome=outcome) from error
                time.sleep(pause)
            else:
                reach("lease.after")
                return rows, maybe_written
        raise AssertionError("pauses never end")

    def _connected(self, deadline: float) -> _LeaseConnection:
        """Again and again while there is time: a server that restarts is back before the lease is over."""
        for pause in pauses():
            if self._connection is not None:
                break
            left_s = deadline - time.monotonic()
            try:
                self._connection = self._connect(max(_CONNECT_S_MIN, left_s), deadline)
            except psycopg.Error as error:
                reason = explain_connecting(error, self._address)
                if isinstance(reason, StoreAuth | ConfigError) or left_s - pause < _CONNECT_S_MIN:
                    raise reason from error
                time.sleep(pause)
        assert self._connection is not None
        self._connection.deadline = deadline
        return self._connection

    def _connect(self, timeout_s: float, deadline: float) -> _LeaseConnection:
        connection = _LeaseConnection.connect(
            self._address.conninfo,
            autocommit=True,
            prepare_threshold=None if self._address.pooled else 2,
            connect_timeout=int(timeout_s),
        )
        try:
            connection.deadline = deadline
            connection.execute(self._look)
        except BaseException:
            connection.close()
            raise
        return connection
