"""Connections to the server on which nothing waits beyond a deadline.

psycopg waits for an answer as long as it takes, and when cancelled it first asks the server to cancel and waits for
that. On a network that swallows packets neither ever ends. Here every wait has a deadline, and a connection whose
answer did not come in time is closed, never reused.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Generator
from typing import Any, Literal, TypeVar, cast

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap
from psycopg.types.numeric import Int8Dumper
from psycopg.waiting import Ready, Wait

from holdfast.errors import ConfigError, HoldfastError, StoreAuth, StoreTimeout, StoreUnavailable
from holdfast.store.postgres import sql
from holdfast.store.postgres.address import DatabaseAddress
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.errors import NoAnswer, explain, explain_connecting
from holdfast.store.postgres.pauses import pauses
from holdfast.store.postgres.swaps import SwapQuestion
from holdfast.store.records import Lane

T = TypeVar("T")
Row = tuple[Any, ...]
Share = Lane | Literal["writes", "work"]  # whose a pool's connection is while it is taken

CONNECT_TIMEOUT_S = 5
# The server's own limit comes before ours, so that a slow statement ends with an answer, not with a lost connection.
MARGIN_S = 0.25

# Every int as bigint: else psycopg sends the smallest type that fits, and each is a statement to prepare of its own.
_ADAPTERS = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_dumper(int, Int8Dumper)


class ServerConnection(psycopg.AsyncConnection[Row]):
    """`deadline` is a reading of the loop's clock; the holder sets it before asking anything."""

    deadline: float = math.inf
    idle_since: float = 0.0
    share: Share = "reads"
    prepared: set[bytes]  # what `ask` has prepared here; psycopg keeps its own account of the rest

    async def wait(
        self,
        gen: Generator[Any, Any, T],
        interval: float = 0.0,
        timeout: float | None = None,  # noqa: ASYNC109  psycopg's own signature
    ) -> T:
        """Drive one of psycopg's generators, as its own `wait` does, until the deadline."""
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await self.readiness(wanted))
        except StopIteration as done:
            return cast(T, done.value)

    async def readiness(self, wanted: int) -> int:
        loop = asyncio.get_running_loop()
        socket = self.pgconn.socket
        ready: asyncio.Future[int] = loop.create_future()
        timer = loop.call_at(self.deadline, _expire, ready) if self.deadline < math.inf else None
        if wanted & Wait.R:
            loop.add_reader(socket, _wake, ready, Ready.R)
        if wanted & Wait.W:
            loop.add_writer(socket, _wake, ready, Ready.W)
        try:
            return await ready
        finally:
            if timer is not None:
                timer.cancel()
            if wanted & Wait.R:
                loop.remove_reader(socket)
            if wanted & Wait.W:
                loop.remove_writer(socket)

    async def rows(self, statement: str, *values: Any) -> list[Row]:
        cursor = await self.execute(statement, values or None)
        return await cursor.fetchall() if cursor.description else []

    async def command(self, text: str) -> bytes:
        """A command without values, or several. Returns the last one's tag.

        Past psycopg, which would throw away all prepared statements after a ROLLBACK, ours among them.
        """
        answer = await self._exchange(lambda: self.pgconn.send_query(text.encode()))
        return answer.command_status or b""

    async def ask(self, question: SwapQuestion) -> set[str]:
        """A write of chats, past psycopg's cursor, which would spend a tenth of a commit's time on its values."""
        connection, statement = self.pgconn, question.statement
        if not self.may_prepare:
            return question.written(
                await self._exchange(lambda: connection.send_query_params(statement.text, question.values))
            )
        if statement.name not in self.prepared:
            await self._exchange(lambda: connection.send_prepare(statement.name, statement.text))
            self.prepared.add(statement.name)
        return question.written(
            await self._exchange(lambda: connection.send_query_prepared(statement.name, question.values))
        )

    @property
    def may_prepare(self) -> bool:
        return self.prepare_threshold is not None

    async def _exchange(self, send: Callable[[], None]) -> pq.abc.PGresult:
        connection = self.pgconn
        send()
        while connection.flush():
            if await self.readiness(Wait.RW) & Ready.R:
                connection.consume_input()
        answers: list[pq.abc.PGresult] = []
        while True:
            while connection.is_busy():
                await self.readiness(Wait.R)
                connection.consume_input()
            answer = connection.get_result()
            if answer is None:
                break
            answers.append(answer)
        for answer in answers:
            if (error := error_of(answer)) is not None:
                raise error
        return answers[-1]

    @property
    def is_free(self) -> bool:
        """Whole, and in no transaction: fit for the next one who asks."""
        return not self.closed and self.pgconn.transaction_status == pq.TransactionStatus.IDLE

    async def discard(self) -> None:
        with contextlib.suppress(psycopg.Error):
            await self.close()


def _wake(ready: "asyncio.Future[int]", how: int) -> None:
    if not ready.done():
        ready.set_result(how)


def _expire(ready: "asyncio.Future[int]") -> None:
    if not ready.done():
        ready.set_exception(NoAnswer("no answer before the deadline"))


def error_of(answer: pq.abc.PGresult) -> psycopg.Error | None:
    if answer.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return None
    code = (answer.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    words = (answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or answer.error_message).decode(errors="replace")
    try:
        return psycopg.errors.lookup(code)(words)
    except KeyError:
        return psycopg.OperationalError(words)


class ServerFacts:
    """What a connection learned about its server."""

    def __init__(self, row: Row) -> None:
        self.version: int
        (self.version, self.in_recovery, self.read_only, self.encoding, self.synchronous, self.fsync) = row[:6]
        self.now_ms: int = row[6]


class Connector:
    """Makes connections that are set up as we need them, and says in our words why one cannot be made."""

    def __init__(
        self,
        address: DatabaseAddress,
        clock: DatabaseClock,
        statement_timeout_s: float,
        on_other_origin: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.address = address
        self.facts: ServerFacts | None = None
        self.origin: str | None = None  # which server, and which branch of its history, as far as we may know
        self._asks_for_origin = True
        self._on_other_origin = on_other_origin
        self.connects = 0
        self._clock = clock
        timeout_ms = max(100, int((statement_timeout_s - MARGIN_S) * 1000))
        self._look = sql.look(settings=not address.pooled, schema=address.schema, timeout_ms=timeout_ms)

    async def connect(self, deadline: float, *, unless: Callable[[], bool] = lambda: False) -> ServerConnection:
        """Tries until the deadline while the server is starting, full or away; a wrong password is told at once.
        What it raises is one of ours, whatever went wrong: those who wait for it are many, and must hear of it.

        `unless` ends the trying when the caller has no need of it any more.
        """
        loop = asyncio.get_running_loop()
        reason: HoldfastError | None = None
        cause: BaseException | None = None
        for pause in pauses():
            give_up_at = loop.time() + CONNECT_TIMEOUT_S
            try:
                async with asyncio.timeout_at(min(deadline, give_up_at)):
                    return await self._connect(deadline)
            except psycopg.Error as error:
                reason, cause = explain_connecting(error, self.address), error
            except TimeoutError as error:
                # An attempt that our deadline cut short knows less than the one before it.
                if reason is None or give_up_at <= deadline:
                    reason = StoreTimeout(
                        f"{self.address} did not answer a connection attempt: is it there, and reachable?"
                    )
                    cause = error
            except Exception as error:  # noqa: BLE001  the system's: no thread for the name server, no memory
                reason = StoreUnavailable(f"{self.address} cannot be reached: {type(error).__name__}: {error}")
                cause = error
            if isinstance(reason, StoreAuth | ConfigError) or loop.time() + pause >= deadline:
                raise reason from cause
            await asyncio.sleep(pause)
            if unless():
                raise reason from cause
        raise AssertionError("pauses never end")

    async def connect_once(self) -> ServerConnection:
        """One attempt, without a deadline of its own: for a caller who has both. Raises as `connect` does."""
        try:
            return await self._connect(math.inf)
        except psycopg.Error as error:
            raise explain_connecting(error, self.address) from error
        except asyncio.CancelledError as error:
            # The half-made connection lives in psycopg's frames. It is to be closed now, not when none holds the
            # traceback any more.
            raise error.with_traceback(None) from None

    async def _connect(self, deadline: float) -> ServerConnection:
        threshold = None if self.address.pooled else 2
        connection = await ServerConnection.connect(
            self.address.conninfo,
            autocommit=True,
            prepare_threshold=threshold,
            context=_ADAPTERS,
        )
        connection.prepared = set()
        try:
            connection.deadline = deadline
            self.learn(ServerFacts((await connection.rows(self._look))[0]))
            await self._recognise(connection)
        except BaseException:
            await connection.discard()
            raise
        self.connects += 1
        return connection

    def learn(self, facts: ServerFacts) -> None:
        self.facts = facts
        self._clock.observe(facts.now_ms)

    async def _recognise(self, connection: ServerConnection) -> None:
        """Another server, or another branch of its history, may know less than the one before it."""
        if not self._asks_for_origin:
            return
        try:
            ((system, timeline),) = await connection.rows(sql.ORIGIN)
        except psycopg.Error:
            if connection.closed:
                raise
            self._asks_for_origin = False  # this role may not know, or this server has nothing of the kind
            return
        if timeline is None:
            return
        before, self.origin = self.origin, f"server {system}, timeline {int(timeline, 16)}"
        if before is not None and before != self.origin:
            self._on_other_origin(f"{before} was there before, now it is {self.origin}")

    def explain(self, error: psycopg.Error) -> HoldfastError:
        return explain(error, self.address)
