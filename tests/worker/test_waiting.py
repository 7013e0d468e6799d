"""Whoever waits for a chat in their own program is never left waiting: not by a chat that goes, not by its store."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import Raw

from holdfast import Agent, App, Chat, StoreOptions, agent_tools
from holdfast.core.records import State
from holdfast.errors import NotFound, NoWorker, OutputInvalid, StoreClosed, TurnError
from holdfast.events import Event, Finished, Happened, Update
from holdfast.store.records import Page, WorkerInfo
from holdfast.testing import Hold, ScriptedModel
from tests.promises.program import Log
from tests.support.programs import Program
from tests.support.turns import WAIT_S
from tests.support.waiting import eventually, until
from tests.tools.asking import paying_agent
from tests.tools.test_sub_agents import Boss


async def _events(chat: Chat) -> list[Event]:
    return [event async for event in chat.events()]


async def _stream(chat: Chat, *, follow: bool = False) -> list[Update]:
    return [update async for update in chat.stream(follow=follow)]


WAITS: dict[str, Callable[[Chat], Awaitable[object]]] = {
    "wait": lambda chat: chat.wait(),
    "turn": lambda chat: chat.turn(),
    "text": lambda chat: chat.text(),
    "output": lambda chat: chat.output(),
    "events": _events,
    "stream": _stream,
}


@pytest.mark.parametrize("how", WAITS)
async def test_a_store_that_is_closed_meanwhile_is_an_error_at_once(store_url: str, how: str) -> None:
    app = App(store_url, agents=[Agent("a", "scripted", output=dict)])
    async with app:
        chat = await app.create("a", "hello")  # nobody drives it: it runs for as long as one likes
        waiting = asyncio.ensure_future(WAITS[how](chat))
        await until(lambda: app.store.bell.waiter_count > 0)
    async with asyncio.timeout(10.0):
        with pytest.raises(StoreClosed):
            await waiting


@pytest.mark.parametrize("how", WAITS)
async def test_a_chat_that_is_deleted_meanwhile_ends_the_wait(store_url: str, how: str) -> None:
    """Only a chat at rest is deleted, so who looks in between still sees how it ended."""
    model = ScriptedModel([Hold(name="here")])
    app = App(store_url, agents=[Agent("a", model, output=dict)])
    async with app.worker(poll_s=0.1):
        chat = await app.create("a", "hello")
        await model.reached("here")
        waiting = asyncio.ensure_future(WAITS[how](chat))
        await until(lambda: app.store.bell.waiter_count > 2)
        await chat.stop()
        await chat.wait(10.0)
        await chat.delete()
        async with asyncio.timeout(10.0):
            with suppress(NotFound, TurnError, OutputInvalid):
                await waiting
        with pytest.raises(NotFound):
            async with asyncio.timeout(10.0):
                await WAITS[how](chat)


# --- without a worker -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAITS)
async def test_a_program_that_waits_without_any_worker_is_told_so(store_url: str, how: str) -> None:
    app = App(store_url, agents=[Agent("a", "scripted", output=dict)], worker_wait_s=0.1)
    async with app:
        chat = await app.create("a", "hello")
        with pytest.raises(NoWorker, match="none that lives has the agent 'a'") as raised:
            await WAITS[how](chat)
        assert (raised.value.chat_id, raised.value.agent, raised.value.waited_s) == (chat.id, "a", 0.1)
        assert await chat.state() is State.RUNNING, "it is not lost"


async def test_a_reader_that_follows_a_chat_is_told_of_no_worker_only_once_a_turn_is_due(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StoreOptions(poll_interval_s=0.05)
    app = App(store_url, agents=[Agent("a", "scripted")], worker_wait_s=0.1, options=options)
    async with app:
        async with app.worker():
            chat = await app.create("a", "hello")
            await chat.turn()
        found: list[Update] = []

        async def follow() -> None:
            async for update in chat.stream(follow=True):
                found.append(update)

        looks = 0

        async def look(*asked: object) -> Page:
            nonlocal looks
            looks += 1
            return await wait_journal(*asked)

        wait_journal: Callable[..., Awaitable[Page]] = app.store.wait_journal
        monkeypatch.setattr(app.store, "wait_journal", look)
        reading = asyncio.ensure_future(follow())
        await until(lambda: looks >= 10)  # all of them without any worker
        assert not reading.done(), "nothing is due in it"
        assert isinstance(found[-1], Finished)
        await chat.send("and again")
        with pytest.raises(NoWorker):
            await reading
        assert isinstance(found[-1], Happened)
        async with app.worker():
            rest = [update async for update in chat.stream(found[-1].cursor)]
        assert isinstance(rest[-1], Finished), "it goes on from where it was told"


async def test_a_question_to_an_agent_that_no_worker_has_is_told_so(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", "scripted"), Agent("b", "scripted")], worker_wait_s=0.1)
    async with app, App(store_url, agents=[Agent("b", "scripted")]).worker():
        assert (await app.run("b", "hello")).text == "You said: hello"
        with pytest.raises(NoWorker, match="agent 'a'"):
            await app.run("a", "hello")


async def test_a_worker_that_comes_in_time_is_waited_for(store_url: str) -> None:
    """As in a deploy that replaces the last one."""
    app = App(store_url, agents=[Agent("a", "scripted")], worker_wait_s=WAIT_S)
    async with app:
        for _ in range(2):
            waiting = asyncio.ensure_future(app.run("a", "hello"))
            await until(lambda: app.store.bell.waiter_count > 0)
            async with app.worker():
                assert (await waiting).text == "You said: hello"


async def test_a_worker_that_was_killed_is_none(store_url: str, tmp_path: Path) -> None:
    """Its lease lasts: nobody is there to end it."""
    log = tmp_path / "log"
    app = App(store_url, agents=[paying_agent(Log(str(log)), "tool")], worker_wait_s=0.1)
    async with app:
        chat = await app.create("paying", "Pay them.")
        with Program("tests.tools.asking", store_url, str(log), "tool") as program:

            async def waits() -> bool:
                return await chat.state() is State.WAITING

            await eventually(waits, WAIT_S)
            program.process.kill()
            program.process.wait(WAIT_S)
        (lease,) = await app.store.list_workers()
        assert lease.ended is None
        (call,) = (await chat.turn()).open  # what it waits for is told without any worker
        await call.approve()
        with pytest.raises(NoWorker):
            await chat.turn()


async def test_a_worker_on_another_host_that_went_silent_is_none(store_url: str) -> None:
    options = StoreOptions(lease_ttl_ms=1_000, poll_interval_s=0.05)
    app = App(store_url, agents=[Agent("a", "scripted")], worker_wait_s=0.1, options=options)
    async with app:
        line = app.store.lease_line()
        info = Raw(b'{"agents":["a"]}')
        await asyncio.to_thread(line.register, WorkerInfo(worker="far", host="elsewhere", pid=1, info=info))
        chat = await app.create("a", "hello")
        began_ms = options.clock.boot_ms()
        with pytest.raises(NoWorker):
            await chat.turn()
        assert options.clock.boot_ms() - began_ms >= 1_000, "it was believed for its TTL"
        line.close()


async def test_a_sub_agent_that_no_worker_has_is_named(store_url: str) -> None:
    parent = Agent("parent", Boss("look"), tools=agent_tools(["child"]))
    app = App(store_url, agents=[parent], worker_wait_s=0.1)
    async with app.worker():
        with pytest.raises(NoWorker, match="agent 'child'"):
            await app.run(parent, "go")
