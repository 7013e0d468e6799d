"""Searches may read all there is, and clients' writes wait for whoever holds their chat. A read of one chat waits for
neither, whatever there is of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import psycopg
import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.errors import StoreTimeout
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter, ChatLine, StoreOptions
from tests.support.chats import new_chat, user
from tests.support.waiting import until

# Nobody looks for news meanwhile: that is in the journal, too.
OPTIONS = StoreOptions(deadline_s=60, poll_interval_s=3600)
MANY = 24  # more than any lane, or all of them together, have room for

# A search looks into the journal, a read of a chat does not: this one never comes to its end.
_ENDLESS_JOURNAL = """
ALTER TABLE journal RENAME TO journal_kept;
CREATE VIEW journal AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
    SELECT 'none' || i AS chat_id, i AS seq, 0 AS at, 'user' AS role, 0 AS pos, '' AS ref, '[' || i || ']' AS body
    FROM n;
"""
_JOURNAL_AGAIN = "DROP VIEW journal; ALTER TABLE journal_kept RENAME TO journal;"


@contextmanager
def endless_searches(store_url: str) -> Iterator[None]:
    if store_url.startswith("sqlite:"):
        connection = apsw.Connection(store_url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA legacy_alter_table = ON")
        connection.execute(_ENDLESS_JOURNAL)
        try:
            yield
        finally:
            connection.execute(_JOURNAL_AGAIN)
            connection.close()
    else:
        with psycopg.connect(store_url) as holder:
            holder.execute("LOCK TABLE journal IN ACCESS EXCLUSIVE MODE")
            yield


@pytest.fixture
async def full(store_url: str) -> AsyncIterator[Store]:
    async with open_store(store_url, OPTIONS) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        await settled(store)
        yield store


async def settled(store: Store) -> None:
    await until(lambda: store.stats()["wake_stream"] == "running.streaming")


def searching(store: Store, *, search: str | None = "needle") -> list["asyncio.Task[list[ChatLine]]"]:
    return [asyncio.ensure_future(store.list_chats(ChatFilter(search=search))) for _ in range(MANY)]


async def cancelled(*tasks: "asyncio.Task[list[ChatLine]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_chat_is_read_while_there_are_more_searches_than_threads(full: Store, store_url: str) -> None:
    with endless_searches(store_url):
        searches = [*searching(full), *searching(full, search=None)]
        await until(lambda: busy(full))
        assert (await asyncio.wait_for(full.read_chat("c1"), 30)).chat.id == "c1"
        assert not any(search.done() for search in searches)
        await cancelled(*searches)


async def test_a_page_of_chats_is_listed_while_there_are_more_searches_than_threads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with open_store(url, OPTIONS) as store:
        await store.create_chat(new_chat(None, id="c1"))
        await settled(store)
        with endless_searches(url):
            searches = searching(store)
            await until(lambda: busy(store))
            # Of an agent that has no chat, so that the listing need not look into the journal.
            assert await asyncio.wait_for(store.list_chats(ChatFilter(agent="none")), 30) == []
            await cancelled(*searches)


def busy(store: Store) -> bool:
    figures = store.stats()
    return bool(figures["reader_threads"] if "reader_threads" in figures else figures["pool_connections_busy"])


async def test_a_search_that_nobody_waits_for_any_more_is_ended_in_the_database(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.create_chat(new_chat("needle", id="c1"))
    async with open_store(store_url, replace(OPTIONS, deadline_s=0.6)) as store:
        await settled(store)
        with endless_searches(store_url):
            searches = searching(store)
            outcomes = await asyncio.gather(*searches, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreTimeout}
            # Those of the server's statements that wait for the table, too, while it is still locked.
            await until(lambda: not running(store, store_url))
    async with open_store(store_url) as store:
        assert [line.id for line in await store.list_chats(ChatFilter(search="needle"))] == ["c1"]


async def test_a_search_whose_caller_has_left_is_ended_in_the_database(store_url: str) -> None:
    """Long before its deadline, and its connection or thread is there for the next one."""
    async with open_store(store_url) as store:
        await store.create_chat(new_chat("needle", id="c1"))
    async with open_store(store_url, OPTIONS) as store:
        await settled(store)
        with endless_searches(store_url):
            for _ in range(3):  # more than the lane has room for, in all
                searches = searching(store)
                await until(lambda: busy(store))
                await cancelled(*searches)
                await until(lambda: not running(store, store_url))
    async with open_store(store_url) as store:
        assert [line.id for line in await store.list_chats(ChatFilter(search="needle"))] == ["c1"]


def running(store: Store, store_url: str) -> int:
    if store_url.startswith("sqlite:"):
        return int(store.stats()["reader_threads_lost"] or 0)
    with psycopg.connect(store_url, autocommit=True) as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%LIKE%%' AND pid <> %s"
        (count,) = connection.execute(asked, (connection.info.backend_pid,)).fetchone() or (0,)
        return int(count)


async def test_a_chat_is_read_while_more_writes_than_connections_wait_for_another(postgres_url: str) -> None:
    async with open_store(postgres_url, OPTIONS) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        await store.create_chat(new_chat("hello", id="c2"))
        with psycopg.connect(postgres_url) as holder:
            holder.execute("SELECT 1 FROM chats WHERE id = 'c1' FOR UPDATE")
            sends = [
                asyncio.ensure_future(store.submit("c1", cmd.Send(message=user(), mode="queue"))) for _ in range(MANY)
            ]
            await until(lambda: store.stats()["pool_connections_busy"] == 6)
            assert (await asyncio.wait_for(store.read_chat("c2"), 30)).chat.id == "c2"
            assert not any(send.done() for send in sends)
        await asyncio.gather(*sends)
