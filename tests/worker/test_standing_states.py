"""`chat.why()` in the states that are passed through quickly, or that no chat should be in. Each by a real chat."""

import asyncio
import datetime
from pathlib import Path
from typing import Any, get_args

from holdfast import Agent, App, Hook
from holdfast.agent import CompactionPolicy
from holdfast.cli.commands.why import told
from holdfast.core import commands as cmd
from holdfast.standing import Doing
from holdfast.testing import Call, Hold, ScriptedModel
from holdfast.tools.outside import sleep_until
from holdfast.tools.sub_agents import agent_tools
from tests.support.behind import sql
from tests.support.chats import Hand
from tests.support.turns import Gate, rested
from tests.tools.test_sub_agents import Boss
from tests.worker.test_standing import stands


async def test_a_chat_that_is_due_while_every_worker_is_busy_says_so(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[gate.tool(replay="pure")])])
    async with app, app.worker(chats_max=1):
        busy = await app.create("a", "go")
        await gate.entered.wait()
        waits = await app.create("a", "go as well")
        found = await waits.why()
        assert (found.doing, found.worker) == ("due", None)
        assert "waits for a worker that has room" in found.words
        assert "poll_s" in found.next
        gate.opened.set()
        await rested(busy)
        await rested(waits)
        assert (await waits.why()).doing == "rests"


async def test_a_chat_that_lost_several_workers_says_until_when_it_rests(store_url: str) -> None:
    async with App(store_url, agents=[Agent("a", ScriptedModel("Hi."))]) as app:
        chat = await app.create("a", "hello")
        found = await chat.why()
        while found.doing != "backs_off":
            hand = Hand(app.store)
            assert await hand.claim("a"), found
            await hand.dies()
            hand.close()
            found = await chat.why()
        record = (await chat.snapshot()).chat
        assert record.unclean >= 2
        assert f"after {record.unclean} workers were lost with it" in found.words
        assert (found.deadline_at, found.deadline) == (record.wake_at, "backoff")
        assert "crash" in found.next


async def test_a_call_that_a_hook_looks_at_is_about_to_start(store_url: str) -> None:
    there, opened = asyncio.Event(), asyncio.Event()

    async def look(call: Any, context: Any) -> None:
        there.set()
        await opened.wait()

    gate = Gate()
    gate.opened.set()
    model = ScriptedModel([Call(name="gate")], "Done.")
    agent = Agent("a", model, tools=[gate.tool(replay="pure")], hooks=[Hook("before_tool", look, name="look")])
    app = App(store_url, agents=[agent])
    async with app, app.worker():
        chat = await app.create("a", "go")
        await there.wait()
        found = await stands(chat, "prepares_calls")
        assert found.words.startswith("it is about to start gate")
        assert found.worker is not None
        opened.set()
        await rested(chat)


async def test_a_chat_whose_summary_is_made_says_so(store_url: str) -> None:
    summaries = ScriptedModel([Hold(name="here")], name="summaries")
    agent = Agent("a", ScriptedModel(after="echo"), compaction=CompactionPolicy(model=summaries))
    app = App(store_url, agents=[agent])
    async with app, app.worker(grace_s=0.0):
        chat = await app.create("a", "hello")
        await rested(chat)
        for _ in range(5):  # the last four turns are never summarised
            await chat.send("and on")
            await rested(chat)
        await chat.compact()
        await summaries.reached("here")
        found = await stands(chat, "compacts")
        assert "a summary of its older part" in found.words
        await chat.stop()
        await rested(chat)


async def test_a_turn_whose_last_word_is_said_and_not_yet_over_says_so(store_url: str) -> None:
    async with App(store_url, agents=[Agent("agent", ScriptedModel("Hi."))]) as app:
        chat = await app.create("agent", "hello")
        hand = Hand(app.store)
        await hand.take(chat.id)
        await hand.respond("that is all")
        found = await chat.why()
        assert (found.doing, found.next, found.worker) == ("ends_turn", "it rests", hand.name)
        await hand.commit(cmd.FinishTurn(by=hand.by))
        assert (await chat.why()).doing == "rests"
        hand.close()


async def test_a_chat_that_waits_for_a_sub_agent_tells_of_that_too(store_url: str) -> None:
    gate = Gate()
    child = ScriptedModel([Call(name="gate")], "42")
    agents = [
        Agent("parent", Boss("one"), tools=agent_tools(["child"])),
        Agent("child", child, tools=[gate.tool(replay="pure")]),
    ]
    app = App(store_url, agents=agents)
    async with app, app.worker():
        chat = await app.create("parent", "go")
        await gate.entered.wait()
        found = await stands(chat, "waits_for_child")
        assert found.child is not None
        assert found.child.agent == "child"
        assert found.child.chat_id in found.words
        assert "when the sub-agent's turn ends" in found.next
        below = (await stands(app.chat(found.child.chat_id), "runs_tools")).words
        assert below.startswith("it runs gate")
        assert any(row.startswith("  chat_") for row in told(found, found.since or 0))
        gate.opened.set()
        await rested(chat)


async def test_a_chat_that_waits_for_the_clock_says_until_when(store_url: str) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    model = ScriptedModel([Call(name="sleep_until", arguments={"time": soon.isoformat()})], "Good morning.")
    app = App(store_url, agents=[Agent("a", model, tools=[sleep_until()])])
    async with app, app.worker():
        chat = await app.create("a", "go")
        await chat.wait()
        found = await chat.why()
    assert (found.doing, found.deadline) == ("waits_for_clock", "expires_at of the call")
    assert found.deadline_at == int(soon.timestamp() * 1000)
    assert found.next == "then the turn goes on"


async def test_a_chat_that_no_worker_would_find_is_called_stranded_and_repaired(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", ScriptedModel("Hi."))])
    async with app:
        chat = await app.create("a", "hello")
        sql(store_url, "UPDATE chats SET wake_at = NULL")
        found = await chat.why()
        assert (found.doing, found.next) == ("stranded", "a worker's sweep repairs it")
        assert "neither has a worker nor is due" in found.words
        async with app.worker():
            await rested(chat)
        assert (await chat.why()).doing == "rests"


def test_every_answer_has_its_test() -> None:
    here = Path(__file__)
    tests = here.read_text(encoding="utf-8") + (here.parent / "test_standing.py").read_text(encoding="utf-8")
    assert [doing for doing in get_args(Doing) if f'"{doing}"' not in tests] == []
