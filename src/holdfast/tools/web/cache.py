"""The HTTP cache of `fetch`: what may be used again is decided by hishel after RFC 9111, and kept by us in SQLite.

hishel's own SQLite storage runs on the interpreter's SQLite, which may be one that damages a file with several
writers; ours runs on apsw, in one thread, and belongs to no event loop: it outlives the loops of a process.

There is at most one cache in a process. A program that installs another gets a warning and the one that is there: a
second layer over the first would break every fetch until the process ends. A cache that fails is a cache that has
nothing.
"""

import asyncio
import os
import threading
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import apsw
import hishel
import msgspec

from holdfast.core.records import Frozen
from holdfast.errors import ConfigError
from holdfast.log_context import logger
from holdfast.system.disk import have_private_file
from holdfast.system.threads import Pool
from holdfast.tools.figures import show

log = logger("holdfast.fetch")

T = TypeVar("T")

CACHE_BYTES_MAX = 64 << 20
ENTRY_BYTES_MAX = 4 << 20
ENTRIES_PER_KEY_MAX = 8
ANSWER_S = 5.0  # a cache that takes longer is as good as none
APPLICATION_ID = 0x484F4C57  # "HOLW"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id BLOB PRIMARY KEY, key TEXT NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL, bytes INTEGER NOT NULL,
    used_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_key ON entries (key);
CREATE INDEX IF NOT EXISTS entries_by_use ON entries (used_at);
"""


class _Head(Frozen):
    method: str
    url: str
    request: dict[str, list[str]]
    status: int
    response: dict[str, list[str]]


class WebCache(hishel.AsyncBaseStorage):
    """Entries in one SQLite file, the least recently used ones leaving first. Use `install_cache`."""

    def __init__(self, path: str, *, bytes_max: int, entry_bytes_max: int) -> None:
        super().__init__(max_stream_size=entry_bytes_max)
        self.path = path
        self._bytes_max = bytes_max
        self._entry_bytes_max = entry_bytes_max
        self._bytes: int | None = None  # not counted yet
        self._failures = 0
        _open(path).close()  # a path that cannot serve is said at once, to the program that installs it
        self._threads = Pool("web-cache", 1, lambda: _open(path), lambda connection: connection.close())

    async def create_entry(
        self,
        request: hishel.Request,
        response: hishel.Response,
        key: str,
        *,
        ttl: float | None = None,
        tti: float | None = None,
    ) -> hishel.Entry:
        id = uuid.uuid4()
        body = cast("AsyncIterable[bytes]", response.stream)
        stream = self._saving(id, key, _head(request, response), body)
        return hishel.Entry(id=id, request=request, response=replace(response, stream=stream))

    async def _saving(self, id: uuid.UUID, key: str, head: bytes, body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Passes the body on. It is kept once it is complete, unless it is too large."""
        pieces: list[bytes] = []
        size = 0
        async for piece in body:
            size += len(piece)
            if size <= self._entry_bytes_max:
                pieces.append(piece)
            else:
                pieces.clear()
            yield piece
        if size <= self._entry_bytes_max:
            whole = b"".join(pieces)
            await self._try("keep", None, lambda connection: self._keep(connection, id, key, head, whole))

    def _keep(self, connection: apsw.Connection, id: uuid.UUID, key: str, head: bytes, body: bytes) -> None:
        with connection:
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                (id.bytes, key, head, body, len(head) + len(body), time.time()),
            )
            connection.execute(
                "DELETE FROM entries WHERE key = ? AND id NOT IN"
                " (SELECT id FROM entries WHERE key = ? ORDER BY used_at DESC LIMIT ?)",
                (key, key, ENTRIES_PER_KEY_MAX),
            )
            connection.execute(
                "DELETE FROM entries WHERE id IN (SELECT id FROM"
                " (SELECT id, sum(bytes) OVER (ORDER BY used_at DESC, id) AS kept FROM entries) WHERE kept > ?)",
                (self._bytes_max,),
            )
        self._count(connection)

    def _count(self, connection: apsw.Connection) -> None:
        self._bytes = cast("int", connection.execute("SELECT coalesce(sum(bytes), 0) FROM entries").fetchall()[0][0])

    async def get_entries(self, key: str) -> list[hishel.Entry]:
        def look(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            with connection:
                rows = connection.execute("SELECT id, head, body FROM entries WHERE key = ?", (key,)).fetchall()
                connection.execute("UPDATE entries SET used_at = ? WHERE key = ?", (time.time(), key))
            if self._bytes is None:
                self._count(connection)
            return rows

        found = []
        nothing: list[tuple[Any, ...]] = []
        for id, head, body in await self._try("look up", nothing, look):
            try:
                found.append(_entry(id, head, body))
            except msgspec.MsgspecError:  # written by another version
                await self.remove_entry(uuid.UUID(bytes=id))
        return found

    async def update_headers(self, id: uuid.UUID, headers: hishel.Headers) -> None:
        def update(connection: apsw.Connection) -> None:
            with connection:
                for (stored,) in connection.execute("SELECT head FROM entries WHERE id = ?", (id.bytes,)).fetchall():
                    head = msgspec.structs.replace(_decode(cast("bytes", stored)), response=_lists(headers))
                    connection.execute(
                        "UPDATE entries SET head = ? WHERE id = ?", (msgspec.json.encode(head), id.bytes)
                    )

        await self._try("update", None, update)

    async def remove_entry(self, id: uuid.UUID) -> None:
        def remove(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM entries WHERE id = ?", (id.bytes,))

        await self._try("remove", None, remove)

    async def _try(self, what: str, otherwise: T, work: Callable[[apsw.Connection], T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._threads.run(work)
        except (apsw.Error, OSError, RuntimeError, msgspec.MsgspecError) as error:  # TimeoutError is an OSError
            self._failures += 1
            log.warning(
                "the web cache did not %s: %s", what, error, extra={"action": "web_cache_failed", "path": self.path}
            )
            return otherwise

    async def close(self) -> None:
        """hishel's, when a transport is closed: ours are made for one request each, and the cache stays."""

    def figures(self) -> dict[str, int | str | None]:
        return {
            "path": self.path,
            "bytes": self._bytes,
            "bytes_max": self._bytes_max,
            "entry_bytes_max": self._entry_bytes_max,
            "failures": self._failures,
        }

    def stop(self) -> None:
        self._threads.stop()


def _open(path: str) -> apsw.Connection:
    try:
        have_private_file(path)
        connection = apsw.Connection(path)
        connection.set_busy_timeout(2_000)
        owner = connection.pragma("application_id")
        if owner != APPLICATION_ID and (
            owner or connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        ):
            connection.close()
            raise ConfigError(f"{path} is a SQLite database of something else: name another file for the web cache")
        if owner != APPLICATION_ID:
            connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "NORMAL")  # after a power cut the last entries may be missing: it is a cache
        connection.pragma("journal_size_limit", 4 << 20)
        connection.execute(_SCHEMA)
    except apsw.Error as error:
        raise ConfigError(f"{path} cannot be the web cache ({error}): name another file, or delete it") from error
    return connection


def _head(request: hishel.Request, response: hishel.Response) -> bytes:
    return msgspec.json.encode(
        _Head(
            method=request.method,
            url=request.url,
            request=_lists(request.headers),
            status=response.status_code,
            response=_lists(response.headers),
        )
    )


def _decode(head: bytes) -> _Head:
    return msgspec.json.decode(head, type=_Head)


def _lists(headers: hishel.Headers) -> dict[str, list[str]]:
    return {name: headers.get_list(name) or [] for name in headers}


def _entry(id: bytes, head: bytes, body: bytes) -> hishel.Entry:
    stored = _decode(head)

    async def stream() -> AsyncIterator[bytes]:
        yield body

    return hishel.Entry(
        id=uuid.UUID(bytes=id),
        request=hishel.Request(stored.method, stored.url, hishel.Headers(stored.request)),
        response=hishel.Response(stored.status, hishel.Headers(stored.response), stream()),
    )


_installed: WebCache | None = None
_mutex = threading.Lock()


def install_cache(
    path: str | os.PathLike[str], *, bytes_max: int = CACHE_BYTES_MAX, entry_bytes_max: int = ENTRY_BYTES_MAX
) -> WebCache:
    """The cache of this process, in the SQLite file `path`, for every `fetch` tool from now on.

    If there is one already, that one is returned, unchanged, with a warning.
    """
    global _installed
    with _mutex:
        if _installed is not None:
            log.warning(
                "a web cache is installed already, in %s: %s is not used",
                _installed.path,
                os.fspath(path),
                extra={"action": "web_cache_installed_twice"},
            )
            return _installed
        _installed = WebCache(os.fspath(path), bytes_max=bytes_max, entry_bytes_max=entry_bytes_max)
        return _installed


def remove_cache() -> None:
    """Fetches go without a cache again; another one may be installed. The file stays."""
    global _installed
    with _mutex:
        if _installed is not None:
            _installed.stop()
        _installed = None


def installed_cache() -> WebCache | None:
    return _installed


show("web_cache", lambda: _installed.figures() if _installed is not None else None)
