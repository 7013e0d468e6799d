"""Bringing a database to the schema of this code, safely when two processes start at once."""

import asyncio
import logging
from collections.abc import Mapping

import psycopg
from psycopg import sql as compose
from psycopg.errors import DeadlockDetected, LockNotAvailable

from holdfast.errors import ConfigError, SchemaError, StoreReadOnly, StoreTimeout
from holdfast.faults import reach
from holdfast.store.migrations import Migration, migrations, pending, version_after
from holdfast.store.postgres import sql
from holdfast.store.postgres.address import DatabaseAddress
from holdfast.store.postgres.connection import ServerConnection, ServerFacts
from holdfast.system.clock import dice

log = logging.getLogger(__name__)

OLDEST_SERVER = 130_000
MIGRATION_DEADLINE_S = 600.0
LOCK_TRY_MS = 1_000  # every other transaction waits behind us for so long, at most
BETWEEN_TRIES_S = 3.0
HOLDERS_SHOWN = 3
# "hold": one lock per database for every process that migrates. Held by the transaction, so it works behind a pooler.
_LOCK = 0x686F6C64
TABLES = (
    "chats",
    "journal",
    "deltas",
    "calls",
    "queue",
    "compactions",
    "workers",
    "receipts",
    "repairs",
    "remnants",
    "tokens",
    "kept_rules",
    "files",
    "file_uses",
    "unused_files",
    "webhooks",
    "deliveries",
    "link_keys",
    "schedules",
    "occurrences",
    "spending",
    "ledgers",
    "reservations",
    "usage_totals",
    "budgets",
    "memory_blocks",
    "memory_versions",
    "memory_lines",
    "memories",
    "memory_writes",
    "memory_chats",
    "memory_passages",
)


def check_server(facts: ServerFacts, address: DatabaseAddress) -> None:
    """What no migration can mend."""
    if facts.version < OLDEST_SERVER:
        raise ConfigError(f"{address} runs PostgreSQL {facts.version // 10_000}: 13 or newer is needed")
    if facts.in_recovery or facts.read_only:
        why = "is a standby" if facts.in_recovery else "is set read-only (default_transaction_read_only)"
        raise StoreReadOnly(f"{address} {why} and does not accept writes: connect to the primary")
    if facts.encoding != "UTF8":
        raise ConfigError(f"{address} has the encoding {facts.encoding}: create the database with ENCODING 'UTF8'")
    if address.pooled and facts.synchronous == "off":
        raise ConfigError(
            f"{address} acknowledges writes before they are on disk, and behind a pooler we cannot set that for "
            f"ourselves: ALTER ROLE {address.user} SET synchronous_commit = on"
        )


async def migrate(connection: ServerConnection, address: DatabaseAddress) -> int:
    """Returns the schema's version. Changes nothing, and waits for none, where nothing is to be done.

    A change of a table waits for every reader whose transaction is still open, and every other transaction
    waits behind it. So it waits for a moment only, lets the others go on, and tries again, until the deadline.

    Leaves the connection in a transaction if it fails: close it, and nothing was changed.
    """
    meta = await _read_meta(connection, address)
    if not _todo(meta):
        return _version_after(meta)
    loop = asyncio.get_running_loop()
    # A new index on years of chats takes its time, and so does waiting for the process that makes it.
    connection.deadline = loop.time() + MIGRATION_DEADLINE_S
    told: set[int] = set()
    while True:
        try:
            return await _try(connection, address)
        except (LockNotAvailable, DeadlockDetected):
            await connection.command("ROLLBACK")
            holders = await _holders(connection)
            if loop.time() + BETWEEN_TRIES_S >= connection.deadline:
                raise StoreTimeout(
                    f"{address}: the schema could not be changed within {MIGRATION_DEADLINE_S:g} s, because others "
                    f"hold the tables: {_named(holders)}; end them and start again; nothing was changed"
                ) from None
            if not told >= holders.keys() or not told:
                told |= holders.keys() or {0}
                log.warning(
                    "%s is brought to a new schema as soon as others let go of its tables: %s",
                    address,
                    _named(holders),
                    extra={"action": "store.migration_waits", "pids": sorted(holders)},
                )
            await asyncio.sleep(dice.uniform(BETWEEN_TRIES_S / 2, BETWEEN_TRIES_S))


async def _try(connection: ServerConnection, address: DatabaseAddress) -> int:
    timeout_ms = int(MIGRATION_DEADLINE_S * 1000)
    await connection.command(sql.begin("READ COMMITTED", timeout_ms, timeout_ms))
    await connection.rows("SELECT pg_advisory_xact_lock(%s)", _LOCK)  # behind which only migrations wait
    await connection.command(f"SET LOCAL lock_timeout = {LOCK_TRY_MS}")
    meta = await _read_meta(connection, address)
    await _make_schema(connection, address)
    if meta is None:
        await connection.command("CREATE TABLE meta (key TEXT PRIMARY KEY, value BIGINT NOT NULL)")
    for migration in _todo(meta):
        await _apply(connection, address, migration)
    reach("migrate.before")
    await connection.command("COMMIT")
    reach("migrate.after")
    return _version_after(meta)


async def _holders(connection: ServerConnection) -> dict[int, str]:
    """Who has our tables in a transaction, by pid, the oldest first."""
    found = await connection.rows(
        "SELECT pid, state, application_name, usename::text, "
        "floor(extract(epoch FROM clock_timestamp() - xact_start))::bigint, left(query, 80) "
        "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND pid IN ("
        "  SELECT pid FROM pg_locks JOIN pg_class ON pg_class.oid = relation "
        "  JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE granted AND relname = ANY(%s) "
        "  AND nspname = ANY(current_schemas(false)) "
        "  AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())) "
        "ORDER BY xact_start NULLS LAST",
        ["meta", *TABLES],
    )
    return {
        pid: f"pid {pid} of {user or 'another role'}{f' ({program})' if program else ''}, {state or 'at work'}"
        f"{f' for {age_s} s' if age_s is not None else ''}{f', last asked: {query}' if query else ''}"
        for pid, state, program, user, age_s, query in found
    }


def _named(holders: Mapping[int, str]) -> str:
    return "; ".join(list(holders.values())[:HOLDERS_SHOWN]) or "they are gone by now"


def _version_after(meta: dict[str, int] | None) -> int:
    return version_after(migrations("postgres"), (meta or {}).get("schema_version", 0))


def _todo(meta: dict[str, int] | None) -> list[Migration]:
    meta = meta or {}
    return pending(migrations("postgres"), meta.get("schema_version", 0), meta.get("oldest_code", 0))


async def _make_schema(connection: ServerConnection, address: DatabaseAddress) -> None:
    if address.schema is not None:
        ((there,),) = await connection.rows("SELECT to_regnamespace(%s) IS NOT NULL", address.schema)
        if not there:
            await connection.execute(compose.SQL("CREATE SCHEMA {}").format(compose.Identifier(address.schema)))


async def _apply(connection: ServerConnection, address: DatabaseAddress, migration: Migration) -> None:
    try:
        await connection.command(migration.sql)
    except psycopg.ProgrammingError as error:
        said = address.scrub(str(error))
        raise SchemaError(f"migration {migration.name} failed: {said}; nothing was changed") from error
    for key, value in (("schema_version", migration.number), ("oldest_code", migration.oldest_code)):
        await connection.rows(
            "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value
        )


async def _read_meta(connection: ServerConnection, address: DatabaseAddress) -> dict[str, int] | None:
    """None: the database is empty. Tables with our names that are not ours belong to another program."""
    # From the catalogue itself: a name that was looked up in vain before the lock is remembered as missing.
    found = await connection.rows(
        "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE relname = ANY(%s) AND nspname = ANY(current_schemas(false))",
        ["meta", *TABLES],
    )
    present = {name for (name,) in found}
    if not present:
        return None
    meta: dict[str, int] = {}
    if "meta" in present:
        columns = await connection.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'meta'::regclass AND attnum > 0 ORDER BY attnum"
        )
        if [column for (column,) in columns] == ["key", "value"]:
            meta = dict(await connection.rows("SELECT key, value FROM meta"))
    if "schema_version" not in meta:
        raise SchemaError(
            f"{address} holds tables of another program ({', '.join(sorted(present))}): name another database, or a "
            "schema of our own with schema=NAME; nothing in this one was changed"
        )
    return meta
