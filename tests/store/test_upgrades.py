"""A database that older code left is opened by today's: every chat is as it was, and goes on."""

import json

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import External, State
from holdfast.errors import RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.migrations import migrations
from holdfast.store.records import Key
from tests.store import old_databases
from tests.store.old_databases import ANSWER, a_day_later, seen
from tests.support.behind import sql
from tests.support.chats import Hand, call, history, texts, user

pytestmark = [pytest.mark.bare_database, pytest.mark.parametrize("schema", old_databases.SCHEMAS)]


async def take(hand: Hand, chat_id: str) -> None:
    agent = (await hand.store.read_chat(chat_id)).chat.agent
    (hand.snapshot,) = await hand.claim(agent)


async def test_every_chat_of_an_older_schema_is_found_as_it_was(store_url: str, schema: int) -> None:
    expected = old_databases.load(schema, store_url)
    async with open_store(store_url, a_day_later()) as store:
        found = {line.id: await seen(store, line.id) for line in await store.list_chats()}
        assert json.loads(json.dumps(found)) == expected
        assert sorted((asked.chat_id, asked.call_id) for asked in await store.open_calls("root")) == [
            ("helper", "pay")
        ]
        again = Key(principal="ada", key="stop-1")
        assert [bytes(body) for body in (await store.submit("dropped", cmd.Stop(clear_queue=True), again)).dropped]
    newest = migrations("sqlite")[-1]
    meta = dict(sql(store_url, "SELECT key, value FROM meta"))
    assert (meta["schema_version"], meta["oldest_code"]) == (newest.number, newest.oldest_code)


async def test_chats_at_rest_of_an_older_schema_take_another_turn(store_url: str, schema: int) -> None:
    expected = old_databases.load(schema, store_url)
    async with open_store(store_url, a_day_later()) as store:
        hand = Hand(store)
        for chat_id in ("idle", "empty", "archived", "failed", "compacted", "fork", "edited", "helped"):
            assert expected[chat_id]["state"] in ("idle", "failed")
            before = texts(await history(store, chat_id))
            await store.submit(chat_id, cmd.Send(message=user("go on")))
            await take(hand, chat_id)
            await hand.end_turn("went on")
            assert texts(await history(store, chat_id)) == [*before, "go on", "went on"]
            page = await store.read_journal(chat_id, limit=10_000)
            assert page.at_rest
            assert len(page.items) > expected[chat_id]["lines"]
        hand.close()


async def test_chats_of_an_older_schema_that_wait_are_answered_and_go_on(store_url: str, schema: int) -> None:
    old_databases.load(schema, store_url)
    async with open_store(store_url, a_day_later()) as store:
        hand = Hand(store)
        for chat_id, command in (
            ("asking", cmd.Approve(call_id="pay", by="ann")),
            ("client", cmd.Submit(call_id="there", content="from there")),
            ("question", cmd.Submit(call_id="ask", content="the second one")),
        ):
            assert (await store.read_chat(chat_id)).chat.state is State.WAITING
            if isinstance(command, cmd.Approve):  # older code offered nothing
                with pytest.raises(RefusedError, match="without `always`"):
                    await store.submit(chat_id, replace(command, always="owner"))
            await store.submit(chat_id, command)
            await take(hand, chat_id)
            if chat_id == "asking":
                await hand.commit(cmd.StartCalls(by=hand.by, call_ids=("pay",)))
                await hand.finish("pay", "paid")
            await hand.end_turn("thank you")
            assert "thank you" in texts(await history(store, chat_id))
        await store.submit("helper", cmd.Deny(call_id="pay", words="no"))
        await take(hand, "helper")
        await hand.end_turn("not paid")
        await take(hand, "root")
        assert texts(await history(store, "root"))[-1] == "not paid"
        await hand.end_turn("all done")
        hand.close()


async def test_a_parent_of_an_older_schema_hears_what_its_child_had_answered(store_url: str, schema: int) -> None:
    """The child ended its turn under the old schema; the parent begins to wait for it under the new one."""
    old_databases.load(schema, store_url)
    async with open_store(store_url, a_day_later()) as store:
        hand = Hand(store)
        await store.submit("helper", cmd.Deny(call_id="pay"))
        await take(hand, "helper")
        await hand.end_turn("not paid")
        await take(hand, "root")
        await hand.respond(call("wait"), start=False)
        await hand.commit(
            cmd.Delegate(by=hand.by, call_id="wait", external=External.CHILD, child_id="helped", child_turn=1)
        )
        assert texts(await history(store, "root"))[-1] == ANSWER
        hand.close()


async def test_what_a_dead_worker_of_an_older_schema_held_is_taken_back(store_url: str, schema: int) -> None:
    old_databases.load(schema, store_url)
    async with open_store(store_url, a_day_later()) as store:
        assert await _streamed(store) == ['{"part": "text", "text": "Once "}', '{"part": "text", "text": "upon "}']
        await store.sweep()
        assert await store.list_workers() == []
        hand = Hand(store)
        for chat_id in ("streaming", "started", "queued"):
            await take(hand, chat_id)
            await hand.end_turn("taken over")
            assert "taken over" in texts(await history(store, chat_id))
        assert "outcome unknown" in " ".join(texts(await history(store, "started"))).lower()
        assert (await store.read_chat("stopping")).chat.state in (State.IDLE, State.STOPPING)
        assert await store.find_violations() == []
        hand.close()


async def _streamed(store: Store) -> list[str]:
    page = await store.read_journal("streaming", limit=10_000)
    return [item.body.decode() for item in page.items if item.attempt is not None]
