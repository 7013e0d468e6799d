"""Work on one connection, asked for again as long as its outcome is open and there is time.

A question whose connection was lost is never assumed to have happened, nor not to have: the work runs again, finds
out by its receipt, its commit id or its version what became of the first time, and goes on from there. Work runs in
tasks of the store: cancelling a waiter takes nothing back, and ends only what reads.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import psycopg
from psycopg import capabilities

from holdfast.core.codec import NOT_UNICODE
from holdfast.errors import HoldfastError, InvalidInput, Outcome, StoreClosed, StoreTimeout, StoreUnavailable
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.connection import Connector, Row, ServerConnection, Share
from holdfast.store.postgres.errors import COLLISION, READ_ONLY, Fate, explain, fate_of
from holdfast.store.postgres.pauses import pauses
from holdfast.store.postgres.pool import ConnectionPool
from holdfast.store.postgres.transactions import Ring, Transaction, Work
from holdfast.store.records import Lane, StoreOptions

T = TypeVar("T")

# How often a key or an id that another transaction took in the same moment is looked at again.
_COLLISIONS_MAX = 3
CALL_OFF_S = 2.0  # for the server to take note that the waiter is gone


class Transactor:
    """Runs work, in tasks of its own, until it is answered or the deadline has come."""

    pool: ConnectionPool  # once it was opened

    def __init__(self, connector: Connector, clock: DatabaseClock, options: StoreOptions, ring: Ring) -> None:
        self._connector = connector
        self._clock = clock
        self._options = options
        self._ring = ring
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_open = False
        self.retries = 0

    # --- life -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.pool = ConnectionPool(self._connector)
        self.is_open = True

    def close(self) -> None:
        """No more work is taken. What was taken goes on: see `finish`."""
        self.is_open = False

    def check_open(self) -> None:
        if not self.is_open:
            raise StoreClosed("the store is not open")

    @property
    def task_count(self) -> int:
        return len(self._tasks)

    # --- work -----------------------------------------------------------------------------------------------------

    async def read(self, work: Work[T]) -> T:
        self.check_open()
        return await self.run(work, "reads")

    async def rows(self, statement: str, *values: Any) -> list[Row]:
        return await self.read(lambda transaction: transaction.rows(statement, *values))

    async def named_rows(self, statement: str, **values: Any) -> list[Row]:
        return await self.read(lambda transaction: transaction.named_rows(statement, **values))

    async def planned_rows(self, statement: str, **values: Any) -> list[Row]:
        return await self.read(lambda transaction: transaction.planned_rows(statement, **values))

    async def scan(self, statement: str, lane: Lane, **values: Any) -> list[Row]:
        async def work(transaction: Transaction) -> list[Row]:
            await transaction.begin_scan()
            return await transaction.planned_rows(statement, **values)

        self.check_open()
        return await self.run(work, lane, only_looks=True)

    async def write(self, work: Work[T], share: Share = "writes") -> T:
        self.check_open()
        return await self.run(work, share)

    async def write_alone(self, statement: str, *values: Any, points: tuple[str, str] | None = None) -> list[Row]:
        """For statements that change nothing when they are repeated."""
        return await self.write(
            lambda transaction: transaction.write_alone(statement, *values, points=points), "work"
        )

    async def run(self, work: Work[T], share: Share, deadline: float | None = None, *, only_looks: bool = False) -> T:
        """Also while the store is being closed: what was taken before is brought to its end.

        A caller that is cancelled before there is a connection has asked for nothing; afterwards it takes its course,
        but for what only looks: the server is told that its waiter is gone.
        """
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self._options.deadline_s
        connection = await self.pool.take(deadline, share)
        answer = self.own(self._answered(work, connection, deadline))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if only_looks:
                answer.cancel()
            raise

    def own(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that lives until it is done, also when its waiter forgets it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its waiter gets it; where that is gone, there is nothing to report

    async def finish(self, wait_s: float) -> None:
        """What was asked for before is answered, or at its deadline."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while (self._tasks or self.pool.waiting) and loop.time() < until:
            await asyncio.wait({*self._tasks, loop.create_task(asyncio.sleep(0.01))}, timeout=until - loop.time())

    async def _answered(self, work: Work[T], connection: ServerConnection, deadline: float) -> T:
        maybe_written = False
        collisions = 0
        share = connection.share
        for pause in pauses():
            transaction = Transaction(
                connection, self._clock, self._options.limits, deadline, self._ring, asked_before=maybe_written
            )
            try:
                result = await work(transaction)
            except psycopg.Error as error:
                fate = fate_of(error, connection)
                if error.sqlstate == COLLISION and collisions < _COLLISIONS_MAX:
                    collisions += 1
                    fate = Fate.AGAIN
                maybe_written |= transaction.maybe_written and fate is Fate.LOST
                if error.sqlstate == READ_ONLY:
                    await connection.discard()  # a standby now: the next connection may find the primary
                    self.pool.drop_idle()
                await self._leave(connection, fate)
                late = asyncio.get_running_loop().time() + pause >= deadline
                if fate is Fate.FINAL or late:
                    outcome: Outcome = "unknown" if maybe_written else "not_written"
                    raise explain(error, self._connector.address, outcome=outcome) from error
            except UnicodeError as error:
                await self._leave(connection, Fate.FINAL)
                raise InvalidInput("text", NOT_UNICODE) from error
            except asyncio.CancelledError:
                await self._call_off(connection)
                raise
            except BaseException:
                await self._leave(connection, Fate.FINAL)
                raise
            else:
                await self._leave(connection, Fate.FINAL)
                return result
            self.retries += 1
            await asyncio.sleep(pause)
            try:
                connection = await self.pool.take(deadline, share)
            except HoldfastError as error:
                if maybe_written and isinstance(error, StoreUnavailable):
                    kind = StoreTimeout if isinstance(error, StoreTimeout) else StoreUnavailable
                    raise kind(str(error), outcome="unknown") from error
                raise
        raise AssertionError("pauses never end")

    async def _call_off(self, connection: ServerConnection) -> None:
        """End what the server is doing for it. The request may come late, so no other work gets this connection."""
        try:
            if capabilities.has_cancel_safe():  # else it would take a thread; then the statement ends at its deadline
                await connection.cancel_safe(timeout=CALL_OFF_S)
        except (psycopg.Error, OSError):
            pass
        finally:
            await connection.discard()
            self.pool.give(connection)

    async def _leave(self, connection: ServerConnection, fate: Fate) -> None:
        """Give it back, out of any transaction. Work that ended early, by refusal or by finding out that all is done,
        has left one open."""
        try:
            if fate is Fate.LOST:
                await connection.discard()
                self.pool.drop_idle()
            elif not connection.closed and not connection.is_free:
                await connection.command("ROLLBACK")
        except psycopg.Error:
            pass  # then it is not free, and `give` closes it
        finally:
            self.pool.give(connection)
