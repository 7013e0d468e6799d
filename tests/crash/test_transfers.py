"""`kill -9` in the middle of an import and of the deletion of an owner, on both stores: nothing half is ever seen,
and the same command, run again, brings it to its end.
"""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.errors import NotFound
from holdfast.store import open_store
from holdfast.store.records import ChatFilter, StoreOptions
from holdfast.store.remnants import ABANDONED_MS
from holdfast.system.clock import FakeClock
from holdfast.transfer import delete_owner, export_chat, import_chat
from tests.crash.slicer import SLICE, a_large_chat
from tests.crash.writer import WRITER_S_MAX
from tests.store.test_fork_delete import rows_of
from tests.support.aftermath import find_faults
from tests.support.behind import sql
from tests.support.chats import new_chat
from tests.support.forks import fork_module


def killed_at(point: str, *arguments: str) -> None:
    with fork_module("tests.crash.transferrer", *arguments, environ={"HOLDFAST_CRASH_AT": point}) as process:
        assert process.wait(WRITER_S_MAX) == -signal.SIGKILL, "it was to die there"


@pytest.mark.parametrize(
    "point", ["import.before", "import.slice:1", "import.slice:3", "commit.after:4", "import.after"]
)
def test_an_import_that_is_killed_shows_nothing_and_is_done_by_the_next(
    point: str, store_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "large.jsonl"
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"

    async def prepare() -> None:
        async with open_store(elsewhere) as store:
            await store.create_chat(a_large_chat())
            await export_chat(store, "large", file)
        async with open_store(store_url):
            pass

    asyncio.run(prepare())
    killed_at(point, store_url, "import", str(file))

    async def judge() -> None:
        clock = FakeClock()
        async with open_store(store_url, StoreOptions(clock=clock)) as store:
            with pytest.raises(NotFound):
                await store.read_chat("large")
            assert await store.read_history("large") == []
            assert await store.list_chats() == []
            assert await find_faults(store) == []
            store.large_chats.slice = SLICE
            await import_chat(store, file)
            again = tmp_path / "again.jsonl"
            await export_chat(store, "large", again)
            assert again.read_bytes() == file.read_bytes()
            await store.sweep()
            assert sql(store_url, "SELECT * FROM remnants") == []
            assert await find_faults(store) == []

    asyncio.run(judge())


def test_what_a_killed_import_left_is_swept_where_it_is_not_run_again(store_url: str, tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"

    async def prepare() -> None:
        async with open_store(f"sqlite:///{tmp_path}/elsewhere.db") as store:
            await store.create_chat(a_large_chat())
            await export_chat(store, "large", file)
        async with open_store(store_url):
            pass

    async def judge() -> None:
        clock = FakeClock()
        async with open_store(store_url, StoreOptions(clock=clock)) as store:
            assert rows_of(store_url, "large") != {}
            await store.sweep()
            clock.advance(ABANDONED_MS)
            await store.sweep()
            assert (rows_of(store_url, "large"), sql(store_url, "SELECT * FROM remnants")) == ({}, [])

    asyncio.run(prepare())
    killed_at("import.slice:3", store_url, "import", str(file))
    asyncio.run(judge())


@pytest.mark.parametrize("point", ["delete.before:2", "delete.after:2", "clear.after:1", "commit.after:5"])
def test_a_deletion_of_an_owner_that_is_killed_is_finished_by_the_next(point: str, store_url: str) -> None:
    async def prepare() -> None:
        async with open_store(store_url) as store:
            for n in range(3):
                chat = a_large_chat(f"large{n}")
                await store.create_chat(type(chat)(id=chat.id, agent=chat.agent, owner="acme", past=chat.past))
            await store.create_chat(new_chat(None, id="bobs", owner="bob"))

    async def judge() -> None:
        async with open_store(store_url) as store:
            left = {line.id for line in await store.list_chats(ChatFilter(owner="acme"))}
            for chat_id in left:
                assert len(await store.read_history(chat_id)) == 22, "whole, or not there"
            await delete_owner(store, "acme")
            assert [line.id for line in await store.list_chats()] == ["bobs"]
            await store.sweep()
            assert sql(store_url, "SELECT DISTINCT chat_id FROM journal") == [("bobs",)]
            assert sql(store_url, "SELECT * FROM remnants") == []
            assert await find_faults(store) == []

    asyncio.run(prepare())
    killed_at(point, store_url, "delete", "acme")
    asyncio.run(judge())
