"""Exports, imports and the end of an owner, as files and figures: what `App` and the commands call.

A chat is one file of JSON lines, `CHAT.jsonl`; an owner is a folder of them. A file is there whole or not at all,
and an import is one family of chats, whole or not at all. Memory is bounded, however large a chat is.
"""

import asyncio
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.codec import encode
from holdfast.core.commands import Stop
from holdfast.core.records import ChatRecord, State
from holdfast.errors import InvalidInput, NotFound, RefusedError
from holdfast.ids import new_id, new_stamp
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter, ChatLine
from holdfast.store.rows import Row
from holdfast.store.transfers import (
    FAMILY_MAX,
    FORMAT,
    HEAPS,
    LINE_BYTES_MAX,
    Heap,
    Slot,
    chat_in,
    record_in,
    row_in,
)
from holdfast.system import disk

TRIES_MAX = 5  # of an export of a chat that changes meanwhile
STOPPED_WITHIN_S = 60.0
LISTED = 500
BUFFER_ROWS = 500
BUFFER_BYTES = 1 << 20

Told = Callable[[int], object]  # how many chats so far


def not_told(_: int) -> None:
    pass


class Imported(Struct, frozen=True):
    chat_id: str
    chats: int  # with those that were spawned below it


class OwnerDeleted(Struct, frozen=True):
    owner: str
    chats: int
    stopped: int  # of these
    tokens: int  # that were revoked


# --- out ------------------------------------------------------------------------------------------------------------


async def export_chat(store: Store, chat_id: str, path: Path, *, overwrite: bool = False) -> int:
    """Bytes that were written. Raises NotFound, RefusedError, FileExistsError, OSError."""
    for tries in range(1, TRIES_MAX + 1):
        with disk.unfinished_file(path) as draft:
            try:
                size = await _write_lines(store, chat_id, Path(draft.path))
            except RefusedError:
                if tries == TRIES_MAX or (await store.read_chat(chat_id)).chat.worker is not None:
                    raise
                continue
            draft.publish(overwrite=overwrite)
            return size
    raise AssertionError("the last try raises")


async def _write_lines(store: Store, chat_id: str, path: Path) -> int:
    size = 0
    with path.open("wb") as file:
        async for line in store.transfers.export_lines(chat_id):
            size += file.write(line)
    return size


async def export_owner(store: Store, owner: str, folder: Path, told: Told = not_told) -> int:
    """A file for each family of chats of the owner. What is there is left, so that it can be run again. Raises as
    above.
    """
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    count = 0
    before: str | None = None
    while lines := await store.list_chats(ChatFilter(owner=owner), before=before, limit=LISTED):
        for line in lines:
            if (await _parent_of(store, line.id)) is None:
                await export_chat(store, line.id, folder / f"{line.id}.jsonl", overwrite=True)
                count += 1
                told(count)
        before = lines[-1].id
    return count


async def _parent_of(store: Store, chat_id: str) -> str | None:
    try:
        return (await store.read_chat(chat_id)).chat.parent_id
    except NotFound:
        return "gone"


# --- in -------------------------------------------------------------------------------------------------------------


async def import_chat(store: Store, path: Path, *, new_ids: bool = False, owner: str | None = None) -> Imported:
    """`new_ids`: beside one that is there already. `owner`: another one. Raises InvalidInput for a file that is no
    whole export, RefusedError where a chat of that id is there, OSError.
    """
    with path.open("rb") as file:
        coming = _Import(store, new_ids=new_ids, owner=owner)
        try:
            return await coming.run(file)
        except BaseException:
            await asyncio.shield(store.transfers.give_up(coming.begun))
            raise


class _Import:
    def __init__(self, store: Store, *, new_ids: bool, owner: str | None) -> None:
        self._transfers = store.transfers
        self._new_ids = new_ids
        self._owner = owner
        self._source = new_id("import")
        self._names: dict[str, str] = {}  # old id to new
        self._chats: list[ChatRecord] = []
        self._rows: list[Row] = []
        self._bytes = 0
        self._heap: Heap | None = None
        self._seen: dict[str, int] = {}  # rows of the chat that is being read
        self._first = True
        self.begun: list[str] = []

    async def run(self, file: BinaryIO) -> Imported:
        digest = hashlib.blake2b(digest_size=16)
        ended = False
        for number, line in enumerate(_lines_of(file), 1):
            if ended:
                raise InvalidInput(f"line {number}", "comes behind the end of the export")
            record = record_in(line, number)
            if record["kind"] == "end":
                ended = True
                if (record.get("digest"), record.get("lines")) != (digest.hexdigest(), number - 1):
                    raise InvalidInput(f"line {number}", "tells of other lines than these: the file was changed")
                continue
            digest.update(line)
            await self._take(record, number)
        if not ended:
            raise InvalidInput("the file", "has no end: it is not whole")
        await self._end_chat()
        if not self._chats or len(self._chats) != len(self._names):
            raise InvalidInput("the file", f"has {len(self._chats)} of {len(self._names)} chats")
        await self._transfers.finish(self._chats, self._source)
        return Imported(chat_id=self._chats[0].id, chats=len(self._chats))

    async def _take(self, record: dict[str, Any], number: int) -> None:
        kind = record["kind"]
        if number == 1:
            if kind != "holdfast-export" or record.get("format") != FORMAT:
                raise InvalidInput("line 1", f"is not the first of an export of format {FORMAT}")
            self._expect(record.get("chats"))
        elif kind == "chat":
            await self._end_chat()
            self._begin_chat(chat_in(record, number), number)
        elif kind in HEAPS and self._chats:
            heap = HEAPS[kind]
            if heap is not self._heap:
                await self._flush()
                self._heap = heap
            self._seen[kind] = self._seen.get(kind, 0) + 1
            row = self._renamed(row_in(record, heap, number), heap)
            self._rows.append(row)
            self._bytes += len(row[-1] or "")
            if len(self._rows) >= BUFFER_ROWS or self._bytes >= BUFFER_BYTES:
                await self._flush()
        else:
            raise InvalidInput(f"line {number}", f"is of a kind that no export has there: {kind!r}")

    def _expect(self, ids: object) -> None:
        if not isinstance(ids, list) or not ids or not all(isinstance(id, str) and id for id in ids):
            raise InvalidInput("line 1", "does not say which chats the export has")
        if len(set(ids)) != len(ids) or len(ids) > FAMILY_MAX:
            raise InvalidInput("line 1", "names a chat twice, or too many of them")
        self._names = {id: new_id("chat") if self._new_ids else id for id in ids}

    def _begin_chat(self, chat: ChatRecord, number: int) -> None:
        expected = list(self._names)
        if len(self._chats) >= len(expected) or chat.id != expected[len(self._chats)]:
            raise InvalidInput(f"line {number}", "is another chat than the first line says")
        if (chat.parent_id is not None) != bool(self._chats) or (chat.parent_id or chat.id) not in self._names:
            raise InvalidInput(f"line {number}", "is a chat whose parent is not before it")
        named = replace(
            chat,
            id=self._names[chat.id],
            owner=chat.owner if self._owner is None else self._owner,
            parent_id=self._names.get(chat.parent_id or ""),
            root_id=self._names.get(chat.root_id or ""),
            life=new_stamp() if self._new_ids else chat.life,
        )
        self._chats.append(named)
        self._seen, self._first, self._heap = {}, True, HEAPS["journal"]

    async def _end_chat(self) -> None:
        if not self._chats:
            return
        await self._flush()
        chat = self._chats[-1]
        if self._seen.get("journal", 0) != chat.seq:
            raise InvalidInput(f"chat {chat.id}", f"has {self._seen.get('journal', 0)} of {chat.seq} journal lines")

    def _renamed(self, row: Row, heap: Heap) -> Row:
        """Ids of the family, where it comes in under others: a call's child, and what the journal tells of."""
        if not self._new_ids:
            return row
        values = list(row)
        if heap.table == "calls":
            at = heap.columns.index("child_id")
            values[at] = self._names.get(values[at], values[at])
        if heap.table == "journal":
            for field, (old, new) in itertools.product(("chat_id", "child_id", "parent_id"), self._names.items()):
                values[-1] = values[-1].replace(_field(field, old), _field(field, new))
        return tuple(values)

    async def _flush(self) -> None:
        if not self._rows or self._heap is None:
            return
        chat_id = self._chats[-1].id
        if self._first:
            self.begun.append(chat_id)
        rows, self._rows, self._bytes = self._rows, [], 0
        first, self._first = self._first, False
        try:
            await self._transfers.add(Slot(chat_id, self._heap, rows), self._source, first=first)
        except RefusedError:
            if first:
                self.begun.remove(chat_id)  # what is there is another's
            raise


def _field(name: str, value: str) -> str:
    """As our JSON has it; inside a text its quotes would be escaped."""
    return f'"{name}":{encode(value).decode()}'


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        if not line.endswith(b"\n"):
            raise InvalidInput(f"line {number}", "is cut off, or longer than any line of an export")
        yield line


# --- the end of an owner --------------------------------------------------------------------------------------------


async def delete_owner(store: Store, owner: str, *, stop: bool = False, told: Told = not_told) -> OwnerDeleted:
    """All of its chats, with all that was spawned below them, and its tokens. In slices; run again, it goes on
    where it was ended.

    Raises RefusedError while chats of it run or wait, unless it is told to stop those; then while one does not stop.
    """
    deleted = stopped = 0
    while lines := await _some(store, owner, deleted == 0):
        busy = [line for line in lines if line.state not in (State.IDLE, State.FAILED)]
        if busy and not stop:
            raise RefusedError(
                f"{len(busy)} chats of {owner!r} run or wait, such as {busy[0].id!r}: stop them first (--stop)",
                reason="state",
                state=busy[0].state,
                command="delete",
            )
        for line in busy:
            stopped += await _stopped(store, line.id)
        for line in lines:
            try:
                deleted += len(await store.delete_chat(line.id, children="include"))
            except NotFound:
                continue  # it went with its family
            told(deleted)
    return OwnerDeleted(owner=owner, chats=deleted, stopped=stopped, tokens=await _revoke_tokens(store, owner))


async def _revoke_tokens(store: Store, owner: str) -> int:
    revoked = 0
    for kind in ("token", "session", "link"):
        before: str | None = None
        while page := await store.tokens.page(owner=owner, kind=kind, before=before):
            for token in page:
                if token.ended(store.now_ms()) is None:
                    await store.tokens.revoke(token.id)
                    revoked += 1
            before = page[-1].id
    return revoked


async def _some(store: Store, owner: str, first: bool) -> list[ChatLine]:
    """Those that run before all others: what refuses is found before anything is deleted."""
    for state in (State.RUNNING, State.STOPPING, State.WAITING) if first else ():
        if found := await store.list_chats(ChatFilter(owner=owner, state=state), limit=LISTED):
            return found
    return await store.list_chats(ChatFilter(owner=owner), limit=LISTED)


async def _stopped(store: Store, chat_id: str) -> int:
    """Until it rests. Raises RefusedError if it does not: no worker that lives drives it, perhaps."""
    until = time.monotonic() + STOPPED_WITHIN_S
    with store.bell.listen(chat_id) as listener:
        asked = False
        while True:
            try:
                chat = (await store.read_chat(chat_id)).chat
                if chat.state in (State.IDLE, State.FAILED):
                    return int(asked)
                await store.submit(chat_id, Stop(clear_queue=True))
                asked = True
            except NotFound:
                return int(asked)
            if time.monotonic() > until:
                raise RefusedError(
                    f"chat {chat_id!r} does not stop: is a worker running that has its agent?",
                    reason="state",
                    state=chat.state,
                    command="delete",
                )
            await listener.wait(0.5)
