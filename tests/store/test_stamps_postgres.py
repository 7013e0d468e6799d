"""What PostgreSQL alone brings: several commits in one statement, and servers that take each other's place."""

import asyncio
import re

import psycopg
import pytest

from holdfast.core import commands as cmd
from holdfast.store import open_store
from holdfast.store.incidents import FAILED_OVER, WENT_BACK
from holdfast.store.records import StoreOptions
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat, user
from tests.support.postgres import GATE, SUPERUSER, PostgresServer
from tests.support.waiting import eventually

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


async def test_an_update_by_somebody_else_in_the_middle_of_a_statement_leaves_no_lines_without_their_chat(
    postgres_url: str,
) -> None:
    """It bumps no version, and comes between the statement's beginning and its second chat."""
    async with open_store(postgres_url, StoreOptions()) as store:
        hand = Hand(store)
        for name in ("first", "second"):
            await store.create_chat(new_chat("hello", id=name))
            await store.submit(name, cmd.Send(message=user("queued")))
        held = {snapshot.chat.id: snapshot for snapshot in await hand.claim()}
        with psycopg.connect(postgres_url, autocommit=True) as somebody:
            somebody.execute(GATE)
            somebody.execute("SELECT pg_advisory_lock(4711)")
            tasks = []
            for name in ("first", "second"):
                hand.snapshot = held[name]
                commands = (hand.response("done"), cmd.FinishTurn(by=hand.by))
                tasks.append(asyncio.ensure_future(store.commit(held[name], commands, f"commit {name}")))

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
            await store.submit(name, cmd.Send(message=user("and more")))
        hand.close()


async def test_a_server_on_another_branch_of_its_history_is_noticed_when_it_is_connected_to(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby that was promoted, or a backup that was restored to a point in time. (For real: `make long`.)"""
    async with open_store(postgres_url, StoreOptions()) as store:
        assert not store.incidents.counts
        origin = store.stats()["origin"]
        assert re.fullmatch(r"server \d+, timeline \d+", str(origin))
        monkeypatch.setattr(
            "holdfast.store.postgres.sql.ORIGIN",
            "SELECT (SELECT system_identifier FROM pg_control_system())::text, '0000002A'",
        )
        await asyncio.gather(*(store.sweep() for _ in range(4)))  # more at once than there are connections yet
        assert dict(store.incidents.counts) == {FAILED_OVER: 1}, "nothing that was written is missing"
        assert str(store.stats()["origin"]).endswith("timeline 42")
        await store.sweep()
        assert await store.incident_at(FAILED_OVER) is not None
        assert await store.incident_at(WENT_BACK) is None


async def test_a_role_that_may_not_know_which_server_it_is_works_all_the_same(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    administrator = postgres_server.url(postgres_url.rpartition("/")[2], user=SUPERUSER, unix_socket=True)
    sql(administrator, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    async with open_store(postgres_url, StoreOptions()) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        assert store.stats()["origin"] is None
        assert not store.incidents.counts
