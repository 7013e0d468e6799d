"""A store's rows as the database has them, past the store's own code: to compare two stores, and to break one.

`read_rows` sorts every row under what it belongs to: a chat, a worker, a receipt, a repair. What differs between two
runs of the same work (process ids, paths, instants of leases, lives of chats, stamps) is left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

# Table -> the column that says what a row belongs to, and the word for that.
TABLES = {
    "chats": ("id", "chat"),
    "journal": ("chat_id", "chat"),
    "deltas": ("chat_id", "chat"),
    "calls": ("chat_id", "chat"),
    "queue": ("chat_id", "chat"),
    "compactions": ("chat_id", "chat"),
    "workers": ("id", "worker"),
    "receipts": ("key", "receipt"),
    "repairs": ("reason", "repair"),
    "remnants": ("chat_id", "chat"),
    "tokens": ("id", "token"),
    "kept_rules": ("rule", "kept rule"),
    "files": ("digest", "file"),
    "file_uses": ("chat_id", "chat"),
    "schedules": ("id", "schedule"),
    "occurrences": ("schedule_id", "schedule"),
    "webhooks": ("id", "webhook"),
    "deliveries": ("chat_id", "chat"),
    "link_keys": ("id", "link key"),
    "spending": ("chat_id", "chat"),
    "ledgers": ("account", "ledger"),
    "reservations": ("chat_id", "chat"),
    "usage_totals": ("owner", "usage of"),
    "budgets": ("owner", "budget of"),
    "memory_blocks": ("id", "memory block"),
    "memory_versions": ("block_id", "memory block"),
    "memory_lines": ("block_id", "memory block"),
    "memories": ("id", "memory"),
    "memory_writes": ("chat_id", "chat"),
    "memory_chats": ("chat_id", "chat"),
    "memory_passages": ("chat_id", "chat"),
}
NOT_COMPARED = {"meta", "unused_files"}  # the second: what the next sweep looks at
DRAWN = {"life", "stamp", "claim_stamp", "line_stamp", "named", "noted"}  # at random, or by who came by
LEASE_ENDED = "ended"

# "chat talk" -> its rows, as (table, values by column).
Rows = dict[str, list[tuple[str, dict[str, Any]]]]


def read_rows(url: str) -> Rows:
    """One transaction: everything that is there. A store that was never migrated holds nothing."""
    found: Rows = {}
    with _connected(url) as select:
        tables = set(_tables(url, select)) - NOT_COMPARED
        assert tables in (set(), set(TABLES)), f"tables that nobody compares, or that are missing: {tables}"
        for table in sorted(tables):
            column, word = TABLES[table]
            for row in select(f"SELECT * FROM {table}"):
                found.setdefault(f"{word} {row[column]}", []).append((table, _stable(table, row)))
    for rows in found.values():
        rows.sort(key=repr)
    return found


def execute(url: str, statement: str) -> None:
    """Write past the store."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(sqlite_path(url), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(5_000)
            connection.execute(statement)
        finally:
            connection.close()
    else:
        with _postgres(url) as server:
            server.execute(statement)


def sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///")


def difference(found: Rows, expected: Rows) -> list[str]:
    """What is to blame, in words; empty if the two are the same."""
    lines = []
    for name in sorted(found.keys() | expected.keys()):
        has, wanted = found.get(name, []), expected.get(name, [])
        lines += [f"{name} has {row}" for row in has if row not in wanted]
        lines += [f"{name} lacks {row}" for row in wanted if row not in has]
    return lines


def _stable(table: str, row: dict[str, Any]) -> dict[str, Any]:
    if table == "workers":
        return {"id": row["id"], "info": row["info"], "lease": "given" if row["ended"] is None else LEASE_ENDED}
    if table == "repairs":
        return {"reason": row["reason"], "count": row["count"]}
    return {column: value for column, value in row.items() if column not in DRAWN}


def _tables(url: str, select: Any) -> list[str]:
    if url.startswith("sqlite"):
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'memory_index*'"
    else:
        query = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'"
    return [row["name"] for row in select(query)]


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    """Yields a function from a statement to its rows."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(sqlite_path(url), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(5_000)
            connection.execute("BEGIN")

            def select(statement: str) -> list[dict[str, Any]]:
                cursor = connection.execute(statement)
                return [{column[0]: value for column, value in zip(cursor.get_description(), row, strict=True)}
                        for row in cursor]  # fmt: skip

            yield select
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    else:
        with _postgres(url) as server:
            server.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield lambda statement: server.execute(statement).fetchall()


def _postgres(url: str) -> Any:
    # Where it is not needed it is not loaded: that is a third of the life of a process that crash tests kill.
    import psycopg  # noqa: PLC0415
    from psycopg.rows import dict_row  # noqa: PLC0415

    return psycopg.connect(url, row_factory=dict_row, connect_timeout=10)
