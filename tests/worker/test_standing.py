"""`chat.why()`: what a chat does or waits for, since when, under which deadline, and what happens next."""

from typing import Any

import pytest

from holdfast import Agent, App, ModelDeadlines, NotFound, Standing, tool
from holdfast.chat import Chat
from holdfast.core.records import LeaseEnd
from holdfast.testing import Call, Fail, Hold, Say, ScriptedModel
from holdfast.tools.outside import ask_user, client_tool
from tests.support.chats import Hand
from tests.support.turns import Gate, rested
from tests.support.waiting import eventually


async def stands(chat: Chat, *doings: str) -> Standing:
    """Once it does one of these."""
    found: list[Standing] = []

    async def so() -> bool:
        found[:] = [await chat.why()]
        return found[0].doing in doings

    await eventually(so)
    return found[0]


async def test_a_chat_at_rest_says_how_its_last_turn_ended(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", ScriptedModel("Hi.", Fail(status=400, message="no such field")))])
    async with app, app.worker():
        chat = await app.create("a")
        assert (await chat.why()).words == "it has had no message yet"
        await chat.send("hello")
        await rested(chat)
        rests = await chat.why()
        assert (rests.doing, rests.words, rests.turn) == ("rests", "its last turn is done", 1)
        assert rests.since == (await chat.snapshot()).chat.updated_at
        await chat.send("again")
        await rested(chat)
        failed = await chat.why()
    assert failed.doing == "failed"
    assert "no such field" in failed.words
    assert "chats retry" in failed.next
    assert failed.troubles[-1].what.startswith("model ")


async def test_a_chat_without_a_worker_says_whom_it_waits_for(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", ScriptedModel("Hi."))])
    async with app:
        chat = await app.create("a", "hello")
        found = await chat.why()
        assert (found.doing, found.worker) == ("no_worker", None)
        assert "no living worker has the agent 'a'" in found.next
        other = App(store_url, agents=[Agent("b", ScriptedModel("Hi."))])
        async with other, other.worker():
            assert (await chat.why()).doing == "no_worker", "one that has other agents does not help"


async def test_a_chat_whose_worker_is_lost_says_how_and_what_follows(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", ScriptedModel("Hi."))])
    async with app:
        chat = await app.create("a", "hello")
        hand = Hand(app.store)
        await hand.claim("a")
        held = await chat.why()
        assert (held.doing, held.worker, held.fence) == ("asks_model", hand.name, 1)
        await chat.stop()
        assert (await chat.why()).doing == "stops"
        await app.store.recovery.end_lease(hand.name, LeaseEnd.DIED)
        lost = await chat.why()
        assert lost.doing == "worker_lost"
        assert "died" in lost.words
        assert "no living worker" in lost.next
        await app.store.expire_workers()
        (told,) = (await chat.why()).troubles
        assert (told.what, told.error) == (f"worker {hand.name}", "died while it held the chat")
        hand.close()


async def test_a_turn_at_work_says_what_it_does_and_until_when(store_url: str) -> None:
    gate = Gate()
    slow = tool(name="gate", replay="pure", deadline_s=40.0)(gate.tool(replay="pure").function)
    deadlines = ModelDeadlines(first_byte_s=77.0, silence_s=33.0)
    agents = [
        Agent("silent", ScriptedModel([Hold(name="here")]), deadlines=deadlines),
        Agent("talks", ScriptedModel([Say(text="Well, "), Hold(name="here")]), deadlines=deadlines),
        Agent("acts", ScriptedModel([Call(name="gate")], "Done."), tools=[slow]),
    ]
    app = App(store_url, agents=agents)
    async with app, app.worker(grace_s=0.0):
        silent, talks, acts = [await app.create(agent, "go") for agent in agents]
        asks = await stands(silent, "asks_model")
        streams = await stands(talks, "streams")
        runs = await stands(acts, "runs_tools")
        await talks.stop()
        await rested(talks)
        stopped = await talks.why()
    lengths = [(found.deadline_at or 0) - (found.since or 0) for found in (asks, streams, runs)]
    assert lengths[0] == 77_000
    assert lengths[1] >= 33_000
    assert lengths[2] == 40_000
    assert runs.words.startswith("it runs gate (call_")
    assert runs.deadline == "deadline_s of gate"
    assert runs.worker is not None
    assert "cut short: user" in stopped.words


async def test_a_pause_before_the_next_attempt_has_its_cause_and_its_end(store_url: str) -> None:
    model = ScriptedModel([Fail(status=529, message="come back later", retry_after="60")], name="m")
    app = App(store_url, agents=[Agent("a", model)])
    async with app, app.worker(grace_s=0.0):
        chat = await app.create("a", "go")
        found = await stands(chat, "waits_to_retry")
        assert "come back later" in found.words
        assert found.deadline_at is not None
        assert found.since is not None
        assert found.deadline_at - found.since == 60_000
        await chat.stop()


@pytest.mark.parametrize(
    ("made", "doing", "words"),
    [
        (ask_user(), "waits_for_person", "Which colour?"),
        (client_tool("ask_user"), "waits_for_client", "a client to run: ask_user"),
    ],
    ids=["question", "client"],
)
async def test_a_chat_that_waits_says_for_whom(store_url: str, made: Any, doing: str, words: str) -> None:
    model = ScriptedModel([Call(name="ask_user", arguments={"question": "Which colour?"})], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[made])])
    async with app, app.worker():
        chat = await app.create("a", "go")
        await chat.wait()
        found = await chat.why()
    assert found.doing == doing
    assert words in found.words


async def test_an_id_that_is_none_is_an_error(store_url: str) -> None:
    async with App(store_url) as app:
        with pytest.raises(NotFound):
            await app.chat("chat_none").why()
