"""A database that goes back in time, as after a restore from a backup or the promotion of a standby that lagged.

The rows of all tables are kept aside and put back, in one transaction each and under the store's feet: its
connections stay open and know nothing of it, as behind a pooler or a virtual address.
"""

import apsw
import psycopg

from tests.support.behind import path_of

TABLES = (
    "chats",
    "journal",
    "deltas",
    "calls",
    "queue",
    "compactions",
    "receipts",
    "repairs",
    "remnants",
    "kept_rules",
    "schedules",
    "occurrences",
)


class Backup:
    """Taken when it is made. Leases are not put back unless asked for: whoever held one then holds it still."""

    def __init__(self, url: str, *, leases: bool = False) -> None:
        self._url = url
        self._tables = (*TABLES, "workers") if leases else TABLES
        _run(url, [f"CREATE TABLE kept_{table} AS SELECT * FROM {table}" for table in self._tables])

    def put_back(self) -> None:
        statements = []
        for table in self._tables:
            statements += [f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM kept_{table}"]
        _run(self._url, statements)


def _run(url: str, statements: list[str]) -> None:
    if url.startswith("sqlite"):
        connection = apsw.Connection(path_of(url), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(10_000)
            connection.execute("BEGIN IMMEDIATE")
            for statement in statements:
                connection.execute(statement)
            connection.execute("COMMIT")
        finally:
            connection.close()
        return
    with psycopg.connect(url, connect_timeout=10) as server:
        for statement in statements:
            server.execute(statement)
