"""Promise 9: what can grow has a limit, and health shows the figure beside it."""

import threading
from typing import Any

import pytest

import holdfast
from holdfast import Agent, Hook, tool
from holdfast.config import Config, Retention
from holdfast.core import commands as cmd
from holdfast.core.records import NewChat
from holdfast.errors import CallerError
from holdfast.store import open_store
from holdfast.store.records import DeltaBatch, Key, StoreOptions
from holdfast.system.clock import FakeClock, SystemClock
from holdfast.testing import Call, Hold, ScriptedModel
from tests.promises.surface import WAIT_S, app_of, tool_texts
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat
from tests.support.looptime import LoopTime
from tests.support.waiting import until

PAIRS = [
    ("worker", "chats", "chats_max"),
    ("worker", "sync_threads", "sync_threads_max"),
    ("worker", "lease_trust_left_ms", "lease_ttl_ms"),
    ("process", "descriptors", "descriptors_max"),
]


async def test_health_shows_every_figure_beside_its_limit(store_url: str) -> None:
    app = app_of(store_url, Agent("a", ScriptedModel("Hi.")))
    async with app, app.worker():
        assert await (await app.create("a", "go")).text() == "Hi."
        told = holdfast.diagnostics(detailed=True)
        (of_app,) = told["apps"]
        (worker,) = of_app["workers"]
        rooms = {"worker": worker, "process": told["process"], "store": of_app["store"]}
        for room, figure, limit in PAIRS:
            assert 0 <= rooms[room][figure] <= rooms[room][limit], (room, figure)
        if of_app["store"]["store"] == "sqlite":
            assert of_app["store"]["wal_bytes"] <= of_app["store"]["wal_bytes_bound"]
        public = told["diagnostics"]
        assert public["conversation_history_size"] <= public["conversation_history_limit"]


async def test_a_worker_takes_no_more_chats_than_its_limit_and_the_rest_wait(store_url: str) -> None:
    model = ScriptedModel([Hold(name="here")], per="chat")
    app = app_of(store_url, Agent("a", model))
    async with app, app.worker(chats_max=3, poll_s=0.05, grace_s=0.0) as worker:
        chats = [await app.create("a", f"{n}") for n in range(8)]
        await until(lambda: len(worker.running_chats) == 3)
        assert await worker.claim_once() == 0
        assert len(worker.running_chats) == 3
        model.resume("here")
        for chat in chats:
            assert await chat.wait(WAIT_S) == "idle"


async def test_what_a_tool_returns_is_cut_to_its_limit_and_says_so(store_url: str) -> None:
    @tool(output_bytes_max=1_000)
    def flood() -> str:
        """Flood."""
        return "x" * 5_000_000

    app = app_of(store_url, Agent("a", ScriptedModel([Call(name="flood")], "Enough."), tools=[flood]))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Enough."
        (text,) = tool_texts(await chat.messages())
        assert len(text) < 1_100
        assert "bytes left out" in text


async def test_a_message_or_a_queue_beyond_its_limit_is_refused_and_named(store_url: str) -> None:
    model = ScriptedModel([Hold(name="here")])
    app = app_of(store_url, Agent("a", model))
    async with app, app.worker(grace_s=0.0):
        chat = await app.create("a", "go")
        await model.reached("here")
        with pytest.raises(CallerError, match="the limit is 8,388,608"):
            await chat.send("x" * (9 << 20))
        for n in range(4):
            await chat.send("x" * (7 << 20), key=None)
            assert len((await chat.snapshot()).queue) == n + 1
        with pytest.raises(CallerError, match="the queue would hold"):
            await chat.send("x" * (7 << 20))
        assert len((await chat.snapshot()).queue) == 4, "nothing was lost or half taken"


async def test_threads_that_hang_are_counted_and_shown(store_url: str) -> None:
    began, held = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        began.set()
        held.wait(60)

    hooks = [Hook("on_turn_end", hang, name="hangs", deadline_s=600.0)]
    app = app_of(store_url, Agent("a", ScriptedModel("Hi."), hooks=hooks))

    def shown() -> dict[str, Any]:
        figures: dict[str, Any] = holdfast.diagnostics(detailed=True)["apps"][0]["workers"][0]
        return figures

    try:
        async with app, app.worker():
            await (await app.create("a", "go")).text()
            async with app.worker() as other:
                assert other.sync.abandoned == 0
            await until(began.is_set)  # a hook that no thread has begun yet hangs in none
            LoopTime().advance(600.0)
            await until(lambda: shown()["threads_abandoned"])
            assert shown()["hooks_suspended"] == ["hangs"]
    finally:
        held.set()


async def test_what_was_answered_a_week_ago_is_forgotten_while_a_worker_runs(store_url: str) -> None:
    """Every call of a client leaves a receipt. Without this they would outgrow the chats."""
    long_ago = FakeClock(wall_ms=SystemClock().wall_ms() - 8 * 86_400_000)
    key = Key(principal="ada", key="order-7")
    async with open_store(store_url, StoreOptions(clock=long_ago)) as store:
        await store.create_chat(NewChat(id="old", agent="a"), key)
    app = app_of(store_url, Agent("a", ScriptedModel("Hi.")))
    async with app, app.worker() as worker:
        await app.create("a", key="new")
        await until(lambda: worker.receipts_pruned == 1)
        assert await app.store.recall(key) is None
        assert (await app.chat("old").state(), len(await app.chats())) == ("idle", 2)
        (of_app,) = holdfast.diagnostics(detailed=True)["apps"]
        assert of_app["workers"][0]["receipts_pruned"] == 1


@pytest.mark.parametrize("policy", [Retention(), Retention(attempts_days=7, archived_chats_days=7)])
async def test_what_nobody_can_reach_goes_while_a_worker_runs_if_a_retention_is_set_and_not_else(
    store_url: str, policy: Retention
) -> None:
    long_ago = FakeClock(wall_ms=SystemClock().wall_ms() - 8 * 86_400_000)
    async with open_store(store_url, StoreOptions(clock=long_ago)) as store:
        hand = Hand(store)
        await store.create_chat(new_chat("hello", id="c1", agent="a"))
        (hand.snapshot,) = await hand.claim("a")
        attempt = hand.attempt()
        await store.add_deltas([DeltaBatch(chat=hand.held.chat, attempt=attempt, first_k=0, bodies=(b"{}",))])
        await hand.commit(cmd.AttemptLost(by=hand.by, attempt=attempt, model="m", error="no"))
        await hand.end_turn()
        await store.create_chat(NewChat(id="archived", agent="a"))
        await store.submit("archived", cmd.Archive())
        hand.close()
    app = holdfast.App(store_url, agents=[Agent("a", ScriptedModel("Hi."))], config=Config(retention=policy))
    async with app, app.worker() as worker:
        # Receipts are looked at first, in the same slice.
        await until(lambda: worker.pruner.walks == 1 if policy.is_set else worker.receipts_pruned)
        (of_app,) = holdfast.diagnostics(detailed=True)["apps"]
        shown = of_app["workers"][0]["retention"]
        gone = int(policy.is_set)
        assert (shown["attempts_pruned"], shown["archived_chats_pruned"], shown["calls_days"]) == (gone, gone, None)
        assert shown["attempts_days"] == policy.attempts_days
        assert sorted(line.id for line in await app.chats()) == (["c1"] if gone else ["archived", "c1"])
        assert await app.chat("c1").text() == "that is all"
    assert sql(store_url, "SELECT count(*) FROM deltas") == [(1 - gone,)]
