"""Transactions: what happens inside one, and the transactor, which runs work in them.

The same verbs as PostgreSQL's. Writes run in the one writer thread, where the other writers wait meanwhile, so there
is nothing to lock; reads run in a few reader threads, and each sees one moment. None is awaited beyond the deadline.
Work that was taken goes on without its waiter; work that was not is withdrawn. A reader's statement whose waiter gave
up is interrupted, so that its thread is free for the next one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.core.change import Change, Refused
from holdfast.core.codec import encode
from holdfast.core.commands import Command
from holdfast.core.kept_files import Aside
from holdfast.core.notices import Notice
from holdfast.core.records import ChatRecord, KeptRule, Snapshot
from holdfast.core.transaction import CountFamily, ReadChat, ReadEntry, transact
from holdfast.errors import NotFound, RefusedError, StoreClosed, StoreError, StoreGone, StoreTimeout, StoreUnavailable
from holdfast.faults import reach
from holdfast.store.budgets import Steps
from holdfast.store.decisions import ChatWrite, raise_refused
from holdfast.store.kept_files import check_files_room, check_named
from holdfast.store.kept_rules import check_room, kept_rule_row
from holdfast.store.notices import notice_rows
from holdfast.store.notify.bell import Bell
from holdfast.store.receipts import answer_of, check_receipt, decode_answer
from holdfast.store.records import Answer, Key, Lane, StoreOptions
from holdfast.store.remnants import Occupied, Remnant, Slice, remnant_of, rows_within
from holdfast.store.rows import (
    CHAT_COLUMNS,
    MOVING_COLUMNS,
    Row,
    call_row,
    chat_row,
    moves_only_a_step,
    moving_row,
    snapshot_of,
    step_of,
)
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.checkpoints import leave
from holdfast.store.sqlite.connection import FileIdentity, connect, reading
from holdfast.store.sqlite.errors import DAMAGED, explain, translated
from holdfast.store.sqlite.read_only import look
from holdfast.store.sqlite.writer import WriterThread
from holdfast.system import threads

T = TypeVar("T")

# A lane each, with threads of its own: what may read the whole table never stands in the way of what reads one chat.
LANES: Mapping[Lane, int] = {"reads": 4, "lists": 2, "searches": 2}
# How often a reader asks whether its waiter is still there: some milliseconds of SQLite's work.
STEPS_BETWEEN_LOOKS = 20_000

_BATCH = CHAT_COLUMNS.index("batch")
_WORK_VALUES = itemgetter(*(n for n, name in enumerate(MOVING_COLUMNS) if name not in sql.OWNERSHIP_COLUMNS))


class Transaction:
    """What work gets."""

    def __init__(self, connection: apsw.Connection, options: StoreOptions) -> None:
        self.connection = connection
        self._options = options
        # Rung once the transaction is committed:
        self.topics: tuple[str, ...] = ()
        self.told: tuple[Change, ...] = ()

    @cached_property
    def now(self) -> int:
        return self._options.clock.wall_ms()

    def rows(self, statement: str, *values: Any) -> list[Row]:
        return self.connection.execute(statement, values).fetchall()

    def rows_up_to(self, bytes_max: int, statement: str, *values: Any) -> list[Row]:
        """The row whose body, the last column, reaches so many bytes is the last: what lies behind is not read."""
        found: list[Row] = []
        left = bytes_max
        with closing(self.connection.execute(statement, values)) as cursor:
            for row in cursor:
                found.append(row)
                left -= len((row[-1] or "").encode())
                if left <= 0:
                    break
        return found

    def named_rows(self, statement: str, **values: Any) -> list[Row]:
        return self.connection.execute(statement, values).fetchall()

    def row(self, statement: str, *values: Any) -> Row | None:
        return self.connection.execute(statement, values).fetchone()

    def change(self, statement: str, *values: Any) -> int:
        """How many rows it inserted, changed or deleted."""
        self.connection.execute(statement, values)
        return self.connection.changes()

    def change_each(self, statement: str, values: Iterable[Row]) -> None:
        self.connection.executemany(statement, values)

    def carry_out(self, steps: Steps[T]) -> T:
        try:
            statement, values = next(steps)
            while True:
                statement, values = steps.send(self.named_rows(statement, **values))
        except StopIteration as done:
            answer: T = done.value
            return answer

    def pragma(self, name: str) -> Any:
        return self.connection.pragma(name)

    def ring(self, topics: Iterable[str]) -> None:
        self.topics += tuple(topics)

    def tell(self, changes: Iterable[Change]) -> None:
        self.told += tuple(changes)

    # --- chats --------------------------------------------------------------------------------------------------

    def load(self, chat_id: str) -> Snapshot | None:
        chat = self.row(sql.READ_CHAT, chat_id)
        if chat is None:
            return None
        calls = self.rows(sql.READ_CALLS, chat_id, chat[_BATCH]) if chat[_BATCH] is not None else ()
        return snapshot_of(chat, calls, self.rows(sql.READ_QUEUE, chat_id))

    def must_load(self, chat_id: str) -> Snapshot:
        snapshot = self.load(chat_id)
        if snapshot is None:
            raise NotFound("chat", chat_id)
        return snapshot

    def check_unused(self, chat_id: str, command: str) -> None:
        """Raises RefusedError where there is a chat."""
        found = self.row(sql.READ_STATE, chat_id)
        if found is not None:
            raise RefusedError(
                f"there is a chat {chat_id!r} already", reason="state", state=found[0], command=command
            )

    def read_remnant(self, chat_id: str) -> Remnant | None:
        """What stands under an id without a chat."""
        found = self.row(sql.READ_REMNANT, chat_id)
        return remnant_of(found) if found is not None else None

    def take_rows(self, chat_id: str, room: Slice) -> Slice | None:
        """Delete what stands under an id, as far as there is room. Returns the room that is left; None: rows are."""
        self.change(sql.FILES.note, chat_id)
        for heap in sql.HEAPS:
            found = self.rows(heap.sizes, chat_id, room.rows + 1)
            sizes = [(0, size or 0) for *_, size in found]
            count = rows_within(sizes, room) if room.rows > 0 and room.bytes > 0 else 0
            if count == len(found):
                if found:
                    self.change(heap.delete_all, chat_id)
            else:
                self.change_each(heap.delete_one, [(chat_id, *key) for *key, _ in found[:count]])
            reach("delete.rows")
            if count < len(found):
                return None
            room = Slice(rows=room.rows - count, bytes=room.bytes - sum(size for _, size in sizes))
        return room

    def line_stamp(self, known: ChatRecord) -> int | None:
        """What the line that `known` ends with is stamped with now; None where it is gone."""
        found = self.row(sql.READ_LINE_STAMP, known.id, known.seq)
        return found[0] if found is not None else None

    def apply(self, snapshot: Snapshot, commands: Sequence[Command]) -> tuple[Change, ...]:
        """What the commands do to this chat and to others. Raises what refuses them."""
        steps = transact(snapshot, commands, self.now, self._options.limits)
        try:
            need = next(steps)
            while True:
                if isinstance(need, ReadChat):
                    need = steps.send(self.load(need.chat_id))
                elif isinstance(need, CountFamily):
                    need = steps.send(self.rows(sql.COUNT_FAMILY, need.root_id)[0][0])
                elif isinstance(need, ReadEntry):
                    entry = self.row(sql.READ_ENTRY, need.chat_id, need.seq)
                    need = steps.send(entry[0] if entry is not None else None)
                else:
                    children = self.rows(sql.READ_BUSY_BELOW, need.root_id, need.chat_id, need.chat_id)
                    need = steps.send(tuple(child[0] for child in children))
        except StopIteration as stop:
            outcome: tuple[Change, ...] | Refused = stop.value
        if isinstance(outcome, Refused):
            raise_refused(outcome)
        return outcome

    def write(self, writes: Sequence[ChatWrite]) -> None:
        """Snapshots read in this transaction cannot have moved: a miss here is a fault, not a race."""
        for write in writes:
            if not self.swap(write):
                raise StoreUnavailable(f"chat {write.after.id} changed inside a transaction; nothing was written")
            if write.kept:
                self._keep(write.kept)

    def _keep(self, rules: Sequence[KeptRule]) -> None:
        """Raises LimitReached, and then nothing is written."""
        self.change_each(sql.KEPT_RULES.insert, map(kept_rule_row, rules))
        ((count,),) = self.rows(sql.KEPT_RULES.in_force, rules[0].owner, self.now)
        check_room(count, self._options.limits.kept_rules_max)

    def keep_files(self, chat_id: str, aside: Aside) -> None:
        """Raises LimitReached, and InvalidInput where one is named that is not here; then nothing is written."""
        if aside.named:
            held = {digest for (digest,) in self.rows(sql.FILES.held, chat_id, encode(sorted(aside.named)).decode())}
            check_named(aside.named, held)
        for digest, data in sorted(aside.contents):
            self.change(sql.FILES.put, digest, len(data), data)
            self.change(sql.FILES.use, chat_id, digest, len(data))
        if aside.contents:
            ((size,),) = self.rows(sql.FILES.used_bytes, chat_id)
            check_files_room(size, self._options.limits.chat_files_bytes_max)

    def swap(self, write: ChatWrite) -> bool:
        """False: the chat is not what the change was decided on any more; nothing was written."""
        return swap(self.connection, write)

    def notice(self, *notices: Notice) -> None:
        """Tells every endpoint that hears of it, once this transaction is committed."""
        self.change_each(sql.TELL, notice_rows(notices))

    # --- receipts -------------------------------------------------------------------------------------------------

    def read_receipt(self, key: Key, hash: str) -> Answer | None:
        receipt = self.row(sql.READ_RECEIPT, key.principal, key.key)
        if receipt is None:
            return None
        check_receipt(key, receipt[0], hash)
        return decode_answer(receipt[1])

    def keep_receipt(self, key: Key, hash: str, changes: Sequence[Change]) -> Answer:
        answer = answer_of(changes)
        self.put_receipt(key, hash, answer)
        return answer

    def put_receipt(self, key: Key, hash: str, answer: Answer) -> None:
        reach("write.receipt.before")
        holds_text_of = answer.chat_id if answer.dropped else None
        body = encode(answer).decode()
        self.change(sql.PUT_RECEIPT, key.principal, key.key, hash, body, holds_text_of, self.now)
        reach("write.receipt.after")


Work = Callable[[Transaction], T]


def swap(connection: apsw.Connection, write: ChatWrite) -> bool:
    """Write one chat's difference, if it is still what the change was decided on. False: nothing was written."""
    reach("write.chat.before")
    execute, before, after = connection.execute, write.before, write.after
    if before is None:
        if (left := execute(sql.READ_REMNANT, (after.id,)).fetchone()) is not None:
            raise Occupied(after.id, taken=remnant_of(left).source_id is not None)
        execute(sql.INSERT_CHAT, chat_row(after))
    else:
        guard = (after.id, before.stamp, before.version)
        moved = moving_row(after)
        if moves_only_a_step(moving_row(before), moved):
            execute(sql.UPDATE_CHAT_STEP, step_of(moved) + guard)
        elif before.worker == after.worker and before.wake_at == after.wake_at:
            execute(sql.UPDATE_CHAT_WORK, _WORK_VALUES(moved) + guard)
        else:
            execute(sql.UPDATE_CHAT, moved + guard)
        if connection.changes() != 1:
            return False
        if write.names_agent:
            execute(sql.NAME_AGENT, (after.agent, after.id))
    reach("write.chat.after", "write.journal.before")
    if write.cut_from is not None:
        execute(sql.CUT_HISTORY, (after.id, write.cut_from))
        execute(sql.CUT_COMPACTIONS, (after.id, write.cut_from))
    for line in write.journal:
        execute(sql.INSERT_JOURNAL, (after.id, *line))
    if write.compaction is not None:
        record = write.compaction
        execute(sql.PUT_COMPACTION, (after.id, record.upto, record.summary, record.created_at))
    if write.ended_attempt is not None:
        execute(sql.DROP_DELTAS, (after.id, write.ended_attempt))
    reach("write.journal.after", "write.calls.before")
    for call in write.calls:
        execute(sql.PUT_CALL, (after.id, *call_row(call)))
    reach("write.calls.after", "write.queue.before")
    for message_id in write.queue_drop:
        execute(sql.DROP_QUEUED, (after.id, message_id))
    for queued in write.queue_put:
        body = bytes(queued.body).decode()
        execute(sql.PUT_QUEUED, (after.id, queued.id, queued.rank, queued.mode, body))
    for notice in write.notices:
        execute(sql.TELL, notice)
    reach("write.queue.after", "write.spending.before")
    for spent in write.spending:
        execute(sql.BUDGETS.insert_line, spent)
    for reservation in write.settled:
        execute(sql.BUDGETS.settle, (reservation,))
    reach("write.spending.after")
    return True


def _withdraw(job: threads.Job[Any]) -> bool:
    return job.withdraw()


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
        try:
            connection = connect(self._path, read_only=True, vfs=self._vfs, synchronous=self._synchronous)
        except StoreUnavailable:
            identity.check()  # deleted just then: that is no passing trouble
            raise
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
            try:
                return self._read_once(work, connection)
            except DAMAGED:
                # What was read may have been wrong, and not what is there: nothing of it is kept for the second.
                connection.release_memory()
                with translated(self._path):
                    return self._read_once(work, connection)
            except (apsw.Error, UnicodeError) as error:
                raise explain(error, self._path) from error

        def at_a_look(_: None) -> T:
            with translated(self._path), look(self._path, self._vfs) as connection:
                connection.set_progress_handler(lambda: job.unwanted, STEPS_BETWEEN_LOOKS)
                return work(Transaction(connection, self._options))

        how = in_one_transaction if self.why_read_only is None else at_a_look
        job: threads.Job[T] = threads.Job(how, asyncio.get_running_loop())
        pool = self._readers[lane]
        pool.submit(job)
        return await self._wait(job, pool.give_up)

    def _read_once(self, work: Work[T], connection: apsw.Connection) -> T:
        with reading(connection):
            return work(Transaction(connection, self._options))

    async def rows(self, statement: str, *values: Any, lane: Lane = "reads") -> list[Row]:
        return await self.read(lambda transaction: transaction.rows(statement, *values), lane)

    async def named_rows(self, statement: str, **values: Any) -> list[Row]:
        return await self.read(lambda transaction: transaction.named_rows(statement, **values))

    async def scan(self, statement: str, lane: Lane, **values: Any) -> list[Row]:
        return await self.read(lambda transaction: transaction.named_rows(statement, **values), lane)

    async def write(self, work: Work[T]) -> T:
        """What the work tells of is rung once it is committed."""

        def in_the_batch(connection: apsw.Connection) -> tuple[T, Transaction]:
            transaction = Transaction(connection, self._options)
            return work(transaction), transaction

        job = threads.Job(in_the_batch, asyncio.get_running_loop())
        self.check_writable().submit(job)
        answer, done = await self._wait(job, _withdraw)
        self._bell.tell(done.told, done.topics)
        return answer

    async def run_steps(self, steps: Callable[[], Steps[T]]) -> T:
        return await self.write(lambda transaction: transaction.carry_out(steps()))

    async def write_alone(self, statement: str, *values: Any) -> list[Row]:
        return await self.write(lambda transaction: transaction.rows(statement, *values))

    async def forget(self, statement: str, *values: Any) -> list[Row]:
        def work(transaction: Transaction) -> list[Row]:
            self.scrub()
            return transaction.rows(statement, *values)

        return await self.write(work)

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
