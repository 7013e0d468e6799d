"""Chats that a living worker holds and does not drive: found, let go, and in nobody's way."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import faults
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core import commands as cmd
from holdfast.core.records import Snapshot, State
from holdfast.models.scripted import Call, Hold, Say, ScriptedModel
from holdfast.redaction import Secrets
from holdfast.store.contract import Store
from holdfast.store.records import Held
from holdfast.worker.stray_chats import Strays, described
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat
from tests.support.turns import QUICK, Gate, rested
from tests.support.waiting import until

TABLES = ("chats", "journal", "calls", "queue", "deltas")


def save(url: str) -> None:
    for table in TABLES:
        sql(url, f"CREATE TABLE saved_{table} AS SELECT * FROM {table}")


def restore(url: str) -> None:
    """The chats as they were when they were saved, under whoever runs now."""
    for table in TABLES:
        sql(url, f"DELETE FROM {table}")
        sql(url, f"INSERT INTO {table} SELECT * FROM saved_{table}")
        sql(url, f"DROP TABLE saved_{table}")


def app_on(url: str, *agents: Agent) -> App:
    return App(url, agents=list(agents), retry=QUICK)


async def test_chats_whose_end_a_restore_has_lost_go_on_under_their_living_worker(store_url: str) -> None:
    """Promise 7. The store says that it holds them, and it has long forgotten them."""
    gate = Gate()
    agent = Agent("a", ScriptedModel([Call(name="gate")], "Done."), tools=[gate.tool(replay="pure")])
    app = app_on(store_url, agent)
    async with app, app.worker(poll_s=0.1) as worker:
        chats = [await app.create("a", f"go {n}") for n in range(3)]
        await until(lambda: gate.starts == 3)
        save(store_url)
        gate.opened.set()
        assert {await rested(chat) for chat in chats} == {State.IDLE}
        await until(lambda: not worker.running_chats)
        restore(store_url)
        held = {(await chat.snapshot()).chat.worker for chat in chats}
        assert held == {worker.name}
        await chats[0].stop()
        while not worker.strays.found:  # its service may look in between
            await worker.strays.run_once()
        assert {await rested(chat) for chat in chats} == {State.IDLE}
        assert worker.strays.found == 3
        assert await app.store.find_violations() == []


def strays_of(store: Store, hand: Hand, driven: set[Held]) -> Strays:
    return Strays(store, Secrets(), lambda: hand.name, lambda: driven)


async def claim_of(store: Store, chat_id: str) -> Held:
    return chat_id, (await store.read_chat(chat_id)).chat.claim_stamp


async def holder_of(store: Store, chat_id: str) -> str | None:
    return (await store.read_chat(chat_id)).chat.worker


async def test_a_chat_is_let_go_once_two_looks_found_nothing_that_drives_it(store: Store) -> None:
    await store.create_chat(new_chat("one", id="c1"))
    await store.create_chat(new_chat("two", id="c2"))
    hand = Hand(store)
    await hand.claim()
    strays = strays_of(store, hand, driven={await claim_of(store, "c2")})
    assert await strays.run_once(), "the first look proves nothing: what drives it may just begin"
    assert await holder_of(store, "c1") == hand.name
    assert not await strays.run_once()
    assert await holder_of(store, "c1") is None
    assert await holder_of(store, "c2") == hand.name
    assert (await store.read_chat("c1")).chat.unclean == 0, "nobody died"
    assert (strays.found, len(strays)) == (1, 0)


async def test_a_chat_that_a_claim_under_way_may_bring_is_not_let_go(store: Store) -> None:
    await store.create_chat(new_chat("one", id="c1"))
    hand = Hand(store)
    driven: set[Held] = set()
    strays = strays_of(store, hand, driven)
    strays.claims_begun += 1
    await hand.claim()  # its answer is on the way, for as long as it takes
    for _ in range(4):
        await strays.run_once()
    assert await holder_of(store, "c1") == hand.name
    driven.add(await claim_of(store, "c1"))
    strays.claims_ended += 1
    for _ in range(4):
        await strays.run_once()
    assert await holder_of(store, "c1") == hand.name
    driven.clear()
    for _ in range(2):
        await strays.run_once()
    assert await holder_of(store, "c1") is None


def fail() -> None:
    raise RuntimeError("nobody foresaw this")


async def test_a_stray_that_cannot_be_let_go_keeps_no_other_and_is_tried_again(store: Store) -> None:
    for n in range(3):
        await store.create_chat(new_chat("hello", id=f"c{n}"))
    hand = Hand(store)
    await hand.claim()
    strays = strays_of(store, hand, driven=set())
    for n in range(3):
        strays.add(*await claim_of(store, f"c{n}"), None)
    faults.arm("commit.before", fail)
    await strays.let_go()
    assert len(strays) > 0
    await strays.let_go()
    assert len(strays) == 0
    assert {await holder_of(store, f"c{n}") for n in range(3)} == {None}


async def test_strays_that_no_store_takes_back_keep_their_worker_from_no_claim(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(store_url, Agent("a", ScriptedModel(after="echo")))
    async with app, app.worker(poll_s=0.05) as worker:
        real = app.store.commit

        async def commit(snapshot: Any, commands: Any, commit_id: str) -> Any:
            if isinstance(commands[0], cmd.Release):
                raise RuntimeError("nobody foresaw this")
            return await real(snapshot, commands, commit_id)

        await app.store.create_chat(new_chat("hello", id="c1", agent="elsewhere"))
        await app.store.claim_chats(worker.name, {"elsewhere": 1}, 1)
        with monkeypatch.context() as broken:
            broken.setattr(app.store, "commit", commit)
            worker.strays.add(*await claim_of(app.store, "c1"), None)
            await until(lambda: not worker.strays._wanted.is_set())
            assert await rested(await app.create("a", "still there?")) is State.IDLE
            assert [chat_id for chat_id, _, _ in worker.strays] == ["c1"]
        await worker.strays.let_go()
        assert await holder_of(app.store, "c1") is None


class Exploding:
    """Hooks that cannot even be looked at, until they are mended."""

    def __init__(self) -> None:
        self.mended = False

    def __iter__(self) -> Iterator[Any]:
        if not self.mended:
            raise RuntimeError("nobody foresaw this")
        return iter(())


async def test_a_claimed_chat_that_cannot_be_driven_is_let_go_and_the_others_are_driven(store_url: str) -> None:
    bad, good = Agent("bad", ScriptedModel("Mended.")), Agent("good", ScriptedModel(after="echo"))
    hooks: Any = Exploding()
    bad.hooks = hooks
    app = app_on(store_url, bad, good)
    async with app:
        chats = [await app.create(name, "hello") for name in ("bad", "good", "bad", "good")]
        async with app.worker(poll_s=0.05) as worker:
            for chat in (chats[1], chats[3]):
                assert await rested(chat) is State.IDLE
            assert worker.runner_errors >= 2
            hooks.mended = True
            for chat in (chats[0], chats[2]):
                assert await rested(chat) is State.IDLE
                assert await chat.text() == "Mended."


async def test_a_runner_whose_look_failed_in_a_way_nobody_foresaw_still_hears_of_a_stop(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel([Say(text="Half "), Hold(name="here"), Say(text="an answer.")])
    app = app_on(store_url, Agent("a", model))
    async with app, app.worker(poll_s=0.1):
        chat = await app.create("a", "go")
        await model.reached("here")
        real, failed = app.store.follow_chat, asyncio.Event()

        async def follow_chat(known: Snapshot) -> Snapshot:
            if not failed.is_set():
                failed.set()
                raise RuntimeError("nobody foresaw this")
            return await real(known)

        monkeypatch.setattr(app.store, "follow_chat", follow_chat)
        await failed.wait()
        await chat.stop()
        assert await rested(chat) is State.IDLE


def test_an_error_that_cannot_say_what_it_is_is_told_by_its_name() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert described(Speechless()) == "Speechless"
    assert described(ValueError("x")) == "ValueError: x"
