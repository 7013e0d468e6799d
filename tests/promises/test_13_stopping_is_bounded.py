"""Promise 13: a worker that is told to stop hands over within its grace, whatever runs in it."""

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Agent, Hook, Tool, tool
from holdfast.testing import Call, Hold, Say, ScriptedModel
from tests.promises.surface import WAIT_S, Stubborn, app_of, tool_texts
from tests.support.turns import Gate


@pytest.mark.parametrize("kind", ["stubborn tool", "blocking tool", "hung hook", "stalled stream"])
async def test_whatever_hangs_a_stop_without_grace_ends_soon_and_the_chat_goes_on(store_url: str, kind: str) -> None:
    held, entered = threading.Event(), threading.Event()

    @tool(replay="pure")
    def block() -> str:
        """Block."""
        entered.set()
        held.wait()
        return "unblocked"

    def hang(_about: Any, _context: Any) -> None:
        entered.set()
        held.wait()

    stubborn = Stubborn()
    tools: dict[str, list[Tool]] = {"stubborn tool": [stubborn.tool(replay="pure")], "blocking tool": [block]}
    script: dict[str, Any] = {
        "stubborn tool": [Call(name="stubborn")],
        "blocking tool": [Call(name="block")],
        "hung hook": "Hi.",
        "stalled stream": [Say(text="Half "), Hold(name="stall")],
    }
    hooks = [Hook("before_model", hang)] if kind == "hung hook" else []
    model = ScriptedModel(script[kind], "Done.")
    app = app_of(store_url, Agent("a", model, tools=tools.get(kind, []), hooks=hooks))
    try:
        async with app:
            chat = await app.create("a", "go")
            worker = app.new_worker(grace_s=0.0)
            await worker.start()
            if kind == "stubborn tool":
                await stubborn.entered.wait()
            elif kind == "stalled stream":
                await model.reached("stall")
            else:
                await asyncio.to_thread(entered.wait, WAIT_S)
            await worker.stop()  # while it hangs, which it does for as long as nobody lets it go
            snapshot = await chat.snapshot()
            assert (snapshot.chat.state, snapshot.chat.worker, snapshot.chat.cause) == ("running", None, None)
    finally:
        held.set()
        stubborn.let_go.set()


async def test_steps_that_end_within_the_grace_are_kept_and_those_who_stop_it_twice_wait_for_one_stop(
    store_url: str,
) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    app = app_of(store_url, Agent("a", model, tools=[gate.tool()]))
    async with app:
        chat = await app.create("a", "go")
        worker = app.new_worker(grace_s=WAIT_S)
        await worker.start()
        await gate.entered.wait()
        stops = [asyncio.ensure_future(worker.stop()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(stop.done() for stop in stops)
        gate.opened.set()
        await asyncio.gather(*stops)
        await worker.stop()
        assert tool_texts(await chat.messages()) == ["through"]
        async with app.worker():
            assert await chat.wait(WAIT_S) == "idle"
    assert gate.starts == 1


async def test_an_error_on_the_way_comes_out_after_the_stop_and_not_instead_of_it(store_url: str) -> None:
    gate = Gate()
    app = app_of(store_url, Agent("a", ScriptedModel([Call(name="gate")]), tools=[gate.tool()]))
    async with app:
        chat = await app.create("a", "go")
        worker = app.new_worker(grace_s=0.0)
        await worker.start()
        await gate.entered.wait()

        async def broken() -> None:
            raise OSError("the disk said no")

        worker.deltas.stop = broken  # type: ignore[method-assign]
        stops = await asyncio.gather(worker.stop(), worker.stop(), return_exceptions=True)
        assert [str(error) for error in stops] == ["the disk said no"] * 2
        assert (await chat.snapshot()).chat.worker is None, "released all the same"
        assert all(lease.ended is not None for lease in await app.store.list_workers()), "its lease is given up"
        assert worker.guard is not None
        assert not worker.guard.alive
