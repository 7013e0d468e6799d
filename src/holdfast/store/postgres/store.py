"""The PostgreSQL store: a runner's commits go through the committer, everything else through transactions.

Locks are taken in one order: a worker's lease, a chat's parent, the chat, its children by id. The verbs are
`store/contract.py`'s.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import psycopg

from holdfast.core.apply import create
from holdfast.core.codec import NOT_UNICODE, encode
from holdfast.core.commands import Command
from holdfast.core.kept_files import Aside
from holdfast.core.records import ChatRecord, NewChat, Snapshot
from holdfast.core.wake import WakeState
from holdfast.errors import InvalidInput, NotFound, StoreUnavailable
from holdfast.faults import reach
from holdfast.ids import new_id
from holdfast.store.budgets import BudgetLedgers
from holdfast.store.contract import LeaseLine
from holdfast.store.cursor import AfterCursor, ReadersPlace, parse, placed
from holdfast.store.decisions import decide_ahead, decided
from holdfast.store.deliveries import Deliveries
from holdfast.store.incidents import FAILED_OVER, WENT_BACK
from holdfast.store.kept_files import KeptFiles
from holdfast.store.kept_rules import KeptRules
from holdfast.store.link_keys import LinkKeys
from holdfast.store.memory import Memories
from holdfast.store.notify.bell import WORK, topics_of
from holdfast.store.pages import page_of
from holdfast.store.postgres import sql
from holdfast.store.postgres.address import DatabaseAddress
from holdfast.store.postgres.claims import PostgresClaims
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.committer import BATCH_COMMITS_MAX, Committer, CommitVerdict, PendingCommit
from holdfast.store.postgres.connection import Connector
from holdfast.store.postgres.hints import Sender
from holdfast.store.postgres.large_chats import PostgresLargeChats
from holdfast.store.postgres.leases import PostgresLeaseLine
from holdfast.store.postgres.recovery import PostgresRecovery
from holdfast.store.postgres.schedules import PostgresPlayer
from holdfast.store.postgres.schema import TABLES, check_server, migrate
from holdfast.store.postgres.swaps import is_plain
from holdfast.store.postgres.transactions import Transaction, Transactor, snapshot_from
from holdfast.store.postgres.transfers import PostgresTransfers
from holdfast.store.postgres.vacuum import vacuum
from holdfast.store.postgres.wakes import PostgresWakes
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
from holdfast.store.remnants import (
    Occupied,
)
from holdfast.store.retention import Amount, Leftover
from holdfast.store.rows import history_row
from holdfast.store.schedule_changes import Changes
from holdfast.store.schedule_firing import Firing
from holdfast.store.schedules import Schedules
from holdfast.store.sql_store import SqlStore
from holdfast.store.stamps import check_past, is_proven
from holdfast.store.tokens import Tokens
from holdfast.store.webhooks import Webhooks
from holdfast.system.clock import boot_id

log = logging.getLogger(__name__)

_KNOWN = ("worker", "claim_stamp", "fence", "seq", "line_stamp")  # of the chat that an attempt was begun in

_FAMILY_PAGE = 500  # chats in one answer, while a family is deleted

FIRST_TRY_S = 1.0  # until the log says what is waited for; the next tries are longer
BETWEEN_TRIES_S = 0.25


class PostgresStore(SqlStore):
    _sql = sql
    _transactor: Transactor

    def __init__(self, url: str, options: StoreOptions) -> None:
        super().__init__(options)
        self.address = DatabaseAddress(url)
        self._clock = DatabaseClock(options.clock)
        self._connector = Connector(self.address, self._clock, options.deadline_s, self._tell_of_failover)
        self._host = boot_id()
        self._hints: Sender | None = None
        self._left_over = False  # rows without a chat were there when it was opened
        self._flushing: dict[str, set[asyncio.Task[Any]]] = {}
        self._opening_or_closing = asyncio.Lock()
        self._transactor = Transactor(self._connector, self._clock, options, self.bell, self._announce)
        self.claims = PostgresClaims(self._transactor, options.limits, self._clock)
        self.recovery = PostgresRecovery(self._transactor, options, self.read_chat, host=self._host)
        self.large_chats = PostgresLargeChats(self._transactor, options)
        self.files = KeptFiles(self._transactor, sql.FILES, self._keep_files)
        self.transfers = PostgresTransfers(self._transactor, self.large_chats, self.files)
        self.tokens = Tokens(self._transactor, sql.TOKENS, self.now_ms)
        self.kept_rules = KeptRules(self._transactor, sql.KEPT_RULES, self.now_ms)
        play = PostgresPlayer(self._transactor, options.limits)
        programs = (Changes(sql.SCHEDULES, options.limits), Firing(sql.SCHEDULES, options.limits))
        self.schedules = Schedules(self._transactor, play, sql.SCHEDULES, *programs, self.now_ms, self._clock.observe)
        self.memory = Memories(self._transactor, sql.MEMORY, self.now_ms)
        self.budgets = BudgetLedgers(self._transactor, sql.BUDGETS, self.now_ms)
        self.webhooks = Webhooks(self._transactor, sql.WEBHOOKS, self.now_ms)
        self.deliveries = Deliveries(self._transactor, sql.DELIVERIES, self.now_ms)
        self.link_keys = LinkKeys(self._transactor, sql.LINK_KEYS, self.now_ms)

    def __str__(self) -> str:
        return str(self.address)

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self, wait_s: float = 0.0) -> None:
        async with self._opening_or_closing:
            if not self._transactor.is_open:
                await self._open(wait_s)

    async def _open(self, wait_s: float) -> None:
        await self._prepare_within(wait_s)
        self._transactor.open()
        self._committer = Committer(self._connector)
        await self._open_hints()
        if self._left_over and not self.options.only_reads:
            self.large_chats.clear_later()

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
        if not self._transactor.is_open:
            return
        self._transactor.close()
        await self.large_chats.stop_clearing()
        await self._committer.close(self.options.deadline_s)
        await self._transactor.finish(self.options.deadline_s)
        if self._hints is not None:
            await self._hints.close()
        try:
            if self.wakes is not None:
                await self.wakes.stop()
        finally:
            await self._transactor.pool.close()
            self.bell.ring_all()

    def _announce(self, topics: Iterable[str]) -> None:
        told = set(topics)
        self.bell.ring(told)
        if self._hints is not None:
            self._hints.add(told)

    def _tell_of_failover(self, why: str) -> None:
        self.incidents.tell(FAILED_OVER, why)

    # --- chats ------------------------------------------------------------------------------------------------

    async def _create(self, new: NewChat, key: Key, hash: str, aside: Aside) -> Answer:
        async def work(transaction: Transaction) -> Answer:
            reach("create.before")
            await transaction.begin()
            if (answer := await transaction.read_receipt(key, hash)) is not None:
                return answer
            if (left := await transaction.check_unused(new.id, "create")) is not None:
                raise Occupied(new.id, taken=left.source_id is not None)
            made = decided((create(new, transaction.now, self.options.limits),))
            await transaction.keep_files(new.id, aside)
            await transaction.write(made.writes)
            answer = await transaction.keep_receipt(key, hash, made.changes)
            reach("create.after")
            await transaction.commit()
            transaction.tell(made.changes)
            return answer

        return await self._transactor.write(work)

    async def _submit(self, chat_id: str, command: Command, key: Key, hash: str, aside: Aside) -> Answer:
        async def work(transaction: Transaction) -> Answer:
            await transaction.begin()
            # The lock first: every other write under this key, our own lost try among them, is done when we have it.
            await transaction.lock_with_ancestors(chat_id)
            if (answer := await transaction.read_receipt(key, hash)) is not None:
                transaction.ring((chat_id, WORK))
                return answer
            made = decided(await transaction.apply(await transaction.must_load(chat_id), (command,)))
            await transaction.keep_files(chat_id, aside)
            await transaction.write(made.writes)
            answer = await transaction.keep_receipt(key, hash, made.changes)
            await transaction.commit()
            transaction.tell(made.changes)
            return answer

        return await self._transactor.write(work)

    async def _keep_files(self, chat_id: str, aside: Aside) -> None:
        async def work(transaction: Transaction) -> None:
            await transaction.begin()
            if not await transaction.rows(sql.KEEP_THERE, chat_id):
                raise NotFound("chat", chat_id)
            await transaction.keep_files(chat_id, aside)
            await transaction.commit()

        await self._transactor.write(work, "work")

    async def commit(self, snapshot: Snapshot, commands: Sequence[Command], commit_id: str) -> Snapshot:
        self._transactor.check_open()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.deadline_s
        while flushes := self._flushing.get(snapshot.chat.id):
            # Deltas of this chat are on their way. Behind the commit they would be left over from an ended attempt.
            await asyncio.wait(flushes)
        ready = decide_ahead(snapshot, commands, commit_id, self._clock.now(), self.options.limits)
        if ready is None or not is_plain(ready.writes[0]):
            return await self._commit_looking(snapshot, commands, commit_id, deadline)
        answer: asyncio.Future[Snapshot] = loop.create_future()
        entry = PendingCommit(ready, deadline, partial(self._on_verdict, answer, snapshot, commands, commit_id))
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
        commands: Sequence[Command],
        commit_id: str,
        entry: PendingCommit,
        verdict: CommitVerdict,
    ) -> None:
        """Whether or not the caller still waits for the answer."""
        if verdict is True:
            self.bell.show(entry.decided.changes)
            self._announce(topics_of(entry.decided.changes))
            if not answer.done():
                answer.set_result(entry.decided.after)
        elif verdict is False:
            look = self._commit_looking(snapshot, commands, commit_id, entry.deadline)
            self._transactor.own(look).add_done_callback(partial(_pass_on, answer))
        elif not answer.done():
            assert isinstance(verdict, BaseException)
            answer.set_exception(verdict)

    async def _commit_looking(
        self, known: Snapshot, commands: Sequence[Command], commit_id: str, deadline: float
    ) -> Snapshot:
        """The chat moved on, or is held by another transaction, or others are reached: look at it under a lock."""
        chat_id = known.chat.id

        async def work(transaction: Transaction) -> Snapshot:
            await transaction.begin()
            current = await transaction.must_load(chat_id)
            if current.chat.commit_id == commit_id:
                transaction.ring((chat_id, WORK))
                return current
            if not is_proven(current.chat, known.chat):
                with self._noticing():
                    check_past(current.chat, known.chat, await transaction.line_stamp(known.chat))
            made = decided(await transaction.apply(current, commands), commit_id)
            await transaction.write(made.writes)
            await transaction.commit()
            transaction.tell(made.changes)
            return made.after

        return await self._transactor.run(work, "work", deadline)

    async def recall(self, key: Key) -> Answer | None:
        return await self._transactor.read(lambda transaction: transaction.read_receipt(key, request_of(key)))

    async def read_chat(self, chat_id: str) -> Snapshot:
        found = await self._transactor.rows(sql.READ_SNAPSHOT, chat_id)
        if not found:
            raise NotFound("chat", chat_id)
        return snapshot_from(found[0])

    async def _line_stamp(self, known: ChatRecord) -> int | None:
        return await self._transactor.write(lambda transaction: transaction.line_stamp(known))

    # --- history and journal ------------------------------------------------------------------------------------

    async def read_history(
        self, chat_id: str, *, start: int = 0, limit: int = 10_000, bytes_max: int | None = None
    ) -> list[HistoryRow]:
        if bytes_max is None:
            found = await self._transactor.named_rows(sql.READ_HISTORY, id=chat_id, start=start, limit=limit)
        else:
            values = {"id": chat_id, "start": start, "limit": limit, "bytes_max": bytes_max}
            found = await self._transactor.named_rows(sql.READ_HISTORY_UP_TO, **values)
        return [history_row(row) for row in found]

    async def read_journal(
        self, chat_id: str, after: AfterCursor = None, limit: int = PAGE_ROWS, bytes_max: int = PAGE_BYTES
    ) -> Page:
        cursor = parse(after)
        place = {"seq": cursor.seq, "attempt": cursor.attempt, "k": cursor.k}
        found = await self._transactor.named_rows(
            sql.READ_JOURNAL, id=chat_id, **place, limit=limit, bytes_max=bytes_max
        )
        if not found:
            raise NotFound("chat", chat_id)
        (_, last_seq, fence, line_stamp, life, state), (_, attempt_ended, _, delta_stamp, _, _) = found[:2]
        cursor = placed(cursor, ReadersPlace(chat_id, life, last_seq, fence, attempt_ended, line_stamp, delta_stamp))
        journal = [(seq, stamp, at, body) for part, seq, _, stamp, at, body in found if part == 1]
        deltas = [tuple(piece) for part, *piece in found if part == 2]
        return page_of(cursor, journal, deltas, last_seq=last_seq, state=state, limit=limit, bytes_max=bytes_max)

    async def add_deltas(self, batches: Sequence[DeltaBatch]) -> tuple[str, ...]:
        self._transactor.check_open()
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
        taken = {row[0] for row in await self._transactor.write_alone(sql.ADD_DELTAS, *values, points=points)}
        self._announce({batch.chat_id for batch in batches})
        return tuple(batch.chat_id for n, batch in enumerate(batches) if n not in taken)

    # --- workers ------------------------------------------------------------------------------------------------

    def lease_line(self) -> LeaseLine:
        self._transactor.check_open()
        return PostgresLeaseLine(self.address, self._clock, self.options)

    # --- upkeep ---------------------------------------------------------------------------------------------------

    async def _prune_receipts(self, before: int) -> int:
        ((count,),) = await self._transactor.write_alone(sql.PRUNE_RECEIPTS, before, PRUNED_MAX)
        return int(count)

    async def drop_leftovers(
        self, kind: Leftover, chat_ids: Sequence[str], before: int, *, dry_run: bool = False
    ) -> Amount:
        if dry_run:
            ((count, size),) = await self._transactor.rows(sql.COUNT_LEFTOVERS[kind], list(chat_ids), before)
            return Amount(count, int(size))
        sizes = await self._transactor.write_alone(sql.DROP_LEFTOVERS[kind], list(chat_ids), before)
        return Amount(len(sizes), sum(size for (size,) in sizes))

    async def measure(self) -> Size:
        ((total,),) = await self._transactor.rows(sql.MEASURE, list(TABLES))
        return Size(total, None)

    async def vacuum(self) -> AsyncGenerator[str, None]:
        """Table by table, beside all other work; yields the name of each when it is done."""
        self._transactor.check_open()
        async with aclosing(vacuum(self._connector, self.options.deadline_s)) as tables:
            async for table in tables:
                yield table

    def now_ms(self) -> int:
        return self._clock.now()

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
            "remnant_chats": self.large_chats.remnant_count,
            "origin": self._connector.origin,
            "listen": self._listen_state(),
            **self._wake_stats(),
        }
        if not self._transactor.is_open:
            return figures
        committer, pool = self._committer, self._transactor.pool
        return figures | {
            "pool_connections": pool.open_count,
            "pool_connections_busy": pool.busy_count,
            "pool_connections_max": pool.size,
            "pool_waiting": pool.waiting,
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
