"""What is written, kept and looked at does not grow with what nobody needs."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import State
from holdfast.errors import RefusedError
from holdfast.store.contract import Store
from holdfast.store.liveness import SWEPT_MAX
from holdfast.store.postgres import sql as postgres_sql
from holdfast.store.postgres.connection import ServerConnection
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.records import ChatFilter
from holdfast.store.sqlite import sql as sqlite_sql
from holdfast.store.sqlite.store import SqliteStore
from tests.support.behind import sql
from tests.support.chats import Hand, call, new_chat, user


def written_bytes(store: Store, url: str) -> int:
    """To the database's log, by everybody, since it was made."""
    if url.startswith("sqlite"):
        return int(store.stats()["wal_pages_written"] or 0) * 4096
    return int(sql(url, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


@pytest.mark.parametrize("kind", ["a chat", "a sub-agent"])
async def test_what_a_turn_writes_does_not_depend_on_the_answer_before_it(
    store: Store, store_url: str, kind: str
) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat("do it", id="parent", agent="parent"))
    (parent,) = await hand.claim("parent")
    for n, length in enumerate((10, 200_000)):
        new = new_chat(None, id=f"c{n}")
        if kind == "a sub-agent":
            hand.snapshot = parent
            await hand.respond(call(f"k{n}"))
            parent = await hand.commit(cmd.Outcome(by=hand.by, call_id=f"k{n}", content="made", spawn=new))
        else:
            await store.create_chat(new)
        await store.submit(f"c{n}", cmd.Send(message=user()))
        await hand.take(f"c{n}")
        await hand.end_turn(random.Random(1).randbytes(length // 2).hex())
    counts = []
    for n in range(2):
        before = written_bytes(store, store_url)
        await store.submit(f"c{n}", cmd.Send(message=user()))
        await hand.take(f"c{n}")
        for k in range(4):
            await hand.respond(call(f"call{k}"))
            await hand.finish(f"call{k}")
        await hand.end_turn("short")
        counts.append(written_bytes(store, store_url) - before)
    short, long = counts[0], counts[1]
    assert long < short + 100_000, counts
    hand.close()


async def copies(store: Store, url: str, count: int) -> None:
    """Chats `copy-00001`, … that wait for a client as `model` does."""
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="model"))
    await hand.take("model")
    await hand.park_for_client("there")
    hand.close()
    copy_rows(url, "model", count)


def copy_rows(url: str, model: str, count: int) -> None:
    for table, column in (("chats", "id"), ("calls", "chat_id"), ("journal", "chat_id")):
        sql(url, f"CREATE TABLE more AS SELECT * FROM {table} WHERE {column} = '{model}'")
        sql(url, f"UPDATE more SET {column} = 'copy-'")
        names = [name for name in columns_of(url, table) if name != column]
        listed = ", ".join(names)
        sql(
            url,
            f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "
            f"INSERT INTO {table} ({column}, {listed}) "
            f"SELECT {column} || substr('0000' || CAST(n AS TEXT), -5), {listed} FROM more, numbers"
            if url.startswith("sqlite")
            else f"INSERT INTO {table} ({column}, {listed}) "
            f"SELECT {column} || lpad(n::text, 5, '0'), {listed} FROM more, generate_series(1, {count}) AS n",
        )
        sql(url, "DROP TABLE more")


def columns_of(url: str, table: str) -> list[str]:
    if url.startswith("sqlite"):
        return [row[0] for row in sql(url, "SELECT name FROM pragma_table_info(?)", (table,))]
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = ? AND table_schema = 'public'"
    return [row[0] for row in sql(url, query, (table,))]


async def test_a_sweep_looks_at_some_of_those_that_wait_and_comes_round_to_all(store: Store, store_url: str) -> None:
    await copies(store, store_url, 2 * SWEPT_MAX + 10)
    last = f"copy-{2 * SWEPT_MAX + 10:05}"
    sql(store_url, "UPDATE calls SET state = 'planned', external = NULL WHERE chat_id = ?", (last,))
    assert [found.chat_id for found in await store.find_violations()] == [last], "who looks at all finds it at once"
    assert [await store.sweep() for _ in range(3)] == [{}, {}, {"waiting_for_nobody": 1}]
    assert await store.find_violations() == []
    sql(store_url, "UPDATE calls SET state = 'planned', external = NULL WHERE chat_id = 'copy-00001'")
    assert await store.sweep() == {"waiting_for_nobody": 1}, "and begins anew"


async def test_a_stranded_chat_is_found_by_the_next_sweep_however_many_wait(store: Store, store_url: str) -> None:
    await copies(store, store_url, 2 * SWEPT_MAX + 10)
    await store.create_chat(new_chat("hello", id="zzz"))
    sql(store_url, "UPDATE chats SET wake_at = NULL WHERE id = 'zzz'")
    assert await store.sweep() == {"running_without_owner_or_wake_at": 1}


FILTERS = {
    "owner": (ChatFilter(owner="ada"), "chats_owner"),
    "owner and more": (ChatFilter(owner="ada", agent="agent", archived=False, metadata={"a": "b"}), "chats_owner"),
    "agent": (ChatFilter(agent="rare"), "chats_agent"),
    "waiting": (ChatFilter(state=State.WAITING), "chats_waiting"),
    "failed": (ChatFilter(state=State.FAILED), "chats_failed"),
    "running": (ChatFilter(state=State.RUNNING), "chats_held"),
    "archived": (ChatFilter(archived=True), "chats_archived"),
    "searched in an owner's": (ChatFilter(owner="ada", search="kelp"), "chats_owner"),
}


@pytest.mark.parametrize("name", FILTERS)
async def test_a_list_is_read_by_the_index_of_its_filter(store: Store, store_url: str, name: str) -> None:
    wanted, index = FILTERS[name]
    await copies(store, store_url, 1_000)
    sql(store_url, "ANALYZE")
    values = wanted.values() | {"before": "m", "limit": 50}
    if isinstance(store, SqliteStore):
        listing = sqlite_sql.list_chats(*wanted.given("m"))
        plan = await store._transactor.named_rows(f"EXPLAIN QUERY PLAN {listing}", **values)
    else:
        assert isinstance(store, PostgresStore)
        plan = await store._transactor.named_rows(f"EXPLAIN {postgres_sql.list_chats(*wanted.given('m'))}", **values)
    told = "\n".join(str(row[-1]) for row in plan)
    assert index in told, told
    assert "SCAN chats\n" not in told


async def test_a_family_of_five_thousand_is_deleted_whole_or_not_at_all_in_a_few_round_trips(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create_chat(new_chat(None, id="parent"))
    await store.create_chat(replace(new_chat(None, id="child"), parent_id="parent", parent_call="k1", depth=1))
    copy_rows(store_url, "child", 5_000)
    await store.submit("copy-04321", cmd.Send(message=user("work")))
    with pytest.raises(RefusedError, match="delete refused while the chat is running"):
        await store.delete_chat("parent", children="include")
    assert sql(store_url, "SELECT count(*) FROM chats")[0][0] == 5_002
    await store.submit("copy-04321", cmd.Stop())
    hand = Hand(store)
    await hand.take("copy-04321")
    await hand.commit(cmd.FinishStop(by=hand.by))
    hand.close()
    asked = 0
    execute = ServerConnection.execute

    async def counted(connection: ServerConnection, *values: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return await execute(connection, *values, **options)

    monkeypatch.setattr(ServerConnection, "execute", counted)
    assert len(await store.delete_chat("parent", children="include")) == 5_002
    assert asked < 100
    for table in ("chats", "journal", "calls", "queue"):
        assert sql(store_url, f"SELECT count(*) FROM {table}")[0][0] == 0, table
