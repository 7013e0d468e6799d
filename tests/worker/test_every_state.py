"""Queue, interrupt, steer and edit in every state: what is answered at once, and how the history looks in the end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.history import problems
from holdfast.core.records import State
from holdfast.core.retry import RetryPolicy
from holdfast.models.scripted import Call, Fail, Hold, Say, Script, ScriptedModel
from holdfast.tools.base import Tool, tool
from holdfast.worker import tool_body
from tests.support.turns import QUICK, WAIT_S, Gate, said


class Echoing(ScriptedModel):
    """Plays its responses in the first turn; whoever says something later gets it back."""

    async def stream(self, request: Any) -> Any:
        if request.messages[-1].role == "user" and request.messages[-1].text != "old":
            self.script = Script(after="echo")
        async for part in super().stream(request):
            yield part


class Scene(NamedTuple):
    chat: Chat
    model: ScriptedModel
    gate: Gate
    clinging: "Clinging"


class Clinging:
    """A tool that is told to end and needs a moment, so that `stopping` can be seen."""

    def __init__(self) -> None:
        self.entered, self.cancelled, self.let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def tool(self) -> Tool:
        async def clinging() -> str:
            """Cling."""
            self.entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
                await self.let_go.wait()
            return "never"

        return tool(clinging)


# --- situations: how a chat gets there from the message "old" ------------------------------------------------------


async def answered(scene: Scene) -> None:
    assert await scene.chat.wait(WAIT_S) is State.IDLE


async def streaming(scene: Scene) -> None:
    await scene.model.reached("here")


async def in_a_tool(scene: Scene) -> None:
    await scene.gate.entered.wait()


async def stopping(scene: Scene) -> None:
    await scene.clinging.entered.wait()
    await scene.chat.stop()
    await scene.clinging.cancelled.wait()


async def waiting(scene: Scene) -> None:
    assert await scene.chat.wait(WAIT_S) is State.WAITING


async def failed(scene: Scene) -> None:
    assert await scene.chat.wait(WAIT_S) is State.FAILED


class Situation(NamedTuple):
    response: list[Any]
    reach: Callable[[Scene], Awaitable[None]]
    state: State


SITUATIONS = {
    "idle": Situation([Say(text="Answer.")], answered, State.IDLE),
    "in mid-stream": Situation([Say(text="Half "), Hold(name="here"), Say(text="whole.")], streaming, State.RUNNING),
    "in a tool": Situation([Call(name="gate")], in_a_tool, State.RUNNING),
    "stopping": Situation([Call(name="clinging")], stopping, State.STOPPING),
    "waiting": Situation([Call(name="asked")], waiting, State.WAITING),
    "failed": Situation([Fail(status=400)], failed, State.FAILED),
}


async def go_on(scene: Scene) -> None:
    """Let everything end that may end: the stream, the tools, the approval."""
    scene.model.resume("here")
    scene.gate.opened.set()
    scene.clinging.let_go.set()
    for call in (await scene.chat.snapshot()).calls:
        if call.state == "asking":
            await scene.chat.approve(call.id)
    while await scene.chat.state() is not State.IDLE:
        assert await scene.chat.wait(WAIT_S) is not State.FAILED


# --- the table ---------------------------------------------------------------------------------------------------

OLD, NEW, ECHO = "user: old", "user: new", "assistant: You said: new"
ASKED, THROUGH, SECOND = "assistant: ", "tool: through", "assistant: Second."
STOPPED = "tool: Cancelled while it ran: stopped by the user."
SUPERSEDED = "tool: Cancelled while it ran: superseded by a newer message."
SENT_ANEW = "tool: Never ran: the user sent a new message."

# (situation, act) → the state that is answered at once, and the history in the end.
TABLE: dict[tuple[str, str], tuple[State, list[str]]] = {
    ("idle", "queue"): (State.RUNNING, [OLD, "assistant: Answer.", NEW, ECHO]),
    ("idle", "interrupt"): (State.RUNNING, [OLD, "assistant: Answer.", NEW, ECHO]),
    ("idle", "steer"): (State.RUNNING, [OLD, "assistant: Answer.", NEW, ECHO]),
    ("idle", "edit"): (State.RUNNING, [NEW, ECHO]),
    ("in mid-stream", "queue"): (State.RUNNING, [OLD, "assistant: Half whole.", NEW, ECHO]),
    ("in mid-stream", "interrupt"): (State.STOPPING, [OLD, "assistant: Half ", NEW, ECHO]),
    ("in mid-stream", "steer"): (State.RUNNING, [OLD, "assistant: Half whole.", NEW, ECHO]),
    ("in mid-stream", "edit"): (State.STOPPING, [NEW, ECHO]),
    ("in a tool", "queue"): (State.RUNNING, [OLD, ASKED, THROUGH, SECOND, NEW, ECHO]),
    ("in a tool", "interrupt"): (State.STOPPING, [OLD, ASKED, SUPERSEDED, NEW, ECHO]),
    ("in a tool", "steer"): (State.RUNNING, [OLD, ASKED, THROUGH, NEW, ECHO]),
    ("in a tool", "edit"): (State.STOPPING, [NEW, ECHO]),
    ("stopping", "queue"): (State.STOPPING, [OLD, ASKED, STOPPED, NEW, ECHO]),
    ("stopping", "interrupt"): (State.STOPPING, [OLD, ASKED, STOPPED, NEW, ECHO]),
    ("stopping", "steer"): (State.STOPPING, [OLD, ASKED, STOPPED, NEW, ECHO]),
    ("stopping", "edit"): (State.STOPPING, [NEW, ECHO]),
    ("waiting", "queue"): (State.WAITING, [OLD, ASKED, THROUGH, SECOND, NEW, ECHO]),
    ("waiting", "interrupt"): (State.RUNNING, [OLD, ASKED, SENT_ANEW, NEW, ECHO]),
    ("waiting", "steer"): (State.WAITING, [OLD, ASKED, THROUGH, NEW, ECHO]),
    ("waiting", "edit"): (State.RUNNING, [NEW, ECHO]),
    ("failed", "queue"): (State.RUNNING, [OLD, NEW, ECHO]),
    ("failed", "interrupt"): (State.RUNNING, [OLD, NEW, ECHO]),
    ("failed", "steer"): (State.RUNNING, [OLD, NEW, ECHO]),
    ("failed", "edit"): (State.RUNNING, [NEW, ECHO]),
}


def test_the_table_is_complete() -> None:
    assert set(TABLE) == {(name, act) for name in SITUATIONS for act in ("queue", "interrupt", "steer", "edit")}
    assert {situation.state for situation in SITUATIONS.values()} == set(State)


@pytest.mark.parametrize(("situation", "act"), TABLE)
async def test_every_act_in_every_state(
    store_url: str, situation: str, act: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_body, "KILL_S", WAIT_S)  # who clings is not given up while the machine stands still
    answer, history = TABLE[situation, act]
    gate, clinging = Gate(), Clinging()
    model = Echoing(SITUATIONS[situation].response, "Second.")
    tools = [gate.tool(), gate.tool(name="asked", needs_approval=True), clinging.tool()]
    app = App(store_url, agents=[Agent("a", model, tools=tools, retry=QUICK)])
    async with app, app.worker(poll_s=0.2):
        scene = Scene(await app.create("a", "old"), model, gate, clinging)
        await SITUATIONS[situation].reach(scene)
        assert await scene.chat.state() is SITUATIONS[situation].state
        if act == "edit":
            given = await scene.chat.edit((await scene.chat.messages())[0].id, "new")
        else:
            given = await scene.chat.send("new", mode=act)
        assert given.state is answer
        if answer is State.STOPPING and situation != "stopping":
            await asyncio.wait_for(until_not_stopping(scene.chat), WAIT_S)
        await go_on(scene)
        told = [f"{role}: {text}" for role, text in said(await scene.chat.messages())]
    assert [line.partition(" It may have")[0] for line in told] == history
    for request in model.requests:
        assert problems(request.messages) == []


async def until_not_stopping(chat: Chat) -> None:
    """A stream or a tool that is to be cut must not end by itself first."""
    async for _ in chat.events():
        if await chat.state() is not State.STOPPING:
            return


async def test_an_edit_gives_back_the_queued_messages_that_it_drops(store_url: str) -> None:
    gate = Gate()
    app = App(store_url, agents=[Agent("a", Echoing([Call(name="gate")]), tools=[gate.tool()], retry=RetryPolicy())])
    async with app, app.worker():
        chat = await app.create("a", "old")
        await gate.entered.wait()
        await chat.send("one")
        await chat.send("two", mode="steer")
        answer = await chat.edit((await chat.messages())[0].id, "new")
        assert [b'"one"' in bytes(answer.dropped[0]), b'"two"' in bytes(answer.dropped[1])] == [True, True]
        assert await chat.wait(WAIT_S) is State.IDLE
        assert said(await chat.messages()) == [("user", "new"), ("assistant", "You said: new")]


async def test_what_was_queued_in_any_way_is_said_in_its_order(store_url: str) -> None:
    gate = Gate()
    app = App(store_url, agents=[Agent("a", Echoing([Call(name="gate")]), tools=[gate.tool()])])
    async with app, app.worker():
        chat = await app.create("a", "old")
        await gate.entered.wait()
        await chat.send("later")
        await chat.send("at once", mode="interrupt")
        while await chat.state() is not State.IDLE:
            await chat.wait(WAIT_S)
        assert [text for role, text in said(await chat.messages()) if role == "user"] == ["old", "at once", "later"]
