"""What a step asks of the store: its commits, and nothing that it knows already."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from holdfast import CompactionPolicy
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.records import Cause, State
from holdfast.events import CallDone
from holdfast.hooks import Hook
from holdfast.models.scripted import Call, Hold, Say, Script, ScriptedModel, Stall
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.tools.base import Tool, tool

CYCLES = 8
WAIT_S = 30.0
VERBS = ("commit", "read_chat", "read_history", "read_compaction")


@pytest.fixture(autouse=True)
def nobody_looks_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner looks at its chat now and then; here only what steps cause is counted."""
    monkeypatch.setattr("holdfast.worker.runner.LOOK_INTERVAL_S", 3600.0)


class Counted:
    """Counts what is asked of a store from the first call of the tool, or a later one, until its last one waits."""

    def __init__(self, cycles: int = CYCLES, begin_at: int = 1) -> None:
        self._cycles = cycles
        self._begin_at = begin_at
        self.asked: Counter[str] = Counter()
        self._calls = 0
        self.counts: dict[str, int] = {}
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()

    def watch(self, store: Store) -> None:
        for verb in VERBS:
            setattr(store, verb, self._counting(verb, getattr(store, verb)))

    def _counting(self, verb: str, ask: Any) -> Any:
        async def counted(*args: Any, **options: Any) -> Any:
            self.asked[verb] += 1
            return await ask(*args, **options)

        return counted

    def tool(self) -> Tool:
        @tool
        async def look() -> str:
            """Look."""
            self._calls += 1
            if self._calls == self._begin_at:
                self.asked.clear()
            elif self._calls == self._begin_at + self._cycles:
                self.counts = dict(self.asked)
                self.reached.set()
                await self.let_go.wait()
            return f"seen {self._calls} times"

        return look


def script(calls: int) -> ScriptedModel:
    response = (Say(text="I look. "), Call(name="look"))
    return ScriptedModel(script=Script(responses=(*[response] * calls, (Say(text="Done."),))))


async def test_a_step_is_two_commits_and_reads_nothing(store_url: str) -> None:
    counted = Counted()
    model = script(1 + CYCLES)
    app = App(store_url, [Agent("a", model, instructions="Be brief.", tools=[counted.tool()])])
    async with app, app.worker():
        counted.watch(app.store)
        chat = await app.create("a", "go")
        await asyncio.wait_for(counted.reached.wait(), WAIT_S)
        counted.let_go.set()
        assert await chat.wait(WAIT_S) is State.IDLE
        history = await chat.messages()
    assert counted.counts == {"commit": 2 * CYCLES}
    assert model.requests[-1].messages[1:] == history[:-1], "the model was shown what the store holds"


@pytest.mark.parametrize("history_bytes", [1 << 20, 0])
async def test_a_step_past_what_is_at_hand_reads_no_message_twice(store_url: str, history_bytes: int) -> None:
    """The message that began the turn is asked for at every step, and long gone from the newest ones."""
    counted = Counted(begin_at=5)
    model = script(5 + CYCLES)
    agent = Agent(
        "a",
        model,
        instructions="Be brief.",
        tools=[counted.tool()],
        compaction=CompactionPolicy(context_limit=1_000_000),
    )
    app = App(store_url, [agent], history_limit=4, history_bytes=history_bytes)
    async with app, app.worker():
        counted.watch(app.store)
        chat = await app.create("a", "go")
        await asyncio.wait_for(counted.reached.wait(), WAIT_S)
        counted.let_go.set()
        assert await chat.wait(WAIT_S) is State.IDLE
        history = await chat.messages()
    reads = {} if history_bytes else {"read_history": CYCLES}  # what has no room is read again, once
    assert counted.counts == {"commit": 2 * CYCLES, **reads}
    assert model.requests[-1].messages[1:] == history[:-1], "the model was shown what the store holds"


async def test_a_guarded_step_is_one_commit_more_and_reads_nothing(store_url: str) -> None:
    counted = Counted()
    asked: list[Any] = []
    agent = Agent(
        "a",
        script(1 + CYCLES),
        tools=[counted.tool()],
        hooks=[Hook("before_tool", lambda call, _: asked.append(call))],
    )
    app = App(store_url, [agent])
    async with app, app.worker():
        counted.watch(app.store)
        chat = await app.create("a", "go")
        await asyncio.wait_for(counted.reached.wait(), WAIT_S)
        counted.let_go.set()
        assert await chat.wait(WAIT_S) is State.IDLE
    assert counted.counts == {"commit": 3 * CYCLES}
    assert len(asked) == 1 + CYCLES


async def test_results_that_come_out_of_order_are_known_without_reading(store_url: str) -> None:
    counted = Counted(cycles=1)
    first_may_end = asyncio.Event()

    @tool
    async def slow() -> str:
        """Ends after its sibling."""
        await first_may_end.wait()
        return "slow"

    @tool
    async def fast() -> str:
        """Ends first."""
        return "fast"

    both = [Call(name="slow"), Call(name="fast")]
    model = ScriptedModel([Call(name="look")], both, [Call(name="look")], "Done.")
    app = App(store_url, [Agent("a", model, tools=[counted.tool(), slow, fast])])
    async with app:
        counted.watch(app.store)
        chat = await app.create("a", "go")
        async with aclosing(chat.stream()) as updates, AsyncExitStack() as work:  # type: ignore[type-var]
            await anext(updates)  # the reader has read what it begins with before anything is counted
            await work.enter_async_context(app.worker())
            async for update in updates:
                if isinstance(update, CallDone) and update.call.name == "fast":
                    first_may_end.set()
                    break
            await asyncio.wait_for(counted.reached.wait(), WAIT_S)
            counted.let_go.set()
            assert await chat.wait(WAIT_S) is State.IDLE
            history = await chat.messages()
    assert counted.counts == {"commit": 5}
    assert model.requests[-1].messages == history[:-1]


async def test_a_history_that_had_to_be_mended_is_read_and_mended_once(store_url: str) -> None:
    """A stop in the middle of a call leaves arguments that no provider takes."""
    counted = Counted()
    cut = (Call(name="look", arguments='{"path":"main.go"'), Hold(name="here"), Stall())
    responses = (cut, *[(Call(name="look"),)] * (1 + CYCLES), (Say(text="Done."),))
    model = ScriptedModel(script=Script(responses=responses))
    app = App(store_url, [Agent("a", model, tools=[counted.tool()])])
    async with app, app.worker():
        counted.watch(app.store)
        chat = await app.create("a", "go")
        await model.reached("here")
        await chat.stop()
        assert await chat.wait(WAIT_S) is State.IDLE
        assert (await chat.messages())[1].stopped is Cause.USER
        await chat.send("go on")
        await asyncio.wait_for(counted.reached.wait(), WAIT_S)
        counted.let_go.set()
        assert await chat.wait(WAIT_S) is State.IDLE
        history = await chat.messages()
    assert counted.counts == {"commit": 2 * CYCLES}
    shown = model.requests[-1].messages
    assert shown[1].calls[0].arguments == "{}"
    assert [*shown[:1], *shown[2:]] == [*history[:1], *history[2:-1]]


async def test_who_waits_for_a_chat_to_rest_looks_when_it_does_and_not_at_every_step(store_url: str) -> None:
    counted = Counted(cycles=1_000)
    agent = Agent("a", script(CYCLES), tools=[counted.tool()])
    app = App(store_url, [agent], options=StoreOptions(poll_interval_s=3600.0))
    async with app, app.worker():
        counted.watch(app.store)
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) is State.IDLE
        assert await chat.text() == "Done."
    assert counted.asked["commit"] == 2 * CYCLES  # since the first call of the tool
    assert counted.asked["read_chat"] <= 3  # before and after it ran, and for the text
