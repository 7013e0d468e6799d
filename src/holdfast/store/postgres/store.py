"""The PostgreSQL store: a runner's commits go through the committer, everything else through transactions.

Locks are taken in one order: a worker's lease, a chat's parent, the chat, its children by id. The verbs are
`store/contract.py`'s.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import psycopg
from msgspec.structs import replace

from holdfast.core.apply import apply, create
from holdfast.core.change import Change, Refused
from holdfast.core.codec import NOT_UNICODE, encode
from holdfast.core.commands import Command, Delete, Repair
from holdfast.core.fork import fork
from holdfast.core.records import Chat, Compaction, Lease, LeaseEnd, NewChat, Role, Snapshot
from holdfast.core.wake import WakeState
from holdfast.errors import InvalidInput, NotFound, RefusedError, StoreClosed, StoreUnavailable
from holdfast.faults import reach
from holdfast.ids import new_id
from holdfast.store.checks import check_expired, page_size
from holdfast.store.contract import LeaseLine, Store
from holdfast.store.cursor import After, Place, parse, placed
from holdfast.store.decisions import Decided, decide_ahead, decided, raise_refused
from holdfast.store.incidents import FAILED_OVER, WENT_BACK
from holdfast.store.liveness import JOURNAL_AHEAD, SWEPT_MAX
from holdfast.store.notify.bell import WORK, topics_of
from holdfast.store.open_calls import OPEN_CALLS_MAX, Asked, asked_of
from holdfast.store.pages import page_of
from holdfast.store.postgres import sql
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.claims import Claims
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.committer import BATCH_COMMITS_MAX, Committer, Entry, Verdict
from holdfast.store.postgres.connection import Connector, Row, Share
from holdfast.store.postgres.hints import Sender
from holdfast.store.postgres.leases import PostgresLeaseLine
from holdfast.store.postgres.pool import Pool
from holdfast.store.postgres.schema import TABLES, check_server, migrate
from holdfast.store.postgres.swaps import is_plain
from holdfast.store.postgres.transactions import Transaction, Transactor, Work, snapshot_from
from holdfast.store.postgres.vacuum import vacuum
from holdfast.store.postgres.wakes import PostgresWakes
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
    Occupied,
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
from holdfast.store.stamps import check_past, is_proven
from holdfast.system.clock import boot_id

log = logging.getLogger(__name__)

_KNOWN = ("worker", "claim_stamp", "fence", "seq", "line_stamp")  # of the chat that an attempt was begun in

_FAMILY_PAGE = 500  # chats in one answer, while a family is deleted

FIRST_TRY_S = 1.0  # until whoever waits for a server is told so; the next tries are longer
BETWEEN_TRIES_S = 0.25


class PostgresStore(Store):
    # Nobody waits for it but who wants the same chat; it is a small part of the deadline.
    slice = Slice(rows=10_000, bytes=8 << 20)

    def __init__(self, url: str, options: StoreOptions) -> None:
        super().__init__(options)
        self.address = Address(url)
        self._clock = DatabaseClock(options.clock)
        self._connector = Connector(self.address, self._clock, options.deadline_s, self._tell_of_failover)
        self._host = boot_id()
        self._pool: Pool | None = None
        self._hints: Sender | None = None
        self._left_over = False  # rows without a chat were there when it was opened
        self._flushing: dict[str, set[asyncio.Task[Any]]] = {}
        self._opening_or_closing = asyncio.Lock()

    def __str__(self) -> str:
        return str(self.address)

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self, wait_s: float = 0.0) -> None:
        async with self._opening_or_closing:
            if self._pool is None:
                await self._open(wait_s)

    async def _open(self, wait_s: float) -> None:
        await self._prepare_within(wait_s)
        self._pool = Pool(self._connector)
        self._transactor = Transactor(self._pool, self._connector, self._clock, self.options)
        self._claims = Claims(self, self._transactor, self._clock)
        self._committer = Committer(self._connector)
        await self._open_hints()
        if self._left_over and not self.options.only_reads:
            self._clear_later()

    async def _open_hints(self) -> None:
        self._hints = self.wakes = None
        if not self.address.hints:
            return
        listening, name = self.address.listening, new_id("hint")
        connector = self._connector
        if listening is not None and listening is not self.address:
            connector = Connector(listening, self._clock, self.options.deadline_s)
        self._hints = Sender(connector, name)
        if listening is not None:
            await self._listen_to(PostgresWakes(connector, name))

    async def _prepare_within(self, wait_s: float) -> None:
        """A server that restarts while we start, or that starts after us, is no reason to give up."""
        loop = asyncio.get_running_loop()
        give_up_at, try_s = loop.time() + wait_s, FIRST_TRY_S if wait_s else self.options.deadline_s
        while True:
            try:
                return await self._prepare(min(try_s, self.options.deadline_s))
            except StoreUnavailable as error:
                left_s = give_up_at - loop.time()
                if left_s <= 0:
                    raise
                log.warning("%s; waiting for it, at most %.0f s", error, left_s, extra={"action": "store.waiting"})
                await asyncio.sleep(min(BETWEEN_TRIES_S, left_s))
                try_s *= 2

    async def _prepare(self, connect_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + connect_s
        connection = await self._connector.connect(deadline)
        try:
            facts = self._connector.facts
            assert facts is not None
            check_server(facts, self.address)
            if facts.fsync != "on":
                log.warning(
                    "%s runs with fsync off: a power cut may lose or damage everything",
                    self.address,
                    extra={"action": "store.fsync_off"},
                )
            self.schema_version = await migrate(connection, self.address)
            self._left_over = bool(await connection.rows(sql.ANY_REMNANT))
        except psycopg.Error as error:
            raise self._connector.explain(error) from error
        finally:
            await connection.discard()

    async def close(self) -> None:
        async with self._opening_or_closing:
            await self._close()

    async def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        await self._stop_clearing()
        await self._committer.close(self.options.deadline_s)
        await self._transactor.finish(self.options.deadline_s)
        if self._hints is not None:
            await self._hints.close()
        try:
            if self.wakes is not None:
                await self.wakes.stop()
        finally:
            await pool.close()
            self.bell.ring_all()

    def _check_open(self) -> None:
        if self._pool is None:
            raise StoreClosed("the store is not open")

    async def _run(self, work: Work[Any], share: Share = "writes") -> Any:
        self._check_open()
        return await self._transactor.run(work, share)

    async def _rows(self, statement: str, *values: Any) -> list[Row]:
        rows: list[Row] = await self._run(lambda transaction: transaction.rows(statement, *values), "reads")
        return rows

    async def _named_rows(self, statement: str, **values: Any) -> list[Row]:
        rows: list[Row] = await self._run(lambda transaction: transaction.named_rows(statement, **values), "reads")
        return rows

    async def _scan(self, lane: Lane, statement: str, **values: Any) -> list[Row]:
        async def work(transaction: Transaction) -> list[Row]:
            await transaction.begin_scan()
            return await transaction.planned_rows(statement, **values)

        self._check_open()
        return await self._transactor.run(work, lane, only_looks=True)

    async def _write_alone(self, statement: str, *values: Any, points: tuple[str, str] | None = None) -> list[Row]:
        """For statements that change nothing when they are repeated."""
        rows: list[Row] = await self._run(
            lambda transaction: transaction.write_alone(statement, *values, points=points), "work"
        )
        return rows

    def _ring(self, changes: Sequence[Change]) -> None:
        self._announce(topics_of(changes))

    def _announce(self, topics: set[str]) -> None:
        self.bell.ring(topics)
        if self._hints is not None:
            self._hints.add(topics)

    # --- chats ------------------------------------------------------------------------------------------------

    async def _create(self, new: NewChat, key: Key, hash: str) -> Answer:
        async def work(transaction: Transaction) -> Answer:
            reach("create.before")
            await transaction.begin()
            if (answer := await transaction.read_receipt(key, hash)) is not None:
                return answer
            if (left := await transaction.check_unused(new.id, "create")) is not None:
                raise Occupied(new.id, taken=left.source_id is not None)
            made = decided((create(new, transaction.now, self.options.limits),))
            await transaction.write(made.writes)
            answer = answer_of(made.changes)
            await transaction.keep_receipt(key, hash, answer)
            reach("create.after")
            await transaction.commit()
            self._ring(made.changes)
            return answer

        answer: Answer = await self._run(work)
        return answer

    async def _submit(self, chat_id: str, event: Command, key: Key, hash: str) -> Answer:
        async def work(transaction: Transaction) -> Answer:
            await transaction.begin()
            # The lock first: whoever else has this key, our own lost try among them, is done when we have it.
            await transaction.lock_with_ancestors(chat_id)
            if (answer := await transaction.read_receipt(key, hash)) is not None:
                self._announce({chat_id, WORK})
                return answer
            made = decided(await transaction.apply(await transaction.must_load(chat_id), (event,)))
            await transaction.write(made.writes)
            answer = answer_of(made.changes)
            await transaction.keep_receipt(key, hash, answer)
            await transaction.commit()
            self._ring(made.changes)
            return answer

        answer: Answer = await self._run(work)
        return answer

    async def commit(self, snapshot: Snapshot, events: Sequence[Command], commit_id: str) -> Snapshot:
        self._check_open()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.deadline_s
        while flushes := self._flushing.get(snapshot.chat.id):
            # Deltas of this chat are on their way. Behind the commit they would be left over from an ended attempt.
            await asyncio.wait(flushes)
        ready = decide_ahead(snapshot, events, commit_id, self._clock.now(), self.options.limits)
        if ready is None or not is_plain(ready.writes[0]):
            return await self._commit_looking(snapshot, events, commit_id, deadline)
        answer: asyncio.Future[Snapshot] = loop.create_future()
        entry = Entry(ready, deadline, partial(self._on_verdict, answer, snapshot, events, commit_id))
        self._committer.submit(entry)
        try:
            return await answer
        except asyncio.CancelledError:
            self._committer.withdraw(entry)
            raise

    def _on_verdict(
        self,
        answer: "asyncio.Future[Snapshot]",
        snapshot: Snapshot,
        events: Sequence[Command],
        commit_id: str,
        entry: Entry,
        verdict: Verdict,
    ) -> None:
        """Whether or not anybody waits for the answer any more."""
        if verdict is True:
            self._ring(entry.decided.changes)
            if not answer.done():
                answer.set_result(entry.decided.after)
        elif verdict is False:
            look = self._commit_looking(snapshot, events, commit_id, entry.deadline)
            self._transactor.own(look).add_done_callback(partial(_pass_on, answer))
        elif not answer.done():
            assert isinstance(verdict, BaseException)
            answer.set_exception(verdict)

    async def _commit_looking(
        self, known: Snapshot, events: Sequence[Command], commit_id: str, deadline: float
    ) -> Snapshot:
        """The chat moved on, or somebody holds it, or others are reached: look at what is there, under a lock."""
        chat_id = known.chat.id

        async def work(transaction: Transaction) -> Snapshot:
            await transaction.begin()
            current = await transaction.must_load(chat_id)
            if current.chat.commit_id == commit_id:
                self._announce({chat_id, WORK})
                return current
            if not is_proven(current.chat, known.chat):
                with self._noticing():
                    check_past(current.chat, known.chat, await transaction.line_stamp(known.chat))
            outcome: Decided = decided(await transaction.apply(current, events), commit_id)
            await transaction.write(outcome.writes)
            await transaction.commit()
            self._ring(outcome.changes)
            return outcome.after

        return await self._transactor.run(work, "work", deadline)

    async def recall(self, key: Key) -> Answer | None:
        answer: Answer | None = await self._run(
            lambda transaction: transaction.read_receipt(key, request_of(key)), "reads"
        )
        return answer

    async def read_chat(self, chat_id: str) -> Snapshot:
        found = await self._rows(sql.READ_SNAPSHOT, chat_id)
        if not found:
            raise NotFound("chat", chat_id)
        return snapshot_from(found[0])

    async def list_chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        wanted = filter or ALL_CHATS
        values = wanted.values() | {"before": before, "limit": page_size(limit)}
        found = await self._scan(wanted.lane, sql.list_chats(*wanted.given(before)), **values)
        return [chat_line(row) for row in found]

    async def _asked(self, chat_id: str) -> list[Asked]:
        return [asked_of(row) for row in await self._rows(sql.OPEN_CALLS, chat_id, OPEN_CALLS_MAX)]

    async def _response(self, chat_id: str, seq: int) -> bytes | None:
        found = await self._rows(sql.READ_ENTRY, chat_id, seq)
        return found[0][0].encode() if found else None

    async def count_children(self, chat: Chat) -> ChildCounts:
        found = await self._named_rows(sql.COUNT_CHILDREN, chat=chat.id, root=chat.root_id or chat.id, turn=chat.turn)
        return ChildCounts(*found[0])

    async def _fork_slice(self, asked: Forking) -> Answer | None:
        async def work(transaction: Transaction) -> Answer | None:
            reach("fork.before")
            # One moment for all statements, so that the source need not be locked while it is copied.
            await transaction.begin("REPEATABLE READ")
            if (answer := await transaction.read_receipt(asked.key, asked.hash)) is not None:
                return answer
            there = await transaction.check_unused(asked.new_id, "fork")
            source = await transaction.read(asked.chat_id)
            end = await self._end_of_fork(transaction, source, asked.upto)
            changes = fork(source, asked.new_id, end, transaction.now, owner=asked.owner)
            if isinstance(changes, Refused):
                raise_refused(changes)
            left = copied_so_far(there, asked.new_id, source.chat, end)
            made = decided(changes)
            if not await self._copy_slice(transaction, asked, source, end, left, made):
                reach("fork.slice")
                await transaction.commit()
                return None
            await transaction.rows(sql.COPY_COMPACTIONS, asked.new_id, asked.chat_id, end)
            answer = answer_of(made.changes[-1:])
            await transaction.keep_receipt(asked.key, asked.hash, answer)
            reach("fork.after")
            await transaction.commit()
            self._ring(made.changes)
            return answer

        answer: Answer | None = await self._run(work)
        return answer

    async def _copy_slice(
        self,
        transaction: Transaction,
        asked: Forking,
        source: Snapshot,
        end: int,
        left: Remnant | None,
        made: Decided,
    ) -> bool:
        """True: that was the last one, and the chat is there."""
        start = left.pos if left is not None else 0
        sizes: Any = await transaction.rows(sql.SIZES_TO_COPY, asked.chat_id, start, end, self.slice.rows + 1)
        copying = next_copy(left, source, end, sizes, self.slice)
        if copying.whole:
            if left is not None:
                await transaction.rows(sql.DROP_REMNANTS, [asked.new_id])
                without_first_line(made.writes)
            await transaction.write(made.writes)
        elif left is None:
            await transaction.rows(sql.INSERT_JOURNAL, asked.new_id, *made.writes[0].journal[0])
        place = (asked.chat_id, copying.start, copying.upto)
        stamp = made.after.chat.stamp
        ((copied,),) = await transaction.rows(sql.COPY_HISTORY, asked.new_id, copying.seq, stamp, *place)
        if not copying.whole:
            record = record_of(asked.new_id, source.chat, copying, copied)
            if left is None:
                await transaction.rows(sql.ADD_REMNANT, *remnant_row(record))
            else:
                await transaction.rows(sql.MOVE_REMNANT, record.pos, record.seq, record.chat_id)
        return copying.whole

    async def _end_of_fork(self, transaction: Transaction, source: Snapshot, upto: int | None) -> int:
        if upto is None:
            return source.chat.length
        if not 0 <= upto < source.chat.length:
            raise NotFound("position", str(upto))
        ((end,),) = await transaction.rows(sql.END_OF_GROUP, source.chat.id, upto)
        return source.chat.length if end is None else int(end)

    async def _take_out(
        self, chat_id: str, children: Children, archived_before: int | None = None
    ) -> tuple[tuple[str, ...], bool]:
        tried: tuple[tuple[str, ...], bool] = (), False

        async def work(transaction: Transaction) -> tuple[tuple[str, ...], bool]:
            nonlocal tried
            reach("delete.before")
            await transaction.begin()
            family = await self._lock_family(transaction, chat_id)
            if not family and transaction.asked_before:
                return tried  # gone by our own hand
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
                found = await transaction.named_rows(sql.IS_EXPIRED, id=chat_id, before=archived_before)
                check_expired(found, chat_id, family[0][1])
            ids = [id for id, _ in family]
            # A parent that waits for it is told that no answer will come. Those of the spawned ones go with them.
            changes = await transaction.apply(await transaction.must_load(chat_id), (Delete(),))
            told = [change for change in changes if change.after.chat.id != chat_id]
            await self._check_at_rest(transaction, ids[1:])
            await transaction.write(decided(told).writes)
            await transaction.rows(sql.DELETE_CHATS, ids)
            left = await transaction.take_rows(ids, self.slice)
            if left:
                await transaction.rows(sql.PUT_ROWS_TO_GO, ids)
            reach("delete.after")
            tried = tuple(ids), left
            await transaction.commit()
            self._ring(told)
            self._announce(set(ids))
            return tried

        deleted: tuple[tuple[str, ...], bool] = await self._run(work)
        return deleted

    async def _clear_slice(self, chat_ids: Sequence[str]) -> bool:
        async def work(transaction: Transaction) -> bool:
            reach("clear.before")
            await transaction.begin()
            going = [id for (id,) in await transaction.rows(sql.LOCK_ROWS_TO_GO, list(chat_ids))]
            if not going:
                return False
            left = await transaction.take_rows(going, self.slice)
            await transaction.rows(sql.DROP_CLEARED, going)
            reach("clear.after")
            await transaction.commit()
            return left

        left: bool = await self._run(work, "work")
        return left

    async def _read_remnants(self) -> list[Remnant]:
        return [remnant_of(found) for found in await self._rows(sql.READ_REMNANTS, SWEPT_MAX)]

    async def _give_up_fork(self, chat_id: str, pos: int | None = None) -> None:
        await self._write_alone(sql.GIVE_UP_FORK, chat_id, pos)

    async def _lock_family(self, transaction: Transaction, chat_id: str) -> list[Row]:
        """Until no more of them turn up: a chat that is locked spawns no more."""
        locked: set[str] = set()
        await transaction.lock_with_ancestors(chat_id)
        while True:
            family = await transaction.rows(sql.READ_FAMILY, chat_id)
            new = [id for id, _ in family if id not in locked]
            if not new:
                return family
            await transaction.lock_all(new)
            locked.update(new)

    async def _check_at_rest(self, transaction: Transaction, chat_ids: Sequence[str]) -> None:
        """Raises what refuses to be deleted. A few round trips for thousands."""
        for start in range(0, len(chat_ids), _FAMILY_PAGE):
            for snapshot in await transaction.load_all(chat_ids[start : start + _FAMILY_PAGE]):
                outcome = apply(snapshot, Delete(), transaction.now, self.options.limits)
                if isinstance(outcome, Refused):
                    raise_refused(outcome)

    # --- history and journal ------------------------------------------------------------------------------------

    async def read_history(self, chat_id: str, *, start: int = 0, limit: int = 10_000) -> list[HistoryRow]:
        return [
            HistoryRow(pos=pos, seq=seq, role=Role(role), message_id=ref, body=body.encode())
            for pos, seq, role, ref, body in await self._named_rows(
                sql.READ_HISTORY, id=chat_id, start=start, limit=limit
            )
        ]

    async def read_compaction(self, chat_id: str) -> Compaction | None:
        found = await self._named_rows(sql.READ_COMPACTION, id=chat_id)
        return Compaction(upto=found[0][0], summary=found[0][1], created_at=found[0][2]) if found else None

    async def locate_message(self, chat_id: str, message_id: str) -> Located:
        found = await self._rows(sql.LOCATE_MESSAGE, chat_id, message_id)
        if not found:
            raise NotFound("message", message_id)
        pos, role, epoch = found[0]
        return Located(pos=pos, role=Role(role), epoch=epoch)

    async def read_journal(self, chat_id: str, after: After = None, limit: int = PAGE_ROWS) -> Page:
        cursor = parse(after)
        found = await self._named_rows(
            sql.READ_JOURNAL, id=chat_id, seq=cursor.seq, attempt=cursor.attempt, k=cursor.k, limit=limit
        )
        if not found:
            raise NotFound("chat", chat_id)
        (_, last_seq, fence, line_stamp, life, state), (_, attempt_ended, _, delta_stamp, _, _) = found[:2]
        cursor = placed(cursor, Place(chat_id, life, last_seq, fence, attempt_ended, line_stamp, delta_stamp))
        journal = [(seq, stamp, at, body) for part, seq, _, stamp, at, body in found if part == 1]
        deltas = [tuple(piece) for part, *piece in found if part == 2]
        return page_of(cursor, journal, deltas, last_seq=last_seq, state=state, limit=limit)

    async def add_deltas(self, batches: Sequence[DeltaBatch]) -> tuple[str, ...]:
        self._check_open()
        if not batches:
            return ()
        flush = self._transactor.own(self._flush(batches))
        for batch in batches:
            self._flushing.setdefault(batch.chat_id, set()).add(flush)
        flush.add_done_callback(partial(self._flushed, batches))
        return await asyncio.shield(flush)

    def _flushed(self, batches: Sequence[DeltaBatch], flush: "asyncio.Task[Any]") -> None:
        for chat_id in {batch.chat_id for batch in batches}:
            flushes = self._flushing[chat_id]
            flushes.discard(flush)
            if not flushes:
                del self._flushing[chat_id]

    async def _flush(self, batches: Sequence[DeltaBatch]) -> tuple[str, ...]:
        given = [
            {
                **{name: getattr(batch.chat, name) for name in _KNOWN},
                "n": n,
                "chat_id": batch.chat_id,
                "attempt": batch.attempt,
                "first_k": batch.first_k,
            }
            for n, batch in enumerate(batches)
        ]
        try:
            pieces = [
                {"n": n, "k": batch.first_k + k, "body": body.decode()}
                for n, batch in enumerate(batches)
                for k, body in enumerate(batch.bodies)
            ]
        except UnicodeDecodeError as error:
            raise InvalidInput("delta", NOT_UNICODE) from error
        values = (encode(given).decode(), self._clock.now(), encode(pieces).decode())
        points = ("deltas.before", "deltas.after")
        taken = {row[0] for row in await self._write_alone(sql.ADD_DELTAS, *values, points=points)}
        self._announce({batch.chat_id for batch in batches})
        return tuple(batch.chat_id for n, batch in enumerate(batches) if n not in taken)

    async def read_deltas(self, chat_id: str, attempt: int) -> list[DeltaRow]:
        found = await self._named_rows(sql.READ_DELTAS, id=chat_id, attempt=attempt)
        return [DeltaRow(attempt=attempt, k=k, body=body.encode()) for attempt, k, body in found]

    # --- workers ------------------------------------------------------------------------------------------------

    def lease_line(self) -> LeaseLine:
        self._check_open()
        return PostgresLeaseLine(self.address, self._clock, self.options)

    async def claim_chats(
        self, worker: str, agents: Mapping[str, int], limit: int, suspects: int | None = None
    ) -> list[Snapshot]:
        self._check_open()
        claimed = await self._claims.claim(worker, agents, limit, limit if suspects is None else suspects)
        self._ring(claimed.changes)
        return claimed.snapshots

    async def list_workers(self) -> list[Lease]:
        leases = [lease_of(row) for row in await self._rows(sql.LIST_WORKERS)]
        # On another machine the same path is another file, or a network's idea of a lock.
        return [lease if lease.host == self._host else replace(lease, lock_path=None) for lease in leases]

    async def _end_lease(self, worker: str, how: LeaseEnd, renewal: int | None = None) -> bool:
        points = ("expire.before", "expire.after")
        return bool(await self._write_alone(sql.END_LEASE, worker, renewal, how, points=points))

    async def _retire_lease(self, worker: str) -> None:
        await self._write_alone(sql.RETIRE_WORKER, worker)

    async def held_chats(self, worker: str) -> set[Held]:
        return {(chat_id, stamp) for chat_id, stamp in await self._rows(sql.HELD_CHATS, worker)}

    async def _lost_in_silence(self, worker: str) -> list[str]:
        return [row[0] for row in await self._named_rows(sql.LOST_IN_SILENCE, worker=worker)]

    async def _unknown_holders(self) -> list[str]:
        return [row[0] for row in await self._rows(sql.UNKNOWN_HOLDERS)]

    async def _drop_worker(self, worker: str) -> None:
        await self._write_alone(sql.DROP_WORKER, worker)

    async def _apply_upkeep(self, chat_id: str, event: Command) -> None:
        tried: tuple[Change, ...] = ()

        async def work(transaction: Transaction) -> None:
            nonlocal tried
            await transaction.begin()
            current = await transaction.must_load(chat_id)
            if transaction.asked_before and current.chat.version >= tried[0].after.chat.version:
                return  # it did happen, or somebody else moved the chat on; the next look will tell
            if isinstance(event, Repair) and event.reason == JOURNAL_AHEAD:
                for statement in sql.CUT_TORN:
                    await transaction.rows(statement, chat_id, current.chat.seq)
            made = decided(await transaction.apply(current, (event,)))
            tried = made.changes
            await transaction.write(made.writes)
            if isinstance(event, Repair):
                await transaction.rows(sql.COUNT_REPAIR, event.reason, transaction.now)
            await transaction.commit()
            self._ring(tried)

        await self._run(work, "work")

    # --- upkeep ---------------------------------------------------------------------------------------------------

    def _tell_of_failover(self, why: str) -> None:
        self.incidents.tell(FAILED_OVER, why)

    async def find_violations(self) -> list[Violation]:
        found = await self._run(lambda transaction: transaction.planned_rows(sql.FIND_VIOLATIONS), "reads")
        return [violation(row) for row in found]

    async def _next_torn(self, after: str) -> list[tuple[str, str, bool]]:
        return [(id, state, torn) for id, state, torn in await self._rows(sql.NEXT_TORN, after)]

    async def _next_to_sweep(self, after: tuple[str, str]) -> tuple[list[str], list[str]]:
        waiting = await self._rows(sql.NEXT_WAITING, after[0])
        queued = await self._rows(sql.NEXT_QUEUED, after[1])
        return [id for (id,) in waiting], [id for (id,) in queued]

    async def _find_violations_among(self, waiting: list[str], queued: list[str]) -> list[Violation]:
        values = {"waiting": waiting, "queued": queued}
        found = await self._run(
            lambda transaction: transaction.planned_rows(sql.FIND_VIOLATIONS_AMONG, **values), "reads"
        )
        return [violation(row) for row in found]

    async def _prune_receipts(self, before: int) -> int:
        ((count,),) = await self._write_alone(sql.PRUNE_RECEIPTS, before, PRUNED_MAX)
        return int(count)

    async def next_with_leftovers(self, cutoffs: Cutoffs, after: str) -> list[tuple[str, bool]]:
        values = {"attempts": cutoffs.attempts, "calls": cutoffs.calls, "compactions": cutoffs.compactions}
        found = await self._scan("lists", sql.NEXT_WITH_LEFTOVERS, after=after, **values)
        return [(id, has_some) for id, has_some in found]

    async def drop_leftovers(
        self, kind: Leftover, chat_ids: Sequence[str], before: int, *, dry_run: bool = False
    ) -> Amount:
        if dry_run:
            ((count, size),) = await self._rows(sql.COUNT_LEFTOVERS[kind], list(chat_ids), before)
            return Amount(count, int(size))
        sizes = await self._write_alone(sql.DROP_LEFTOVERS[kind], list(chat_ids), before)
        return Amount(len(sizes), sum(size for (size,) in sizes))

    async def next_expired(self, before: int, after: str) -> list[tuple[str, int]]:
        return [
            (id, family) for id, family in await self._scan("lists", sql.NEXT_EXPIRED, after=after, before=before)
        ]

    async def measure(self) -> Size:
        ((total,),) = await self._rows(sql.MEASURE, list(TABLES))
        return Size(total, None)

    async def vacuum(self) -> AsyncGenerator[str, None]:
        """Table by table, beside everybody; yields the name of each when it is done."""
        self._check_open()
        async with aclosing(vacuum(self._connector, self.options.deadline_s)) as tables:
            async for table in tables:
                yield table

    def now_ms(self) -> int:
        return self._clock.now()

    async def _line_stamp(self, known: Chat) -> int | None:
        found: int | None = await self._run(lambda transaction: transaction.line_stamp(known))
        return found

    async def _note(self, key: str, value: int) -> None:
        await self._write_alone(sql.PUT_NOTE, key, value)

    async def _read_notes(self) -> dict[str, int]:
        return dict(await self._rows(sql.READ_NOTES))

    async def read_repairs(self) -> dict[str, int]:
        return dict(await self._rows(sql.READ_REPAIRS))

    async def prove_writing(self) -> None:
        await self._write_alone(sql.PROVE_WRITING)

    def stats(self) -> dict[str, int | float | str | None]:
        facts = self._connector.facts
        figures: dict[str, int | float | str | None] = {
            "store": "postgresql",
            "server_version": f"{facts.version // 10_000}.{facts.version % 10_000}" if facts else None,
            "schema_version": self.schema_version,
            "connects": self._connector.connects,
            "clock_offset_ms": self._clock.offset_ms,
            "waiters": self.bell.waiter_count,
            "unreadable_chats": self.unreadable,
            "went_back": self.incidents.counts[WENT_BACK],
            "failed_over": self.incidents.counts[FAILED_OVER],
            "remnant_chats": self.remnant_count,
            "origin": self._connector.origin,
            "listen": self._listen_state(),
            **self._wake_stats(),
        }
        if self._pool is None:
            return figures
        committer = self._committer
        return figures | {
            "pool_connections": self._pool.open_count,
            "pool_connections_busy": self._pool.busy_count,
            "pool_connections_max": self._pool.size,
            "pool_waiting": self._pool.waiting,
            "tasks": self._transactor.task_count,
            "retries": self._transactor.retries,
            "commits": committer.commits,
            "commit_batches": committer.batches,
            "commit_batch_max": BATCH_COMMITS_MAX,
            "commit_misses": committer.misses,
            "commit_resends": committer.resends,
            "commits_pending": committer.pending_count,
            "commits_in_flight": committer.in_flight_count,
            "commit_p50_ms": committer.latency_p50_ms,
            "hints_sent": self._hints.sent if self._hints is not None else None,
            "hints_failed": self._hints.failed if self._hints is not None else None,
        }

    def _listen_state(self) -> str:
        """In one word, and why if it is not well. A stream that no ping has proven yet is not believed."""
        if self.wakes is None or self.wakes.state is WakeState.STOPPED:
            return "off"
        figures = self.wakes.figures()
        if figures.proven:
            return "listening"
        return "connecting" if figures.last_error is None else f"broken: {self._scrub(figures.last_error)}"

    def _scrub(self, text: str) -> str:
        return self.address.scrub(text)


def _pass_on(answer: "asyncio.Future[Snapshot]", look: "asyncio.Task[Snapshot]") -> None:
    error = look.exception() if not look.cancelled() else asyncio.CancelledError()
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(look.result())
