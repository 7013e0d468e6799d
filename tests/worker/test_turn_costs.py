"""What a turn of one step asks of its store, as literal figures: who adds to one of them changes it here.

They are counts, not times, so that a busy machine changes none of them. See `test_cycle_costs.py` for a step of many.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from holdfast import Agent, AgentLimits, App
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.testing import ScriptedModel
from tests.support.asked import asking
from tests.support.services import end_services

TURNS = 20
# What goes by the clock is hardly seen: renewals of the lease, looks of who waits, and of the worker for work.
SLOW_CLOCKS = StoreOptions(lease_ttl_ms=3_600_000, poll_interval_s=600.0)
POLL_S = 600.0
SOME = TURNS // 2  # what came between a ring and a look: none of it goes by turns


@asynccontextmanager
async def an_app(url: str, limits: AgentLimits | None = None) -> AsyncIterator[App]:
    agent = Agent("a", ScriptedModel(after="echo"), limits=limits or AgentLimits())
    async with App(url, [agent], options=SLOW_CLOCKS, poll_s=POLL_S) as app, app.worker(grace_s=0.0) as worker:
        await end_services(worker, but=("Worker._claim_forever",))
        for _ in range(3):
            await (await app.create("a", "Go on.")).turn()
        yield app


@contextmanager
def verbs(store: Store) -> Iterator[Counter[str]]:
    """How often each of these is asked for."""
    told: Counter[str] = Counter()

    def counting(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **more: Any) -> Any:
            told[name] += 1
            return run(*given, **more)

        return counted

    names = ("create_chat", "submit", "claim_chats", "read_chat", "read_history", "read_compaction", "read_journal")
    for name in names:
        setattr(store, name, counting(name, getattr(store, name)))
    try:
        yield told
    finally:
        for name in names:
            delattr(store, name)


async def test_a_chat_of_one_step_is_claimed_once_and_read_four_times(store_url: str) -> None:
    """The worker reads its history; who waits looks when it comes and when it was rung, and reads the turn."""
    async with an_app(store_url) as app:
        with verbs(app.store) as told, asking(app.store) as asked:
            for _ in range(TURNS):
                assert (await (await app.create("a", "Go on.")).turn()).state == "done"
        # One look of who waits, where the turn is over by then; a claim more, where something else rang.
        assert told.pop("read_chat") <= 2 * TURNS
        assert TURNS <= told.pop("claim_chats") <= TURNS + SOME
        assert told == {
            "create_chat": TURNS,
            "read_history": TURNS,
            "read_journal": TURNS,
        }
        assert asked.count <= 7 * TURNS + SOME


async def test_one_more_message_is_claimed_once_and_read_five_times(store_url: str) -> None:
    """The worker has the history already, and asks whether it still holds, with what came since."""
    async with an_app(store_url) as app:
        chat = await app.create("a", "Go on.")
        await chat.turn()
        with verbs(app.store) as told:
            for _ in range(TURNS):
                await chat.send("Go on.")
                assert (await chat.turn()).state == "done"
        assert told.pop("read_chat") <= 2 * TURNS
        assert TURNS <= told.pop("claim_chats") <= TURNS + SOME
        assert told == {
            "submit": TURNS,
            "read_history": TURNS,
            "read_compaction": TURNS,
            "read_journal": TURNS,
        }


async def test_a_claim_that_had_no_room_is_made_again_when_a_chat_ends(store_url: str) -> None:
    """No worker looks by itself within the test: each chat but the first waits until the one before it has ended."""
    async with an_app(store_url, AgentLimits(chats=1)) as app:
        chats = await asyncio.gather(*(app.create("a", "Go on.") for _ in range(5)))
        turns = await asyncio.gather(*(chat.turn(timeout_s=30) for chat in chats))
        assert [turn.state for turn in turns] == ["done"] * 5
