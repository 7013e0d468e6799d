"""Moments between two steps of the loop in which something else happens, one by one; most found by random turns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.app import App, Chat
from holdfast.core.records import State
from holdfast.models.calls import Caller
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.base import StoreOptions
from holdfast.worker.agents import Agent
from holdfast.worker.hooks import Hook
from holdfast.worker.runner import Runner
from holdfast.worker.worker import Worker
from tests.support.waiting import until
from tests.worker.test_loop import QUICK, Gate, rested


class Door:
    """A hook's callback that waits, the first time, until the test lets it through."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, about: Any) -> None:
        self.entered.set()
        await self.opened.wait()

    def hook(self, point: Any) -> Hook:
        async def callback(about: Any) -> None:
            await self(about)

        return Hook(point, callback)


@asynccontextmanager
async def working(url: str, agent: Agent, **options: Any) -> AsyncIterator[tuple[App, Worker]]:
    app = App(url, agents=[agent], caller=Caller(policy=QUICK), options=StoreOptions(**options))
    async with app, app.worker(poll_s=0.1, grace_s=0.0) as worker:
        yield app, worker


def runner_of(worker: Worker) -> Runner:
    (runner,) = worker._runners.values()
    return runner


async def stop_noticed(chat: Chat, worker: Worker) -> None:
    await chat.stop()
    await until(lambda: runner_of(worker).stop)


async def test_a_chat_that_is_back_before_its_last_runner_is_done_is_still_handed_over(store_url: str) -> None:
    door, gate = Door(), Gate()
    agent = Agent(
        "a", ScriptedModel("First.", [Call(name="gate")]), tools=[gate.tool()], hooks=[door.hook("on_turn_end")]
    )
    async with working(store_url, agent) as (app, worker):
        chat = await app.create("a", "one")
        await door.entered.wait()
        (first,) = (task for task in asyncio.all_tasks() if "Runner.run()" in repr(task))
        await chat.send("two")
        await gate.entered.wait()
        door.opened.set()
        await until(first.done)
        assert worker.running_chats == [chat.id]
        await worker.stop()
        snapshot = await chat.snapshot()
        assert (snapshot.chat.state, snapshot.chat.worker) == (State.RUNNING, None)


async def test_a_lease_is_lost_once_however_many_notice(store_url: str) -> None:
    async with working(store_url, Agent("a", ScriptedModel("Hello.")), lease_ttl_ms=900) as (app, worker):
        keeper = worker._keeper
        assert keeper is not None
        await app.store._end_lease(worker.name)
        chat = await app.create("a", "go")  # a claim notices first, the renewal after it
        await until(lambda: not keeper._thread.is_alive())
        assert await rested(chat) is State.IDLE
        live = [lease.worker for lease in await app.store.list_workers() if lease.expires_in_ms > 0]
        assert live == [worker.name]
