"""Tools that a client declares, for a chat or for a turn: durable, shown to the model, answered once."""

import signal
from typing import Any

import pytest
from msgspec import Raw

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.journal import CallChanged
from holdfast.core.limits import Limits
from holdfast.core.records import CallState, ClientTool, External, Message, Role, State, Synthetic, Text, ToolResult
from holdfast.errors import ConfigError, InvalidInput, LimitReached, RefusedError
from holdfast.hooks import Arguments, Hook
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.base import Tool
from holdfast.tools.outside import client_tool
from tests.support.programs import Program
from tests.support.turns import WAIT_S, entries, rested, running, said, weather
from tests.worker.lives import SteppedClock

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
OPEN_TAB = client_tool("open_tab", "Open a tab in the user's browser.", SCHEMA)
READ = client_tool("read_local", "Read a file of the user's.", SCHEMA)
USES = [Call(name="open_tab", arguments={"path": "a"})]


def shown(model: ScriptedModel) -> list[set[str]]:
    return [{tool.name for tool in request.tools} for request in model.requests]


async def waiting_call(chat: Chat) -> Any:
    assert await rested(chat) is State.WAITING
    (call,) = await chat.open_calls()
    return call


async def idle(chat: Chat) -> None:
    while await chat.state() is not State.IDLE:
        await rested(chat)


async def test_a_tool_declared_for_a_chat_is_shown_in_every_turn_and_its_client_runs_it(store_url: str) -> None:
    model = ScriptedModel(USES, "Done.", "Again.")
    async with running(store_url, Agent("a", model, tools=[weather])) as (app, _):
        chat = await app.create("a", "go", client_tools=[OPEN_TAB])
        call = await waiting_call(chat)
        assert (call.tool, call.kind, call.arguments) == ("open_tab", "client", '{"path":"a"}')
        stored = (await chat.snapshot()).calls[0]
        assert stored.external is External.CLIENT
        assert call.expires_at == stored.expires_at is not None
        with pytest.raises(RefusedError, match="not one of the chat's current calls"):
            await chat.submit("call_unknown", "text")
        await chat.submit(call.id, "opened")
        with pytest.raises(RefusedError):
            await chat.submit(call.id, "opened again")
        await idle(chat)
        await chat.send("and now?")
        await idle(chat)
        assert [text for role, text in said(await chat.messages()) if role == "tool"] == ["opened"]
        spec = next(tool for tool in model.requests[0].tools if tool.name == "open_tab")
        assert (spec.description, spec.schema) == ("Open a tab in the user's browser.", OPEN_TAB.schema)
    assert shown(model) == [{"weather", "open_tab"}] * 3


@pytest.mark.parametrize("asks", [False, True])
async def test_a_client_is_told_to_run_what_a_hook_made_of_its_call(store_url: str, asks: bool) -> None:
    """With an approval in between or without: who approves it and who runs it are told the same."""
    hook = Hook("before_tool", lambda *_: Arguments(text='{"path":"b"}'))
    declared = client_tool("open_tab", "Open a tab.", SCHEMA, needs_approval=asks)
    model = ScriptedModel(USES, "Done.")
    async with running(store_url, Agent("a", model, hooks=[hook])) as (app, _):
        chat = await app.create("a", "go", client_tools=[declared])
        if asks:
            approval = await waiting_call(chat)
            assert (approval.kind, approval.arguments) == ("approval", '{"path":"b"}')
            await chat.approve(approval.id)
        call = await waiting_call(chat)
        assert (call.kind, call.arguments) == ("client", '{"path":"b"}')
        await chat.submit(call.id, "opened")
        await idle(chat)
        told = [entry for entry in await entries(chat) if isinstance(entry, CallChanged)]
    acts = [(entry.state.value, entry.arguments) for entry in told if entry.arguments is not None]
    assert acts == [("asking", '{"path":"b"}')] * asks + [("external", '{"path":"b"}')]


async def test_a_tool_declared_for_a_turn_is_gone_with_it_and_stands_beside_those_of_the_chat(store_url: str) -> None:
    model = ScriptedModel("One.", USES, "Two.", [Call(name="open_tab")], "Three.")
    async with running(store_url, Agent("a", model, tools=[weather])) as (app, _):
        chat = await app.create("a", "one", client_tools=[READ])
        await idle(chat)
        await chat.send("two", client_tools=[OPEN_TAB], active_tools=[])
        await chat.submit((await waiting_call(chat)).id, "opened")
        await idle(chat)
        await chat.send("three")
        await idle(chat)
        told = said(await chat.messages())[-2]
        assert told == ("tool", "open_tab is not a tool of this agent. Active tools: read_local, weather.")
    chats, turns = {"weather", "read_local"}, {"read_local", "open_tab"}
    assert shown(model) == [chats, turns, turns, chats, chats], "active_tools names tools of the agent, and no others"


async def test_a_call_of_it_survives_every_process_and_goes_on_in_one_that_never_heard_of_it(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", ScriptedModel(USES, "Done."))])
    async with app:
        chat = await app.create("a", "go", client_tools=[OPEN_TAB])
        async with app.worker():
            call = await waiting_call(chat)
    stranger = App(store_url, agents=[Agent("a", ScriptedModel(USES, "Done."))])
    async with stranger:
        chat = stranger.chat(chat.id)
        await chat.submit(call.id, "opened")
        async with stranger.worker():
            await idle(chat)
        assert said(await chat.messages())[2:] == [("tool", "opened"), ("assistant", "Done.")]


async def test_a_worker_killed_before_it_acted_on_the_call_leaves_it_to_one_that_never_heard_of_it(
    store_url: str,
) -> None:
    app = App(store_url, agents=[Agent("tabs", ScriptedModel(USES, "Done."))])
    async with app:
        chat = await app.create("tabs", client_tools=[READ])
        await chat.send("go", client_tools=[OPEN_TAB])
        with Program("tests.tools.tabs", store_url) as program:
            assert program.process.wait(WAIT_S) == -signal.SIGKILL
        assert [call.state for call in (await chat.snapshot()).calls] == [CallState.PLANNED]
        async with app.worker(poll_s=0.1):
            await chat.submit((await waiting_call(chat)).id, "opened")
            await idle(chat)
        assert said(await chat.messages())[2:] == [("tool", "opened"), ("assistant", "Done.")]


async def test_a_client_that_is_late_is_told_so_and_so_is_the_model(store_url: str) -> None:
    clock = SteppedClock()
    app = App(store_url, agents=[Agent("a", ScriptedModel(USES, "Fine."))], options=StoreOptions(clock=clock))
    async with app, app.worker(poll_s=0.1):
        chat = await app.create("a", "go", client_tools=[OPEN_TAB])
        call = await waiting_call(chat)
        clock.ahead_ms += 300_000
        await idle(chat)
        result = (await chat.messages())[2].parts[0]
        assert isinstance(result, ToolResult)
        assert (result.synthetic, result.content) == (Synthetic.EXPIRED, "Expired: nobody answered in time.")
        with pytest.raises(RefusedError, match="a chat that is idle does not take submit"):
            await chat.submit(call.id, "opened")


async def test_one_that_the_agent_brings_by_a_deploy_wins_over_the_clients(store_url: str) -> None:
    before = App(store_url, agents=[Agent("a", ScriptedModel())])
    async with before:
        chat_id = (await before.create("a", client_tools=[client_tool("weather")])).id
    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Done.")
    async with running(store_url, Agent("a", model, tools=[weather])) as (app, _):
        await app.chat(chat_id).send("go")
        await idle(app.chat(chat_id))
        assert said(await app.chat(chat_id).messages())[2] == ("tool", "rain in Bern")


async def test_a_fork_keeps_the_chats_tools(store_url: str) -> None:
    model = ScriptedModel("Done.", "Forked.")
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "go", client_tools=[OPEN_TAB])
        await idle(chat)
        fork = await chat.fork()
        await fork.send("go on")
        await idle(fork)
    assert shown(model) == [{"open_tab"}] * 2


WRONG: dict[str, tuple[list[Tool | ClientTool], type[Exception], str]] = {
    "no name": ([ClientTool(name="")], InvalidInput, "a name has 1 to 64 letters"),
    "a name with a space": ([ClientTool(name="open tab")], InvalidInput, "a name has 1 to 64 letters"),
    "a name that is too long": ([ClientTool(name="x" * 65)], InvalidInput, "a name has 1 to 64 letters"),
    "a name that the agent has": ([client_tool("weather")], ConfigError, "has a tool 'weather' itself"),
    "two of one name": ([OPEN_TAB, OPEN_TAB], InvalidInput, "names a tool twice"),
    "a tool with a body": ([weather], ConfigError, "has a tool|is not a client's tool"),
    "a schema that is no object": ([ClientTool(name="x", schema=Raw(b"[]"))], InvalidInput, "not a JSON object"),
    "a schema that is no JSON": ([ClientTool(name="x", schema=Raw(b"{"))], InvalidInput, "is not JSON"),
    "a NUL": ([ClientTool(name="x", description="a\0b")], InvalidInput, "NUL"),
    "an expiry of nothing": ([ClientTool(name="x", expires_ms=0)], InvalidInput, "give more than 0"),
    "too many": ([ClientTool(name=f"x{n}") for n in range(4)], LimitReached, "client tools"),
    "too large": ([ClientTool(name="x", description="y" * 2_000)], LimitReached, "client tools in bytes"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_cannot_be_a_clients_tool_is_refused_by_name_and_nothing_is_made(
    store_url: str, what: str
) -> None:
    tools, error, match = WRONG[what]
    limits = Limits(client_tools_max=3, client_tools_bytes_max=1_000)
    app = App(store_url, agents=[Agent("a", ScriptedModel(), tools=[weather])], options=StoreOptions(limits=limits))
    async with app:
        with pytest.raises(error, match=match):
            await app.create("a", "go", client_tools=tools)
        assert await app.store.list_chats() == []
        chat = await app.create("a")
        with pytest.raises(error, match=match):
            await chat.send("go", client_tools=tools)
        if all(isinstance(tool, ClientTool) for tool in tools):
            declared: tuple[Any, ...] = tuple(tools)
            message = Message(id="m", role=Role.USER, parts=(Text(text="go"),), client_tools=declared)
            with pytest.raises(error, match=match):
                await chat.send(message)
        assert await chat.messages() == []
