"""The bytes of files that messages name (core/kept_files.py), as the database has them: once, whoever names them.

A client's write keeps the bytes in its own transaction. A runner keeps those of a result before it commits that: what
it leaves behind if it is killed between the two is named by its chat, and goes with it. A chat's uses go with its
other rows, slice by slice (remnants.py), and each digest among them is noted; whoever clears what chats left behind
then deletes the bytes of those that no other chat names.

Two transactions on PostgreSQL do not see each other's rows. So whoever names bytes that are there counts `named` up,
and bytes are deleted only at the count that was seen before their uses were looked for; and so with `noted`.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from holdfast.core.codec import encode
from holdfast.core.kept_files import (
    NOTHING_ASIDE,
    Aside,
    Brought,
    Sorter,
    files_in,
    files_of,
    instead,
    kept_digest,
    kept_in,
    whole,
    with_files,
)
from holdfast.core.records import File, Message, Text
from holdfast.errors import InvalidInput, LimitReached, NotFound
from holdfast.store.statements import StatementRunner, marked
from holdfast.system import threads
from holdfast.system.clock import Countdown

LISTED_ROWS = 1_000
CLEARED_ROWS = 100  # noted digests that are looked at together
REMEMBERED_BYTES = 32 << 20  # of what models were shown last
SHOWN_BYTES_MAX = 64 << 20  # of one request, or of one answer to a client
LARGE_CHARS = 1 << 20  # files of more are taken out of their message, and put back, in a thread


def check_files_room(size: int, limit: int) -> None:
    """For the transaction that kept one more: how much its chat names now. Raises LimitReached."""
    if size > limit:
        raise LimitReached("files of a chat in bytes", size, limit, "send links, or begin another chat")


def check_named(named: Iterable[str], held: set[str]) -> None:
    """What a client names instead of sending it is held by the chat already. Raises InvalidInput."""
    if missing := sorted(set(named) - held):
        words = f"names a file that this chat does not hold ({missing[0][:12]}…): send it as a data: URI"
        raise InvalidInput("file uri", words)


# -- statements. Each store's module `sql` makes its own of them: `{}` is where a value goes.

# On SQLite nobody else writes meanwhile, and changing the row would write its bytes again.
PUT_ALONE = "INSERT INTO files (digest, size, named, data) VALUES ({}, {}, 1, {}) ON CONFLICT (digest) DO NOTHING"
PUT_BESIDE_OTHERS = PUT_ALONE.replace("DO NOTHING", "DO UPDATE SET named = files.named + 1")

_USE = "INSERT INTO file_uses (chat_id, digest, size) VALUES ({}, {}, {}) ON CONFLICT DO NOTHING"

_NOTE = (
    "INSERT INTO unused_files (digest, noted) SELECT DISTINCT digest, 1 FROM file_uses WHERE {whose} ORDER BY digest "
    "ON CONFLICT (digest) DO UPDATE SET noted = unused_files.noted + 1"
)

_NOTED = (
    "SELECT note.digest, noted, named FROM unused_files AS note LEFT JOIN files ON files.digest = note.digest "
    "ORDER BY note.digest LIMIT {}"
)

_USED = "SELECT 1 FROM file_uses WHERE file_uses.digest = {}"


class FileStatements(NamedTuple):
    """The statements on files, with one store's marks."""

    put: str
    use: str
    used_bytes: str
    held: str
    read: str
    copy: str
    digests: str
    note: str
    noted: str
    drop: str
    drop_note: str


def file_statements(mark: str, put: str, among_digests: str, whose: str) -> FileStatements:
    """`mark` is where a value goes, `among_digests` says that a digest is one of those in a JSON list, and `whose`
    that a use is of the chats that go.
    """
    return FileStatements(
        put=marked(put, mark),
        use=marked(_USE, mark),
        used_bytes=marked("SELECT coalesce(sum(size), 0) FROM file_uses WHERE chat_id = {}", mark),
        held=marked("SELECT digest FROM file_uses WHERE chat_id = {} AND ", mark) + among_digests,
        read=marked(
            "SELECT data FROM files WHERE digest = {} "
            "AND EXISTS (SELECT 1 FROM file_uses WHERE chat_id = {} AND file_uses.digest = files.digest)",
            mark,
        ),
        copy=marked(
            "INSERT INTO file_uses (chat_id, digest, size) SELECT CAST({} AS TEXT), digest, size FROM file_uses "
            "WHERE chat_id = {} ON CONFLICT DO NOTHING",
            mark,
        ),
        digests=marked(
            "SELECT digest FROM file_uses WHERE chat_id = {} AND digest > {} ORDER BY digest LIMIT {}", mark
        ),
        note=_NOTE.format(whose=whose),
        noted=marked(_NOTED, mark),
        drop=marked(f"DELETE FROM files WHERE digest = {{}} AND named = {{}} AND NOT EXISTS ({_USED})", mark),
        drop_note=marked(
            "DELETE FROM unused_files WHERE digest = {} AND noted = {} "
            f"AND (EXISTS ({_USED}) OR NOT EXISTS (SELECT 1 FROM files WHERE files.digest = {{}}))",
            mark,
        ),
    )


_sorting = threads.SizedWork("files", 2, LARGE_CHARS)


async def put_aside(brought: Brought) -> tuple[Brought, Aside]:
    """What a client's write brings, without the bytes, and the bytes."""
    chars = sum(len(file.uri) for file in files_of(brought))
    if not chars:
        return brought, NOTHING_ASIDE
    sorter = Sorter()
    return await _sorting.run(chars, lambda: sorter.brought(brought)), sorter.aside


def _with(message: Message, shown: Sequence[File | Text]) -> Message:
    """With these in place of its files, one after the other."""
    each = iter(shown)
    return with_files(message, lambda _: next(each)) if shown else message


class KeptFiles:
    """Of one store. `keep` is its own: bytes and uses of a chat that is there, in one transaction."""

    def __init__(
        self,
        runner: StatementRunner,
        statements: FileStatements,
        keep: Callable[[str, Aside], Awaitable[None]],
    ) -> None:
        self._runner = runner
        self._sql = statements
        self._keep = keep
        self._remembered: OrderedDict[str, bytes] = OrderedDict()
        self._remembered_bytes = 0

    async def keep_all(self, chat_id: str, files: Sequence[File]) -> tuple[File, ...]:
        """The files as their message has them, once their bytes are kept. Safe to repeat. Raises LimitReached,
        InvalidInput where one is named that the chat does not hold, NotFound where there is no chat any more.
        """
        sorter = Sorter()
        kept = await _sorting.run(sum(len(file.uri) for file in files), lambda: sorter.files(files))
        if sorter.aside != NOTHING_ASIDE:
            await self._keep(chat_id, sorter.aside)
        return kept

    async def read(self, chat_id: str, digest: str) -> bytes:
        """Raises NotFound, also for bytes that only other chats name."""
        found = await self._runner.rows(self._sql.read, digest, chat_id)
        if not found:
            raise NotFound("file", digest)
        return bytes(found[0][0])

    async def digests(self, chat_id: str) -> AsyncIterator[str]:
        """What this chat names, in order."""
        after = ""
        while found := await self._runner.rows(self._sql.digests, chat_id, after, LISTED_ROWS):
            for (digest,) in found:
                yield digest
            after = found[-1][0]

    async def held(self, chat_id: str, digests: Sequence[str]) -> set[str]:
        """Those of them that this chat names."""
        found = await self._runner.rows(self._sql.held, chat_id, encode(digests).decode())
        return {digest for (digest,) in found}

    async def whole(self, chat_id: str, messages: Sequence[Message], *, every: bool = False) -> Sequence[Message]:
        """The same with the bytes of their files, the newest SHOWN_BYTES_MAX of them; what is left out is said to be.
        A name is short, however often a client sends it: without a bound it would make us hold gigabytes. With
        `every` nothing is left out for that: it raises LimitReached.
        """
        if not (named := kept_in(messages)):
            return messages
        held = await self.held(chat_id, sorted(named))
        room = SHOWN_BYTES_MAX
        made: list[Message] = []
        for message in reversed(messages):
            shown: list[File | Text] = []
            for file in files_in(message.parts):
                one, size = await self._shown(chat_id, file, held, room, every=every)
                room -= size
                shown.append(one)
            made.append(_with(message, shown))
        return made[::-1]

    async def _shown(
        self, chat_id: str, file: File, held: set[str], room: int, *, every: bool
    ) -> tuple[File | Text, int]:
        """And how much of the room it takes."""
        if (digest := kept_digest(file)) is None:
            return file, 0
        if digest not in held:
            return instead(file, "it is not kept any more"), 0
        data = await self._recall(chat_id, digest) if room > 0 or every else b""
        if data is None:
            return instead(file, "it is not kept any more"), 0
        if every and len(data) > room:
            size = SHOWN_BYTES_MAX - room + len(data)
            raise LimitReached("files of a chat that is copied in bytes", size, SHOWN_BYTES_MAX, "begin another chat")
        if not data or len(data) > room:
            return instead(file, "there are more files than can be shown at once"), 0
        return await _sorting.run(len(data), lambda: whole(file, data)), len(data)

    async def _recall(self, chat_id: str, digest: str) -> bytes | None:
        """What is remembered is any chat's: for who knows that this one holds it."""
        if (data := self._remembered.get(digest)) is not None:
            self._remembered.move_to_end(digest)
            return data
        try:
            data = await self.read(chat_id, digest)
        except NotFound:
            return None
        self._forget(digest)  # another has read it meanwhile
        self._remembered[digest] = data
        self._remembered_bytes += len(data)
        while self._remembered_bytes > REMEMBERED_BYTES:
            self._forget(next(iter(self._remembered)))
        return data

    def _forget(self, digest: str) -> None:
        self._remembered_bytes -= len(self._remembered.pop(digest, b""))

    async def clear_unused(self, clock: Countdown) -> bool:
        """Delete the bytes that no chat names any more, as far as they are noted. True: there was no time for all."""
        while noted := await self._runner.rows(self._sql.noted, CLEARED_ROWS):
            for digest, note, named in noted:
                if clock.left_s() <= 0:
                    return True
                if named is not None:
                    await self._runner.forget(self._sql.drop, digest, named, digest)
                    self._forget(digest)
                await self._runner.write_alone(self._sql.drop_note, digest, note, digest, digest)
        return False
