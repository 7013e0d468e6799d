"""Bringing a database to the schema of this code, safely when two processes start at once."""

import asyncio

import psycopg
from psycopg import sql as compose

from holdfast.errors import ConfigError, SchemaError, StoreReadOnly
from holdfast.faults import reach
from holdfast.store.migrations import Migration, migrations, pending, version_after
from holdfast.store.postgres import sql
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.connection import Connection, Facts

OLDEST_SERVER = 130_000
MIGRATION_DEADLINE_S = 600.0
# "hold": one lock per database for everybody who migrates. Held by the transaction, so it works behind a pooler.
_LOCK = 0x686F6C64
_TABLES = ("chats", "journal", "deltas", "calls", "queue", "compactions", "workers", "receipts", "repairs")


def check_server(facts: Facts, address: Address) -> None:
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


async def migrate(connection: Connection, address: Address) -> int:
    """Returns the schema's version. Changes nothing, and waits for nobody, where nothing is to be done.

    Leaves the connection in a transaction if it fails: close it, and nothing was changed.
    """
    meta = await _read_meta(connection, address)
    if not _todo(meta):
        return _version_after(meta)
    # A new index on years of chats takes its time, and so does waiting for the process that makes it.
    connection.deadline = asyncio.get_running_loop().time() + MIGRATION_DEADLINE_S
    timeout_ms = int(MIGRATION_DEADLINE_S * 1000)
    await connection.command(sql.begin("READ COMMITTED", timeout_ms, timeout_ms))
    await connection.rows("SELECT pg_advisory_xact_lock(%s)", _LOCK)
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


def _version_after(meta: dict[str, int] | None) -> int:
    return version_after(migrations("postgres"), (meta or {}).get("schema_version", 0))


def _todo(meta: dict[str, int] | None) -> list[Migration]:
    meta = meta or {}
    return pending(migrations("postgres"), meta.get("schema_version", 0), meta.get("oldest_code", 0))


async def _make_schema(connection: Connection, address: Address) -> None:
    if address.schema is not None:
        ((there,),) = await connection.rows("SELECT to_regnamespace(%s) IS NOT NULL", address.schema)
        if not there:
            await connection.execute(compose.SQL("CREATE SCHEMA {}").format(compose.Identifier(address.schema)))


async def _apply(connection: Connection, address: Address, migration: Migration) -> None:
    try:
        await connection.command(migration.sql)
    except psycopg.ProgrammingError as error:
        said = address.scrub(str(error))
        raise SchemaError(f"migration {migration.name} failed: {said}; nothing was changed") from error
    for key, value in (("schema_version", migration.number), ("oldest_code", migration.oldest_code)):
        await connection.rows(
            "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value
        )


async def _read_meta(connection: Connection, address: Address) -> dict[str, int] | None:
    """None: the database is empty. Tables with our names that are not ours belong to another program."""
    # From the catalogue itself: a name that was looked up in vain before the lock is remembered as missing.
    found = await connection.rows(
        "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE relname = ANY(%s) AND nspname = ANY(current_schemas(false))",
        ["meta", *_TABLES],
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
