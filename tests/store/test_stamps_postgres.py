"""Several commits in one statement: what comes with a chat is written exactly where the chat is."""

import asyncio

import psycopg

from holdfast.core import events as ev
from holdfast.store import open_store
from holdfast.store.base import StoreOptions
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat, user
from tests.support.waiting import eventually

# Whoever updates chat "first" waits until the test lets go.
GATE = """
CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$;
CREATE TRIGGER gate BEFORE UPDATE ON chats FOR EACH ROW WHEN (OLD.id = 'first') EXECUTE FUNCTION wait_at_the_gate();
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


async def test_an_update_by_somebody_else_in_the_middle_of_a_statement_leaves_no_lines_without_their_chat(
    postgres_url: str,
) -> None:
    """It bumps no version, and comes between the statement's beginning and its second chat."""
    async with open_store(postgres_url, StoreOptions()) as store:
        hand = Hand(store)
        for name in ("first", "second"):
            await store.create_chat(new_chat("hello", id=name))
            await store.submit(name, ev.Send(message=user("queued")))
        held = {snapshot.chat.id: snapshot for snapshot in await hand.claim()}
        with psycopg.connect(postgres_url, autocommit=True) as somebody:
            somebody.execute(GATE)
            somebody.execute("SELECT pg_advisory_lock(4711)")
            tasks = []
            for name in ("first", "second"):
                hand.snapshot = held[name]
                events = (hand.response("done"), ev.FinishTurn(by=hand.by))
                tasks.append(asyncio.ensure_future(store.commit(held[name], events, f"commit {name}")))

            async def has_begun() -> bool:
                return bool(sql(postgres_url, WAITING)[0][0])

            await eventually(has_begun)
            somebody.execute("UPDATE chats SET updated_at = updated_at WHERE id = 'second'")
            somebody.execute("SELECT pg_advisory_unlock(4711)")
            after = await asyncio.gather(*tasks)
        for name, snapshot in zip(("first", "second"), after, strict=True):
            assert snapshot == await store.read_chat(name)
            assert snapshot.queue == (), "the queued message began the next turn"
            [(last,)] = sql(postgres_url, "SELECT max(seq) FROM journal WHERE chat_id = ?", (name,))
            assert last == snapshot.chat.seq
            await store.submit(name, ev.Send(message=user("and more")))
        hand.close()
