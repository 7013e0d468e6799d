"""Sub-agents: children in one transaction, parents that hold nothing while they wait."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast.app import App, Chat
from holdfast.core.limits import Limits
from holdfast.core.records import External, Role, State, ToolResult
from holdfast.errors import ConfigError
from holdfast.models.base import CallArguments, CallEnded, CallStarted, Finished, Request, StreamPart, TextDelta
from holdfast.models.calls import Caller
from holdfast.models.scripted import Call, Fail, Hold, Say, ScriptedModel
from holdfast.store.base import StoreOptions
from holdfast.tools.agents import agent_tools
from holdfast.worker.agents import Agent
from tests.support.turns import QUICK, WAIT_S, rested, said
from tests.support.waiting import eventually


class Boss:
    """A model that spawns a child per task, then waits for all of them at once, then says what it heard."""

    name = provider = "boss"
    context_limit = None

    def __init__(self, *tasks: str) -> None:
        self.tasks = tasks

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        said = sum(message.role is Role.ASSISTANT for message in request.messages)
        heard = [part.content for part in _results(request)[-len(self.tasks) :]]
        calls: list[tuple[str, dict[str, str]]] = []
        if said == 0:
            calls = [("spawn_agent", {"agent": "child", "task": task}) for task in self.tasks]
        elif said == 1:
            calls = [("wait_agent", {"agent_id": json.loads(text)["agent_id"]}) for text in heard]
        for index, (name, arguments) in enumerate(calls):
            yield CallStarted(index=index, name=name)
            yield CallArguments(index=index, text=json.dumps(arguments))
            yield CallEnded(index=index)
        if not calls:
            yield TextDelta(text=" and ".join(heard))
        yield Finished(reason="tool_calls" if calls else "stop")


def _results(request: Request) -> list[ToolResult]:
    return [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]


def app_of(url: str, parent: Any, child: ScriptedModel) -> App:
    agents = [Agent("parent", parent, tools=agent_tools(["child"])), Agent("child", child)]
    return App(url, agents=agents, caller=Caller(policy=QUICK))


async def children_of(app: App, parent: Chat) -> list[Chat]:
    found = [app.chat(line.id) for line in await app.store.list_chats() if line.agent == "child"]
    return [chat for chat in found if (await chat.snapshot()).chat.parent_id == parent.id]


async def idle(chat: Chat) -> None:
    while await chat.state() not in (State.IDLE, State.FAILED):
        await rested(chat)


async def test_a_parent_waits_for_its_children_without_a_worker_and_hears_all_their_answers(store_url: str) -> None:
    child = ScriptedModel([Hold(name="work"), Say(text="42")], per="chat")
    app = app_of(store_url, Boss("one", "two", "three"), child)
    async with app, app.worker(poll_s=0.2) as worker:
        chat = await app.create("parent", "find out")

        async def waits() -> bool:
            return await chat.state() is State.WAITING

        await eventually(waits, WAIT_S)
        snapshot = await chat.snapshot()
        assert (snapshot.chat.worker, snapshot.chat.wake_at) == (None, None), "no lease, no poll"
        assert [call.external for call in snapshot.open_calls] == [External.CHILD] * 3
        children = await children_of(app, chat)
        assert sorted(made.id for made in children) == sorted(worker.running_chats)
        child.resume("work")
        await idle(chat)
        assert said(await chat.messages())[-1] == ("assistant", "42 and 42 and 42")
        assert {(await made.snapshot()).chat.depth for made in children} == {1}


async def test_a_parent_goes_on_in_another_worker_than_its_child(store_url: str) -> None:
    child = ScriptedModel([Hold(name="work"), Say(text="42")])
    app, other = app_of(store_url, Boss("one"), child), app_of(store_url, Boss("one"), child)
    async with app, other:
        chat = await app.create("parent", "find out")
        async with app.worker(grace_s=0.0):
            await child.reached("work")
            await eventually(lambda: _is(chat, State.WAITING), WAIT_S)
        assert await chat.state() is State.WAITING, "nobody held it, so nobody handed it over"
        child.resume("work")
        async with other.worker():
            await idle(chat)
        assert said(await chat.messages())[-1] == ("assistant", "42")


async def _is(chat: Chat, state: State) -> bool:
    return await chat.state() is state


@pytest.mark.parametrize(
    ("script", "heard"),
    [
        (["All done."], "All done."),
        ([[]], ""),
        ([[Fail(status=400, message="no such thing")]], "The sub-agent failed: "),
    ],
)
async def test_a_child_is_heard_whether_it_ends_before_or_after_the_wait(
    store_url: str, script: list[Any], heard: str
) -> None:
    app = app_of(store_url, Boss("do it"), ScriptedModel(*script))
    async with app, app.worker():
        chat = await app.create("parent", "go")
        await idle(chat)
        result = (await chat.messages())[-2].parts[0]
        assert isinstance(result, ToolResult)
        assert result.content.startswith(heard)
        assert result.error == heard.startswith("The sub-agent")
        assert result.synthetic is None


async def test_an_agent_that_is_not_ones_own_is_said_to_be_lost(store_url: str) -> None:
    parent = ScriptedModel([Call(name="wait_agent", arguments={"agent_id": "chat_of_somebody_else"})], "Oh.")
    app = app_of(store_url, parent, ScriptedModel())
    async with app, app.worker():
        chat = await app.create("parent", "go")
        await idle(chat)
        assert said(await chat.messages())[2] == ("tool", "The sub-agent ended without a recorded answer.")


async def test_an_agent_that_may_not_be_spawned_is_an_error_that_names_those_that_may(store_url: str) -> None:
    parent = ScriptedModel([Call(name="spawn_agent", arguments={"agent": "root", "task": "x"})], "Oh.")
    app = app_of(store_url, parent, ScriptedModel())
    async with app, app.worker():
        chat = await app.create("parent", "go")
        await idle(chat)
        assert "Input should be 'child'" in said(await chat.messages())[2][1]
        assert await children_of(app, chat) == []


async def test_a_stop_reaches_the_children(store_url: str) -> None:
    child = ScriptedModel([Hold(name="work")], per="chat")
    app = app_of(store_url, Boss("one", "two"), child)
    async with app, app.worker():
        chat = await app.create("parent", "go")
        await eventually(lambda: _is(chat, State.WAITING), WAIT_S)
        family = [chat, *await children_of(app, chat)]
        await chat.stop()
        for stopped in family:
            await idle(stopped)
            assert (await stopped.snapshot()).chat.cause == "user"
        assert len(family) == 3


async def test_a_parents_failure_leaves_its_children_running(store_url: str) -> None:
    spawn = Call(name="spawn_agent", arguments={"agent": "child", "task": "go on"})
    child = ScriptedModel([Hold(name="work"), Say(text="Finished all the same.")])
    app = app_of(store_url, ScriptedModel([spawn], [Fail(status=400)]), child)
    async with app, app.worker():
        chat = await app.create("parent", "go")
        await idle(chat)
        assert await chat.state() is State.FAILED
        await child.reached("work")
        child.resume("work")
        (made,) = await children_of(app, chat)
        assert await made.text() == "Finished all the same."


async def test_sub_agents_are_only_so_deep(store_url: str) -> None:
    spawn = Call(name="spawn_agent", arguments={"agent": "parent", "task": "deeper"})
    agents = [Agent("parent", ScriptedModel([spawn], "Done.", per="chat"), tools=agent_tools(["parent"]))]
    app = App(store_url, agents=agents, options=StoreOptions(limits=Limits(depth_max=2)))
    async with app, app.worker(poll_s=0.2):
        await app.create("parent", "go")

        async def all_rest() -> bool:
            lines = await app.store.list_chats()
            return len(lines) == 3 and all(line.state is State.IDLE for line in lines)

        await eventually(all_rest, WAIT_S)
        texts = [said(await app.chat(line.id).messages())[2][1] for line in await app.store.list_chats()]
        assert sum("nested 2 deep" in text for text in texts) == 1


def test_a_name_has_to_be_given() -> None:
    with pytest.raises(ConfigError, match="at least one agent"):
        agent_tools([])
