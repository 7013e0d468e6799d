"""The database behind a store's back: what an administrator, newer code or a bad disk may have done to it.

The same statements serve both stores: `?` marks a value. SQLite is reached through `apsw` alone, because a second
SQLite library in this process, or a plain `open` of the file, would drop the locks of the first.
"""

from collections.abc import Sequence
from typing import Any, LiteralString, cast

import apsw
import psycopg


def path_of(url: str) -> str:
    """The file of a SQLite URL with an absolute path."""
    scheme, _, path = url.partition(":///")
    assert scheme == "sqlite", url
    return path


def sql(url: str, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement, committed when this returns; the rows it gave."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(path_of(url), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(10_000)
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()
    text = cast(LiteralString, statement.replace("?", "%s"))
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as server:
        done = server.execute(text, values)
        return done.fetchall() if done.description else []


def columns(url: str, table: str) -> list[str]:
    if url.startswith("sqlite"):
        return [row[1] for row in sql(url, f"PRAGMA table_info({table})")]
    return [
        row[0] for row in sql(url, "SELECT column_name FROM information_schema.columns WHERE table_name = ?", (table,))
    ]
