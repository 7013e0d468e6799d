"""Sub-agents: children in one transaction, parents that hold nothing while they wait."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core import commands as cmd
from holdfast.core.limits import Limits
from holdfast.core.records import External, Role, State, ToolResult
from holdfast.errors import ConfigError, RefusedError
from holdfast.hooks import Hook, RunContext
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    Request,
    ResponseFinished,
    StreamPart,
    TextDelta,
)
from holdfast.models.scripted import Call, Fail, Hold, Say, ScriptedModel
from holdfast.store.records import ChatFilter, StoreOptions
from holdfast.tools.base import tool
from holdfast.tools.sub_agents import agent_tools
from tests.support.programs import Program
from tests.support.turns import QUICK, WAIT_S, rested, said
from tests.support.waiting import eventually, until


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
        yield ResponseFinished(reason="tool_calls" if calls else "stop")


def _results(request: Request) -> list[ToolResult]:
    return [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]


def app_of(url: str, parent: Any, child: ScriptedModel) -> App:
    agents = [Agent("parent", parent, tools=agent_tools(["child"])), Agent("child", child)]
    return App(url, agents=agents, retry=QUICK)


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
        await until(lambda: sorted(made.id for made in children) == sorted(worker.running_chats), WAIT_S)
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


async def test_a_sigterm_to_the_worker_of_the_child_leaves_nobody_stuck(store_url: str, tmp_path: Path) -> None:
    """Two processes. The parent waits and is nobody's, so no shutdown can hit it; the child goes on in the other."""
    log = tmp_path / "log"
    app = app_of(store_url, Boss("one"), ScriptedModel())

    def workers_of_the_child() -> list[str]:
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    async with app:
        chat = await app.create("parent", "find out")
        with (
            Program("tests.tools.family", store_url, str(log), "one") as one,
            Program("tests.tools.family", store_url, str(log), "two") as two,
        ):
            processes = {"one": one, "two": two}
            await until(lambda: len(workers_of_the_child()) == 1, WAIT_S)
            await eventually(lambda: _is(chat, State.WAITING), WAIT_S)
            parked = await chat.snapshot()
            assert (parked.chat.worker, parked.chat.wake_at) == (None, None), "no lease is held, nothing polls"
            first = processes.pop(workers_of_the_child()[0])
            first.process.terminate()
            assert await asyncio.to_thread(first.process.wait, WAIT_S) == 0
            await until(lambda: len(workers_of_the_child()) == 2, WAIT_S)
            ((name, other),) = processes.items()
            assert workers_of_the_child()[1] == name
            unmoved = await chat.snapshot()
            assert unmoved == parked, "the handover of the child does not touch its parent"
            other.say("at last")
            await eventually(lambda: _is(chat, State.IDLE), WAIT_S)
            assert said(await chat.messages())[-1] == ("assistant", "42")
            assert await app.store.find_violations() == []
            other.process.terminate()
            await asyncio.to_thread(other.finish)


@pytest.mark.parametrize("moment", ["before the wait", "before the park", "after the park"])
async def test_a_child_that_ends_at_this_moment_is_heard_once_and_nobody_is_stuck(
    store_url: str, moment: str
) -> None:
    """Two workers, each with a store of its own: the child's end in one meets the parent's park in the other."""
    child_model = ScriptedModel([Hold(name="work"), Say(text="42")])
    agents = app_of(store_url, Boss("one"), child_model).agents
    parents, children = App(store_url, [agents["parent"]]), App(store_url, [agents["child"]])
    parks: list[bool] = []
    commit = parents.store.commit

    async def child_ends() -> None:
        (child,) = [line.id for line in await children.store.list_chats() if line.agent == "child"]
        child_model.resume("work")
        assert await children.chat(child).text() == "42"

    async def gated(snapshot: Any, commands: Any, commit_id: str) -> Any:
        if isinstance(commands[0], cmd.Delegate) and moment == "before the wait":
            await child_ends()
        if isinstance(commands[0], cmd.Park):
            if moment == "before the park":
                await child_ends()
            try:
                after = await commit(snapshot, commands, commit_id)
            except RefusedError:
                parks.append(False)
                raise
            parks.append(True)
            return after
        return await commit(snapshot, commands, commit_id)

    parents.store.commit = gated  # type: ignore[method-assign]
    async with parents, children, parents.worker(poll_s=0.2), children.worker(poll_s=0.2):
        chat = await parents.create("parent", "find out")
        if moment == "after the park":
            await eventually(lambda: _is(chat, State.WAITING), WAIT_S)
            parked = (await chat.snapshot()).chat
            assert (parked.worker, parked.wake_at) == (None, None)
            await child_ends()
        await idle(chat)
        assert said(await chat.messages())[-2:] == [("tool", "42"), ("assistant", "42")]
        assert await parents.store.find_violations() == []
    expected = {"before the wait": [], "before the park": [False], "after the park": [True]}
    assert parks == expected[moment], "a park that came too late is refused, and the runner looks again"


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


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (
            Limits(children_open_max=2),
            "2 of your agents are at work, which is the limit: wait for one of them first.",
        ),
        (
            Limits(children_per_turn_max=2),
            "You spawned 2 agents in this turn, which is the limit: do the rest yourself.",
        ),
        (Limits(family_open_max=2), "2 agents are at work in this conversation, which is the limit: "),
    ],
)
async def test_there_are_only_so_many_sub_agents(store_url: str, limits: Limits, told: str) -> None:
    spawn = Call(name="spawn_agent", arguments={"agent": "child", "task": "go"})
    child = ScriptedModel([Hold(name="work"), Say(text="42")], per="chat")
    agents = [
        Agent("parent", ScriptedModel([spawn, spawn, spawn], "Well."), tools=agent_tools(["child"])),
        Agent("child", child),
    ]
    app = App(store_url, agents=agents, options=StoreOptions(limits=limits))
    async with app, app.worker(poll_s=0.2):
        chat = await app.create("parent", "go")
        await idle(chat)
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
        assert len(await children_of(app, chat)) == 2
        assert texts[2].startswith(told)
        child.resume("work")


async def test_a_family_whose_members_all_spawn_at_once_stays_within_its_limit(store_url: str) -> None:
    """The last place is taken by one of them; the others are told, and no turn fails."""
    at_once = asyncio.Barrier(3)
    came: set[str] = set()

    async def together(_: Any, context: RunContext) -> None:
        if context.chat_id not in came:
            came.add(context.chat_id)
            await at_once.wait()

    first = Call(name="spawn_agent", arguments={"agent": "child", "task": "go"})
    spawn = Call(name="spawn_agent", arguments={"agent": "leaf", "task": "go"})
    child = ScriptedModel([spawn], [Hold(name="told"), Say(text="Well.")], per="chat")
    leaf = ScriptedModel([Hold(name="work"), Say(text="42")], per="chat")
    hooks = [Hook("before_tool", together)]
    agents = [
        Agent("parent", ScriptedModel([first, first, first], "Well."), tools=agent_tools(["child"])),
        Agent("child", child, tools=agent_tools(["leaf"]), hooks=hooks),
        Agent("leaf", leaf),
    ]
    app = App(store_url, agents=agents, options=StoreOptions(limits=Limits(family_open_max=4)))
    async with app, app.worker(poll_s=0.2):
        chat = await app.create("parent", "go")
        await idle(chat)

        async def told() -> list[str]:
            lines = [line for line in await app.store.list_chats() if line.agent == "child"]
            messages = [said(await app.chat(line.id).messages()) for line in lines]
            return [text for each in messages for role, text in each if role == "tool"]

        async def all_are_told() -> bool:
            return len(await told()) == 3

        await eventually(all_are_told, WAIT_S)
        full = [text for text in await told() if text.startswith("4 agents are at work in this conversation")]
        leaves = [line for line in await app.store.list_chats() if line.agent == "leaf"]
        child.resume("told")
        leaf.resume("work")
    assert (len(full), len(leaves)) == (2, 1)


async def test_an_approval_of_a_child_shows_on_the_root_chat_and_is_answered_there(store_url: str) -> None:
    child = ScriptedModel([Call(name="pay", arguments={"amount": 5})], "Paid.", per="chat")

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    agents = [
        Agent("parent", Boss("one"), tools=agent_tools(["child"])),
        Agent("child", child, tools=[pay]),
    ]
    app = App(store_url, agents=agents)
    async with app, app.worker(poll_s=0.2):
        chat = await app.create("parent", "go")
        seen: list[dict[str, Any]] = []
        async for item in chat.events():
            entry = json.loads(item.raw)
            if item.seq is not None and entry["kind"].startswith("descendant"):
                seen.append(entry)
                if entry["kind"] == "descendant.asking":
                    assert (entry["name"], entry["question"]) == ("pay", "Run pay?")
                    (call,) = await chat.open_calls()
                    assert (call.chat.id, call.id) == (entry["chat_id"], entry["call_id"])
                    await call.approve(by="ada")
        assert [entry["kind"] for entry in seen] == ["descendant.asking", "descendant.answered"]
        assert (seen[1]["state"], seen[1]["by"]) == ("approved", "ada")
        assert said(await chat.messages())[-1] == ("assistant", "Paid.")
        assert await chat.open_calls() == []


def test_a_name_has_to_be_given() -> None:
    with pytest.raises(ConfigError, match="at least one agent"):
        agent_tools([])


async def test_what_no_store_can_read_in_a_models_words_to_an_agent_harms_nobody(store_url: str) -> None:
    """A NUL, which JSON can say and PostgreSQL cannot look for: in a task, and in the name of whom to wait for."""
    spawn = Call(name="spawn_agent", arguments={"agent": "child", "task": "look \x00 here"})
    wait = Call(name="wait_agent", arguments={"agent_id": "chat\x00"})
    app = app_of(store_url, ScriptedModel([spawn, wait], "Done."), ScriptedModel("Looked."))
    async with app.worker(poll_s=0.1):
        parent = await app.create("parent", "findable")
        assert await rested(parent) is State.IDLE
        assert (await parent.text(), len(await app.chats())) == ("Done.", 2)
        assert [line.id for line in await app.chats(ChatFilter(search="findable"))] == [parent.id]
        (child,) = await app.chats(ChatFilter(search="look"))
        assert (await app.chat(child.id).messages())[0].text == "look \N{REPLACEMENT CHARACTER} here"


# --- speaking to them, listing and cancelling them ----------------------------------------------------


class Foreman:
    """A model that does one call after the other, each made of what it was told so far, then says the last of it."""

    name = provider = "foreman"
    context_limit = None

    def __init__(self, *calls: Callable[[list[str]], tuple[str, dict[str, Any]]]) -> None:
        self.calls = calls

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        heard = [part.content for part in _results(request)]
        if len(heard) < len(self.calls):
            name, arguments = self.calls[len(heard)](heard)
            yield CallStarted(index=0, name=name)
            yield CallArguments(index=0, text=json.dumps(arguments))
            yield CallEnded(index=0)
            yield ResponseFinished(reason="tool_calls")
        else:
            yield TextDelta(text=heard[-1])
            yield ResponseFinished(reason="stop")


def spawns(heard: list[str]) -> tuple[str, dict[str, Any]]:
    return "spawn_agent", {"agent": "child", "task": "one"}


def waits(heard: list[str]) -> tuple[str, dict[str, Any]]:
    return "wait_agent", json.loads(heard[0])


def messages(heard: list[str]) -> tuple[str, dict[str, Any]]:
    return "message_agent", {**json.loads(heard[0]), "message": "two"}


def waits_again(heard: list[str]) -> tuple[str, dict[str, Any]]:
    told = json.loads(heard[-1])
    return "wait_agent", {"agent_id": told["agent_id"], "turn": told["turn"]}


def lists(heard: list[str]) -> tuple[str, dict[str, Any]]:
    return "list_agents", {}


def cancels(heard: list[str]) -> tuple[str, dict[str, Any]]:
    return "cancel_agent", json.loads(heard[0])


async def heard_by(chat: Chat) -> list[str]:
    parts = [part for message in await chat.messages() for part in message.parts]
    return [part.content for part in parts if isinstance(part, ToolResult)]


async def test_a_parent_speaks_to_a_child_that_rests_and_waits_for_what_it_says_to_that(store_url: str) -> None:
    foreman = Foreman(spawns, waits, messages, waits_again, lists)
    app = app_of(store_url, foreman, ScriptedModel([Say(text="first")], [Say(text="second")], per="chat"))
    async with app, app.worker():
        chat = await app.create("parent", "find out")
        await idle(chat)
        (child,) = await chat.children()
        told = await heard_by(chat)
        assert [told[1], told[3]] == ["first", "second"]
        assert json.loads(told[2]) == {"agent_id": child.chat_id, "turn": 2, "state": "running"}
        (listed,) = json.loads(told[4])
        assert listed.pop("tokens") > 0
        assert listed == {
            "agent_id": child.chat_id, "agent": "child", "state": "idle", "turn": 2, "last_answer": "second",
        }  # fmt: skip
        assert (child.task, child.answer, child.state) == ("two", "second", "idle")


async def test_a_parent_cancels_a_child_whose_unsafe_tool_runs_and_is_told_what_became_of_it(store_url: str) -> None:
    """The tool is not run again, and its call is answered as every stopped one is."""
    began, runs = asyncio.Event(), []

    @tool(replay="unsafe")
    async def pay() -> str:
        runs.append(1)
        began.set()
        await asyncio.sleep(600)
        return "paid"

    held = asyncio.Event()

    class Patient(Foreman):
        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            if len(_results(request)) == 1:
                await began.wait()
            if len(_results(request)) == 3:
                await held.wait()
            async for part in super().stream(request):
                yield part

    agents = [
        Agent("parent", Patient(spawns, cancels, waits, lists), tools=agent_tools(["child"])),
        Agent("child", ScriptedModel([Call(name="pay")], per="chat"), tools=[pay]),
    ]
    app = App(store_url, agents=agents, retry=QUICK)
    async with app, app.worker():
        chat = await app.create("parent", "find out")
        await began.wait()

        async def ended() -> bool:
            return [child.state for child in await chat.children()] == [State.IDLE]

        await eventually(ended, WAIT_S)
        held.set()
        await idle(chat)
        (child,) = await chat.children()
        told = await heard_by(chat)
        assert json.loads(told[1]) == {"agent_id": child.chat_id, "was": "running", "state": "stopping"}
        assert told[2] == "The sub-agent was cancelled before it had an answer."
        assert json.loads(told[3])[0]["cut_short"] == "parent"
        assert (child.cause, len(runs)) == ("parent", 1)
        assert "cancelled by the agent that gave the task" in (await heard_by(app.chat(child.chat_id)))[0]
        assert (await app.chat(child.chat_id).turn()).state == "stopped"


@pytest.mark.parametrize("name", ["message_agent", "cancel_agent"])
async def test_a_forged_id_reaches_no_strangers_chat(store_url: str, name: str) -> None:
    app = app_of(store_url, ScriptedModel(), ScriptedModel([Say(text="mine")], per="chat"))
    async with app:
        stranger = await app.create("child", "a secret", owner="bob")
        words = {"message": "tell me"} if name == "message_agent" else {}
        foreman = Foreman(lambda heard: (name, {"agent_id": stranger.id, **words}))
        app = app_of(store_url, foreman, ScriptedModel([Say(text="mine")], per="chat"))
        async with app, app.worker():
            chat = await app.create("parent", "spy")
            await idle(chat)
            await idle(app.chat(stranger.id))
            assert "is none of your agents" in (await heard_by(chat))[0]
            assert said(await app.chat(stranger.id).messages()) == [("user", "a secret"), ("assistant", "mine")]


async def test_a_child_at_rest_is_not_woken_where_as_many_as_may_be_are_at_work(store_url: str) -> None:
    foreman = Foreman(spawns, waits, lambda heard: ("spawn_agent", {"agent": "busy", "task": "on and on"}), messages)
    agents = [
        Agent("parent", foreman, tools=agent_tools(["child", "busy"])),
        Agent("child", ScriptedModel([Say(text="done")])),
        Agent("busy", ScriptedModel([Hold(name="work")])),
    ]
    app = App(store_url, agents=agents, options=StoreOptions(limits=Limits(children_open_max=1)))
    async with app, app.worker():
        chat = await app.create("parent", "find out")
        await idle(chat)
        full = "1 of your agents are at work, which is the limit: wait for one of them first."
        assert (await heard_by(chat))[3] == full
        await chat.stop()  # it rests: what it left at work ends

        async def ended() -> bool:
            return {child.state for child in await chat.children()} == {State.IDLE}

        await eventually(ended, WAIT_S)
