"""A rolling deploy, seen from the older code: newer schemas, newer columns, records of a kind it does not know."""

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import External, Failure, State
from holdfast.errors import CorruptRecord, RecordError, SchemaError, UnknownRecord
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.migrations import CODE_LEVEL
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.behind import sql
from tests.support.chats import Hand, call, history, new_chat, texts, user
from tests.support.leases import silence

pytestmark = pytest.mark.bare_database


async def prepared(store: Store, *chat_ids: str) -> None:
    for chat_id in chat_ids:
        await store.create_chat(new_chat("hello", id=chat_id))


# What newer code may have written, as the statement that writes it, and the error that older code gives.
NEWER = {
    "phase": ("UPDATE chats SET phase = 'dreaming' WHERE id = 'new'", UnknownRecord),
    "cause": ("UPDATE chats SET cause = 'eclipse' WHERE id = 'new'", UnknownRecord),
    "failure": (
        """UPDATE chats SET error = '{"code":"x","message":"y","cause":"eclipse"}' WHERE id = 'new'""",
        UnknownRecord,
    ),
    "replay": ("UPDATE calls SET replay = 'sometimes' WHERE chat_id = 'new'", UnknownRecord),
    "external": ("UPDATE calls SET external = 'robot' WHERE chat_id = 'new'", UnknownRecord),
    "no failure at all": ("UPDATE chats SET error = 'garbage{' WHERE id = 'new'", CorruptRecord),
    "a failure of another shape": ("UPDATE chats SET error = '{\"code\":7}' WHERE id = 'new'", CorruptRecord),
}


@pytest.mark.parametrize("what", NEWER)
async def test_a_chat_that_cannot_be_read_is_left_alone_and_holds_up_nobody(
    store: Store, store_url: str, clock: FakeClock, what: str
) -> None:
    """It is the oldest of all that are due; claims of any size pass it over, and so does the sweeper."""
    statement, error = NEWER[what]
    await store.create_chat(new_chat("hello", id="new"))
    earlier = Hand(store)
    await earlier.take("new")
    await earlier.respond("let me see", call("k1"))
    await earlier.commit(cmd.Release(by=earlier.by, never_begun=("k1",)))
    sql(store_url, statement)
    clock.advance(1_000)
    await prepared(store, "a", "b", "c")
    with pytest.raises(error):
        await store.read_chat("new")
    with pytest.raises(error):
        await store.submit("new", cmd.Stop())
    hand = Hand(store)
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=1)] == ["a"]
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=5)] == ["b", "c"]
    assert await hand.claim() == []
    assert sql(store_url, "SELECT worker, fence FROM chats WHERE id = 'new'") == [(None, 1)]
    seen = store.stats()["unreadable_chats"]
    assert isinstance(seen, int)
    assert seen >= 1
    # Its journal is bytes to a reader, whatever they say.
    assert (await store.read_journal("new")).items
    assert "new" in {line.id for line in await store.list_chats()}
    earlier.close()
    hand.close()


async def test_more_unreadable_chats_than_a_claim_asks_for_do_not_hide_the_others(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    await prepared(store, *(f"new{n:03}" for n in range(150)))
    sql(store_url, "UPDATE chats SET phase = 'dreaming'")
    clock.advance(1_000)
    await prepared(store, "a", "b")
    hand = Hand(store)
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=1)] == ["a"]
    assert [snapshot.chat.id for snapshot in await hand.claim(limit=1)] == ["b"]
    hand.close()


async def test_a_sweep_goes_past_a_chat_that_cannot_be_read(store: Store, store_url: str, clock: FakeClock) -> None:
    """One bad row aborted a whole sweep [trinity#2434]: held by a dead worker, and violating promise 7."""
    await prepared(store, "a", "b", "c", "d")
    hand = Hand(store)
    assert len(await hand.claim()) == 4
    sql(store_url, "UPDATE chats SET phase = 'dreaming' WHERE id = 'b'")
    sql(store_url, "UPDATE chats SET error = 'garbage{' WHERE id = 'c'")
    await silence(store, clock)
    await store.sweep()
    held = dict(sql(store_url, "SELECT id, worker FROM chats"))
    assert held == {"a": None, "b": hand.name, "c": hand.name, "d": None}
    assert [violation.chat_id for violation in await store.find_violations()] == ["b", "c"]
    # Newer code comes and can read them: nothing is lost.
    sql(store_url, "UPDATE chats SET phase = 'model', error = NULL")
    await store.sweep()
    assert await store.find_violations() == []
    assert {snapshot.chat.id for snapshot in await Hand(store).claim()} == {"a", "b", "c", "d"}
    hand.close()


async def test_a_parent_that_cannot_be_read_keeps_its_child_from_ending_and_says_so(
    store: Store, store_url: str
) -> None:
    """The child's end and the parent's wake are one transaction: neither happens, and the worker is told why."""
    await store.create_chat(new_chat("do it", id="parent"))
    hand = Hand(store)
    await hand.take("parent")
    await hand.respond(call("k1"), start=False)
    child = replace(new_chat("sub task", id="child"), parent_id="parent", parent_call="k1", depth=1)
    spawn = cmd.Delegate(by=hand.by, call_id="k1", external=External.CHILD, spawn=child)
    await hand.commit(spawn, cmd.Park(by=hand.by))
    sql(store_url, "UPDATE chats SET phase = 'dreaming' WHERE id = 'parent'")
    other = Hand(store)
    await other.take("child")
    with pytest.raises(RecordError, match="newer code"):
        await other.end_turn("done")
    assert (await store.read_chat("child")).chat.state is State.RUNNING
    sql(store_url, "UPDATE chats SET phase = 'calls' WHERE id = 'parent'")
    other.snapshot = await store.read_chat("child")
    await other.end_turn("done")
    assert texts(await history(store, "parent"))[-1] == "done"


async def test_what_newer_code_wrote_beside_our_columns_survives_our_writes(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    tables = ("chats", "journal", "calls", "queue", "compactions", "deltas", "workers")
    for table in tables:
        sql(store_url, f"ALTER TABLE {table} ADD COLUMN future TEXT")
    await store.create_chat(new_chat("one", id="c1"))
    await store.submit("c1", cmd.Send(message=user("two", id="m2")))
    await store.submit("c1", cmd.Send(message=user("three", id="m3")))
    hand = Hand(store)
    await hand.take("c1")
    await hand.respond("let me see", call("k1"), call("k2"))
    for table in ("chats", "journal", "calls", "queue", "workers"):
        sql(store_url, f"UPDATE {table} SET future = 'kept'")
    told_before = sql(store_url, "SELECT count(*) FROM journal")
    await hand.finish("k1")
    await store.submit("c1", cmd.Promote(message_id="m3"))
    hand.line.renew(hand.name)
    hand.snapshot = await store.read_chat("c1")
    await hand.commit(cmd.Outcome(by=hand.by, call_id="k2", content="second"))
    await store.expire_workers()
    assert sql(store_url, "SELECT future FROM chats") == [("kept",)]
    assert sql(store_url, "SELECT id, future FROM calls ORDER BY id") == [("k1", "kept"), ("k2", "kept")]
    assert sql(store_url, "SELECT id, future FROM queue ORDER BY rank") == [("m3", "kept"), ("m2", "kept")]
    assert sql(store_url, "SELECT future FROM workers") == [("kept",)]
    assert sql(store_url, "SELECT count(*) FROM journal WHERE future = 'kept'") == told_before
    hand.close()


async def test_a_newer_schema_that_still_allows_this_code_is_used_as_it_is(store: Store, store_url: str) -> None:
    sql(store_url, "UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    sql(store_url, "CREATE TABLE of_the_future (id TEXT)")
    async with open_store(store_url, StoreOptions()) as older:
        await older.create_chat(new_chat("hello", id="c1"))
    assert sql(store_url, "SELECT value FROM meta WHERE key = 'schema_version'") == [(99,)]
    assert sql(store_url, "SELECT * FROM of_the_future") == []


async def test_a_newer_schema_that_needs_newer_code_is_refused_by_name(store: Store, store_url: str) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    await store.close()
    sql(store_url, "UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    sql(store_url, "UPDATE meta SET value = ? WHERE key = 'oldest_code'", (CODE_LEVEL + 6,))
    with pytest.raises(SchemaError) as caught:
        await open_store(store_url, StoreOptions()).open()
    assert f"schema 99, which needs code of level {CODE_LEVEL + 6} or newer" in str(caught.value)
    assert f"this is level {CODE_LEVEL}: upgrade holdfast on this machine" in str(caught.value)
    assert sql(store_url, "SELECT id FROM chats") == [("c1",)]


async def test_a_failure_written_with_more_fields_than_we_know_is_read_and_kept(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="boom", message="it broke")))
    written = '{"code":"boom","message":"it broke","severity":11}'
    sql(store_url, "UPDATE chats SET error = ? WHERE id = 'c1'", (written,))
    error = (await store.read_chat("c1")).chat.error
    assert error is not None
    assert error.message == "it broke"
    hand.close()
