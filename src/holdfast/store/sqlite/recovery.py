"""The steps of taking over after deaths, as SQLite makes them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.core.codec import encode
from holdfast.core.commands import Command, Repair
from holdfast.core.records import Lease, LeaseEnd, Snapshot
from holdfast.faults import reach
from holdfast.store.decisions import decided
from holdfast.store.liveness import JOURNAL_AHEAD
from holdfast.store.records import StoreOptions, Violation
from holdfast.store.recovery import Recovery
from holdfast.store.rows import Row, lease_of, violation
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.leases import located
from holdfast.store.sqlite.transactions import Transaction, Transactor
from holdfast.store.survey import WalkedTo


class SqliteRecovery(Recovery):
    def __init__(
        self,
        transactor: Transactor,
        options: StoreOptions,
        read_chat: Callable[[str], Awaitable[Snapshot]],
        *,
        host: str,
        lock_folder: str,
    ) -> None:
        super().__init__(options, read_chat, transactor, sql)
        self._transactor = transactor
        self._host = host
        self._lock_folder = lock_folder

    # --- leases -------------------------------------------------------------------------------------------------

    def lease(self, row: Row) -> Lease:
        return located(lease_of(row), self._lock_folder, self._host)

    async def end_lease(self, worker: str, how: LeaseEnd, renewal: int | None = None) -> bool:
        def work(transaction: Transaction) -> bool:
            reach("expire.before")
            ended = transaction.rows(sql.END_LEASE, worker, how, renewal)
            reach("expire.after")
            return bool(ended)

        return await self._transactor.write(work)

    # --- violations ---------------------------------------------------------------------------------------------

    async def find_violations(self) -> list[Violation]:
        return [violation(row) for row in await self._transactor.rows(sql.FIND_VIOLATIONS)]

    async def look_around(self, values: Mapping[str, Any]) -> Row:
        return (await self._transactor.named_rows(sql.SURVEY, **values))[0]

    async def next_to_sweep(self, upto: WalkedTo) -> tuple[list[str], list[str]]:
        def work(transaction: Transaction) -> tuple[list[str], list[str]]:
            waiting = transaction.rows(sql.NEXT_WAITING, upto.waiting)
            queued = transaction.rows(sql.NEXT_QUEUED, upto.queued)
            return [id for (id,) in waiting], [id for (id,) in queued]

        return await self._transactor.read(work)

    async def find_violations_among(self, waiting: list[str], queued: list[str]) -> list[Violation]:
        values = (encode(waiting).decode(), encode(queued).decode())
        return [violation(row) for row in await self._transactor.rows(sql.FIND_VIOLATIONS_AMONG, *values)]

    async def apply_upkeep(self, chat_id: str, command: Command) -> None:
        def work(transaction: Transaction) -> None:
            current = transaction.must_load(chat_id)
            if isinstance(command, Repair) and command.reason == JOURNAL_AHEAD:
                for statement in sql.CUT_TORN:
                    transaction.change(statement, chat_id, current.chat.seq)
            made = decided(transaction.apply(current, (command,)))
            transaction.write(made.writes)
            if isinstance(command, Repair):
                transaction.change(sql.COUNT_REPAIR, command.reason, transaction.now)
            transaction.tell(made.changes)

        await self._transactor.write(work)
