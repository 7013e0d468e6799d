"""Promise 6. Nothing waits forever: a hung tool, stream, hook or database costs at most its deadline, and never a
second chat.

Each thing is hung twice: with a deadline that no test lives to see, while another chat must get through; and with a
short one, which must end it.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Agent, Ask, Hook, ModelDeadlines, RetryPolicy, tool
from holdfast.errors import StoreError
from holdfast.testing import Call, Hold, Say, ScriptedModel, Stall
from tests.promises.surface import QUICK, WAIT_S, app_of, journal, judge, told_of, tool_texts, weather
from tests.support.fixtures import FailingStore
from tests.support.turns import Gate
from tests.support.waiting import until

ONCE = RetryPolicy(attempts_max=1)
BERN = Call(name="weather", arguments={"city": "Bern"})


class Hung:
    """What hangs until the test is over, in a thread or in the loop, whatever it is told."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.over = threading.Event()

    def block(self, *_: Any) -> str:
        self.entered.set()
        self.over.wait()
        return "over"

    async def ignore_cancellation(self, *_: Any) -> str:
        self.entered.set()
        while not self.over.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return "over"


Make = Callable[[Hung, float], Agent]


def agent_with_tool(body: Callable[..., Any], deadline_s: float) -> Agent:
    return Agent(
        "hung", ScriptedModel([Call(name="hang")], "On."), tools=[tool(name="hang", deadline_s=deadline_s)(body)]
    )


def sync_tool(hung: Hung, deadline_s: float) -> Agent:
    def hang() -> str:
        """Block."""
        return hung.block()

    return agent_with_tool(hang, deadline_s)


def stubborn_tool(hung: Hung, deadline_s: float) -> Agent:
    async def hang() -> str:
        """Ignore everything."""
        return await hung.ignore_cancellation()

    return agent_with_tool(hang, deadline_s)


def hook_at(point: Any, *, sync: bool) -> Make:
    def make(hung: Hung, deadline_s: float) -> Agent:
        callback = hung.block if sync else hung.ignore_cancellation
        hooks = [Hook(point, callback, deadline_s=deadline_s)]
        return Agent("hung", ScriptedModel([BERN], "On."), tools=[weather], hooks=hooks)

    return make


def stalled_stream(hung: Hung, deadline_s: float) -> Agent:
    model = ScriptedModel([Say(text="And "), Stall(attempts=1), Say(text="on.")], provider="slow")
    hooks = [Hook("before_model", lambda *_: hung.entered.set())]
    return Agent("hung", model, deadlines=ModelDeadlines(silence_s=deadline_s), retry=QUICK, hooks=hooks)


def silent_model(hung: Hung, deadline_s: float) -> Agent:
    model = ScriptedModel([Stall(attempts=1), Say(text="On.")], provider="slow")
    hooks = [Hook("before_model", lambda *_: hung.entered.set())]
    return Agent("hung", model, deadlines=ModelDeadlines(first_byte_s=deadline_s), retry=QUICK, hooks=hooks)


HANGS: dict[str, Make] = {
    "a sync tool that blocks": sync_tool,
    "a tool that ignores its cancellation": stubborn_tool,
    "a stream that stalls": stalled_stream,
    "a model that says nothing": silent_model,
    "a hook that blocks before the model": hook_at("before_model", sync=True),
    "a hook that ignores its cancellation": hook_at("before_model", sync=False),
    "a guard that blocks": hook_at("before_tool", sync=True),
    "a hook that blocks after a step": hook_at("on_step", sync=True),
    "a hook that blocks behind on_turn_end": hook_at("on_turn_end", sync=True),
}


@tool
def note() -> str:
    """Needs a thread of its own."""
    return "noted"


def other_agent() -> Agent:
    """It needs everything that the hung one may hold: a thread, the loop, the store, hooks."""
    hooks = [Hook("before_tool", lambda *_: None), Hook("on_turn_end", lambda *_: None)]
    return Agent("other", ScriptedModel([Call(name="note"), BERN], "Done."), tools=[note, weather], hooks=hooks)


@pytest.mark.parametrize("hang", HANGS)
async def test_another_chat_gets_through_while_this_hangs(store_url: str, hang: str) -> None:
    hung = Hung()
    app = app_of(store_url, HANGS[hang](hung, 300.0), other_agent())
    try:
        async with app, app.worker(grace_s=0.0):
            held = await app.create("hung", "go")
            await until(hung.entered.is_set)
            other = await app.create("other", "go")
            assert await other.wait(WAIT_S) == "idle"
            assert tool_texts(await other.messages()) == ["noted", "rain in Bern"]
            assert await held.state() == ("idle" if "on_turn_end" in hang else "running"), "it still hangs"
            hung.over.set()
    finally:
        hung.over.set()


@pytest.mark.parametrize("hang", HANGS)
async def test_what_hangs_costs_its_deadline_and_the_turn_goes_on(store_url: str, hang: str) -> None:
    hung = Hung()
    app = app_of(store_url, HANGS[hang](hung, 0.5))
    try:
        async with app, app.worker(grace_s=0.0):
            held = await app.create("hung", "go")
            assert await held.wait(WAIT_S) == "idle"
            assert not hung.over.is_set(), "it still hangs"
            assert (await held.text()).endswith("on.") or await held.text() == "On."
            if "tool" in hang:
                (text,) = tool_texts(await held.messages())
                assert "Timed out after 0.5 s" in text
            if "stream" in hang or "model that" in hang:
                failed = [entry for entry in await journal(held) if entry["kind"] == "attempt.failed"]
                assert [entry["code"] for entry in failed] == ["timeout"]
                assert ("silence_s" if "stream" in hang else "first_byte_s") in failed[0]["error"]
    finally:
        hung.over.set()


async def test_a_stream_that_drips_for_ever_ends_at_the_deadline_of_the_whole_call(store_url: str) -> None:
    model = ScriptedModel([Say(text="word " * 100_000, pace_s=0.01)])
    agent = Agent("a", model, deadlines=ModelDeadlines(call_s=0.2), retry=ONCE)
    app = app_of(store_url, agent)
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "failed"
        error = (await chat.snapshot()).chat.error
        assert error is not None
        assert "took longer than 0.2 s (call_s)" in error.message
    assert model.open_streams == 0


async def test_a_provider_that_asks_for_pauses_for_ever_ends_the_turn(store_url: str) -> None:
    busy = {"step": "fail", "status": 429, "retry_after": "0.05"}
    policy = RetryPolicy(attempts_max=1_000, base_s=0.01, total_s=1.0)
    model = ScriptedModel([busy], after="repeat")
    app = app_of(store_url, Agent("a", model, retry=policy))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "failed"
    assert 1 <= len(model.requests) < 100  # once, where the machine stood still for all of its time


async def test_a_guard_that_hangs_and_fails_closed_denies_at_its_deadline(store_url: str) -> None:
    hung, ran = Hung(), Gate()
    ran.opened.set()
    hooks = [Hook("before_tool", hung.block, deadline_s=0.1, fails="closed", name="guard")]
    app = app_of(store_url, Agent("a", ScriptedModel([Call(name="gate")], "On."), tools=[ran.tool()], hooks=hooks))
    try:
        async with app, app.worker(grace_s=0.0):
            chat = await app.create("a", "go")
            assert await chat.wait(WAIT_S) == "idle"
            assert "hook guard gave no answer within 0.1 s" in tool_texts(await chat.messages())[0]
    finally:
        hung.over.set()
    assert ran.starts == 0


async def test_many_blocked_bodies_at_once_keep_neither_another_chat_nor_the_worker(store_url: str) -> None:
    hung, count = Hung(), 40
    inside = threading.Semaphore(0)

    @tool
    def hang() -> str:
        """Block."""
        inside.release()
        return hung.block()

    calls = [Call(name="hang") for _ in range(8)]
    agent = Agent("hung", ScriptedModel(calls, "On."), tools=[hang])
    app = app_of(store_url, agent, other_agent())
    try:
        async with app, app.worker(grace_s=0.0):
            for _ in range(count // len(calls)):
                await app.create("hung", "go")
            for _ in range(count):
                await until(lambda: inside.acquire(blocking=False), WAIT_S)
            other = await app.create("other", "go")
            assert await other.wait(WAIT_S) == "idle"
            # The worker's own end needs no thread that they hold: the block ends although they never do.
        assert not hung.over.is_set()
    finally:
        hung.over.set()


async def test_a_stop_does_not_wait_for_a_tool_that_ignores_it(store_url: str) -> None:
    hung = Hung()
    app = app_of(store_url, stubborn_tool(hung, 300.0))
    try:
        async with app, app.worker(grace_s=0.0):
            chat = await app.create("hung", "go")
            await until(hung.entered.is_set)
            await chat.stop()
            assert await chat.wait(WAIT_S) == "idle"
            assert not hung.over.is_set()
    finally:
        hung.over.set()


async def test_a_title_that_never_comes_holds_up_no_turn(store_url: str) -> None:
    titler = ScriptedModel([Hold(name="title")], provider="titles")
    app = app_of(store_url, Agent("a", ScriptedModel("Done."), title_model=titler))
    async with app, app.worker(grace_s=0.0):
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "idle"
        await titler.reached("title")
    assert titler.open_streams == 0


async def test_a_store_that_stops_answering_costs_a_client_its_deadline_and_a_turn_goes_on_after_it(
    failing_store: FailingStore,
) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    agent = Agent("a", model, tools=[gate.tool()])
    app = app_of(failing_store.url, agent, deadline_s=1.0, lease_ttl_ms=60_000)  # which outlives any outage
    async with app_of(failing_store.steady_url, agent) as steady, app, app.worker(poll_s=0.1) as worker:
        chat = await steady.create("a", "go")  # which has the usual time
        await gate.entered.wait()
        with failing_store.outage():
            gate.opened.set()
            with pytest.raises(StoreError):
                await app.create("a", "is anybody there?")
            await until(lambda: worker.commit_times.failed)
        assert await chat.wait(WAIT_S) == "idle"
        assert tool_texts(await chat.messages()) == ["through"]
    assert gate.starts == 1
    judge(model)


async def test_a_worker_stops_although_its_store_does_not_answer(failing_store: FailingStore) -> None:
    gate = Gate()
    agent = Agent("a", ScriptedModel([Call(name="gate")]), tools=[gate.tool()])
    app = app_of(failing_store.url, agent, deadline_s=1.0)
    async with app_of(failing_store.steady_url, agent) as steady, app:
        worker = app.new_worker(grace_s=0.0, poll_s=0.1)
        await worker.start()
        await steady.create("a", "go")  # which has the usual time
        await gate.entered.wait()
        with failing_store.outage():
            await asyncio.wait_for(worker.stop(), WAIT_S)


async def test_an_approval_that_expires_ends_its_wait(store_url: str) -> None:
    hooks = [Hook("before_tool", lambda *_: Ask(question="Really?", expires_s=0.05))]
    app = app_of(store_url, Agent("a", ScriptedModel([BERN], "On."), tools=[weather], hooks=hooks))
    async with app, app.worker(poll_s=0.05):
        chat = await app.create("a", "go")
        await told_of(chat, "turn.waiting")
        while await chat.state() != "idle":
            await told_of(chat, "turn.ended")
        assert tool_texts(await chat.messages()) == ["Denied: nobody answered the approval in time."]


async def test_who_reads_a_chat_that_rests_from_its_end_on_is_told_so_at_once(store_url: str) -> None:
    app = app_of(store_url, Agent("a", ScriptedModel("Hi.")))
    async with app, app.worker():
        chat = await app.create("a", "hello")
        assert await chat.text() == "Hi."
        last = [item async for item in chat.events()][-1]
        async with asyncio.timeout(5.0):
            assert [item async for item in chat.events(last.cursor)] == []
