"""Exports and imports, as SQLite makes them."""

from collections.abc import Sequence

from holdfast.core.kept_files import Aside, Content
from holdfast.core.records import ChatRecord
from holdfast.faults import reach
from holdfast.store.export_lines import HEAPS, Heap
from holdfast.store.kept_files import KeptFiles
from holdfast.store.large_chats import LargeChats
from holdfast.store.receipts import request_of
from holdfast.store.records import Answer, Key
from holdfast.store.remnants import Occupied, Remnant, remnant_row
from holdfast.store.rows import Row, chat_row
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.transactions import Transaction, Transactor
from holdfast.store.transfers import PAGE_BYTES, PAGE_ROWS, Slot, Transfers, answer_to, given_up, statements

_STATEMENTS = {table: statements(heap, "?") for table, heap in HEAPS.items()}


class SqliteTransfers(Transfers):
    def __init__(self, transactor: Transactor, large_chats: LargeChats, files: KeptFiles) -> None:
        super().__init__(large_chats, files)
        self._transactor = transactor

    async def read_family(self, chat_id: str, limit: int) -> list[Row]:
        return await self._transactor.rows(sql.READ_WHOLE_FAMILY, chat_id, limit)

    async def read_page(self, chat: ChatRecord, heap: Heap, after: Row) -> list[Row]:
        page = _STATEMENTS[heap.table].page
        values = (chat.id, *after, chat.id, chat.stamp, PAGE_ROWS)
        return await self._transactor.read(lambda transaction: transaction.rows_up_to(PAGE_BYTES, page, *values))

    async def add_slice(self, slot: Slot, source: str, *, first: bool) -> None:
        def work(transaction: Transaction) -> None:
            reach("import.before")
            self._move(transaction, slot, source, first=first)
            rows = [(slot.chat_id, *row) for row in slot.rows]
            transaction.change_each(_STATEMENTS[slot.heap.table].insert, rows)
            reach("import.slice")

        await self._transactor.write(work)

    def _move(self, transaction: Transaction, slot: Slot, source: str, *, first: bool) -> None:
        transaction.check_unused(slot.chat_id, "import")
        left = transaction.read_remnant(slot.chat_id)
        if first and left is not None:
            raise Occupied(slot.chat_id, taken=left.source_id is not None)
        if not first and (left is None or left.source_id != source):
            raise given_up(slot.chat_id)
        seq = (left.seq if left is not None else 0) + len(slot.rows) + 1
        transaction.change(sql.PUT_REMNANT, *remnant_row(Remnant(chat_id=slot.chat_id, source_id=source, seq=seq)))

    async def add_file(self, chat_id: str, content: Content, source: str) -> None:
        def work(transaction: Transaction) -> None:
            self._move(transaction, Slot(chat_id, HEAPS["journal"], []), source, first=False)
            transaction.keep_files(chat_id, Aside((content,)))

        await self._transactor.write(work)

    async def finish(self, chats: Sequence[ChatRecord], source: str, key: Key) -> Answer:
        hash = request_of(key, *(chat.id for chat in chats))

        def work(transaction: Transaction) -> Answer:
            if (known := transaction.read_receipt(key, hash)) is not None:
                return known
            for chat in chats:
                transaction.check_unused(chat.id, "import")
                left = transaction.read_remnant(chat.id)
                if left is None or left.source_id != source:
                    raise given_up(chat.id)
                transaction.change(sql.DROP_REMNANT, chat.id)
                transaction.change(sql.INSERT_CHAT, *chat_row(chat))
            answer = answer_to(chats)
            transaction.put_receipt(key, hash, answer)
            transaction.ring([chat.id for chat in chats])
            reach("import.after")
            return answer

        return await self._transactor.write(work)

    async def owners(self, after: str | None, limit: int) -> list[tuple[str, int]]:
        rows = await self._transactor.rows(sql.LIST_OWNERS, after, limit)
        return [(owner, count) for owner, count in rows]
