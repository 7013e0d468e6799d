"""Bringing a SQLite file to the schema of this code, safely when two processes start at once."""

import re
from collections.abc import Callable
from typing import Any

import apsw

from holdfast.errors import SchemaError
from holdfast.faults import reach
from holdfast.store.migrations import migrations, pending, version_after
from holdfast.store.sqlite.connection import APPLICATION_ID, WriteLock, reading

_ADD_COLUMN = re.compile(r"ALTER TABLE (\w+) ADD COLUMN IF NOT EXISTS (\w+)([^;]*);")


MIGRATION_DEADLINE_S = 600.0


def version_if_current(connection: apsw.Connection) -> int | None:
    """The schema's version, where this code has nothing to add to it."""
    with reading(connection):
        if connection.pragma("application_id") != APPLICATION_ID or not _has_meta(connection):
            return None
        meta = _read_meta(connection)
    known, version = migrations("sqlite"), meta.get("schema_version", 0)
    return None if pending(known, version, meta.get("oldest_code", 0)) else version_after(known, version)


def migrate(connection: apsw.Connection, path: str, began: Callable[[], None] = lambda: None) -> int:
    """Returns the schema's version. Waits for no lock where nothing is to be done.

    `began` is called when the write lock is ours: from then on it takes as long as it takes. It may raise.
    """
    if (version := version_if_current(connection)) is not None:
        return version
    lock = WriteLock(path)
    try:
        with lock:
            began()
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = _migrate(connection)
                reach("migrate.before")
                connection.execute("COMMIT")
                reach("migrate.after")
                return version
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    finally:
        lock.close()


def _migrate(connection: apsw.Connection) -> int:
    connection.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID")
    meta = _read_meta(connection)
    known, version = migrations("sqlite"), meta.get("schema_version", 0)
    for migration in pending(known, version, meta.get("oldest_code", 0)):
        try:
            connection.execute(_for_sqlite(connection, migration.sql))
        except apsw.SQLError as error:
            raise SchemaError(f"migration {migration.name} failed: {error}; nothing was changed") from error
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", (migration.number,))
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('oldest_code', ?)", (migration.oldest_code,))
    connection.pragma("application_id", APPLICATION_ID)
    return version_after(known, version)


def _has_meta(connection: apsw.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchall())


def _read_meta(connection: apsw.Connection) -> dict[str, int]:
    found: list[tuple[Any, ...]] = connection.execute("SELECT key, value FROM meta").fetchall()
    return dict(found)


def _for_sqlite(connection: apsw.Connection, sql: str) -> str:
    """SQLite can add a column, but not only if it is missing."""

    def added(found: re.Match[str]) -> str:
        table, column, rest = found.groups()
        there = connection.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, column)).fetchall()
        return "" if there else f"ALTER TABLE {table} ADD COLUMN {column}{rest};"

    return _ADD_COLUMN.sub(added, sql)
