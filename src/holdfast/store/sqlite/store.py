"""The SQLite store: writes go to the one writer thread, reads to a few reader threads."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.core.apply import create
from holdfast.core.change import Change, Refused
from holdfast.core.codec import encode
from holdfast.core.commands import Claim, Command, Delete, Repair
from holdfast.core.fork import fork
from holdfast.core.leases import LOOKS_PER_TTL, LeaseWatch
from holdfast.core.records import Chat, Compaction, Lease, LeaseEnd, NewChat, Role, Snapshot
from holdfast.core.transaction import CountFamily, ReadChat, ReadEntry, transact
from holdfast.errors import (
    ConfigError,
    LeaseLost,
    NotFound,
    RecordError,
    RefusedError,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreGone,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)
from holdfast.faults import reach
from holdfast.store.checks import check_expired, page_size
from holdfast.store.claims import claim, in_turn, is_suspect
from holdfast.store.contract import LeaseLine, Store
from holdfast.store.cursor import After, Place, parse, placed
from holdfast.store.decisions import decide_ahead, decided, raise_refused
from holdfast.store.incidents import WENT_BACK
from holdfast.store.liveness import JOURNAL_AHEAD, NEXT_QUEUED, NEXT_TORN, NEXT_WAITING, SWEPT_MAX, liveness_query
from holdfast.store.open_calls import OPEN_CALLS_MAX, Asked, asked_of
from holdfast.store.pages import page_of
from holdfast.store.receipts import PRUNED_MAX, answer_of, request_of
from holdfast.store.records import (
    ALL_CHATS,
    PAGE_ROWS,
    Answer,
    ChatFilter,
    ChatLine,
    ChildCounts,
    Children,
    DeltaBatch,
    DeltaRow,
    Forking,
    Held,
    HistoryRow,
    Key,
    Lane,
    Located,
    Page,
    Size,
    StoreOptions,
    Violation,
)
from holdfast.store.remnants import (
    Remnant,
    Slice,
    copied_so_far,
    next_copy,
    record_of,
    remnant_of,
    remnant_row,
    without_first_line,
)
from holdfast.store.retention import Amount, Cutoffs, Leftover
from holdfast.store.rows import chat_line, lease_of, violation
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.checkpoints import in_doubt, leave, write_anew
from holdfast.store.sqlite.connection import (
    DAMAGED,
    FileIdentity,
    check_place,
    connect,
    lock_path,
    reading,
    translated,
)
from holdfast.store.sqlite.leases import SqliteLeaseLine, in_use_elsewhere, located
from holdfast.store.sqlite.opening import Opening
from holdfast.store.sqlite.read_only import check_schema, look
from holdfast.store.sqlite.schema import migrate
from holdfast.store.sqlite.transactions import (
    Values,
    check_unused,
    line_stamp,
    load,
    must_load,
    read_receipt,
    read_remnant,
    row,
    rows,
    swap,
    take_rows,
    write_all,
)
from holdfast.store.sqlite.wakes import SqliteWakes
from holdfast.store.sqlite.writer import WAL_BOUND_BYTES, Writer
from holdfast.store.stamps import check_past
from holdfast.store.unheard_claims import Unheard
from holdfast.system import threads
from holdfast.system.clock import boot_id

T = TypeVar("T")

log = logging.getLogger(__name__)

WATCH_S = 0.5  # how often the leases of other boots are looked at, when the store is opened
# A lane each, with threads of its own: what may read the whole table never stands in the way of what reads one chat.
LANES: Mapping[Lane, int] = {"reads": 4, "lists": 2, "searches": 2}
# How often a reader asks whether anybody still waits: some milliseconds of SQLite's work.
STEPS_BETWEEN_LOOKS = 20_000
_LIVENESS = liveness_query()
_NEXT_TORN = NEXT_TORN.format(after="?", limit=SWEPT_MAX)
_LIVENESS_AMONG = liveness_query(waiting="SELECT value FROM json_each(?1)", queued="SELECT value FROM json_each(?2)")
_NEXT_WAITING, _NEXT_QUEUED = (text.format(after="?", limit=SWEPT_MAX) for text in (NEXT_WAITING, NEXT_QUEUED))


class _Waiter(NamedTuple):
    """Who waits for a job."""

    until: float
    give_up: Callable[[threads.Job[Any]], bool]  # true if it had not begun


class SqliteStore(Store):
    # A few milliseconds: every other writer waits for it.
    slice = Slice(rows=500, bytes=1 << 19)

    def __init__(
        self,
        location: str,
        options: StoreOptions,
        *,
        vfs: str | None = None,
        synchronous: str = "FULL",
        private: bool = False,
    ) -> None:
        """`private`: a copy of which nobody else knows. Whose leases are in it is not looked at."""
        super().__init__(options)
        self._private = private
        self.path = _path_of(location)
        self._vfs = vfs
        self._synchronous = synchronous
        self._host = boot_id()
        self._writer: Writer | None = None
        self._readers: dict[Lane, threads.Pool] = {}
        self._identity: FileIdentity | None = None  # of the file that was opened
        self._told_gone = False
        self._strangers = False  # leases of another boot were there when it was opened
        self._left_over = False  # rows without a chat were
        self._waiting: dict[threads.Job[Any], _Waiter] = {}  # the soonest first
        self._alarm: asyncio.TimerHandle | None = None  # while anybody waits
        self._opening_or_closing = asyncio.Lock()
        self._unheard = Unheard()

    def __str__(self) -> str:
        return self.path

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self, wait_s: float = 0.0) -> None:
        async with self._opening_or_closing:
            if self._readers:
                return
            try:
                await self._open(wait_s)
            except (StoreReadOnly, StoreFull, StoreUnavailable) as error:
                if not self.options.only_reads:
                    raise
                await self._open_to_look(error)

    async def _open(self, wait_s: float) -> None:
        self._writer = await Opening(self.path, self._prepare).writer(max(wait_s, self.options.deadline_s))
        self._writer.start()
        self._identity = self._writer.identity
        self._told_gone = False
        self._readers = {
            lane: threads.Pool(f"sqlite-{lane}", size, self._open_reader, self._leave) for lane, size in LANES.items()
        }
        try:
            if self._strangers and not self.options.only_reads and not self._private:
                await self._await_other_machines()
        except BaseException:
            await self._close_threads()
            raise
        await self._listen_to(
            SqliteWakes(
                self.path,
                self._open_reader,
                interval_s=self.options.poll_interval_s / 5,
                needed=lambda: self.bell.awaited,
            )
        )
        if self._left_over and not self.options.only_reads:
            self._clear_later()

    async def _await_other_machines(self) -> None:
        """A lease of another boot may be this machine's, from before it was started again, or another machine's that
        has the file over a network. A free lock beside the file tells, and so does a number that moves. Where neither
        does, the lease is watched for its TTL.
        """
        watch, told = LeaseWatch(), False
        while True:
            leases = [lease for lease in await self.list_workers() if lease.host != self._host]
            for lease in leases:
                if watch.moved(lease):
                    raise in_use_elsewhere(self.path, lease)
            silent = watch.look(leases, self.options.clock.boot_ms())
            left = [lease for lease in leases if lease.ended is None and await self._end(lease, silent) is None]
            if not left:
                return
            ttl_s = max(lease.ttl_ms for lease in left) / 1000
            if not told:
                told = True
                words = "%s may be in use by worker %s of another boot or machine: watching its lease for %g s"
                extra = {"action": "store.waiting", "worker": left[0].worker, "wait_s": ttl_s}
                log.warning(words, self.path, left[0].worker, ttl_s, extra=extra)
            await asyncio.sleep(min(WATCH_S, min(lease.ttl_ms for lease in left) / 1000 / LOOKS_PER_TTL))

    async def _open_to_look(self, why: StoreError) -> None:
        """Without a writer, and without anybody who tells us of changes."""
        self._readers = {lane: threads.Pool(f"sqlite-{lane}", size) for lane, size in LANES.items()}
        self.why_read_only = why
        try:
            self.schema_version = await self._read(lambda connection: check_schema(connection, self.path))
            if self.schema_version is None:
                raise why  # there is nothing to look at
        except BaseException:
            await self._close_threads()
            raise

    def _prepare(self, migrating: Callable[[], None]) -> Writer:
        check_place(self.path)
        write_anew(self.path, self._vfs)
        connection = connect(self.path, vfs=self._vfs, synchronous=self._synchronous)
        try:
            with translated(self.path):
                self.schema_version = migrate(connection, self.path, migrating)
                leases = [lease_of(found) for found in rows(connection, sql.LIST_WORKERS)]
                self._strangers = any(lease.host != self._host and lease.ended is None for lease in leases)
                self._left_over = row(connection, sql.ANY_REMNANT) is not None
            return Writer(self.path, connection)
        except BaseException:
            leave(connection, self.path)
            raise

    def _open_reader(self) -> apsw.Connection:
        """Never of another file that was put in the place of ours: SQLite would take our WAL for that file's own, and
        write what is in it into a database that it does not belong to.
        """
        identity = self._identity
        assert identity is not None
        identity.check()
        connection = connect(self.path, read_only=True, vfs=self._vfs, synchronous=self._synchronous)
        try:
            identity.check()
        except BaseException:
            leave(connection, self.path)
            raise
        return connection

    def _leave(self, connection: apsw.Connection) -> None:
        leave(connection, self.path)

    async def close(self) -> None:
        async with self._opening_or_closing:
            await self._close()

    @property
    def write_lock_path(self) -> str | None:
        return os.path.abspath(lock_path(self.path))

    @property
    def gone(self) -> bool:
        identity = self._identity
        return self._writer is not None and identity is not None and not identity.holds

    async def _close(self) -> None:
        await self._stop_clearing()
        try:
            if self.wakes is not None:
                await self.wakes.stop()
        finally:
            await self._close_threads()

    async def _close_threads(self) -> None:
        writer, readers = self._writer, self._readers
        self._writer = self.why_read_only = None
        self._readers = {}
        until = asyncio.get_running_loop().time() + self.options.deadline_s
        for pool in readers.values():
            pool.stop()
        await self._ended(lambda: not any(pool.thread_count for pool in readers.values()), until)
        # After the readers: the last connection to be closed removes the WAL, and a reader that had still to open its
        # own would take that for a database that somebody deleted.
        if writer is not None:
            writer.stop()
            await self._ended(lambda: not writer.running, until)
        for job, waiter in self._waiting.items():
            self._give_up(job, waiter)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.bell.ring_all()

    async def _ended(self, ended: Callable[[], bool], until: float) -> None:
        """Or stuck in the kernel at the deadline: daemon threads, left behind."""
        while not ended():
            if asyncio.get_running_loop().time() > until:
                break
            await asyncio.sleep(0.002)

    # --- threads ------------------------------------------------------------------------------------------------

    async def _read(self, work: Callable[[apsw.Connection], T], lane: Lane = "reads") -> T:
        """A statement that nobody waits for any more is interrupted, so that its thread is free for the next one."""
        if not self._readers:
            raise StoreClosed("the store is not open")

        def in_one_transaction(connection: apsw.Connection) -> T:
            assert self._identity is not None
            self._identity.check()  # an open connection goes on reading a file that was deleted, as if nothing were
            connection.set_progress_handler(lambda: job.unwanted, STEPS_BETWEEN_LOOKS)
            with translated(self.path):
                try:
                    with reading(connection):
                        return work(connection)
                except DAMAGED:
                    # What was read may have been wrong, and not what is there: nothing of it is kept for the second.
                    connection.release_memory()
                    with reading(connection):
                        return work(connection)

        def at_a_look(_: None) -> T:
            with translated(self.path), look(self.path, self._vfs) as connection:
                connection.set_progress_handler(lambda: job.unwanted, STEPS_BETWEEN_LOOKS)
                return work(connection)

        how = in_one_transaction if self.why_read_only is None else at_a_look
        job: threads.Job[T] = threads.Job(how, asyncio.get_running_loop())
        pool = self._readers[lane]
        pool.submit(job)
        return await self._wait(job, pool.give_up)

    async def _rows(self, statement: str, values: Values = (), lane: Lane = "reads") -> list[tuple[Any, ...]]:
        return await self._read(lambda connection: rows(connection, statement, values), lane)

    async def _write(self, work: Callable[[apsw.Connection], T]) -> T:
        if self._writer is None:
            raise self.why_read_only or StoreClosed("the store is not open")
        job = threads.Job(work, asyncio.get_running_loop())
        self._writer.submit(job)
        return await self._wait(job, lambda job: job.withdraw())

    async def _wait(self, job: threads.Job[T], give_up: Callable[[threads.Job[Any]], bool]) -> T:
        """Bounded. A job that was taken goes on without its waiter; one that was not is withdrawn."""
        until = job.loop.time() + self.options.deadline_s
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
        """Whoever waits for news looks, and learns of it. Once: who is told looks, and would tell everybody again."""
        if not self._told_gone:
            self._told_gone = True
            self.bell.ring_all()

    def _end_overdue(self) -> None:
        """One timer for all: jobs wait in the order of their deadlines, because all have the same. It is set for the
        oldest that waits, so nobody's deadline costs a store that is idle, or a busy one, more than a look each.
        """
        self._alarm = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for job, waiter in self._waiting.items():
            if waiter.until > now:
                self._alarm = loop.call_at(waiter.until, self._end_overdue)
                return
            self._give_up(job, waiter)

    def _give_up(self, job: threads.Job[Any], waiter: "_Waiter") -> None:
        withdrawn = waiter.give_up(job)
        job.deliver(
            None,
            StoreTimeout(
                f"{self.path} did not answer within {self.options.deadline_s:g} s: is the disk, or a process, stuck?",
                outcome="not_written" if withdrawn else "unknown",
            ),
        )

    # --- chats ------------------------------------------------------------------------------------------------

    async def _create(self, new: NewChat, key: Key, hash: str) -> Answer:
        def work(connection: apsw.Connection) -> tuple[Answer, Sequence[Change]]:
            reach("create.before")
            if (answer := read_receipt(connection, key, hash)) is not None:
                return answer, ()
            check_unused(connection, new.id, "create")
            made = decided((create(new, self.options.clock.wall_ms(), self.options.limits),))
            write_all(connection, made.writes)
            answer = self._keep_receipt(connection, key, hash, made.changes)
            reach("create.after")
            return answer, made.changes

        answer, changes = await self._write(work)
        self._ring(changes)
        return answer

    async def _submit(self, chat_id: str, event: Command, key: Key, hash: str) -> Answer:
        def work(connection: apsw.Connection) -> tuple[Answer, Sequence[Change]]:
            if (answer := read_receipt(connection, key, hash)) is not None:
                return answer, ()
            made = decided(self._transact(connection, must_load(connection, chat_id), (event,)))
            write_all(connection, made.writes)
            return self._keep_receipt(connection, key, hash, made.changes), made.changes

        answer, changes = await self._write(work)
        self._ring(changes)
        return answer

    async def commit(self, snapshot: Snapshot, events: Sequence[Command], commit_id: str) -> Snapshot:
        ready = decide_ahead(snapshot, events, commit_id, self.options.clock.wall_ms(), self.options.limits)

        def work(connection: apsw.Connection) -> tuple[Snapshot, Sequence[Change]]:
            if ready is not None and swap(connection, ready.writes[0]):
                return ready.after, ready.changes
            current = must_load(connection, snapshot.chat.id)
            if current.chat.commit_id == commit_id:
                return current, ()
            check_past(current.chat, snapshot.chat, line_stamp(connection, snapshot.chat))
            made = decided(self._transact(connection, current, events), commit_id)
            write_all(connection, made.writes)
            return made.after, made.changes

        with self._noticing():
            after, changes = await self._write(work)
        self._ring(changes)
        return after

    def _transact(
        self, connection: apsw.Connection, snapshot: Snapshot, events: Sequence[Command]
    ) -> tuple[Change, ...]:
        steps = transact(snapshot, events, self.options.clock.wall_ms(), self.options.limits)
        try:
            need = next(steps)
            while True:
                if isinstance(need, ReadChat):
                    need = steps.send(load(connection, need.chat_id))
                elif isinstance(need, CountFamily):
                    need = steps.send(rows(connection, sql.COUNT_FAMILY, (need.root_id,))[0][0])
                elif isinstance(need, ReadEntry):
                    entry = row(connection, sql.READ_ENTRY, (need.chat_id, need.seq))
                    need = steps.send(entry[0] if entry is not None else None)
                else:
                    children = rows(connection, sql.READ_BUSY_CHILDREN, (need.chat_id,))
                    need = steps.send(tuple(child[0] for child in children))
        except StopIteration as stop:
            outcome: tuple[Change, ...] | Refused = stop.value
        if isinstance(outcome, Refused):
            raise_refused(outcome)
        return outcome

    def _keep_receipt(self, connection: apsw.Connection, key: Key, hash: str, changes: Sequence[Change]) -> Answer:
        reach("write.receipt.before")
        answer = answer_of(changes)
        holds_text_of = answer.chat_id if answer.dropped else None
        now = self.options.clock.wall_ms()
        connection.execute(
            sql.PUT_RECEIPT, (key.principal, key.key, hash, encode(answer).decode(), holds_text_of, now)
        )
        reach("write.receipt.after")
        return answer

    async def recall(self, key: Key) -> Answer | None:
        return await self._read(lambda connection: read_receipt(connection, key, request_of(key)))

    async def read_chat(self, chat_id: str) -> Snapshot:
        return await self._read(lambda connection: must_load(connection, chat_id))

    async def list_chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        wanted = filter or ALL_CHATS
        values = wanted.values() | {"before": before, "limit": page_size(limit)}
        found = await self._rows(sql.list_chats(*wanted.given(before)), values, wanted.lane)
        return [chat_line(row) for row in found]

    async def _asked(self, chat_id: str) -> list[Asked]:
        return [asked_of(row) for row in await self._rows(sql.OPEN_CALLS, (chat_id, OPEN_CALLS_MAX))]

    async def _response(self, chat_id: str, seq: int) -> bytes | None:
        found = await self._rows(sql.READ_ENTRY, (chat_id, seq))
        return found[0][0].encode() if found else None

    async def count_children(self, chat: Chat) -> ChildCounts:
        found = await self._rows(sql.COUNT_CHILDREN, (chat.id, chat.root_id or chat.id, chat.turn))
        return ChildCounts(*found[0])

    async def _fork_slice(self, asked: Forking) -> Answer | None:
        def work(connection: apsw.Connection) -> tuple[Answer | None, Sequence[Change]]:
            reach("fork.before")
            if (answer := read_receipt(connection, asked.key, asked.hash)) is not None:
                return answer, ()
            check_unused(connection, asked.new_id, "fork")
            source = must_load(connection, asked.chat_id)
            end = _end_of_fork(connection, source, asked.upto)
            changes = fork(source, asked.new_id, end, self.options.clock.wall_ms(), owner=asked.owner)
            if isinstance(changes, Refused):
                raise_refused(changes)
            left = copied_so_far(read_remnant(connection, asked.new_id), asked.new_id, source.chat, end)
            made = decided(changes)
            start = left.pos if left is not None else 0
            sizes = rows(connection, sql.SIZES_TO_COPY, (source.chat.id, start, end, self.slice.rows + 1))
            copying = next_copy(left, source, end, sizes, self.slice)
            first_line, stamp = made.writes[0].journal[0], made.after.chat.stamp
            if copying.whole:
                if left is not None:
                    connection.execute(sql.DROP_REMNANT, (asked.new_id,))
                    without_first_line(made.writes)
                write_all(connection, made.writes)
            elif left is None:
                connection.execute(sql.INSERT_JOURNAL, (asked.new_id, *first_line))
            there = (asked.new_id, source.chat.id, copying.seq, copying.start, copying.upto, stamp)
            connection.execute(sql.COPY_HISTORY, there)
            if not copying.whole:
                record = record_of(asked.new_id, source.chat, copying, connection.changes())
                connection.execute(sql.PUT_REMNANT, remnant_row(record))
                reach("fork.slice")
                return None, ()
            connection.execute(sql.COPY_COMPACTIONS, (asked.new_id, source.chat.id, end))
            answer = self._keep_receipt(connection, asked.key, asked.hash, made.changes[-1:])
            reach("fork.after")
            return answer, made.changes

        answer, changes = await self._write(work)
        self._ring(changes)
        return answer

    async def _take_out(
        self, chat_id: str, children: Children, archived_before: int | None = None
    ) -> tuple[tuple[str, ...], bool]:
        def work(connection: apsw.Connection) -> tuple[tuple[str, ...], bool]:
            reach("delete.before")
            family = rows(connection, sql.READ_FAMILY, (chat_id,))
            if not family:
                raise NotFound("chat", chat_id)
            if len(family) > 1 and children == "refuse":
                raise RefusedError(
                    f"chat {chat_id!r} has {len(family) - 1} spawned chats: delete them too (children='include')",
                    reason="children",
                    state=family[0][1],
                    event="delete",
                )
            if archived_before is not None:
                found = rows(connection, sql.IS_EXPIRED, (chat_id, archived_before))
                check_expired(found, chat_id, family[0][1])
            room: Slice | None = self.slice
            for id, _ in family:
                # A parent that waits for it is told that no answer will come.
                changes = self._transact(connection, must_load(connection, id), (Delete(),))
                write_all(connection, decided(changes).writes)
                connection.execute(sql.DELETE_CHAT, (id,))
                room = take_rows(connection, id, room) if room is not None else None
                if room is None:
                    connection.execute(sql.PUT_REMNANT, remnant_row(Remnant(chat_id=id)))
            self._forget(room is None)
            reach("delete.after")
            return tuple(id for id, _ in family), room is None

        deleted, left = await self._write(work)
        self.bell.ring(deleted)
        return deleted, left

    def _forget(self, more: bool) -> None:
        """In a job that deleted something. What a later one goes on with leaves the WAL with that."""
        assert self._writer is not None
        if not more:
            self._writer.scrub()

    async def _clear_slice(self, chat_ids: Sequence[str]) -> bool:
        def work(connection: apsw.Connection) -> bool:
            reach("clear.before")
            going = [id for id in chat_ids if row(connection, sql.ROWS_TO_GO, (id,)) is not None]
            room, left = self.slice, False
            for id in going:
                rest = take_rows(connection, id, room)
                if left := rest is None:
                    break
                connection.execute(sql.DROP_REMNANT, (id,))
                room = rest
            if going:
                self._forget(left)
            reach("clear.after")
            return left

        return await self._write(work)

    async def _read_remnants(self) -> list[Remnant]:
        return [remnant_of(found) for found in await self._rows(sql.READ_REMNANTS, (SWEPT_MAX,))]

    async def _give_up_fork(self, chat_id: str, pos: int | None = None) -> None:
        await self._write(lambda connection: rows(connection, sql.GIVE_UP_FORK, (chat_id, pos)))

    # --- history and journal ------------------------------------------------------------------------------------

    async def read_history(self, chat_id: str, *, start: int = 0, limit: int = 10_000) -> list[HistoryRow]:
        return [
            HistoryRow(pos=pos, seq=seq, role=Role(role), message_id=ref, body=body.encode())
            for pos, seq, role, ref, body in await self._rows(sql.READ_HISTORY, (chat_id, start, limit))
        ]

    async def read_compaction(self, chat_id: str) -> Compaction | None:
        found = await self._rows(sql.READ_COMPACTION, (chat_id,))
        return Compaction(upto=found[0][0], summary=found[0][1], created_at=found[0][2]) if found else None

    async def locate_message(self, chat_id: str, message_id: str) -> Located:
        found = await self._rows(sql.LOCATE_MESSAGE, (chat_id, message_id))
        if not found:
            raise NotFound("message", message_id)
        pos, role, epoch = found[0]
        return Located(pos=pos, role=Role(role), epoch=epoch)

    async def read_journal(self, chat_id: str, after: After = None, limit: int = PAGE_ROWS) -> Page:
        given = parse(after)

        def work(connection: apsw.Connection) -> Page:
            found = row(connection, sql.READ_PLACE, (chat_id, given.seq, given.attempt, given.k))
            if found is None:
                raise NotFound("chat", chat_id)
            state, place = found[0], Place(chat_id, *found[1:])
            cursor = placed(given, place)
            journal: list[Any] = rows(connection, sql.READ_JOURNAL, (chat_id, cursor.seq, place.seq, limit))
            at_end = not journal or journal[-1][0] == place.seq
            room = limit - len(journal)
            deltas: list[Any] = []
            if at_end and room > 0:
                behind = (chat_id, place.attempt_ended, cursor.attempt, cursor.k, room)
                deltas = rows(connection, sql.READ_OPEN_DELTAS, behind)
            return page_of(cursor, journal, deltas, last_seq=place.seq, state=state, limit=limit)

        return await self._read(work)

    async def add_deltas(self, batches: Sequence[DeltaBatch]) -> tuple[str, ...]:
        now = self.options.clock.wall_ms()

        def work(connection: apsw.Connection) -> tuple[str, ...]:
            reach("deltas.before")
            refused = []
            for batch in batches:
                chat = batch.chat
                known = (chat.id, chat.worker, chat.claim_stamp, chat.fence, batch.attempt, chat.seq, chat.line_stamp)
                if row(connection, sql.MAY_STREAM, (*known, batch.first_k)) is None:
                    refused.append(batch.chat_id)
                    continue
                connection.executemany(
                    sql.ADD_DELTA,
                    [
                        (chat.id, batch.attempt, batch.first_k + n, chat.claim_stamp, now, body.decode())
                        for n, body in enumerate(batch.bodies)
                    ],
                )
            reach("deltas.after")
            return tuple(refused)

        refused = await self._write(work)
        self.bell.ring(batch.chat_id for batch in batches)
        return refused

    async def read_deltas(self, chat_id: str, attempt: int) -> list[DeltaRow]:
        found = await self._rows(sql.READ_DELTAS, (chat_id, attempt))
        return [DeltaRow(attempt=attempt, k=k, body=body.encode()) for attempt, k, body in found]

    # --- workers ------------------------------------------------------------------------------------------------

    def lease_line(self) -> LeaseLine:
        if self._writer is None:
            raise self.why_read_only or StoreClosed("the store is not open")
        return SqliteLeaseLine(self.path, self._host, self.options, vfs=self._vfs, synchronous=self._synchronous)

    async def claim_chats(
        self, worker: str, agents: Mapping[str, int], limit: int, suspects: int | None = None
    ) -> list[Snapshot]:
        def work(connection: apsw.Connection) -> tuple[list[Snapshot], list[Change]]:
            reach("claim.before")
            self._check_lease(connection, worker)
            if found := self._claimed_unheard(connection, worker, number):
                return found, []
            chats, changes = self._claim_due(
                connection, worker, agents, limit, limit if suspects is None else suspects
            )
            # A waiting chat whose timers rang may still have to wait for somebody else: that is not a claim.
            claimed = [snapshot for snapshot in chats if snapshot.chat.worker == worker]
            self._unheard.note(worker, number, claimed)
            reach("claim.after")
            return claimed, changes

        with self._unheard.asking(worker) as number:
            claimed, changes = await self._write(work)
        self._ring(changes)
        return claimed

    def _claimed_unheard(self, connection: apsw.Connection, worker: str, number: int) -> list[Snapshot]:
        """What an earlier claim took, whose caller had given up."""
        found = []
        if left_over := self._unheard.left_over(worker, number):
            for held in chain.from_iterable(left_over.values()):
                snapshot = load(connection, held.chat_id)
                chat = snapshot.chat if snapshot is not None else None
                if snapshot and chat and (chat.worker, chat.claim_stamp) == (worker, held.claim_stamp):
                    found.append(snapshot)
            self._unheard.settle(worker, number, left_over, found)
        return found

    def _claim_due(
        self, connection: apsw.Connection, worker: str, agents: Mapping[str, int], limit: int, suspects: int
    ) -> tuple[list[Snapshot], list[Change]]:
        """The chats it takes, as they are after it, and all that changes by that."""
        now = self.options.clock.wall_ms()
        room = {agent: min(count, limit) for agent, count in agents.items() if count > 0}
        claimed: dict[str, Snapshot] = {}
        changes: list[Change] = []
        passed_over: set[str] = set()
        looking = True
        while looking and len(claimed) < limit:
            looking = False
            # The agent whose oldest chat waited longest goes first, so that a small limit starves no agent.
            due = sorted(
                rows(connection, sql.DUE_CHATS, (agent, now, count + len(passed_over)))
                for agent, count in room.items()
            )
            for chat_id in in_turn([[chat_id for _, chat_id in chats] for chats in due]):
                if len(claimed) >= limit:
                    break
                if chat_id in passed_over:
                    continue
                snapshot = self._read_to_claim(connection, chat_id)
                change = claim(snapshot, worker, now, self.options.limits) if snapshot is not None else None
                suspect = change is not None and is_suspect(change.after, self.options.limits)
                if change is None or (suspect and suspects == 0):
                    passed_over.add(chat_id)
                    looking = True  # somebody younger may have been hidden behind it
                elif room[change.after.chat.agent] > 0:
                    if not (made := self._write_claim(connection, change, worker)):
                        passed_over.add(chat_id)
                        looking = True
                        continue
                    changes += made
                    room[change.after.chat.agent] -= 1
                    suspects -= suspect
                    claimed[chat_id] = made[0].after
                    # Another one's claim may tell the chat at the top of their family something.
                    claimed |= {other.after.chat.id: other.after for other in made if other.after.chat.id in claimed}
        return list(claimed.values()), changes

    def _write_claim(self, connection: apsw.Connection, change: Change, worker: str) -> Sequence[Change]:
        """With what it means for others; nothing, where this code cannot read one of them."""
        made: tuple[Change, ...] = (change,)
        if change.reaches_others:
            assert change.before is not None
            try:
                made = self._transact(connection, change.before, (Claim(worker=worker),))
            except RecordError:
                self.unreadable += 1
                return ()
        ready = decided(made)
        write_all(connection, ready.writes)
        return ready.changes

    def _read_to_claim(self, connection: apsw.Connection, chat_id: str) -> Snapshot | None:
        try:
            return must_load(connection, chat_id)
        except RecordError:
            self.unreadable += 1
            return None

    def _check_lease(self, connection: apsw.Connection, worker: str) -> None:
        if row(connection, sql.LIVE_WORKER, (worker,)) is None:
            self._unheard.forget(worker)
            raise LeaseLost(worker)

    @property
    def file(self) -> str | None:
        return os.path.realpath(self.path)

    @property
    def lock_folder(self) -> str:
        """Beside the database, so that whoever can open it sees them: another container, the next boot."""
        return f"{self.path}-workers"

    async def list_workers(self) -> list[Lease]:
        leases = [lease_of(found) for found in await self._rows(sql.LIST_WORKERS)]
        return [located(lease, self.lock_folder, self._host) for lease in leases]

    async def _end_lease(self, worker: str, how: LeaseEnd, renewal: int | None = None) -> bool:
        def work(connection: apsw.Connection) -> bool:
            reach("expire.before")
            ended = rows(connection, sql.END_LEASE, (worker, how, renewal))
            reach("expire.after")
            return bool(ended)

        return await self._write(work)

    async def _retire_lease(self, worker: str) -> None:
        await self._write(lambda connection: rows(connection, sql.RETIRE_WORKER, (worker,)))

    async def held_chats(self, worker: str) -> set[Held]:
        return {(chat_id, stamp) for chat_id, stamp in await self._rows(sql.HELD_CHATS, (worker,))}

    async def _lost_in_silence(self, worker: str) -> list[str]:
        return [row[0] for row in await self._rows(sql.LOST_IN_SILENCE, (worker,))]

    async def _unknown_holders(self) -> list[str]:
        return [row[0] for row in await self._rows(sql.UNKNOWN_HOLDERS)]

    async def _drop_worker(self, worker: str) -> None:
        await self._write(lambda connection: rows(connection, sql.DROP_WORKER, (worker,)))

    async def _apply_upkeep(self, chat_id: str, event: Command) -> None:
        def work(connection: apsw.Connection) -> tuple[Change, ...]:
            current = must_load(connection, chat_id)
            if isinstance(event, Repair) and event.reason == JOURNAL_AHEAD:
                for statement in sql.CUT_TORN:
                    connection.execute(statement, (chat_id, current.chat.seq))
            made = decided(self._transact(connection, current, (event,)))
            write_all(connection, made.writes)
            if isinstance(event, Repair):
                connection.execute(sql.COUNT_REPAIR, (event.reason, self.options.clock.wall_ms()))
            return made.changes

        self._ring(await self._write(work))

    # --- upkeep ---------------------------------------------------------------------------------------------------

    async def find_violations(self) -> list[Violation]:
        return [violation(row) for row in await self._rows(_LIVENESS)]

    async def _next_torn(self, after: str) -> list[tuple[str, str, bool]]:
        return [(id, state, bool(torn)) for id, state, torn in await self._rows(_NEXT_TORN, (after,))]

    async def _next_to_sweep(self, after: tuple[str, str]) -> tuple[list[str], list[str]]:
        def work(connection: apsw.Connection) -> tuple[list[str], list[str]]:
            waiting, queued = rows(connection, _NEXT_WAITING, after[:1]), rows(connection, _NEXT_QUEUED, after[1:])
            return [id for (id,) in waiting], [id for (id,) in queued]

        return await self._read(work)

    async def _find_violations_among(self, waiting: list[str], queued: list[str]) -> list[Violation]:
        values = (encode(waiting).decode(), encode(queued).decode())
        return [violation(row) for row in await self._rows(_LIVENESS_AMONG, values)]

    async def _prune_receipts(self, before: int) -> int:
        def work(connection: apsw.Connection) -> int:
            connection.execute(sql.PRUNE_RECEIPTS, (before, PRUNED_MAX))
            return connection.changes()

        return await self._write(work)

    async def next_with_leftovers(self, cutoffs: Cutoffs, after: str) -> list[tuple[str, bool]]:
        values = (after, cutoffs.attempts, cutoffs.calls, cutoffs.compactions)
        return [(id, bool(has_some)) for id, has_some in await self._rows(sql.NEXT_WITH_LEFTOVERS, values, "lists")]

    async def drop_leftovers(
        self, kind: Leftover, chat_ids: Sequence[str], before: int, *, dry_run: bool = False
    ) -> Amount:
        values = (encode(chat_ids).decode(), before)
        if dry_run:
            return Amount(*(await self._rows(sql.COUNT_LEFTOVERS[kind], values, "lists"))[0])

        def work(connection: apsw.Connection) -> Amount:
            sizes = rows(connection, sql.DROP_LEFTOVERS[kind], values)
            return Amount(len(sizes), sum(size for (size,) in sizes))

        return await self._write(work)

    async def next_expired(self, before: int, after: str) -> list[tuple[str, int]]:
        return [(id, family) for id, family in await self._rows(sql.NEXT_EXPIRED, (after, before), "lists")]

    async def measure(self) -> Size:
        def work(connection: apsw.Connection) -> Size:
            page, pages, free = (connection.pragma(name) for name in ("page_size", "page_count", "freelist_count"))
            return Size(page * pages, page * free)

        return await self._read(work)

    async def check_integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file; empty is good. Reads all of it."""
        try:
            return [row[0] for row in await self._rows("PRAGMA integrity_check", lane="searches") if row[0] != "ok"]
        except StoreCorrupt as error:  # too damaged even for the check
            return [str(error)]

    async def prove_writing(self) -> None:
        await self._write(lambda connection: rows(connection, sql.PROVE_WRITING))

    def stats(self) -> dict[str, int | float | str | None]:
        writer = self._writer
        return {
            "store": "sqlite",
            "sqlite_version": apsw.sqlite_lib_version(),
            "schema_version": self.schema_version,
            "memory_bytes": apsw.memory_used(),  # of all SQLite in this process: page caches, 16 MB per connection
            "wal_bytes": _size(f"{self.path}-wal"),
            "wal_bytes_bound": WAL_BOUND_BYTES,
            "wal_pages": writer.wal_pages if writer else None,
            "wal_pages_max": writer.wal_pages_max if writer else None,
            "wal_pages_written": writer.wal_pages_written if writer else None,
            "checkpoints": writer.checkpoints if writer else None,
            "in_doubt": in_doubt(self.path),
            "checkpoints_busy": writer.checkpoints_busy if writer else None,
            "write_transactions": writer.transactions if writer else None,
            "write_jobs": writer.jobs if writer else None,
            "write_jobs_queued": writer.queued if writer else None,
            "reader_threads": sum(pool.thread_count for pool in self._readers.values()),
            "reader_threads_max": sum(LANES.values()),
            "reader_threads_lost": sum(pool.lost_count for pool in self._readers.values()),
            "waiters": self.bell.waiter_count,
            "unreadable_chats": self.unreadable,
            "went_back": self.incidents.counts[WENT_BACK],
            "remnant_chats": self.remnant_count,
            **self._wake_stats(),
        }

    async def _line_stamp(self, known: Chat) -> int | None:
        return await self._read(lambda connection: line_stamp(connection, known))

    async def _note(self, key: str, value: int) -> None:
        await self._write(lambda connection: rows(connection, sql.PUT_NOTE, (key, value)))

    async def _read_notes(self) -> dict[str, int]:
        return dict(await self._rows(sql.READ_NOTES))

    async def read_repairs(self) -> dict[str, int]:
        return dict(await self._rows(sql.READ_REPAIRS))


def _end_of_fork(connection: apsw.Connection, source: Snapshot, upto: int | None) -> int:
    if upto is None:
        return source.chat.length
    if not 0 <= upto < source.chat.length:
        raise NotFound("position", str(upto))
    found = row(connection, sql.END_OF_GROUP, (source.chat.id, upto))
    return found[0] if found and found[0] is not None else source.chat.length


def _path_of(location: str) -> str:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`: one slash belongs to the URL."""
    path, _, query = location.partition("?")
    if query:
        raise ConfigError("a SQLite URL takes no options: leave out the ? and what stands behind it")
    if not path.startswith("/") or path == "/":
        raise ConfigError("a SQLite URL names a file: sqlite:///path/to/file.db or sqlite:////absolute/path.db")
    if path == "/:memory:":
        raise ConfigError("there is no store in memory: name a file, on a tmpfs if it need not outlive a reboot")
    path = os.path.abspath(path[1:])
    # SQLite keeps its WAL beside the file that a link leads to. Our locks have to lie there, too: with one beside the
    # link two processes would each have a lock of their own around one file.
    return os.path.realpath(path) if os.path.islink(path) else path


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
