"""Chats that leave a store as lines of JSON and come into one: which rows, in which order, and what a line is.

An export holds a chat and all that was spawned below it, as rows: the chat, its journal, calls, queue and
compactions, and the bytes of the files that its messages name. Streamed text of attempts that are over, and answers
to idempotency keys, are not in it. The last line has a digest of all others. The same chat gives the
same bytes, whichever store it is in.

An import comes in slices, each one transaction, under a record in `remnants`, as a fork does (remnants.py): until the
transaction that inserts the chats' rows there is nothing for any reader to see, and what a killed process left behind
goes away like a fork that was given up.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from holdfast.core.kept_files import Content
from holdfast.core.records import ChatRecord
from holdfast.errors import NotFound, RefusedError, StoreError
from holdfast.store.arrivals import AT_REST
from holdfast.store.export_lines import CHAT, END, FILE, FIRST, FORMAT, HEAD, HEAPS, Heap, for_client, line_of
from holdfast.store.kept_files import KeptFiles
from holdfast.store.large_chats import LargeChats
from holdfast.store.records import Answer, Key
from holdfast.store.remnants import LARGE_DEADLINE_S, Occupied, rows_within
from holdfast.store.rows import CHAT_COLUMNS, Row, chat_of, chat_row
from holdfast.system.clock import Countdown

PAGE_ROWS = 500
PAGE_BYTES = 1 << 20
FAMILY_MAX = 10_000  # chats of one export


class Statements(NamedTuple):
    page: str
    insert: str


def statements(heap: Heap, mark: str) -> Statements:
    """`mark` stands for a value."""
    columns, key = ", ".join(heap.columns), ", ".join(heap.key)
    marks = ", ".join([mark] * len(heap.key))
    return Statements(
        # Of the chat as it is known, and of no other that may be there under its id by now.
        f"SELECT {columns} FROM {heap.table} WHERE chat_id = {mark} AND ({key}) > ({marks}) "
        f"AND EXISTS (SELECT 1 FROM chats WHERE id = {mark} AND stamp = {mark}) ORDER BY {key} LIMIT {mark}",
        f"INSERT INTO {heap.table} (chat_id, {columns}) VALUES ({', '.join([mark] * (len(heap.columns) + 1))})",
    )


class Slot(NamedTuple):
    """Rows that are on their way into a store."""

    chat_id: str
    heap: Heap
    rows: list[Row]


class Transfers(ABC):
    """Of one store."""

    def __init__(self, large_chats: LargeChats, files: KeptFiles) -> None:
        self._large_chats = large_chats
        self.files = files

    # --- out ----------------------------------------------------------------------------------------------------

    async def export(self, chat_id: str, *, for_operators: bool = True) -> "Export":
        """Raises NotFound, and RefusedError for a chat that runs. Without `for_operators` what only they are told is
        left out.
        """
        return Export(self, await self.family(chat_id), for_operators=for_operators)

    async def family(self, chat_id: str) -> list[ChatRecord]:
        """The chat, and all that was spawned below it. Raises as `export`."""
        family = [chat_of(row) for row in await self.read_family(chat_id, FAMILY_MAX + 1)]
        if not family:
            raise NotFound("chat", chat_id)
        if len(family) > FAMILY_MAX:
            raise _refused(family[0], f"has more than {FAMILY_MAX:,} chats below it")
        if family[0].parent_id is not None:
            raise _refused(
                family[0], f"belongs to another: export the chat {family[0].root_id or family[0].parent_id!r}"
            )
        for chat in family:
            if chat.state not in AT_REST or chat.worker is not None:
                raise _refused(chat, f"is {chat.state}: stop it, or wait until it rests")
        return family

    # --- in -----------------------------------------------------------------------------------------------------

    async def add(self, slot: Slot, source: str, *, first: bool) -> None:
        """In as many slices as it takes. `source` names this import. Raises RefusedError where there is a chat."""
        rows = slot.rows
        clock = Countdown(LARGE_DEADLINE_S)
        while rows or first:
            sizes = [(n, len(row[-1] or "")) for n, row in enumerate(rows)]
            some = rows_within(sizes, self._large_chats.slice)
            try:
                await self.add_slice(Slot(slot.chat_id, slot.heap, rows[:some]), source, first=first)
            except Occupied:
                if not first:
                    raise
                await self._large_chats.vacate(slot.chat_id, clock)
                continue
            rows, first = rows[some:], False

    async def give_up(self, chat_ids: Sequence[str]) -> None:
        """What came of an import that is not finished goes, here or with the next sweep."""
        for chat_id in chat_ids:
            await self._large_chats.vacate(chat_id, Countdown(LARGE_DEADLINE_S))

    # --- steps, each one transaction ------------------------------------------------------------------------------

    @abstractmethod
    async def read_family(self, chat_id: str, limit: int) -> list[Row]:
        """The chats' rows, by depth and id."""

    @abstractmethod
    async def read_page(self, chat: ChatRecord, heap: Heap, after: Row) -> list[Row]:
        """Bounded in rows and bytes; the last one may go beyond. None of a chat that was changed since."""

    @abstractmethod
    async def add_slice(self, slot: Slot, source: str, *, first: bool) -> None:
        """Raises Occupied where rows of others stand, RefusedError where there is a chat."""

    @abstractmethod
    async def add_file(self, chat_id: str, content: Content, source: str) -> None:
        """Behind its first slice. Raises LimitReached, StoreError if the import was given up."""

    @abstractmethod
    async def finish(self, chats: Sequence[ChatRecord], source: str, key: Key) -> Answer:
        """The chats are there after it, all of them, and the answer is kept under the key. Raises RefusedError,
        KeyReused, StoreError if the import was given up.
        """

    @abstractmethod
    async def owners(self, after: str | None, limit: int) -> list[tuple[str, int]]:
        """Owners behind this one, in the order of their names, each with the number of its chats."""


class Export:
    """A chat with all that was spawned below it, on its way out. Its lines are read as they are asked for."""

    def __init__(self, transfers: Transfers, family: Sequence[ChatRecord], *, for_operators: bool) -> None:
        self._transfers = transfers
        self._for_operators = for_operators
        self.family = family

    async def lines(self) -> AsyncIterator[bytes]:
        """Raises RefusedError for a chat that was deleted or changed meanwhile: then all is to be read again. The
        last line is the end, and there is none without it.
        """
        digest, count = hashlib.blake2b(digest_size=16), 0
        async for line in self._lines():
            digest.update(line)
            count += 1
            yield line
        yield line_of({"kind": END, "lines": count, "digest": digest.hexdigest()})

    async def _lines(self) -> AsyncIterator[bytes]:
        yield line_of({"kind": HEAD, "format": FORMAT, "chats": [chat.id for chat in self.family]})
        for chat in self.family:
            yield line_of({"kind": CHAT, **dict(zip(CHAT_COLUMNS, chat_row(chat), strict=True))})
            for heap in HEAPS.values():
                async for row in self._rows(chat, heap):
                    yield line_of({"kind": heap.table, **dict(zip(heap.columns, row, strict=True))})
            async for digest in self._transfers.files.digests(chat.id):
                yield line_of({"kind": FILE, "digest": digest, "data": await self._file(chat, digest)})
        now = [chat_of(row) for row in await self._transfers.read_family(self.family[0].id, FAMILY_MAX + 1)]
        if [chat.stamp for chat in now] != [chat.stamp for chat in self.family]:
            raise _refused(self.family[0], "changed, or was deleted, while it was exported: try again")

    async def _file(self, chat: ChatRecord, digest: str) -> bytes:
        try:
            return await self._transfers.files.read(chat.id, digest)
        except NotFound as error:
            raise _refused(chat, "was deleted while it was exported, or a file of it is lost") from error

    async def _rows(self, chat: ChatRecord, heap: Heap) -> AsyncIterator[Row]:
        after: Row = FIRST[heap.table]
        while page := await self._transfers.read_page(chat, heap, after):
            for row in page:
                yield row if self._for_operators else for_client(heap, row)
            after = tuple(page[-1][heap.columns.index(name)] for name in heap.key)


def given_up(chat_id: str) -> StoreError:
    return StoreError(f"the import of chat {chat_id!r} stood still, and another process gave it up: run it again")


def answer_to(chats: Sequence[ChatRecord]) -> Answer:
    """What an import is answered with."""
    return Answer(chat_id=chats[0].id, seq=chats[0].seq, state=chats[0].state, turn=chats[0].turn)


def _refused(chat: ChatRecord, why: str) -> RefusedError:
    return RefusedError(f"chat {chat.id!r} {why}", reason="state", state=chat.state, command="export")
