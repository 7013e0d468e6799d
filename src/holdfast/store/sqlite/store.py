"""The SQLite store: writes go to the one writer thread, reads to a few reader threads."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from holdfast.core.apply import create
from holdfast.core.codec import encode
from holdfast.core.commands import Command
from holdfast.core.kept_files import Aside
from holdfast.core.leases import LOOKS_PER_TTL, LeaseWatch
from holdfast.core.records import ChatRecord, NewChat, Snapshot
from holdfast.errors import (
    ConfigError,
    NotFound,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.faults import reach
from holdfast.store.budgets import BudgetLedgers
from holdfast.store.contract import LeaseLine
from holdfast.store.cursor import AfterCursor, ReadersPlace, parse, placed
from holdfast.store.decisions import decide_ahead, decided
from holdfast.store.deliveries import Deliveries
from holdfast.store.incidents import WENT_BACK
from holdfast.store.kept_files import KeptFiles
from holdfast.store.kept_rules import KeptRules
from holdfast.store.link_keys import LinkKeys
from holdfast.store.memory import Memories
from holdfast.store.pages import page_of
from holdfast.store.receipts import PRUNED_MAX, request_of
from holdfast.store.records import (
    PAGE_BYTES,
    PAGE_ROWS,
    Answer,
    DeltaBatch,
    HistoryRow,
    Key,
    Page,
    Size,
    StoreOptions,
)
from holdfast.store.retention import Amount, Leftover
from holdfast.store.rows import Row, history_row, lease_of
from holdfast.store.schedule_changes import Changes
from holdfast.store.schedule_firing import Firing
from holdfast.store.schedules import Schedules
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.checkpoints import in_doubt, leave, write_anew
from holdfast.store.sqlite.claims import SqliteClaims
from holdfast.store.sqlite.connection import check_place, connect, lock_paths, row, rows
from holdfast.store.sqlite.errors import translated
from holdfast.store.sqlite.large_chats import SqliteLargeChats
from holdfast.store.sqlite.leases import SqliteLeaseLine, in_use_elsewhere
from holdfast.store.sqlite.opening import Opening
from holdfast.store.sqlite.read_only import check_schema
from holdfast.store.sqlite.recovery import SqliteRecovery
from holdfast.store.sqlite.schedules import SqlitePlayer
from holdfast.store.sqlite.schema import migrate
from holdfast.store.sqlite.transactions import LANES, Transaction, Transactor
from holdfast.store.sqlite.transfers import SqliteTransfers
from holdfast.store.sqlite.wakes import SqliteWakes
from holdfast.store.sqlite.writer import WAL_BOUND_BYTES, WriterThread
from holdfast.store.stamps import check_past, is_proven
from holdfast.store.tokens import Tokens
from holdfast.store.webhooks import Webhooks
from holdfast.system.clock import boot_id

log = logging.getLogger(__name__)

WATCH_S = 0.5  # how often the leases of other boots are looked at, when the store is opened


class SqliteStore(SqlStore):
    _sql = sql
    _transactor: Transactor

    def __init__(
        self,
        location: str,
        options: StoreOptions,
        *,
        vfs: str | None = None,
        synchronous: str = "FULL",
        private: bool = False,
    ) -> None:
        """`private`: a copy of which no other process knows. Whose leases are in it is not looked at."""
        super().__init__(options)
        self._private = private
        self.path = _path_of(location)
        self._vfs = vfs
        self._synchronous = synchronous
        self._host = boot_id()
        self._strangers = False  # leases of another boot were there when it was opened
        self._left_over = False  # rows without a chat were
        self._opening_or_closing = asyncio.Lock()
        self._transactor = Transactor(self.path, options, self.bell, vfs=vfs, synchronous=synchronous)
        self.claims = SqliteClaims(self._transactor, options.limits)
        self.recovery = SqliteRecovery(
            self._transactor, options, self.read_chat, host=self._host, lock_folder=self.lock_folder
        )
        self.large_chats = SqliteLargeChats(self._transactor, options)
        self.files = KeptFiles(self._transactor, sql.FILES, self._keep_files)
        self.transfers = SqliteTransfers(self._transactor, self.large_chats, self.files)
        self.tokens = Tokens(self._transactor, sql.TOKENS, self.now_ms)
        self.kept_rules = KeptRules(self._transactor, sql.KEPT_RULES, self.now_ms)
        play = SqlitePlayer(self._transactor, options.limits)
        programs = (Changes(sql.SCHEDULES, options.limits), Firing(sql.SCHEDULES, options.limits))
        self.schedules = Schedules(self._transactor, play, sql.SCHEDULES, *programs, self.now_ms)
        self.memory = Memories(self._transactor, sql.MEMORY, self.now_ms)
        self.budgets = BudgetLedgers(self._transactor, sql.BUDGETS, self.now_ms)
        self.webhooks = Webhooks(self._transactor, sql.WEBHOOKS, self.now_ms)
        self.deliveries = Deliveries(self._transactor, sql.DELIVERIES, self.now_ms)
        self.link_keys = LinkKeys(self._transactor, sql.LINK_KEYS, self.now_ms)

    def __str__(self) -> str:
        return self.path

    @property
    def file(self) -> str | None:
        return os.path.realpath(self.path)

    @property
    def lock_folder(self) -> str:
        """Beside the database, so that every process that can open it sees them: another container, the next boot."""
        return f"{self.path}-workers"

    @property
    def write_lock_paths(self) -> tuple[str, ...]:
        return tuple(os.path.abspath(path) for path in lock_paths(self.path))

    @property
    def why_read_only(self) -> StoreError | None:
        return self._transactor.why_read_only

    @property
    def gone(self) -> bool:
        return self._transactor.gone

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self, wait_s: float = 0.0) -> None:
        async with self._opening_or_closing:
            if self._transactor.is_open:
                return
            try:
                await self._open(wait_s)
            except (StoreReadOnly, StoreFull, StoreUnavailable) as error:
                if not self.options.only_reads:
                    raise
                await self._open_to_look(error)

    async def _open(self, wait_s: float) -> None:
        self._transactor.open(await Opening(self.path, self._prepare).writer(max(wait_s, self.options.deadline_s)))
        try:
            if self._strangers and not self.options.only_reads and not self._private:
                await self._await_other_machines()
        except BaseException:
            await self._transactor.close()
            raise
        await self._listen_to(
            SqliteWakes(
                self.path,
                self._transactor.open_reader,
                interval_s=self.options.poll_interval_s / 5,
                needed=lambda: self.bell.awaited,
            )
        )
        if self._left_over and not self.options.only_reads:
            self.large_chats.clear_later()

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
            left = [
                lease for lease in leases if lease.ended is None and await self.recovery.end(lease, silent) is None
            ]
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
        """Without a writer, and without a stream that tells us of changes."""
        self._transactor.open_to_look(why)
        try:
            self.schema_version = await self._transactor.read(
                lambda transaction: check_schema(transaction.connection, self.path)
            )
            if self.schema_version is None:
                raise why  # there is nothing to look at
        except BaseException:
            await self._transactor.close()
            raise

    def _prepare(self, migrating: Callable[[], None]) -> WriterThread:
        check_place(self.path)
        write_anew(self.path, self._vfs)
        connection = connect(self.path, vfs=self._vfs, synchronous=self._synchronous)
        try:
            with translated(self.path):
                self.schema_version = migrate(connection, self.path, migrating)
                leases = [lease_of(found) for found in rows(connection, sql.LIST_WORKERS)]
                self._strangers = any(lease.host != self._host and lease.ended is None for lease in leases)
                self._left_over = row(connection, sql.ANY_REMNANT) is not None
            return WriterThread(self.path, connection)
        except BaseException:
            leave(connection, self.path)
            raise

    async def close(self) -> None:
        async with self._opening_or_closing:
            await self.large_chats.stop_clearing()
            try:
                if self.wakes is not None:
                    await self.wakes.stop()
            finally:
                await self._transactor.close()

    # --- chats ------------------------------------------------------------------------------------------------

    async def _create(self, new: NewChat, key: Key, hash: str, aside: Aside) -> Answer:
        def work(transaction: Transaction) -> Answer:
            reach("create.before")
            if (answer := transaction.read_receipt(key, hash)) is not None:
                return answer
            transaction.check_unused(new.id, "create")
            made = decided((create(new, transaction.now, self.options.limits),))
            transaction.keep_files(new.id, aside)
            transaction.write(made.writes)
            answer = transaction.keep_receipt(key, hash, made.changes)
            reach("create.after")
            transaction.tell(made.changes)
            return answer

        return await self._transactor.write(work)

    async def _submit(self, chat_id: str, command: Command, key: Key, hash: str, aside: Aside) -> Answer:
        def work(transaction: Transaction) -> Answer:
            if (answer := transaction.read_receipt(key, hash)) is not None:
                return answer
            made = decided(transaction.apply(transaction.must_load(chat_id), (command,)))
            transaction.keep_files(chat_id, aside)
            transaction.write(made.writes)
            answer = transaction.keep_receipt(key, hash, made.changes)
            transaction.tell(made.changes)
            return answer

        return await self._transactor.write(work)

    async def _keep_files(self, chat_id: str, aside: Aside) -> None:
        def work(transaction: Transaction) -> None:
            if transaction.row(sql.READ_STATE, chat_id) is None:
                raise NotFound("chat", chat_id)
            transaction.keep_files(chat_id, aside)

        await self._transactor.write(work)

    async def commit(self, snapshot: Snapshot, commands: Sequence[Command], commit_id: str) -> Snapshot:
        ready = decide_ahead(snapshot, commands, commit_id, self.options.clock.wall_ms(), self.options.limits)

        def work(transaction: Transaction) -> Snapshot:
            if ready is not None and transaction.swap(ready.writes[0]):
                transaction.tell(ready.changes)
                return ready.after
            current = transaction.must_load(snapshot.chat.id)
            if current.chat.commit_id == commit_id:
                return current
            if not is_proven(current.chat, snapshot.chat):
                with self._noticing():
                    check_past(current.chat, snapshot.chat, transaction.line_stamp(snapshot.chat))
            made = decided(transaction.apply(current, commands), commit_id)
            transaction.write(made.writes)
            transaction.tell(made.changes)
            return made.after

        return await self._transactor.write(work)

    async def recall(self, key: Key) -> Answer | None:
        return await self._transactor.read(lambda transaction: transaction.read_receipt(key, request_of(key)))

    async def read_chat(self, chat_id: str) -> Snapshot:
        return await self._transactor.read(lambda transaction: transaction.must_load(chat_id))

    async def _line_stamp(self, known: ChatRecord) -> int | None:
        return await self._transactor.read(lambda transaction: transaction.line_stamp(known))

    # --- history and journal ------------------------------------------------------------------------------------

    async def read_history(
        self, chat_id: str, *, start: int = 0, limit: int = 10_000, bytes_max: int | None = None
    ) -> list[HistoryRow]:
        def work(transaction: Transaction) -> list[Row]:
            if bytes_max is None:
                return transaction.rows(sql.READ_HISTORY, chat_id, start, limit)
            return transaction.rows_up_to(bytes_max, sql.READ_HISTORY, chat_id, start, limit)

        return [history_row(row) for row in await self._transactor.read(work)]

    async def read_journal(
        self, chat_id: str, after: AfterCursor = None, limit: int = PAGE_ROWS, bytes_max: int = PAGE_BYTES
    ) -> Page:
        given = parse(after)

        def work(transaction: Transaction) -> Page:
            found = transaction.row(sql.READ_PLACE, chat_id, given.seq, given.attempt, given.k)
            if found is None:
                raise NotFound("chat", chat_id)
            state, place = found[0], ReadersPlace(chat_id, *found[1:])
            cursor = placed(given, place)
            lines = (chat_id, cursor.seq, place.seq, limit)
            journal: list[Any] = transaction.rows_up_to(bytes_max, sql.READ_JOURNAL, *lines)
            at_end = not journal or journal[-1][0] == place.seq
            room, room_bytes = limit - len(journal), bytes_max - sum(len(line[-1].encode()) for line in journal)
            deltas: list[Any] = []
            if at_end and room > 0 and room_bytes > 0:
                behind = (place.attempt_ended, cursor.attempt, cursor.k, room)
                deltas = transaction.rows_up_to(room_bytes, sql.READ_OPEN_DELTAS, chat_id, *behind)
            return page_of(cursor, journal, deltas, last_seq=place.seq, state=state, limit=limit, bytes_max=bytes_max)

        return await self._transactor.read(work)

    async def add_deltas(self, batches: Sequence[DeltaBatch]) -> tuple[str, ...]:
        def work(transaction: Transaction) -> tuple[str, ...]:
            reach("deltas.before")
            refused = []
            for batch in batches:
                chat = batch.chat
                known = (chat.id, chat.worker, chat.claim_stamp, chat.fence, batch.attempt, chat.seq, chat.line_stamp)
                if transaction.row(sql.MAY_STREAM, *known, batch.first_k) is None:
                    refused.append(batch.chat_id)
                    continue
                transaction.change_each(
                    sql.ADD_DELTA,
                    [
                        (chat.id, batch.attempt, batch.first_k + n, chat.claim_stamp, now, body.decode())
                        for n, body in enumerate(batch.bodies)
                    ],
                )
            transaction.ring(batch.chat_id for batch in batches)
            reach("deltas.after")
            return tuple(refused)

        now = self.options.clock.wall_ms()
        return await self._transactor.write(work)

    # --- workers ------------------------------------------------------------------------------------------------

    def lease_line(self) -> LeaseLine:
        self._transactor.check_writable()
        return SqliteLeaseLine(self.path, self._host, self.options, vfs=self._vfs, synchronous=self._synchronous)

    # --- upkeep ---------------------------------------------------------------------------------------------------

    async def _prune_receipts(self, before: int) -> int:
        return await self._transactor.write(
            lambda transaction: transaction.change(sql.PRUNE_RECEIPTS, before, PRUNED_MAX)
        )

    async def drop_leftovers(
        self, kind: Leftover, chat_ids: Sequence[str], before: int, *, dry_run: bool = False
    ) -> Amount:
        ids = encode(chat_ids).decode()
        if dry_run:
            ((count, size),) = await self._transactor.rows(sql.COUNT_LEFTOVERS[kind], ids, before, lane="lists")
            return Amount(count, size)
        sizes = await self._transactor.write_alone(sql.DROP_LEFTOVERS[kind], ids, before)
        return Amount(len(sizes), sum(size for (size,) in sizes))

    async def measure(self) -> Size:
        def work(transaction: Transaction) -> Size:
            page, pages, free = (transaction.pragma(name) for name in ("page_size", "page_count", "freelist_count"))
            return Size(page * pages, page * free)

        return await self._transactor.read(work)

    async def check_integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file; empty is good. Reads all of it."""
        try:
            found = await self._transactor.rows("PRAGMA integrity_check", lane="searches")
        except StoreCorrupt as error:  # too damaged even for the check
            return [str(error)]
        return [row[0] for row in found if row[0] != "ok"]

    def stats(self) -> dict[str, int | float | str | None]:
        writer = self._transactor.writer
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
            "reader_threads": self._transactor.reader_count,
            "reader_threads_max": sum(LANES.values()),
            "reader_threads_lost": self._transactor.lost_reader_count,
            "waiters": self.bell.waiter_count,
            "unreadable_chats": self.unreadable,
            "went_back": self.incidents.counts[WENT_BACK],
            "remnant_chats": self.large_chats.remnant_count,
            **self._wake_stats(),
        }


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
