"""Moments between two steps of the loop in which something else happens, one by one; most found by random turns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pydantic
import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.records import Cause, LeaseEnd, State
from holdfast.hooks import Hook, RunContext
from holdfast.models.scripted import Call, Fail, Hold, Say, ScriptedModel, Stall
from holdfast.tools.base import Tool, tool
from holdfast.tools.context import tool_context
from holdfast.worker.runner import Runner
from holdfast.worker.worker import Worker
from tests.support.turns import QUICK, WAIT_S, Gate, rested, said
from tests.support.waiting import eventually, until


class Door:
    """A hook's callback that waits, the first time, until the test lets it through."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    def hook(self, point: Any) -> Hook:
        async def callback(about: Any, context: RunContext) -> None:
            self.entered.set()
            await self.opened.wait()

        return Hook(point, callback)


@asynccontextmanager
async def working(url: str, agent: Agent) -> AsyncIterator[tuple[App, Worker]]:
    app = App(url, agents=[agent], retry=QUICK)
    async with app, app.worker(poll_s=0.1, grace_s=0.0) as worker:
        yield app, worker


def runner_of(worker: Worker) -> Runner:
    (runner,) = worker._runners.values()
    return runner


async def stop_noticed(chat: Chat, worker: Worker) -> None:
    await chat.stop()
    await until(lambda: runner_of(worker).stop)


async def test_a_response_that_was_complete_when_the_stop_came_is_kept_whole(store_url: str) -> None:
    door = Door()
    model = ScriptedModel([Say(text="All of it. "), Call(name="gate")])
    gate = Gate()
    agent = Agent("a", model, tools=[gate.tool()], hooks=[door.hook("after_model")])
    async with working(store_url, agent) as (app, worker):
        chat = await app.create("a", "go")
        await door.entered.wait()
        await stop_noticed(chat, worker)
        door.opened.set()
        assert await rested(chat) is State.IDLE
        _, response, result = await chat.messages()
        assert (response.text, response.stopped) == ("All of it. ", Cause.USER)
        assert said([result])[0][1].startswith("Never ran: stopped by the user")
    assert gate.starts == 0


async def test_a_stop_between_a_response_and_its_calls_begins_no_body(store_url: str) -> None:
    door, gate = Door(), Gate()
    agent = Agent("a", ScriptedModel([Call(name="gate")]), tools=[gate.tool()], hooks=[door.hook("on_step")])
    async with working(store_url, agent) as (app, worker):
        chat = await app.create("a", "go")
        await door.entered.wait()
        await stop_noticed(chat, worker)
        door.opened.set()
        assert await rested(chat) is State.IDLE
    assert gate.starts == 0


async def test_a_lease_that_is_lost_while_a_hook_runs_begins_no_body(store_url: str) -> None:
    door, gate = Door(), Gate()
    gate.opened.set()
    agent = Agent("a", ScriptedModel([Call(name="gate")], "Done."), tools=[gate.tool()], hooks=[door.hook("on_step")])
    async with working(store_url, agent) as (app, worker):
        chat = await app.create("a", "go")
        await door.entered.wait()
        lost, runner = worker.name, runner_of(worker)
        await app.store.recovery.end_lease(lost, LeaseEnd.SILENT)
        await until(lambda: worker.name != lost)
        door.opened.set()
        await until(lambda: runner not in worker._runners.values())
        assert gate.starts == 0
        await app.store.sweep()
        assert await rested(chat) is State.IDLE
        assert "Outcome unknown" in said(await chat.messages())[2][1]
    assert gate.starts == 0


@pytest.mark.timeout(60)
async def test_a_runner_that_loses_its_chat_while_it_stops_it_leaves(store_url: str) -> None:
    entered, let_go = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Takes its time to end."""
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await let_go.wait()
        return ""

    agent = Agent("a", ScriptedModel([Call(name="stubborn")], "Done."), tools=[stubborn])
    async with working(store_url, agent) as (app, worker):
        chat = await app.create("a", "go")
        await entered.wait()
        runner = runner_of(worker)
        await stop_noticed(chat, worker)
        await app.store.recovery.end_lease(worker.name, LeaseEnd.SILENT)
        async with working(store_url, agent):  # finds the lease over, takes the chat and ends its stop
            assert await rested(chat) is State.IDLE
        let_go.set()
        await until(lambda: runner not in worker._runners.values())


async def test_a_turn_that_fails_while_it_is_stopped_lets_the_next_message_run(store_url: str) -> None:
    door = Door()
    model = ScriptedModel([Fail(status=400)])
    async with working(store_url, Agent("a", model, hooks=[door.hook("on_error")])) as (app, worker):
        chat = await app.create("a", "go")
        await door.entered.wait()
        await chat.send("next")
        await stop_noticed(chat, worker)
        model.script = ScriptedModel("Fine.").script
        door.opened.set()
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages()) == [("user", "go"), ("user", "next"), ("assistant", "Fine.")]
    assert len(model.requests) == 2


async def test_a_message_that_steers_between_two_attempts_joins_the_turn(store_url: str) -> None:
    """The record of the failed attempt brings it into the runner's own snapshot, before the response is there."""
    model = ScriptedModel([Hold(name="here"), Fail(status=500, attempts=1), Say(text="First.")], after="echo")
    async with working(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "go")
        await model.reached("here")
        await chat.send("also", "steer")
        model.resume("here")
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[1:] == [
            ("assistant", "First."),
            ("user", "also"),
            ("assistant", "You said: also"),
        ]
        assert (await chat.snapshot()).chat.turn == 1


async def test_a_stop_while_the_worker_drains_keeps_what_was_said(store_url: str) -> None:
    model = ScriptedModel([Say(text="Half an "), Hold(name="here"), Stall()])
    async with working(store_url, Agent("a", model)) as (app, worker):
        chat = await app.create("a", "go")
        await model.reached("here")
        draining = asyncio.ensure_future(worker.stop(WAIT_S))
        await until(lambda: runner_of(worker).draining)
        await chat.stop()
        await draining
        assert await chat.state() is State.IDLE
        assert said(await chat.messages())[-1] == ("assistant", "Half an ")


async def test_a_chat_that_is_claimed_while_the_worker_drains_is_handed_over_without_a_step(store_url: str) -> None:
    """A claim that was under way when the stop came may bring what this very worker has just released."""
    gate, model = Gate(), ScriptedModel([Call(name="gate")], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[gate.tool()])], retry=QUICK)
    async with app:
        await app.create("a", "go")
        worker = app.new_worker(grace_s=WAIT_S)
        await worker.start()
        await gate.entered.wait()
        stopping = asyncio.ensure_future(worker.stop())
        await until(lambda: worker.draining and all(service.done() for service in worker._services))
        late = await app.create("a", "go on")
        await worker.claim_once()
        await until(lambda: late.id not in worker.running_chats)
        assert (await late.snapshot()).chat.worker is None
        assert await late.state() is State.RUNNING, "the next worker asks the model"
        assert len(model.requests) == 1
        gate.opened.set()
        await stopping


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
    async with working(store_url, Agent("a", ScriptedModel("Hello."))) as (app, worker):
        keeper = worker._keeper
        assert keeper is not None
        await app.store.recovery.end_lease(worker.name, LeaseEnd.SILENT)
        chat = await app.create("a", "go")  # a claim notices first, the renewal after it
        await until(lambda: not keeper._thread.is_alive())
        assert await rested(chat) is State.IDLE
        live = [lease.worker for lease in await app.store.list_workers() if lease.ended is None]
        assert live == [worker.name]


async def test_a_worker_whose_trust_ran_out_before_the_request_was_sent_does_not_ask_the_model(
    store_url: str,
) -> None:
    """It was frozen just then, say: whoever took over may have asked, and committed the answer."""
    door, model = Door(), ScriptedModel("Hello.")
    async with working(store_url, Agent("a", model, hooks=[door.hook("before_model")])) as (app, worker):
        await app.create("a", "go")
        await door.entered.wait()
        assert worker._keeper is not None
        worker._keeper._trusted_until_ms = 0
        door.opened.set()
        await until(lambda: not worker.running_chats)
        assert not model.requests


async def test_a_body_whose_turn_comes_when_trust_has_run_out_is_not_entered(store_url: str) -> None:
    """Its start is committed, and the process is frozen just then: whoever took over may have run it."""
    gate, frozen = Gate(), asyncio.Event()

    @tool
    async def freeze() -> str:
        """The body before it, in whose time that happens."""
        assert worker._keeper is not None
        worker._keeper._trusted_until_ms = 0
        frozen.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([Call(name="freeze"), Call(name="gate")])
    async with working(store_url, Agent("a", model, tools=[freeze, gate.tool()])) as (app, worker):
        await app.create("a", "go")
        await frozen.wait()
        await until(lambda: not worker.running_chats)
    assert gate.starts == 0


async def test_a_validator_that_breaks_is_a_tool_error(store_url: str) -> None:
    def check(value: int) -> int:
        raise LookupError("no such account")

    @tool
    async def pay(account: Annotated[int, pydantic.AfterValidator(check)]) -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel([Call(name="pay", arguments={"account": 1})], "Done.")
    async with working(store_url, Agent("a", model, tools=[pay])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert ("tool", "LookupError: no such account") in said(await chat.messages())


class Chatty:
    """A tool body that says something when the test tells it to, and goes on until it is ended."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.speak = asyncio.Event()

    def tool(self) -> Tool:
        @tool
        async def chatty() -> str:
            """Talks while it works."""
            self.entered.set()
            await self.speak.wait()
            tool_context().progress("still at it")
            await asyncio.Event().wait()
            return ""

        return chatty


async def test_a_stop_reaches_a_tool_that_talks_before_its_runner_has_looked(store_url: str) -> None:
    """Its words are committed behind the stop, which another process made: the runner has it from that commit."""
    chatty = Chatty()
    agent = Agent("a", ScriptedModel([Call(name="chatty")]), tools=[chatty.tool()])
    async with working(store_url, agent) as (app, _), App(store_url, agents=[agent]) as elsewhere:
        chat = await app.create("a", "go")
        await chatty.entered.wait()
        await elsewhere.chat(chat.id).stop()
        chatty.speak.set()
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[-1][1].startswith("Cancelled while it ran: stopped by the user")


async def test_an_approval_is_heeded_while_a_sibling_talks(store_url: str) -> None:
    chatty, gate = Chatty(), Gate()
    model = ScriptedModel([Call(name="chatty"), Call(name="gate")])
    agent = Agent("a", model, tools=[chatty.tool(), gate.tool(needs_approval=True)])
    async with working(store_url, agent) as (app, _), App(store_url, agents=[agent]) as elsewhere:
        chat = await app.create("a", "go")
        await chatty.entered.wait()
        await eventually(chat.open_calls)
        (asked,) = await chat.open_calls()
        await elsewhere.chat(chat.id).approve(asked.id)
        chatty.speak.set()
        await until(gate.entered.is_set)
