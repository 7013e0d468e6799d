"""The slices of forks and deletions, as PostgreSQL makes them."""

from collections.abc import Sequence

from holdfast.core.apply import apply
from holdfast.core.change import Refused
from holdfast.core.commands import Delete
from holdfast.core.fork import fork
from holdfast.core.records import Snapshot
from holdfast.errors import NotFound
from holdfast.faults import reach
from holdfast.store.checks import check_childless, check_expired
from holdfast.store.decisions import Decided, decided, raise_refused
from holdfast.store.large_chats import LargeChats
from holdfast.store.liveness import SWEPT_MAX
from holdfast.store.postgres import sql
from holdfast.store.postgres.connection import Row
from holdfast.store.postgres.transactions import Transaction, Transactor
from holdfast.store.records import Answer, DeleteChildren, Forking, StoreOptions
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

_FAMILY_PAGE = 500  # chats in one answer, while a family is deleted


class PostgresLargeChats(LargeChats):
    # Only a write to the same chat waits for it; it is a small part of the deadline.
    slice = Slice(rows=10_000, bytes=8 << 20)

    def __init__(self, transactor: Transactor, options: StoreOptions) -> None:
        super().__init__(options)
        self._transactor = transactor

    async def fork_slice(self, asked: Forking) -> Answer | None:
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
            await transaction.rows(sql.NAME_FILES, asked.chat_id)
            await transaction.rows(sql.FILES.copy, asked.new_id, asked.chat_id)
            answer = await transaction.keep_receipt(asked.key, asked.hash, made.changes[-1:])
            reach("fork.after")
            await transaction.commit()
            transaction.tell(made.changes)
            return answer

        return await self._transactor.write(work)

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
        sizes = await transaction.rows(sql.SIZES_TO_COPY, asked.chat_id, start, end, self.slice.rows + 1)
        copying = next_copy(left, source, end, [(pos, size) for pos, size in sizes], self.slice)
        first_line = made.writes[0].journal[0]
        if copying.whole:
            if left is not None:
                await transaction.rows(sql.DROP_REMNANTS, [asked.new_id])
                without_first_line(made.writes)
            await transaction.write(made.writes)
        elif left is None:
            await transaction.rows(sql.INSERT_JOURNAL, asked.new_id, *first_line)
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

    async def take_out(
        self, chat_id: str, children: DeleteChildren, archived_before: int | None = None
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
            check_childless(family, chat_id, children)
            if archived_before is not None:
                found = await transaction.named_rows(sql.IS_EXPIRED, id=chat_id, before=archived_before)
                check_expired(found, chat_id, family[0][1])
            ids = [id for id, _ in family]
            # A parent that waits for it is told that no answer will come. Those of the spawned ones go with them.
            changes = await transaction.apply(await transaction.must_load(chat_id), (Delete(),))
            told = [change for change in changes if change.after.chat.id != chat_id]
            await self._check_at_rest(transaction, ids[1:])
            if told:
                await transaction.write(decided(told).writes)
            await transaction.rows(sql.DELETE_CHATS, ids)
            left = await transaction.take_rows(ids, self.slice)
            if left:
                await transaction.rows(sql.PUT_ROWS_TO_GO, ids)
            reach("delete.after")
            tried = tuple(ids), left
            await transaction.commit()
            transaction.tell(told)
            transaction.ring(ids)
            return tried

        return await self._transactor.write(work)

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
                outcome = apply(snapshot, Delete(), transaction.now, self._options.limits)
                if isinstance(outcome, Refused):
                    raise_refused(outcome)

    async def clear_slice(self, chat_ids: Sequence[str]) -> bool:
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

        return await self._transactor.write(work, "work")

    async def read_remnants(self) -> list[Remnant]:
        return [remnant_of(row) for row in await self._transactor.rows(sql.READ_REMNANTS, SWEPT_MAX)]

    async def give_up_fork(self, chat_id: str, pos: int | None = None) -> None:
        await self._transactor.write_alone(sql.GIVE_UP_FORK, chat_id, pos)
