"""The slices of forks and deletions, as SQLite makes them."""

from collections.abc import Sequence

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
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.transactions import Transaction, Transactor


class SqliteLargeChats(LargeChats):
    # A few milliseconds: every other writer waits for it.
    slice = Slice(rows=500, bytes=1 << 19)

    def __init__(self, transactor: Transactor, options: StoreOptions) -> None:
        super().__init__(options)
        self._transactor = transactor

    async def fork_slice(self, asked: Forking) -> Answer | None:
        def work(transaction: Transaction) -> Answer | None:
            reach("fork.before")
            if (answer := transaction.read_receipt(asked.key, asked.hash)) is not None:
                return answer
            transaction.check_unused(asked.new_id, "fork")
            source = transaction.must_load(asked.chat_id)
            end = self._end_of_fork(transaction, source, asked.upto)
            changes = fork(source, asked.new_id, end, transaction.now, owner=asked.owner)
            if isinstance(changes, Refused):
                raise_refused(changes)
            left = copied_so_far(transaction.read_remnant(asked.new_id), asked.new_id, source.chat, end)
            made = decided(changes)
            if not self._copy_slice(transaction, asked, source, end, left, made):
                reach("fork.slice")
                return None
            transaction.change(sql.COPY_COMPACTIONS, asked.new_id, asked.chat_id, end)
            transaction.change(sql.FILES.copy, asked.new_id, asked.chat_id)
            answer = transaction.keep_receipt(asked.key, asked.hash, made.changes[-1:])
            transaction.tell(made.changes)
            reach("fork.after")
            return answer

        return await self._transactor.write(work)

    def _copy_slice(
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
        sizes = transaction.rows(sql.SIZES_TO_COPY, asked.chat_id, start, end, self.slice.rows + 1)
        copying = next_copy(left, source, end, [(pos, size) for pos, size in sizes], self.slice)
        first_line = made.writes[0].journal[0]
        if copying.whole:
            if left is not None:
                transaction.change(sql.DROP_REMNANT, asked.new_id)
                without_first_line(made.writes)
            transaction.write(made.writes)
        elif left is None:
            transaction.change(sql.INSERT_JOURNAL, asked.new_id, *first_line)
        place = (copying.seq, copying.start, copying.upto)
        stamp = made.after.chat.stamp
        copied = transaction.change(sql.COPY_HISTORY, asked.new_id, asked.chat_id, *place, stamp)
        if not copying.whole:
            record = record_of(asked.new_id, source.chat, copying, copied)
            transaction.change(sql.PUT_REMNANT, *remnant_row(record))
        return copying.whole

    def _end_of_fork(self, transaction: Transaction, source: Snapshot, upto: int | None) -> int:
        if upto is None:
            return source.chat.length
        if not 0 <= upto < source.chat.length:
            raise NotFound("position", str(upto))
        ((end,),) = transaction.rows(sql.END_OF_GROUP, source.chat.id, upto)
        return source.chat.length if end is None else int(end)

    async def take_out(
        self, chat_id: str, children: DeleteChildren, archived_before: int | None = None
    ) -> tuple[tuple[str, ...], bool]:
        def work(transaction: Transaction) -> tuple[tuple[str, ...], bool]:
            reach("delete.before")
            family = transaction.rows(sql.READ_FAMILY, chat_id)
            if not family:
                raise NotFound("chat", chat_id)
            check_childless(family, chat_id, children)
            if archived_before is not None:
                found = transaction.rows(sql.IS_EXPIRED, chat_id, archived_before)
                check_expired(found, chat_id, family[0][1])
            ids = [id for id, _ in family]
            room: Slice | None = self.slice
            for id in ids:
                # A parent that waits for it is told that no answer will come.
                changes = transaction.apply(transaction.must_load(id), (Delete(),))
                transaction.write(decided(changes).writes)
                transaction.tell([change for change in changes if change.after.chat.id != id])
                transaction.change(sql.DELETE_CHAT, id)
                room = transaction.take_rows(id, room) if room is not None else None
                if room is None:
                    transaction.change(sql.PUT_REMNANT, *remnant_row(Remnant(chat_id=id)))
            self._forget(room is None)
            transaction.ring(ids)
            reach("delete.after")
            return tuple(ids), room is None

        return await self._transactor.write(work)

    async def clear_slice(self, chat_ids: Sequence[str]) -> bool:
        def work(transaction: Transaction) -> bool:
            reach("clear.before")
            going = [id for id in chat_ids if transaction.row(sql.ROWS_TO_GO, id) is not None]
            room, left = self.slice, False
            for id in going:
                rest = transaction.take_rows(id, room)
                if left := rest is None:
                    break
                transaction.change(sql.DROP_REMNANT, id)
                room = rest
            if going:
                self._forget(left)
            reach("clear.after")
            return left

        return await self._transactor.write(work)

    def _forget(self, more: bool) -> None:
        """In work that deleted something. What a later one goes on with leaves the WAL with that."""
        if not more:
            self._transactor.scrub()

    async def read_remnants(self) -> list[Remnant]:
        return [remnant_of(row) for row in await self._transactor.rows(sql.READ_REMNANTS, SWEPT_MAX)]

    async def give_up_fork(self, chat_id: str, pos: int | None = None) -> None:
        await self._transactor.write_alone(sql.GIVE_UP_FORK, chat_id, pos)
