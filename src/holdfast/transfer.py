"""Exports, imports and the end of an owner, as files and figures: what `App` and the commands call.

A chat is one file of JSON lines, `CHAT.jsonl`; an owner is a folder of them. A file is there whole or not at all,
and an import is one family of chats, whole or not at all. Memory is bounded, however large a chat is.
"""

import asyncio
import hashlib
import math
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.codec import encode
from holdfast.core.commands import Stop
from holdfast.core.kept_files import Content, digest_of
from holdfast.core.records import CallState, ChatRecord, State
from holdfast.errors import CallerError, Forbidden, InvalidInput, NotFound, RefusedError
from holdfast.ids import new_id, new_stamp
from holdfast.store.arrivals import Arrival, check_chat
from holdfast.store.contract import Store
from holdfast.store.export_lines import (
    CHAT,
    CUT,
    END,
    FILE,
    FORMAT,
    HEAD,
    HEAPS,
    LINE_BYTES_MAX,
    End,
    FileLine,
    Head,
    Heap,
    chat_in,
    entry_in,
    line_in,
    message_in,
    row_of,
)
from holdfast.store.receipts import own_key
from holdfast.store.records import Answer, ChatFilter, ChatLine, Key
from holdfast.store.rows import Row
from holdfast.store.transfers import FAMILY_MAX, Slot
from holdfast.system import disk, threads

TRIES_MAX = 5  # of an export of a chat that changes meanwhile
STOPPED_WITHIN_S = 60.0
LISTED = 500
BUFFER_ROWS = 500
BUFFER_BYTES = 1 << 20
CHATS_BYTES_MAX = 64 << 20  # of the chats' own lines in one import: they are kept until its end
LINES_AT_ONCE = 100  # before others have their turn
BYTES_AT_ONCE = 64 << 10
FILE_NAME_MAX = 200

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
    done: bool = True  # False: the time was up, and more is left


# --- out ------------------------------------------------------------------------------------------------------------


async def export_chat(store: Store, chat_id: str, path: Path, *, overwrite: bool = False) -> int:
    """Bytes that were written. Raises NotFound, RefusedError, FileExistsError, OSError."""
    with disk.unfinished_file(path) as draft:
        size = await _write_path(store, chat_id, Path(draft.path))
        draft.publish(overwrite=overwrite)
        return size


async def _write_path(store: Store, chat_id: str, path: Path) -> int:
    with path.open("wb") as file:
        return await write_export(store, chat_id, file)


async def write_export(store: Store, chat_id: str, file: BinaryIO) -> int:
    """From its beginning on, again where the chat changes meanwhile. Bytes that were written. Raises as above."""
    for tries in range(1, TRIES_MAX + 1):
        file.seek(0)
        file.truncate()
        size = 0
        try:
            async for line in (await store.transfers.export(chat_id)).lines():
                size += file.write(line)
        except RefusedError:
            if tries == TRIES_MAX or (await store.read_chat(chat_id)).chat.worker is not None:
                raise
            continue
        return size
    raise AssertionError("the last try raises")


def file_name_of(chat_id: str) -> str:
    """An id may be any text; a name leads out of no folder."""
    name = quote(chat_id, safe="@=+, ")
    if len(name) > FILE_NAME_MAX:
        name = f"{name[:FILE_NAME_MAX]}-{hashlib.blake2b(chat_id.encode(), digest_size=8).hexdigest()}"
    return f"{name}.jsonl"


async def export_owner(store: Store, owner: str, folder: Path, told: Told = not_told) -> int:
    """A file for each family of chats of the owner. What is there is left, so that it can be run again. Raises as
    above.
    """
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    count = 0
    async for chat_id in families(store, owner):
        await export_chat(store, chat_id, folder / file_name_of(chat_id), overwrite=True)
        count += 1
        told(count)
    return count


async def families(store: Store, owner: str) -> AsyncIterator[str]:
    """The chats of an owner that no other chat spawned."""
    before: str | None = None
    while lines := await store.list_chats(ChatFilter(owner=owner), before=before, limit=LISTED):
        for line in lines:
            if (await _parent_of(store, line.id)) is None:
                yield line.id
        before = lines[-1].id


async def _parent_of(store: Store, chat_id: str) -> str | None:
    try:
        return (await store.read_chat(chat_id)).chat.parent_id
    except NotFound:
        return "gone"


# --- in -------------------------------------------------------------------------------------------------------------


async def import_chat(store: Store, path: Path, *, new_ids: bool = False, owner: str | None = None) -> Imported:
    """`new_ids`: beside one that is there already. `owner`: another one. Raises InvalidInput and LimitReached for a
    file that is no whole export, or not of a chat as it can be; RefusedError where a chat of that id is there,
    OSError.
    """
    with path.open("rb") as file:
        return await read_import(store, file, new_ids=new_ids, owner=owner)


async def read_import(
    store: Store,
    file: BinaryIO,
    *,
    new_ids: bool = False,
    owner: str | None = None,
    approvals: bool = True,
    key: Key | None = None,
) -> Imported:
    """Without `approvals`, no call that waits for one: who made the file would have one approved that no rule and no
    hook has judged. The same `key` again brings in nothing again. Raises as above, Forbidden, KeyReused.
    """
    coming = _Import(store, new_ids=new_ids, owner=owner, approvals=approvals)
    done: Answer | None = None
    try:
        done = await coming.run(file, key or own_key())
        return Imported(chat_id=done.chat_id, chats=len(coming.chats))
    finally:
        if done is None or done.chat_id != coming.chats[0].id:  # another request with its key came first
            await asyncio.shield(store.transfers.give_up(coming.begun))


_decoding = threads.SizedWork("import", 2, BYTES_AT_ONCE)


class _Import:
    def __init__(self, store: Store, *, new_ids: bool, owner: str | None, approvals: bool) -> None:
        self._transfers = store.transfers
        self._limits = store.options.limits
        self._new_ids = new_ids
        self._owner = owner
        self._approvals = approvals
        self._source = new_id("import")
        self._names: dict[str, str] = {}  # old id to new
        self._renames: dict[str, str] = {}  # the same, as JSON has them
        self._expected: Iterator[str] = iter(())  # the chats that are to come
        self._known: dict[str, ChatRecord] = {}  # those that came, by their old ids
        self._awaited: dict[str, str] = {}  # a chat that a call waits for, and whose call that is
        self._chats_bytes = 0
        self._rows: list[Row] = []
        self._bytes = 0
        self._heap: Heap | None = None
        self._last: Row = ()  # the key of the row before
        self._arrival: Arrival | None = None
        self._first = True
        self.chats: list[ChatRecord] = []  # as they come in
        self.begun: list[str] = []

    async def run(self, file: BinaryIO, key: Key) -> Answer:
        digest = hashlib.blake2b(digest_size=16)
        ended, unbroken = False, 0
        for number, data in enumerate(_lines_of(file), 1):
            if ended:
                raise InvalidInput(f"line {number}", "comes behind the end of the export")
            kind, line = await _decoding.run(len(data), partial(line_in, data, number))
            if kind == END:
                ended = True
                _check_end(line, digest.hexdigest(), number)
                continue
            digest.update(data)
            try:
                await self._take(kind, line, number, len(data))
            except CallerError as error:
                raise _told_of(error, number) from error
            unbroken += len(data)
            if number % LINES_AT_ONCE == 0 or unbroken > BYTES_AT_ONCE:
                await asyncio.sleep(0)
                unbroken = 0
        if not ended:
            raise InvalidInput("the file", "has no end: it is not whole")
        await self._end_chat()
        if not self.chats or len(self.chats) != len(self._names):
            raise InvalidInput("the file", f"has {len(self.chats)} of {len(self._names)} chats")
        if self._awaited:
            raise InvalidInput("the file", "a call waits for a chat that is not below its own")
        return await self._transfers.finish(self.chats, self._source, key)

    async def _take(self, kind: str, line: Any, number: int, size: int) -> None:
        if number == 1 and kind == HEAD:
            self._expect(line)
        elif number > 1 and kind == CHAT:
            await self._end_chat()
            self._chats_bytes += size
            if self._chats_bytes > CHATS_BYTES_MAX:
                raise InvalidInput(f"line {number}", f"the chats alone have more than {CHATS_BYTES_MAX:,} bytes")
            self._begin_chat(chat_in(line, number), number)
        elif kind in HEAPS and self._arrival is not None:
            await self._take_row(HEAPS[kind], line, number, self._arrival)
        elif kind == FILE and self._arrival is not None:
            await self._take_file(line, number, self._arrival)
        elif kind == CUT:
            raise InvalidInput(f"line {number}", f"says that the export was cut off: {line.why[:200]}")
        else:
            raise InvalidInput(f"line {number}", f"is of a kind that no export has there: {kind!r}")

    def _expect(self, head: Head) -> None:
        if head.format != FORMAT:
            raise InvalidInput("line 1", f"is not the first of an export of format {FORMAT}")
        ids = head.chats
        if not ids or not all(ids):
            raise InvalidInput("line 1", "does not say which chats the export has")
        if len(set(ids)) != len(ids) or len(ids) > FAMILY_MAX:
            raise InvalidInput("line 1", "names a chat twice, or too many of them")
        self._names = {id: new_id("chat") if self._new_ids else id for id in ids}
        self._expected = iter(ids)
        self._renames = {encode(old).decode(): encode(new).decode() for old, new in self._names.items()}

    def _begin_chat(self, chat: ChatRecord, number: int) -> None:
        if chat.id != next(self._expected, None):
            raise InvalidInput(f"line {number}", "is another chat than the first line says")
        check_chat(chat, self._limits)
        parent = self._known.get(chat.parent_id or "")
        if (parent is None) != (not self.chats) or (chat.parent_id is None) != (parent is None):
            raise InvalidInput(f"line {number}", "is a chat whose parent is not before it")
        root = self.chats[0].id if self.chats else None
        if self._names.get(chat.root_id or "") != root or chat.depth != (parent.depth + 1 if parent else 0):
            raise InvalidInput(f"line {number}", "is a chat of another family, or of another depth")
        if self._awaited.get(chat.id) == chat.parent_id:
            self._awaited.pop(chat.id, None)
        named = replace(
            chat,
            id=self._names[chat.id],
            owner=self.chats[0].owner if self.chats else chat.owner if self._owner is None else self._owner,
            parent_id=parent.id if parent else None,
            root_id=root,
            life=new_stamp() if self._new_ids else chat.life,
            purses=tuple(
                replace(purse, chat_id=self._names[purse.chat_id])
                for purse in chat.purses
                if purse.chat_id in self._known  # those above it: no file draws on what others have
            ),
        )
        self.chats.append(named)
        self._known[chat.id] = named
        self._arrival = Arrival(chat, self._limits)
        self._first, self._heap, self._last = True, HEAPS["journal"], ()

    async def _take_row(self, heap: Heap, line: Any, number: int, arrival: Arrival) -> None:
        if heap is not self._heap:
            if list(HEAPS).index(heap.table) < list(HEAPS).index(self._heap.table if self._heap else "journal"):
                raise InvalidInput(f"line {number}", f"comes too late for a line of {heap.table}")
            await self._flush()
            self._heap, self._last = heap, ()
        place = tuple(getattr(line, name) for name in heap.key)
        if self._last and place <= self._last:
            raise InvalidInput(f"line {number}", f"is out of order, or there twice: {', '.join(heap.key)}")
        self._last = place
        match heap.table:
            case "journal":
                entry = await _decoding.run(len(line.body), partial(entry_in, line.body, number))
                arrival.take_entry(line, entry)
            case "calls":
                self._take_call(line, number, arrival)
            case "queue":
                arrival.take_queued(line.id, message_in(line.body, number), len(line.body))
            case _:
                arrival.take_compaction(line.upto)
        row = self._renamed(row_of(line), heap)
        self._rows.append(row)
        self._bytes += len(row[-1] or "")
        if len(self._rows) >= BUFFER_ROWS or self._bytes >= BUFFER_BYTES:
            await self._flush()

    def _take_call(self, line: Any, number: int, arrival: Arrival) -> None:
        known = len(arrival.open_calls)
        arrival.take_call(line)
        for call in arrival.open_calls[known:]:
            if call.state is CallState.ASKING and not self._approvals:
                words = "waits for an approval: stop the chat before it is exported, or have an operator import it"
                raise Forbidden(f"line {number}: a call {words}", scope="operate")
            if call.child_id is not None:
                if call.child_id not in self._names:
                    raise InvalidInput(f"line {number}", "is a call that waits for a chat that is not in the file")
                self._awaited[call.child_id] = arrival.chat.id

    async def _take_file(self, line: FileLine, number: int, arrival: Arrival) -> None:
        await self._flush()
        if self._first:
            raise InvalidInput(f"line {number}", "comes before the journal of its chat")
        if digest_of(line.data) != line.digest:
            raise InvalidInput(f"line {number}", "holds other bytes than its digest says")
        arrival.take_file(line.digest)
        await self._transfers.add_file(self.chats[-1].id, Content(line.digest, line.data), self._source)

    async def _end_chat(self) -> None:
        if self._arrival is not None:
            self._arrival.end()
            await self._flush()

    def _renamed(self, row: Row, heap: Heap) -> Row:
        """Ids of the family, where it comes in under others: a call's child, and what the journal tells of."""
        if not self._new_ids:
            return row
        values = list(row)
        if heap.table == "calls":
            at = heap.columns.index("child_id")
            values[at] = self._names.get(values[at], values[at])
        if heap.table == "journal":
            values[-1] = _CHAT_ID.sub(lambda found: found[1] + self._renames.get(found[2], found[2]), values[-1])
        return tuple(values)

    async def _flush(self) -> None:
        if not self._rows or self._heap is None:
            return
        chat_id = self.chats[-1].id
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


# As our JSON has it; inside a text its quotes would be escaped.
_CHAT_ID = re.compile(r'("(?:chat_id|child_id|parent_id)":)("[^"\\]*+(?:\\.[^"\\]*+)*+")')


def _check_end(end: End, digest: str, number: int) -> None:
    if (end.digest, end.lines) != (digest, number - 1):
        raise InvalidInput(f"line {number}", "tells of other lines than these: the file was changed")


def _told_of(error: CallerError, number: int) -> CallerError:
    """With the number of the line that it is about."""
    if isinstance(error, InvalidInput) and not error.field.startswith(("line ", "chat ")):
        return InvalidInput(f"line {number}", str(error))
    return error


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        if not line.endswith(b"\n"):
            raise InvalidInput(f"line {number}", "is cut off, or longer than any line of an export")
        yield line


# --- the end of an owner --------------------------------------------------------------------------------------------


async def delete_owner(
    store: Store, owner: str, *, stop: bool = False, told: Told = not_told, within_s: float = math.inf
) -> OwnerDeleted:
    """All of its chats, with all that was spawned below them, its memory, kept rules and tokens. In slices; run
    again, it goes on where it was ended. After `within_s` it begins with no further chat.

    Raises RefusedError while chats of it run or wait, unless it is told to stop those; then while one does not stop.
    """
    deleted = stopped = 0
    until = time.monotonic() + within_s
    # A schedule that fired when there was no chat yet has made one since: then there is more to do.
    while (lines := await _some(store, owner, deleted == 0)) or await store.schedules.forget(owner):
        busy = [line for line in lines if line.state not in (State.IDLE, State.FAILED)]
        if busy and not stop:
            raise RefusedError(
                f"{len(busy)} chats of {owner!r} run or wait, such as {busy[0].id!r}: stop them first (--stop)",
                reason="state",
                state=busy[0].state,
                command="delete",
            )
        await store.schedules.forget(owner)  # none of them starts another chat meanwhile
        for line in busy:
            if time.monotonic() < until:
                stopped += await _stopped(store, line.id)
        for line in lines:
            if time.monotonic() >= until:
                return OwnerDeleted(owner=owner, chats=deleted, stopped=stopped, tokens=0, done=False)
            try:
                deleted += len(await store.delete_chat(line.id, children="include"))
            except NotFound:
                continue  # it went with its family
            told(deleted)
    await store.kept_rules.forget(owner)
    await store.memory.forget_owner(owner)
    await store.budgets.forget(owner)
    for webhook_id in await store.webhooks.forget(owner):
        await store.deliveries.forget(webhook_id)
    await store.deliveries.forget_owner(owner)
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
