"""Leases where claims of one worker are under way on several connections."""

import asyncio

import psycopg

from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat
from tests.support.postgres import GATE
from tests.support.waiting import eventually

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype {} 'advisory' AND NOT granted"


async def test_a_worker_that_gives_its_lease_up_does_not_pass_a_claim_of_its_own(postgres_url: str) -> None:
    """Else the row goes, the claim is written after it, and the chat counts a death that was none."""
    async with open_store(postgres_url, StoreOptions()) as store:
        hand = Hand(store)
        await store.create_chat(new_chat("hello", id="first"))
        with psycopg.connect(postgres_url, autocommit=True) as somebody:
            somebody.execute(GATE)
            somebody.execute("SELECT pg_advisory_lock(4711)")
            claim = asyncio.ensure_future(hand.claim())

            async def has_begun() -> bool:
                return bool(sql(postgres_url, WAITING.format("="))[0][0])

            await eventually(has_begun)
            outlived = asyncio.ensure_future(store.outlive_lease(hand.name))

            async def somebody_waits_for_the_claim() -> bool:
                return bool(sql(postgres_url, WAITING.format("<>"))[0][0])

            async def has_passed_or_waits() -> bool:
                return outlived.done() or await somebody_waits_for_the_claim()

            await eventually(has_passed_or_waits)
            swept = asyncio.ensure_future(store.expire_workers())
            await eventually(somebody_waits_for_the_claim)
            somebody.execute("SELECT pg_advisory_unlock(4711)")
            await asyncio.gather(claim, outlived, swept)
        await store.expire_workers()
        chat = (await store.read_chat("first")).chat
        assert (chat.worker, chat.unclean, chat.silent) == (None, 0, "")
        hand.close()
