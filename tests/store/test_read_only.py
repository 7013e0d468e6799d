"""A look at a SQLite file that cannot be written to: one moment of it, or an error that says so."""

from pathlib import Path

import apsw
import pytest

from holdfast.errors import SchemaError, StoreReadOnly, StoreUnavailable
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.store.sqlite.read_only import check_schema, look
from tests.support.chats import new_chat


async def write(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await store.create_chat(new_chat())


def count(connection: apsw.Connection) -> int:
    found: int = connection.execute("SELECT count(*) FROM chats").fetchone()[0]  # type: ignore[index]
    return found


async def test_a_file_that_rests_is_read_without_touching_anything_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a # strange%20näme.db"
    await write(path)
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    with look(str(path)) as connection:
        assert count(connection) == 1
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before


async def test_a_file_that_changes_meanwhile_is_no_moment_at_all(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    await write(path)
    with pytest.raises(StoreUnavailable, match="changed while it was read"), look(str(path)):
        await write(path)


async def test_what_is_in_the_wal_of_another_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create_chat(new_chat())
        with look(str(path)) as connection:
            assert count(connection) == 1
            await store.create_chat(new_chat())
            assert count(connection) == 1, "it is one moment"
        with look(str(path)) as connection:
            assert count(connection) == 2


async def test_it_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    await write(path)
    with pytest.raises(StoreReadOnly), look(str(path)) as connection:
        connection.execute("DELETE FROM chats")


async def test_a_schema_that_is_older_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    await write(path)
    with apsw.Connection(str(path)) as older:
        older.execute("UPDATE meta SET value = 0 WHERE key = 'schema_version'")
    with pytest.raises(SchemaError, match="schema 0, which is older"), look(str(path)) as connection:
        check_schema(connection, str(path))


async def test_a_file_in_which_nothing_was_ever_written_has_no_schema(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    apsw.Connection(str(path)).close()
    path.touch()
    with look(str(path)) as connection:
        assert check_schema(connection, str(path)) is None


async def test_a_store_that_is_to_be_read_alone_is_opened_as_ever_where_it_can_be_written(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/holdfast.db", StoreOptions(only_reads=True)) as store:
        assert store.why_read_only is None
        assert await store.list_chats() == []
