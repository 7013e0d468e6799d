"""An open call is told whole, with what would run, and is approved as what it was shown as."""

import json

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.records import State
from holdfast.errors import InvalidInput, RefusedError
from holdfast.hooks import Arguments, Hook
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.base import Tool, tool
from tests.support.turns import rested, said

LONG = "true; " * 1_000 + "PAYLOAD; " + "true; " * 1_000


def running() -> Tool:
    @tool(needs_approval=True)
    async def run_line(command: str) -> str:
        """Run it, so to speak."""
        return f"ran {len(command)}"

    return run_line


def scripted(*commands: str) -> ScriptedModel:
    return ScriptedModel([Call(name="run_line", arguments={"command": text}) for text in commands], "Done.")


async def test_an_open_call_has_all_of_its_arguments_and_is_approved_by_its_digest(store_url: str) -> None:
    app = App(store_url, agents=[Agent("runs", scripted(LONG, "ls"), tools=[running()])])
    async with app.worker(poll_s=0.1):
        chat = await app.create("runs", "go")
        assert await rested(chat) is State.WAITING
        long, short = await chat.open_calls()
        assert json.loads(long.arguments) == {"command": LONG}
        assert json.loads(short.arguments) == {"command": "ls"}
        assert (long.whole, short.whole) == (True, True)
        assert long == await chat.open_call(long.id)
        with pytest.raises(RefusedError, match="other arguments than those that were shown"):
            await chat.approve(long.id, digest=short.digest)
        for call in (long, short):
            await call.approve()
        while await chat.state() is not State.IDLE:
            await rested(chat)
        assert ("tool", f"ran {len(LONG)}") in said(await chat.messages())


async def test_the_arguments_of_a_hook_are_told_whole_too(store_url: str) -> None:
    hook = Hook("before_tool", lambda *_: Arguments(text=json.dumps({"command": LONG})))
    app = App(store_url, agents=[Agent("runs", scripted("ls"), tools=[running()], hooks=[hook])])
    async with app.worker(poll_s=0.1):
        chat = await app.create("runs", "go")
        assert await rested(chat) is State.WAITING
        (call,) = await chat.open_calls()
        assert (json.loads(call.arguments), call.whole) == ({"command": LONG}, True)
        await call.approve()
        while await chat.state() is not State.IDLE:
            await rested(chat)
        assert ("tool", f"ran {len(LONG)}") in said(await chat.messages())


async def test_more_than_one_answer_holds_is_told_by_excerpts_that_say_so(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.contract.ARGUMENTS_BYTES_MAX", 0)
    app = App(store_url, agents=[Agent("runs", scripted(LONG, "ls"), tools=[running()])])
    async with app.worker(poll_s=0.1):
        chat = await app.create("runs", "go")
        assert await rested(chat) is State.WAITING
        long, short = await chat.open_calls()
        assert (long.whole, short.whole) == (False, True)
        assert "PAYLOAD" not in long.arguments
        with pytest.raises(InvalidInput, match="shown in part only"):
            await long.approve()
        whole = await long.read()
        assert (json.loads(whole.arguments), whole.whole) == ({"command": LONG}, True)
