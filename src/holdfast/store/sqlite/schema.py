"""Bringing a SQLite file to the schema of this code, safely when two processes start at once."""

import re
from typing import Any

import apsw

from holdfast.errors import SchemaError
from holdfast.faults import reach
from holdfast.store.migrations import migrations, pending, version_after
from holdfast.store.sqlite.connection import APPLICATION_ID, WriteLock

_ADD_COLUMN = re.compile(r"ALTER TABLE (\w+) ADD COLUMN IF NOT EXISTS (\w+)([^;]*);")


def migrate(connection: apsw.Connection, path: str) -> int:
    """Returns the schema's version."""
    lock = WriteLock(path)
    try:
        with lock:
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
    found: list[tuple[Any, ...]] = connection.execute("SELECT key, value FROM meta").fetchall()
    meta: dict[str, int] = dict(found)
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


def _for_sqlite(connection: apsw.Connection, sql: str) -> str:
    """SQLite can add a column, but not only if it is missing."""

    def added(found: re.Match[str]) -> str:
        table, column, rest = found.groups()
        there = connection.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, column)).fetchall()
        return "" if there else f"ALTER TABLE {table} ADD COLUMN {column}{rest};"

    return _ADD_COLUMN.sub(added, sql)
