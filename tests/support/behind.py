"""The database behind a store's back: what an administrator, newer code or a bad disk may have done to it.

The same statements serve both stores: `?` marks a value. SQLite is reached through `apsw` alone, because a second
SQLite library in this process, or a plain `open` of the file, would drop the locks of the first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
import psycopg


def path_of(url: str) -> str:
    """The file of a SQLite URL with an absolute path."""
    scheme, _, path = url.partition(":///")
    assert scheme == "sqlite", url
    return path


def sql(url: str, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement, committed when this returns; the rows it gave."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(path_of(url), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(10_000)
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as server:
        done = server.execute(statement.replace("?", "%s"), values or None)
        return done.fetchall() if done.description else []
