"""`VACUUM (ANALYZE)` of our tables, one after the other, beside all other work.

Autovacuum does the same by itself, once a fifth of a table is gone; this does it now, after much was pruned. The room
is used again, and given back to the disk only at the end of a table's file.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import psycopg
from psycopg.errors import Diagnostic

from holdfast.errors import StoreUnavailable
from holdfast.store.postgres.connection import Connector, ServerConnection
from holdfast.store.postgres.schema import TABLES

DEADLINE_S = 6 * 3600.0  # of one table; a server that hangs is not waited for without end
CANCEL_S = 5.0


async def vacuum(connector: Connector, connect_s: float) -> AsyncGenerator[str, None]:
    """Yields each table's name when it is done. A caller that leaves ends the server's work on the next one."""
    loop = asyncio.get_running_loop()
    connection = await connector.connect(loop.time() + connect_s)
    skipped: list[str] = []
    connection.add_notice_handler(lambda said: _note(said, skipped))
    try:
        await connection.command("SET statement_timeout = 0")
        for table in TABLES:
            connection.deadline = loop.time() + DEADLINE_S
            await _vacuum(connection, table)
            if skipped:
                raise StoreUnavailable(f"{connector.address}: {skipped[0]}: run this as the tables' owner")
            yield table
    except psycopg.Error as error:
        raise connector.explain(error) from error
    finally:
        await connection.discard()


async def _vacuum(connection: ServerConnection, table: str) -> None:
    try:
        await connection.command(f"VACUUM (ANALYZE) {table}")
    except asyncio.CancelledError:
        with suppress(psycopg.Error, TimeoutError):
            await connection.cancel_safe(timeout=CANCEL_S)
        raise


def _note(said: Diagnostic, skipped: list[str]) -> None:
    """A server says so, and goes on, where it may not touch a table."""
    if said.severity_nonlocalized == "WARNING":
        skipped.append(said.message_primary or "a table was passed over")
