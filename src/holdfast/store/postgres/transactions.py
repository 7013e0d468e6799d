"""Transactions: what happens inside one, and the transactor, which runs work in them.

The same verbs as SQLite's. Here the work itself begins and commits, and locks what it is going to change, from the
top of a family down. A question whose connection was lost is never assumed to have happened, nor not to have: the
work runs again as long as there is time, finds out by its receipt, its commit id or its version what became of the
first time, and goes on from there. Work runs in tasks of the store: cancelling a waiter takes nothing back, and ends
only what reads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import capabilities

from holdfast.core.change import Change, Refused
from holdfast.core.codec import NOT_UNICODE, encode
from holdfast.core.commands import Command
from holdfast.core.kept_files import Aside
from holdfast.core.limits import Limits
from holdfast.core.notices import Notice
from holdfast.core.records import ChatRecord, KeptRule, Snapshot
from holdfast.core.transaction import CountFamily, ReadChat, ReadEntry, transact
from holdfast.errors import (
    HoldfastError,
    InvalidInput,
    NotFound,
    Outcome,
    RefusedError,
    StoreClosed,
    StoreTimeout,
    StoreUnavailable,
)
from holdfast.faults import reach
from holdfast.store.budgets import Steps
from holdfast.store.decisions import ChatWrite, raise_refused
from holdfast.store.kept_files import check_files_room, check_named
from holdfast.store.kept_rules import check_room, kept_rule_row
from holdfast.store.notices import NOTICE_COLUMNS, notice_rows
from holdfast.store.notify.bell import Bell, topics_of
from holdfast.store.postgres import sql, swaps
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.connection import MARGIN_S, Connector, Row, ServerConnection, Share
from holdfast.store.postgres.errors import COLLISION, READ_ONLY, Fate, explain, fate_of
from holdfast.store.postgres.pauses import pauses
from holdfast.store.postgres.pool import ConnectionPool
from holdfast.store.receipts import answer_of, check_receipt, decode_answer
from holdfast.store.records import Answer, Key, Lane, StoreOptions
from holdfast.store.remnants import Occupied, Remnant, Slice, remnant_of
from holdfast.store.rows import CHAT_COLUMNS, snapshot_of

T = TypeVar("T")

# How often a key or an id that another transaction took in the same moment is looked at again.
_COLLISIONS_MAX = 3
CALL_OFF_S = 2.0  # for the server to take note that the waiter is gone

Ring = Callable[[Iterable[str]], None]  # tells waiters, of this process and of others, of topics
Show = Callable[[Sequence[Change]], None]  # tells this process's witness what is committed

_BATCH = CHAT_COLUMNS.index("batch")

_WRITTEN = (
    *("write.chat.after", "write.journal.before", "write.journal.after"),
    *("write.calls.before", "write.calls.after", "write.queue.before", "write.queue.after"),
    *("write.spending.before", "write.spending.after"),
)

_decode = msgspec.json.Decoder(list[list[Any]]).decode


def snapshot_from(row: Row) -> Snapshot:
    """A row of `sql.READ_SNAPSHOT`."""
    *chat, calls, queue = row
    return snapshot_of(tuple(chat), _parts(calls), _parts(queue))


def _parts(text: str | None) -> Any:
    return _decode(text) if text is not None else ()


class Busy(Exception):
    """Another transaction holds a chat that would have to be waited for."""


class Transaction:
    """What work gets. It begins a transaction, or writes by single statements, each a transaction of its own."""

    def __init__(
        self,
        connection: ServerConnection,
        clock: DatabaseClock,
        limits: Limits,
        deadline: float,
        ring: Ring,
        show: Show,
        *,
        asked_before: bool,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._limits = limits
        self._deadline = deadline
        self.ring = ring
        self._show = show
        self._locked: dict[str, Row] = {}
        self.now = clock.now()
        self.asked_before = asked_before  # an earlier try may have been written
        self.maybe_written = False

    async def begin(self, isolation: str = "READ COMMITTED") -> None:
        await self._begin(isolation)
        reach("write.begun")

    async def begin_scan(self) -> None:
        """For a statement that may read whole tables: the server ends it when its waiter is gone."""
        await self._begin("READ COMMITTED READ ONLY")

    async def _begin(self, mode: str) -> None:
        left_s = self._deadline - asyncio.get_running_loop().time()
        left_ms = max(100, int((left_s - MARGIN_S) * 1000))
        await self._connection.command(sql.begin(mode, left_ms, left_ms + 2_000))

    async def rows(self, statement: str, *values: Any) -> list[Row]:
        return await self._connection.rows(statement, *values)

    async def named_rows(self, statement: str, **values: Any) -> list[Row]:
        cursor = await self._connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []

    async def planned_rows(self, statement: str, **values: Any) -> list[Row]:
        """As `named_rows`, planned anew each time: for a plan that has to change as the tables grow."""
        cursor = await self._connection.execute(statement, values, prepare=False)
        return await cursor.fetchall()

    async def look_at_clock(self) -> int:
        """The server's, now: for what is compared with an instant that a person chose."""
        ((server_ms,),) = await self.rows(sql.READ_CLOCK)
        self.now = self._clock.observe(server_ms)
        return self.now

    async def carry_out(self, steps: Steps[T]) -> T:
        try:
            statement, values = next(steps)
            while True:
                statement, values = steps.send(await self.named_rows(statement, **values))
        except StopIteration as done:
            answer: T = done.value
            return answer

    async def commit(self) -> None:
        reach("commit.before")
        self.maybe_written = True
        done = await self._connection.command("COMMIT")
        if done != b"COMMIT":
            self.maybe_written = False
            raise StoreUnavailable(f"the server answered {done!r} to COMMIT; nothing was written")
        reach("commit.after")
        reach("ack.before")

    async def write_alone(self, statement: str, *values: Any, points: tuple[str, str] | None = None) -> list[Row]:
        """One statement that is a transaction of its own."""
        reach("write.begun")
        if points is not None:
            reach(points[0])
            reach(points[1])
        reach("commit.before")
        self.maybe_written = True
        rows = await self._connection.rows(statement, *values)
        reach("commit.after")
        reach("ack.before")
        return rows

    def tell(self, changes: Sequence[Change]) -> None:
        """Of what is committed."""
        self._show(changes)
        self.ring(topics_of(changes))

    # --- chats --------------------------------------------------------------------------------------------------

    async def lock_with_ancestors(self, chat_id: str) -> bool:
        """Locks the top of the chat's family, its parent, then the chat. False if there is no such chat."""
        for row in await self.named_rows(sql.LOCK_WITH_ANCESTORS, id=chat_id):
            self._locked[row[0]] = row
        return chat_id in self._locked

    async def load(self, chat_id: str) -> Snapshot | None:
        """Locked until the end of the transaction, and as it is now."""
        if chat_id not in self._locked:
            found = await self.rows(sql.LOCK_CHAT, chat_id)
            if not found:
                return None
            self._locked[chat_id] = found[0]
        chat = self._locked[chat_id]
        ((server_ms, calls, queue),) = await self.named_rows(sql.READ_PARTS, id=chat_id, batch=chat[_BATCH])
        self.now = self._clock.observe(server_ms)
        return snapshot_of(chat, _parts(calls), _parts(queue))

    async def lock_all(self, chat_ids: Sequence[str]) -> None:
        """In one round trip, whatever their number."""
        for row in await self.rows(sql.LOCK_CHATS, list(chat_ids)):
            self._locked[row[0]] = row

    async def load_all(self, chat_ids: Sequence[str]) -> list[Snapshot]:
        """Of chats that this transaction has locked."""
        return [snapshot_from(row) for row in await self.rows(sql.READ_SNAPSHOTS, list(chat_ids))]

    async def load_if_free(self, chat_id: str) -> Snapshot | None:
        """As `load`, for who holds locks already that come behind this one: raises Busy where it would wait."""
        found = await self.rows(sql.LOCK_CHAT_IF_FREE, chat_id)
        if not found:
            if await self.rows(sql.IS_THERE, chat_id):
                raise Busy(chat_id)
            return None
        self._locked[chat_id] = found[0]
        return await self.load(chat_id)

    async def read(self, chat_id: str) -> Snapshot:
        """Not locked: for a transaction that sees one moment."""
        found = await self.rows(sql.READ_SNAPSHOT, chat_id)
        if not found:
            raise NotFound("chat", chat_id)
        return snapshot_from(found[0])

    async def check_unused(self, chat_id: str, command: str) -> Remnant | None:
        """Raises RefusedError where there is a chat. Returns what stands under its id without one."""
        ((server_ms, state, *left),) = await self.named_rows(sql.READ_STATE, id=chat_id)
        self.now = self._clock.observe(server_ms)
        if state is not None:
            raise RefusedError(f"there is a chat {chat_id!r} already", reason="state", state=state, command=command)
        return remnant_of(left) if left[0] is not None else None

    async def take_rows(self, chat_ids: Sequence[str], room: Slice) -> bool:
        """Delete what stands under these ids, as far as there is room. True: rows are left."""
        rows, size = room.rows, room.bytes
        await self.rows(sql.FILES.note, list(chat_ids))
        for statement in sql.TAKE_ROWS:
            if rows <= 0 or size <= 0:
                return True
            ((count, taken),) = await self.named_rows(statement, ids=list(chat_ids), rows=rows, bytes=size)
            rows, size = rows - count, size - taken
            reach("delete.rows")
        return rows <= 0 or size <= 0

    async def line_stamp(self, known: ChatRecord) -> int | None:
        """What the line that `known` ends with is stamped with now; None where it is gone."""
        found = await self.rows(sql.READ_LINE_STAMP, known.id, known.seq)
        return found[0][0] if found else None

    async def must_load(self, chat_id: str) -> Snapshot:
        if chat_id not in self._locked:
            await self.lock_with_ancestors(chat_id)
        snapshot = await self.load(chat_id)
        if snapshot is None:
            raise NotFound("chat", chat_id)
        return snapshot

    async def apply(
        self, snapshot: Snapshot, commands: Sequence[Command], *, waits: bool = True
    ) -> tuple[Change, ...]:
        """What the commands do to this chat and to others. Raises what refuses them, and Busy if it may not wait."""
        load = self.load if waits else self.load_if_free
        steps = transact(snapshot, commands, self.now, self._limits)
        try:
            need = next(steps)
            while True:
                if isinstance(need, ReadChat):
                    need = steps.send(await load(need.chat_id))
                elif isinstance(need, CountFamily):
                    need = steps.send((await self.rows(sql.COUNT_FAMILY, need.root_id))[0][0])
                elif isinstance(need, ReadEntry):
                    entry = await self.rows(sql.READ_ENTRY, need.chat_id, need.seq)
                    need = steps.send(entry[0][0] if entry else None)
                else:
                    children = await self.rows(sql.READ_BUSY_BELOW, need.root_id, need.chat_id, need.chat_id)
                    need = steps.send(tuple(child[0] for child in children))
        except StopIteration as stop:
            outcome: tuple[Change, ...] | Refused = stop.value
        if isinstance(outcome, Refused):
            raise_refused(outcome)
        return outcome

    async def write(self, writes: Sequence[ChatWrite]) -> None:
        """Snapshots locked in this transaction cannot have moved: a miss here is a fault, not a race."""
        if not writes:
            return
        reach("write.chat.before")
        for write in writes:
            if write.cut_from is not None:
                await self.rows(sql.CUT_HISTORY, write.after.id, write.cut_from)
                await self.rows(sql.CUT_COMPACTIONS, write.after.id, write.cut_from)
        new = [write for write in writes if write.before is None]
        old = [write for write in writes if write.before is not None]
        if new and old:
            # A chat that another one spawns: who makes one by itself has looked.
            for (chat_id,) in await self.rows(sql.ANY_REMNANT_OF, [write.after.id for write in new]):
                raise Occupied(chat_id, taken=False)
        if new:
            await self._connection.ask(swaps.insert(new))
        if old:
            swapped = await self._connection.ask(swaps.swap(old))
            if len(swapped) != len(old):
                ids = ", ".join(write.after.id for write in old)
                raise StoreUnavailable(f"chat {ids} changed inside a transaction; nothing was written")
        for write in old:
            if write.names_agent:
                await self.rows(sql.NAME_AGENT, write.after.agent, write.after.id)
        for write in writes:
            if write.compaction is not None:
                record = write.compaction
                summary = record.summary.replace("\0", "\N{REPLACEMENT CHARACTER}")
                await self.rows(sql.PUT_COMPACTION, write.after.id, record.upto, summary, record.created_at)
            if write.kept:
                await self._keep(write.kept)
        reach_written()

    async def _keep(self, rules: Sequence[KeptRule]) -> None:
        """Raises LimitReached, and then nothing is written."""
        owner = rules[0].owner
        await self.rows(sql.LOCK_KEPT_RULES, owner)
        for rule in rules:
            await self.rows(sql.KEPT_RULES.insert, *kept_rule_row(rule))
        ((count,),) = await self.rows(sql.KEPT_RULES.in_force, owner, self.now)
        check_room(count, self._limits.kept_rules_max)

    async def keep_files(self, chat_id: str, aside: Aside) -> None:
        """Raises LimitReached, and InvalidInput where one is named that is not here; then nothing is written."""
        if aside.named:
            found = await self.rows(sql.FILES.held, chat_id, encode(sorted(aside.named)).decode())
            check_named(aside.named, {digest for (digest,) in found})
        for digest, data in sorted(aside.contents):
            await self.rows(sql.FILES.put, digest, len(data), data)
            await self.rows(sql.FILES.use, chat_id, digest, len(data))
        if aside.contents:
            ((size,),) = await self.rows(sql.FILES.used_bytes, chat_id)
            check_files_room(int(size), self._limits.chat_files_bytes_max)

    async def notice(self, *notices: Notice) -> None:
        """Tells every endpoint that hears of it, once this transaction is committed."""
        given = [dict(zip(NOTICE_COLUMNS, row, strict=True)) for row in notice_rows(notices)]
        await self.rows(sql.TELL, encode(given).decode())

    # --- receipts -------------------------------------------------------------------------------------------------

    async def read_receipt(self, key: Key, hash: str) -> Answer | None:
        found = await self.rows(sql.READ_RECEIPT, key.principal, key.key)
        if not found:
            return None
        check_receipt(key, found[0][0], hash)
        return decode_answer(found[0][1])

    async def keep_receipt(self, key: Key, hash: str, changes: Sequence[Change]) -> Answer:
        answer = answer_of(changes)
        await self.put_receipt(key, hash, answer)
        return answer

    async def put_receipt(self, key: Key, hash: str, answer: Answer) -> None:
        reach("write.receipt.before")
        body = encode(answer).decode()
        holds_text_of = answer.chat_id if answer.dropped else None
        await self.rows(sql.PUT_RECEIPT, key.principal, key.key, hash, body, holds_text_of, self.now)
        reach("write.receipt.after")


def reach_written() -> None:
    """One statement wrote all of it: these are the points between which nothing can come."""
    for point in _WRITTEN:
        reach(point)


Work = Callable[[Transaction], Awaitable[T]]


class Transactor:
    """Runs work, in tasks of its own, until it is answered or the deadline has come."""

    pool: ConnectionPool  # once it was opened

    def __init__(
        self, connector: Connector, clock: DatabaseClock, options: StoreOptions, bell: Bell, ring: Ring
    ) -> None:
        self._connector = connector
        self._clock = clock
        self._options = options
        self._bell = bell
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

    async def run_steps(self, steps: Callable[[], Steps[T]]) -> T:
        async def work(transaction: Transaction) -> T:
            await transaction.begin()
            answer = await transaction.carry_out(steps())
            await transaction.commit()
            return answer

        return await self.write(work, "work")

    async def write_alone(self, statement: str, *values: Any, points: tuple[str, str] | None = None) -> list[Row]:
        """For statements that change nothing when they are repeated."""
        return await self.write(
            lambda transaction: transaction.write_alone(statement, *values, points=points), "work"
        )

    async def forget(self, statement: str, *values: Any) -> list[Row]:
        return await self.write_alone(statement, *values)

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
                connection,
                self._clock,
                self._options.limits,
                deadline,
                self._ring,
                self._bell.show,
                asked_before=maybe_written,
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
