"""Exports and imports, as PostgreSQL makes them."""

from collections.abc import Sequence

from holdfast.core.kept_files import Aside, Content
from holdfast.core.records import ChatRecord
from holdfast.faults import reach
from holdfast.store.export_lines import HEAPS, Heap
from holdfast.store.kept_files import KeptFiles
from holdfast.store.large_chats import LargeChats
from holdfast.store.postgres import sql
from holdfast.store.postgres.transactions import Transaction, Transactor
from holdfast.store.receipts import request_of
from holdfast.store.records import Answer, Key
from holdfast.store.remnants import Occupied, Remnant, remnant_row
from holdfast.store.rows import Row, chat_row
from holdfast.store.transfers import PAGE_BYTES, PAGE_ROWS, Slot, Transfers, answer_to, given_up, statements

_STATEMENTS = {table: statements(heap, "%s") for table, heap in HEAPS.items()}


class PostgresTransfers(Transfers):
    def __init__(self, transactor: Transactor, large_chats: LargeChats, files: KeptFiles) -> None:
        super().__init__(large_chats, files)
        self._transactor = transactor

    async def read_family(self, chat_id: str, limit: int) -> list[Row]:
        return await self._transactor.rows(sql.READ_WHOLE_FAMILY, chat_id, limit)

    async def read_page(self, chat: ChatRecord, heap: Heap, after: Row) -> list[Row]:
        """By their sizes first, so that no more than a page is in memory."""
        sizes = sql.transfer_sizes(heap.table, heap.key, heap.columns[-1])
        found = await self._transactor.rows(sizes, chat.id, *after, PAGE_ROWS)
        count = size = 0
        for (row_bytes,) in found:
            if count and size >= PAGE_BYTES:
                break
            count, size = count + 1, size + (row_bytes or 0)
        if not count:
            return []
        page = _STATEMENTS[heap.table].page
        return await self._transactor.rows(page, chat.id, *after, chat.id, chat.stamp, count)

    async def add_slice(self, slot: Slot, source: str, *, first: bool) -> None:
        async def work(transaction: Transaction) -> None:
            reach("import.before")
            await transaction.begin()
            left = await transaction.check_unused(slot.chat_id, "import")
            if first:
                if left is not None:
                    raise Occupied(slot.chat_id, taken=left.source_id is not None)
                record = Remnant(chat_id=slot.chat_id, source_id=source, seq=len(slot.rows) + 1)
                await transaction.rows(sql.ADD_REMNANT, *remnant_row(record))
            elif not await transaction.rows(sql.MOVE_IMPORT, len(slot.rows) + 1, slot.chat_id, source):
                raise given_up(slot.chat_id)
            for row in slot.rows:
                await transaction.rows(_STATEMENTS[slot.heap.table].insert, slot.chat_id, *row)
            reach("import.slice")
            await transaction.commit()

        await self._transactor.write(work)

    async def add_file(self, chat_id: str, content: Content, source: str) -> None:
        async def work(transaction: Transaction) -> None:
            await transaction.begin()
            if not await transaction.rows(sql.MOVE_IMPORT, 1, chat_id, source):
                raise given_up(chat_id)
            await transaction.keep_files(chat_id, Aside((content,)))
            await transaction.commit()

        await self._transactor.write(work)

    async def finish(self, chats: Sequence[ChatRecord], source: str, key: Key) -> Answer:
        ids = [chat.id for chat in chats]
        hash = request_of(key, *ids)

        async def work(transaction: Transaction) -> Answer:
            await transaction.begin()
            if (known := await transaction.read_receipt(key, hash)) is not None:
                return known
            dropped = await transaction.rows(sql.DROP_IMPORT, ids, source)
            if len(dropped) != len(ids):
                raise given_up(ids[0])
            for chat in chats:
                await transaction.check_unused(chat.id, "import")
                await transaction.rows(sql.INSERT_CHAT, *chat_row(chat))
            answer = answer_to(chats)
            await transaction.put_receipt(key, hash, answer)
            reach("import.after")
            await transaction.commit()
            transaction.ring(ids)
            return answer

        return await self._transactor.write(work)

    async def owners(self, after: str | None, limit: int) -> list[tuple[str, int]]:
        rows = await self._transactor.rows(sql.LIST_OWNERS, after, after, limit)
        return [(owner, count) for owner, count in rows]
