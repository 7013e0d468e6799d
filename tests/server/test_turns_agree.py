"""However a turn ends, programs, exit codes, HTTP and `/v1` tell the same: the table of docs/how-to/turns.md."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from msgspec import Struct

from holdfast import Agent, AgentLimits, App, client_tool, http_app, tool
from holdfast.chat import Chat
from holdfast.cli.terminal.turn_follower import Exit, TurnFollower
from holdfast.core.updates import TurnState
from holdfast.errors import TurnError, TurnFailed, TurnStopped, TurnWaits
from holdfast.server.openai.ids import ResponsePlace
from holdfast.store.records import Item
from holdfast.testing import Call, Fail, Finish, Hold, Say, ScriptedModel
from tests.support.turns import QUICK, WAIT_S
from tests.support.waiting import eventually

TOKEN = "t" * 40
DOC = Path(__file__).parents[2] / "docs" / "how-to" / "turns.md"


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(replay="pure")
async def look() -> str:
    """Look."""
    return "seen"


async def leave_it(_: App, __: Agent) -> None:
    pass


async def stop_it(app: App, agent: Agent) -> None:
    assert isinstance(agent.model, ScriptedModel)
    await agent.model.reached("here")
    (line,) = await app.chats()
    await app.chat(line.id).stop()


class Ending(Struct, frozen=True):
    """How a turn is brought to its end, and what each surface says of it."""

    script: tuple[Any, ...]
    state: TurnState
    error: type[TurnError] | None
    exit: Exit
    response: str
    completion: str
    limits: AgentLimits = AgentLimits()
    act: Callable[[App, Agent], Awaitable[None]] = leave_it


ENDINGS = {
    "done": Ending(("Yes.",), "done", None, Exit.DONE, "completed", "stop"),
    "cut off by the model's limit of tokens": Ending(
        ([Say(text="And then"), Finish(reason="length")],), "done", None, Exit.DONE, "incomplete", "length"
    ),
    "waiting for a person": Ending(
        ([Say(text="I will pay now."), Call(name="pay")],),
        *("waiting", TurnWaits, Exit.WAITING, "incomplete", "400 turn_waits"),
    ),
    "waiting for the client's own tool": Ending(
        ([Say(text="Where?"), Call(name="locate")],), "waiting", TurnWaits, Exit.WAITING, "completed", "tool_calls"
    ),
    "stopped by a user": Ending(
        ([Say(text="I was about"), Hold(name="here")],),
        *("stopped", TurnStopped, Exit.STOPPED, "cancelled", "400 turn_stopped"),
        act=stop_it,
    ),
    "out of its budget": Ending(
        ([Say(text="Step."), Call(name="look")],),
        *("stopped", TurnStopped, Exit.STOPPED, "incomplete", "length"),
        limits=AgentLimits(steps=1),
    ),
    "failed": Ending(
        ([Fail(status=401, message="bad key")],), "failed", TurnFailed, Exit.FAILED, "failed", "400 authentication"
    ),
}


class Blind:
    def take(self, item: Item) -> object:
        return None

    def interrupted(self) -> None: ...

    def trouble(self, text: str) -> None: ...


async def completed(client: httpx.AsyncClient) -> tuple[str, str]:
    """The chat, and what a client of chat completions gets."""
    asked = {"model": "a", "messages": [{"role": "user", "content": "go"}]}
    got = await client.post("/v1/chat/completions", json=asked)
    body = got.json()
    told = body["choices"][0]["finish_reason"] if "choices" in body else f"{got.status_code} {body['error']['code']}"
    return got.headers["x-holdfast-chat"], told


@pytest.mark.parametrize("name", ENDINGS)
async def test_whoever_asks_is_told_the_same(store_url: str, name: str) -> None:
    ending = ENDINGS[name]
    tools = [pay, look, client_tool("locate", "Where the user is.")]
    agent = Agent("a", ScriptedModel(*ending.script), tools=tools, limits=ending.limits)
    app = App(store_url, agents=[agent], retry=QUICK)
    transport = httpx.ASGITransport(app=http_app(app, token=TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        app.worker(poll_s=0.2),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client,
    ):
        asking = asyncio.ensure_future(completed(client))
        await ending.act(app, agent)
        chat_id, completion = await asking
        chat = app.chat(chat_id)
        turn = await chat.turn(timeout_s=WAIT_S)
        shown = (await client.get(f"/api/chats/{chat_id}/turn", params={"wait_s": 10})).json()
        response = (await client.get(f"/v1/responses/{ResponsePlace(chat_id=chat_id, start=1).response_id}")).json()
        exit_code = await TurnFollower(app, chat, Blind()).follow()
    assert (turn.state, shown["state"]) == (ending.state, ending.state)
    assert (exit_code, response["status"], completion) == (ending.exit, ending.response, ending.completion)
    if ending.error is None:
        assert shown["text"] == turn.text == turn.partial_text
    else:
        with pytest.raises(ending.error):
            assert turn.text
        assert (shown["text"], shown["partial_text"]) == (None, turn.partial_text)
    assert [call["name"] for call in shown["open"]] == [call.tool for call in turn.open]
    assert shown["usage"]["total_tokens"] == turn.usage.total_tokens


def test_the_table_in_the_docs_is_what_is_tested() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in DOC.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    told = {cells[0]: [re.sub(r"[`*]", "", cell) for cell in cells[1:]] for cells in rows}
    for name, ending in ENDINGS.items():
        error = ending.error.__name__ if ending.error is not None else "–"
        wanted = [ending.state, error, str(int(ending.exit)), ending.response, ending.completion]
        assert told[name] == wanted


async def test_a_turn_is_read_over_http_by_its_number_and_waited_for(store_url: str) -> None:
    model = ScriptedModel([Hold(name="here"), Say(text="One.")], "Two.")
    app = App(store_url, agents=[Agent("a", model)])
    transport = httpx.ASGITransport(app=http_app(app, token=TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        app.worker(poll_s=0.2),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client,
    ):
        chat: Chat = await app.create("a")
        path = f"/api/chats/{chat.id}/turn"
        none = await client.get(path)
        assert (none.status_code, none.json()["code"]) == (404, "no_turn")
        sent = (await client.post(f"/api/chats/{chat.id}/messages", json={"message": "one"})).json()
        assert (sent["placed"], sent["turn"]) == ("began", 1)
        await model.reached("here")
        running = (await client.get(path)).json()
        assert (running["state"], running["text"]) == ("running", None)
        queued = (await client.post(f"/api/chats/{chat.id}/messages", json={"message": "two"})).json()
        assert queued["placed"] == "queued"
        waiting = asyncio.ensure_future(client.get(path, params={"number": 1, "wait_s": 30}))
        model.resume("here")
        assert ((await waiting).json()["number"], (await waiting).json()["text"]) == (1, "One.")

        async def two() -> bool:
            return bool((await client.get(path, params={"wait_s": 30})).json()["text"] == "Two.")

        await eventually(two, WAIT_S)
        assert (await client.get(path, params={"number": 1})).json()["text"] == "One."
        assert (await client.get(path, params={"number": 9})).status_code == 404
