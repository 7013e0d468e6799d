"""Numbered SQL, applied once each, under a lock, stating the oldest code that may run on it."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.core.commands import Approve
from holdfast.errors import SchemaError, StoreTimeout, WrongCursor
from holdfast.store import migrations as migrations_module
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.migrations import CODE_LEVEL, Migration, migrations, pending
from holdfast.store.records import StoreOptions
from tests.store.old_databases import a_day_later, copy_of
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat
from tests.support.postgres import PostgresServer
from tests.support.programs import Program
from tests.support.scale import scaled
from tests.support.waiting import until

pytestmark = pytest.mark.bare_database

PROCESSES = 3
ROUNDS = scaled(2, 10)

DIALECTS = ("sqlite", "postgres")


def start_together(url: str) -> None:
    """Several processes open the same new database at once; each must find it ready and be able to write."""
    with ExitStack() as stack:
        programs = [stack.enter_context(Program("tests.store.starter", url)) for _ in range(PROCESSES)]
        for program in programs:
            assert program.hear() == "ready"
        for program in programs:
            program.say("go")
        for program in programs:
            assert program.hear().startswith("opened ")
        for program in programs:
            program.finish()
    assert sql(url, "SELECT count(*) FROM chats") == [(PROCESSES,)]
    newest = migrations("sqlite" if url.startswith("sqlite") else "postgres")[-1]
    meta = dict(sql(url, "SELECT key, value FROM meta"))
    assert (meta["schema_version"], meta["oldest_code"]) == (newest.number, newest.oldest_code)


def test_processes_that_start_at_once_on_a_new_file_all_come_up(tmp_path: Path) -> None:
    for n in range(ROUNDS):
        start_together(f"sqlite:///{tmp_path}/round{n}.db")


def test_processes_that_start_at_once_on_a_new_server_database_all_come_up(postgres_server: PostgresServer) -> None:
    for _ in range(ROUNDS):
        url = postgres_server.create_database()
        start_together(url)
        postgres_server.drop_database(url)


async def test_opening_again_changes_nothing(store: Store, store_url: str) -> None:
    await store.create_chat(new_chat(id="c1"))
    before = sql(store_url, "SELECT * FROM meta ORDER BY key")
    for _ in range(3):
        async with open_store(store_url, StoreOptions()) as again:
            assert [line.id for line in await again.list_chats()] == ["c1"]
    assert sql(store_url, "SELECT * FROM meta ORDER BY key") == before


@pytest.mark.parametrize("older", ["schema1", "schema1-families", "schema2"])
async def test_a_database_of_an_early_schema_goes_on_with_its_families(store_url: str, older: str) -> None:
    """The first schema had a part of the families in it for a while."""
    copy_of(older, store_url)
    async with open_store(store_url, a_day_later()) as store:
        chats = [(await store.read_chat(name)).chat for name in ("root", "child", "grandchild", "alone")]
        assert [chat.root_id for chat in chats] == [None, "root", "root", None]
        assert [chat.state for chat in chats] == ["running", "running", "waiting", "running"]
        assert [chat.tainted_from for chat in chats] == [0, 0, 0, 0], (
            "older code did not look where results came from"
        )
        (asked,) = await store.open_calls("root")
        assert (asked.chat_id, asked.call_id) == ("grandchild", "pay")
        await store.submit("grandchild", Approve(call_id="pay", by="ann"))
        assert await store.open_calls("root") == []
    meta = dict(sql(store_url, "SELECT key, value FROM meta"))
    newest = migrations("sqlite")[-1]
    assert (meta["schema_version"], meta["oldest_code"]) == (newest.number, newest.oldest_code)


async def test_a_chat_of_the_second_schema_keeps_its_readers_until_its_id_is_used_again(store_url: str) -> None:
    copy_of("schema2", store_url)
    async with open_store(store_url, a_day_later()) as store:
        hand = Hand(store)
        await hand.take("alone")
        await hand.end_turn()
        cursor = (await store.read_journal("alone")).cursor
    async with open_store(store_url, a_day_later()) as store:
        assert (await store.read_journal("alone", cursor)).items == ()
        await store.delete_chat("alone")
        await store.create_chat(new_chat(None, id="alone"))
        with pytest.raises(WrongCursor):
            await store.read_journal("alone", cursor)


MANY = 20_000
MANY_CHILDREN = (
    "CREATE TABLE more AS WITH RECURSIVE numbers (n) AS "
    f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MANY}) "
    "SELECT chats.*, n FROM chats, numbers WHERE id = 'alone'",
    "UPDATE more SET id = 'child-' || n, parent_id = 'alone'",
    "ALTER TABLE more DROP COLUMN n",
    "INSERT INTO chats SELECT * FROM more",
    "DROP TABLE more",
)


async def test_many_families_of_the_first_schema_are_brought_up_to_date_at_once(store_url: str) -> None:
    """Nobody can read or write meanwhile. Looking at all families for each chat would take half a minute here."""
    copy_of("schema1", store_url)
    for statement in MANY_CHILDREN:
        sql(store_url, statement)
    async with asyncio.timeout(25), open_store(store_url, replace(a_day_later(), deadline_s=60)):
        assert sql(store_url, "SELECT count(*) FROM chats WHERE root_id = 'alone'") == [(MANY,)]


async def test_a_migration_that_fails_leaves_nothing_behind(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two works, the second does not: neither is there, and the next start does both."""
    dialect = "sqlite" if store_url.startswith("sqlite") else "postgres"
    known = migrations(dialect)
    broken = Migration(
        number=len(known) + 1, name="0099_broken.sql", oldest_code=1, sql="CREATE TABLE half (id TEXT); !"
    )
    with monkeypatch.context() as patch:
        patch.setattr(f"holdfast.store.{dialect}.schema.migrations", lambda _dialect: [*known, broken])
        with pytest.raises(SchemaError, match=r"0099_broken\.sql failed.*nothing was changed"):
            await open_store(store_url, StoreOptions()).open()
    tables = (
        "SELECT name FROM sqlite_schema WHERE type = 'table'"
        if store_url.startswith("sqlite")
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    assert sql(store_url, tables) == []
    async with open_store(store_url, StoreOptions()) as store:
        await store.create_chat(new_chat())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_migrations_are_numbered_without_gaps_and_state_the_oldest_code(dialect: str) -> None:
    found = migrations(dialect)
    assert [migration.number for migration in found] == list(range(1, len(found) + 1))
    assert all(1 <= migration.oldest_code <= CODE_LEVEL for migration in found)
    assert [migration.oldest_code for migration in found] == sorted(migration.oldest_code for migration in found)


def test_both_stores_have_the_same_migrations() -> None:
    """A schema version means the same on both: `oldest_code` can be compared, and docs can name it."""
    assert [(m.name, m.oldest_code) for m in migrations("sqlite")] == [
        (m.name, m.oldest_code) for m in migrations("postgres")
    ]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"0001_a.sql": "CREATE TABLE a (id TEXT);\n"}, "0001_a.sql does not begin with '-- oldest-code: N'"),
        ({"0001_a.sql": "\n-- oldest-code: 1\n"}, "0001_a.sql does not begin with"),
        ({"0001_a.sql": "-- oldest-code: one\n"}, "0001_a.sql does not begin with"),
        ({"0002_a.sql": "-- oldest-code: 1\n"}, "not numbered 1, 2, 3"),
        ({"0001_a.sql": "-- oldest-code: 1\n", "0003_b.sql": "-- oldest-code: 1\n"}, "not numbered 1, 2, 3"),
        ({"0001_a.sql": "-- oldest-code: 1\n", "0001_b.sql": "-- oldest-code: 1\n"}, "not numbered 1, 2, 3"),
        ({"0001_a.sql": "-- oldest-code: 1\n", "2_b.sql": "-- oldest-code: 1\n"}, "2_b.sql is not named"),
    ],
)
def test_migrations_that_break_the_rules_are_refused_by_name(
    tmp_path: Path, files: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sql" / "sqlite"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(migrations_module, "files", lambda _package: tmp_path)
    with pytest.raises(SchemaError) as caught:
        migrations("sqlite")
    assert says in str(caught.value)


def test_what_is_pending_is_what_the_database_has_not_seen() -> None:
    some = [Migration(number=n, name=f"{n:04}_x.sql", oldest_code=1, sql="") for n in (1, 2, 3)]
    assert pending(some, 0, 0) == some
    assert pending(some, 2, 1) == some[2:]
    assert pending(some, 3, 1) == []
    assert pending(some, 7, CODE_LEVEL) == [], "newer, and it says that we may"
    with pytest.raises(SchemaError, match="upgrade holdfast"):
        pending(some, 7, CODE_LEVEL + 1)


async def test_a_migration_behind_an_idle_reader_lets_the_others_go_on(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy_of("schema2", postgres_url)
    with psycopg.connect(postgres_url, application_name="somebody") as idle:
        idle.execute("SELECT 1 FROM chats")  # and then it does nothing
        store = open_store(postgres_url, replace(a_day_later(), deadline_s=60))
        opening = asyncio.ensure_future(store.open())
        await until(lambda: waits_told(caplog))
        assert waits_told(caplog)[0].pids == [idle.info.backend_pid]
        assert "somebody" in waits_told(caplog)[0].getMessage()
        # Longer than a try, and shorter than the reader: behind a change that waits, this would time out.
        with psycopg.connect(postgres_url, options="-c statement_timeout=30s", autocommit=True) as other:
            assert other.execute("SELECT count(*) FROM chats").fetchone() == (4,)
        assert not opening.done()
    await opening
    await store.close()
    assert sql(postgres_url, "SELECT value FROM meta WHERE key = 'schema_version'") == [
        (migrations("postgres")[-1].number,)
    ]


def waits_told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if getattr(record, "action", None) == "store.migration_waits"]


async def test_a_migration_that_others_never_make_room_for_says_who_they_are(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.schema.MIGRATION_DEADLINE_S", 3.0)
    copy_of("schema2", postgres_url)
    with psycopg.connect(postgres_url) as idle:
        idle.execute("SELECT 1 FROM chats")
        with pytest.raises(StoreTimeout, match=f"others hold the tables: pid {idle.info.backend_pid} "):
            await open_store(postgres_url, a_day_later()).open()
