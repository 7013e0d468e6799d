"""The steps of taking over after deaths, as PostgreSQL makes them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.core.change import Change
from holdfast.core.commands import Command, Repair
from holdfast.core.records import Lease, LeaseEnd, Snapshot
from holdfast.store.decisions import decided
from holdfast.store.liveness import JOURNAL_AHEAD
from holdfast.store.postgres import sql
from holdfast.store.postgres.transactions import Transaction, Transactor
from holdfast.store.records import StoreOptions, Violation
from holdfast.store.recovery import Recovery
from holdfast.store.rows import Row, lease_of, violation
from holdfast.store.survey import WalkedTo


class PostgresRecovery(Recovery):
    def __init__(
        self,
        transactor: Transactor,
        options: StoreOptions,
        read_chat: Callable[[str], Awaitable[Snapshot]],
        *,
        host: str,
    ) -> None:
        super().__init__(options, read_chat, transactor, sql)
        self._transactor = transactor
        self._host = host

    # --- leases -------------------------------------------------------------------------------------------------

    def lease(self, row: Row) -> Lease:
        lease = lease_of(row)
        # On another machine the same path is another file, or a network's idea of a lock.
        return lease if lease.host == self._host else replace(lease, lock_path=None)

    async def end_lease(self, worker: str, how: LeaseEnd, renewal: int | None = None) -> bool:
        points = ("expire.before", "expire.after")
        return bool(await self._transactor.write_alone(sql.END_LEASE, worker, renewal, how, points=points))

    # --- violations ---------------------------------------------------------------------------------------------

    async def find_violations(self) -> list[Violation]:
        return [violation(row) for row in await self._transactor.planned_rows(sql.FIND_VIOLATIONS)]

    async def look_around(self, values: Mapping[str, Any]) -> Row:
        return (await self._transactor.planned_rows(sql.SURVEY, **values))[0]

    async def next_to_sweep(self, upto: WalkedTo) -> tuple[list[str], list[str]]:
        waiting = await self._transactor.rows(sql.NEXT_WAITING, upto.waiting)
        queued = await self._transactor.rows(sql.NEXT_QUEUED, upto.queued)
        return [id for (id,) in waiting], [id for (id,) in queued]

    async def find_violations_among(self, waiting: list[str], queued: list[str]) -> list[Violation]:
        values = {"waiting": waiting, "queued": queued}
        return [violation(row) for row in await self._transactor.planned_rows(sql.FIND_VIOLATIONS_AMONG, **values)]

    async def apply_upkeep(self, chat_id: str, command: Command) -> None:
        tried: tuple[Change, ...] = ()

        async def work(transaction: Transaction) -> None:
            nonlocal tried
            await transaction.begin()
            current = await transaction.must_load(chat_id)
            if transaction.asked_before and current.chat.version >= tried[0].after.chat.version:
                return  # it did happen, or another write moved the chat on; the next look will tell
            if isinstance(command, Repair) and command.reason == JOURNAL_AHEAD:
                for statement in sql.CUT_TORN:
                    await transaction.rows(statement, chat_id, current.chat.seq)
            made = decided(await transaction.apply(current, (command,)))
            tried = made.changes
            await transaction.write(made.writes)
            if isinstance(command, Repair):
                await transaction.rows(sql.COUNT_REPAIR, command.reason, transaction.now)
            await transaction.commit()
            transaction.tell(made.changes)

        await self._transactor.write(work, "work")
