"""Chats that leave a store as lines of JSON and come into one: which rows, in which order, and what a line is.

An export holds a chat and all that was spawned below it, as rows: the chat, its journal, calls, queue and
compactions. Streamed text of attempts that are over, and answers to idempotency keys, are not in it. The last line
has a digest of all others. The same chat gives the same bytes, whichever store it is in.

An import comes in slices, each one transaction, under a record in `remnants`, as a fork does (remnants.py): until the
transaction that inserts the chats' rows there is nothing for any reader to see, and what a killed process left behind
goes away like a fork that was given up.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.codec import decode_entry
from holdfast.core.records import ChatRecord, State
from holdfast.errors import InvalidInput, NotFound, RefusedError, StoreError
from holdfast.store.large_chats import LargeChats
from holdfast.store.remnants import LARGE_DEADLINE_S, Occupied, rows_within
from holdfast.store.rows import CALL_COLUMNS, CHAT_COLUMNS, Row, chat_of, chat_row
from holdfast.system.clock import Countdown

FORMAT = 1
PAGE_ROWS = 500
PAGE_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
FAMILY_MAX = 10_000  # chats of one export
AT_REST = (State.IDLE, State.FAILED, State.WAITING)


class Heap(NamedTuple):
    """The rows of a chat in one table. The last column is the large one."""

    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]


_CALLS = (*(name for name in CALL_COLUMNS if name != "arguments"), "arguments")
HEAPS = {
    heap.table: heap
    for heap in (
        Heap("journal", ("seq",), ("seq", "stamp", "at", "role", "pos", "ref", "body")),
        Heap("calls", ("batch", "pos"), _CALLS),
        Heap("queue", ("id",), ("id", "rank", "mode", "body")),
        Heap("compactions", ("upto",), ("upto", "created_at", "summary")),
    )
}
FIRST = {"journal": (0,), "calls": (-(2**62), -(2**62)), "queue": ("",), "compactions": (-1,)}


class Statements(NamedTuple):
    page: str
    insert: str


def statements(heap: Heap, mark: str) -> Statements:
    """`mark` stands for a value."""
    columns, key = ", ".join(heap.columns), ", ".join(heap.key)
    marks = ", ".join([mark] * len(heap.key))
    return Statements(
        f"SELECT {columns} FROM {heap.table} WHERE chat_id = {mark} AND ({key}) > ({marks}) "
        f"ORDER BY {key} LIMIT {mark}",
        f"INSERT INTO {heap.table} (chat_id, {columns}) VALUES ({', '.join([mark] * (len(heap.columns) + 1))})",
    )


class Slot(NamedTuple):
    """Rows that are on their way into a store."""

    chat_id: str
    heap: Heap
    rows: list[Row]


class Transfers(ABC):
    """Of one store."""

    def __init__(self, large_chats: LargeChats) -> None:
        self._large_chats = large_chats

    # --- out ----------------------------------------------------------------------------------------------------

    async def export_lines(self, chat_id: str) -> AsyncIterator[bytes]:
        """Raises NotFound, and RefusedError for a chat that runs, or that changed meanwhile: then all is to be read
        again.
        """
        digest, count = hashlib.blake2b(digest_size=16), 0
        async for line in self._lines(chat_id):
            digest.update(line)
            count += 1
            yield line
        yield line_of({"kind": "end", "lines": count, "digest": digest.hexdigest()})

    async def _lines(self, chat_id: str) -> AsyncIterator[bytes]:
        family = await self._family(chat_id)
        yield line_of({"kind": "holdfast-export", "format": FORMAT, "chats": [chat.id for chat in family]})
        for chat in family:
            yield line_of({"kind": "chat", **dict(zip(CHAT_COLUMNS, chat_row(chat), strict=True))})
            for heap in HEAPS.values():
                after: Row = FIRST[heap.table]
                while page := await self.read_page(chat.id, heap, after):
                    for row in page:
                        yield line_of({"kind": heap.table, **dict(zip(heap.columns, row, strict=True))})
                    after = tuple(page[-1][heap.columns.index(name)] for name in heap.key)
        if [chat.stamp for chat in await self._family(chat_id)] != [chat.stamp for chat in family]:
            raise _refused(family[0], "changed while it was exported: try again")

    async def _family(self, chat_id: str) -> list[ChatRecord]:
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
    async def read_page(self, chat_id: str, heap: Heap, after: Row) -> list[Row]:
        """Bounded in rows and bytes; the last one may go beyond."""

    @abstractmethod
    async def add_slice(self, slot: Slot, source: str, *, first: bool) -> None:
        """Raises Occupied where rows of others stand, RefusedError where there is a chat."""

    @abstractmethod
    async def finish(self, chats: Sequence[ChatRecord], source: str) -> None:
        """The chats are there after it, all of them. Raises RefusedError, StoreError if the import was given up."""

    @abstractmethod
    async def owners(self, after: str | None, limit: int) -> list[tuple[str, int]]:
        """Owners behind this one, in the order of their names, each with the number of its chats."""


def given_up(chat_id: str) -> StoreError:
    return StoreError(f"the import of chat {chat_id!r} stood still, and another process gave it up: run it again")


def _refused(chat: ChatRecord, why: str) -> RefusedError:
    return RefusedError(f"chat {chat.id!r} {why}", reason="state", state=chat.state, command="export")


# --- lines ----------------------------------------------------------------------------------------------------------


def line_of(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def record_in(line: bytes, number: int) -> dict[str, Any]:
    """Raises InvalidInput."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"line {number}", f"is no JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise InvalidInput(f"line {number}", "is no line of an export: it has no kind")
    return record


def row_in(record: dict[str, Any], heap: Heap, number: int) -> Row:
    """Raises InvalidInput for a line that is not what an export writes."""
    if set(record) != {"kind", *heap.columns}:
        raise InvalidInput(f"line {number}", f"has not the fields of {heap.table}: {', '.join(heap.columns)}")
    row = tuple(record[name] for name in heap.columns)
    if any(isinstance(value, dict | list | float) for value in row):
        raise InvalidInput(f"line {number}", f"has a value that no row of {heap.table} has")
    if heap.table == "journal":
        try:
            decode_entry(str(record["body"]))
        except Exception as error:
            raise InvalidInput(f"line {number}", f"holds no entry of a journal: {error}") from error
    return row


def chat_in(record: dict[str, Any], number: int) -> ChatRecord:
    """Raises InvalidInput."""
    if set(record) != {"kind", *CHAT_COLUMNS}:
        raise InvalidInput(f"line {number}", "has not the fields of a chat: was it written by another version?")
    try:
        chat = chat_of([record[name] for name in CHAT_COLUMNS])
    except Exception as error:
        raise InvalidInput(f"line {number}", f"is no chat: {error}") from error
    if chat.state not in AT_REST or chat.worker is not None:
        raise InvalidInput(f"line {number}", f"is a chat that is {chat.state}: only one that rests or waits is taken")
    return chat
