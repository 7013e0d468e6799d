"""Reading a SQLite file that we cannot write to: on a read-only file system, of another user, on a disk without room.

In WAL mode a reader takes part in the `-wal` and `-shm` files, and where SQLite cannot write, it cannot make them:

- If there is a WAL with something in it, the newest changes are there. SQLite reads both if the `-shm` is there, too.
- If there is none, all is in the file, and no process can change it without making a WAL first. It is read as
  immutable, so SQLite looks at nothing else; afterwards we look whether that was true all the time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import apsw

from holdfast.errors import SchemaError, StoreReadOnly, StoreUnavailable
from holdfast.store.migrations import migrations, pending
from holdfast.store.sqlite.connection import BUSY_TIMEOUT_MS, check_whose, reading


class _FileFacts(NamedTuple):
    """What does not stay the same if a process writes."""

    inode: int
    size: int
    changed_ns: int
    has_wal: bool


@contextmanager
def look(path: str, vfs: str | None = None) -> Iterator[apsw.Connection]:
    """One moment of the file, on a connection of its own.

    Raises StoreReadOnly if SQLite cannot read it like this, and StoreUnavailable if it changed meanwhile: ask again.
    """
    facts = _facts(path)
    options = "" if facts.has_wal else "?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(f"file:{quote(path)}{options}", flags=flags, vfs=vfs)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            connection.pragma("temp_store", "MEMORY")
            check_whose(connection, path)
            with reading(connection):
                yield connection
        finally:
            connection.close()
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        _check_unchanged(path, facts)
        raise StoreReadOnly(
            f"{path} can be neither written to nor read as it is: the newest changes are in {path}-wal, which SQLite "
            f"cannot read without write access. Copy {path} and {path}-wal to a folder of yours, and read the copy"
        ) from error
    if not facts.has_wal:
        _check_unchanged(path, facts)


def check_schema(connection: apsw.Connection, path: str) -> int | None:
    """Returns the schema's version; None: nothing was ever written. Raises SchemaError."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchall():
        return None
    found: list[Any] = connection.execute("SELECT key, value FROM meta").fetchall()
    meta: dict[str, int] = dict(found)
    version = meta.get("schema_version", 0)
    if pending(migrations("sqlite"), version, meta.get("oldest_code", 0)):
        raise SchemaError(
            f"{path} has schema {version}, which is older than this code, and cannot be written to: "
            "start holdfast once where it can be, and it is brought up to date"
        )
    return version


def _facts(path: str) -> _FileFacts:
    try:
        found = os.stat(path)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be opened ({error.strerror}), nor made: name another file") from error
    try:
        has_wal = os.stat(f"{path}-wal").st_size > 0
    except OSError:
        has_wal = False
    return _FileFacts(found.st_ino, found.st_size, found.st_mtime_ns, has_wal)


def _check_unchanged(path: str, facts: _FileFacts) -> None:
    if _facts(path) != facts:
        raise StoreUnavailable(f"{path} changed while it was read; ask again")
