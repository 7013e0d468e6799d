"""Tools that somebody outside answers: the chat waits durably, without a worker, and goes on once."""

import datetime
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.records import CallState, External, State, Synthetic, ToolResult
from holdfast.errors import ConfigError, RefusedError
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.outside import ask_user, client_tool, sleep_until
from tests.support.turns import rested, running, said, weather
from tests.support.waiting import until
from tests.worker.lives import SteppedClock

READ = client_tool(
    "read_local", "Read a file of the user's.", {"type": "object", "properties": {"path": {"type": "string"}}}
)


async def idle(chat: Chat) -> None:
    while await chat.state() is not State.IDLE:
        await rested(chat)


async def waiting_call(chat: Chat) -> Any:
    assert await rested(chat) is State.WAITING
    snapshot = await chat.snapshot()
    assert (snapshot.chat.worker, snapshot.chat.unclean) == (None, 0)
    (call,) = snapshot.open_calls
    return call


async def test_a_question_waits_without_a_worker_and_a_message_answers_it(store_url: str) -> None:
    model = ScriptedModel([Call(name="ask_user", arguments={"question": "Which colour?"})], "Red it is.")
    async with running(store_url, Agent("a", model, tools=[ask_user()])) as (app, _):
        chat = await app.create("a", "paint it")
        call = await waiting_call(chat)
        assert (call.external, call.question, call.expires_at) == (External.QUESTION, "Which colour?", None)
        await chat.send("Red, please.")
        await idle(chat)
        assert said(await chat.messages())[2:] == [("tool", "Red, please."), ("assistant", "Red it is.")]


async def test_a_question_survives_the_end_of_every_process_and_is_answered_once(store_url: str) -> None:
    model = ScriptedModel([Call(name="ask_user", arguments={"question": "Which?"})], "Thanks.")
    agent = Agent("a", model, tools=[ask_user()])
    async with running(store_url, agent) as (app, _):
        chat_id = (await app.create("a", "go")).id
        await rested(app.chat(chat_id))
    app = App(store_url, agents=[agent])
    async with app:
        chat = app.chat(chat_id)
        call = await waiting_call(chat)
        await chat.submit(call.id, "That one.")
        with pytest.raises(RefusedError):
            await chat.submit(call.id, "No, this one.")
        async with app.worker():
            await idle(chat)
        assert said(await chat.messages())[2] == ("tool", "That one.")


async def test_sleeping_is_a_timer_of_the_chat_and_not_a_sleeping_worker(store_url: str) -> None:
    clock = SteppedClock()
    morning = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=8)
    model = ScriptedModel([Call(name="sleep_until", arguments={"time": morning.isoformat()})], "Good morning.")
    app = App(store_url, agents=[Agent("a", model, tools=[sleep_until()])], options=StoreOptions(clock=clock))
    async with app, app.worker(poll_s=0.1) as worker:
        chat = await app.create("a", "wake me")
        call = await waiting_call(chat)
        assert call.external is External.TIMER
        assert (await chat.snapshot()).chat.wake_at == call.expires_at == int(morning.timestamp() * 1000)
        await until(lambda: worker.running_chats == [])
        clock.ahead_ms += 8 * 3_600_000
        await idle(chat)
        assert said(await chat.messages())[-1] == ("assistant", "Good morning.")


@pytest.mark.parametrize(
    ("arguments", "said_to_the_model"),
    [
        ({"time": "tomorrow-ish"}, "The arguments do not fit: time"),
        ({}, "The arguments do not fit: time: Field required"),
        ({"time": "2999-01-01T00:00:00Z"}, "is more than 366 days ahead"),
    ],
)
async def test_a_time_that_makes_no_sense_is_told_to_the_model(
    store_url: str, arguments: dict[str, str], said_to_the_model: str
) -> None:
    model = ScriptedModel([Call(name="sleep_until", arguments=arguments)], "I see.")
    async with running(store_url, Agent("a", model, tools=[sleep_until()])) as (app, _):
        chat = await app.create("a", "wake me")
        await idle(chat)
        assert said_to_the_model in said(await chat.messages())[2][1]


async def test_a_client_runs_its_tool_beside_ours_and_each_result_counts_once(store_url: str) -> None:
    model = ScriptedModel(
        [Call(name="read_local", arguments={"path": "a"}), Call(name="weather", arguments={"city": "Bern"})], "Done."
    )
    async with running(store_url, Agent("a", model, tools=[READ, weather])) as (app, _):
        chat = await app.create("a", "go")
        call = await waiting_call(chat)
        assert (call.name, call.external) == ("read_local", External.CLIENT)
        assert call.expires_at is not None
        with pytest.raises(RefusedError, match="not one of the chat's current calls"):
            await chat.submit("call_unknown", "text")
        await chat.submit(call.id, "the file's text")
        with pytest.raises(RefusedError):
            await chat.submit(call.id, "again")
        await idle(chat)
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
        assert texts == ["the file's text", "rain in Bern"], "in call order, though ours was first"


async def test_a_client_that_does_not_answer_in_time_is_told_to_the_model_and_too_late_after(store_url: str) -> None:
    slow = client_tool("slow", expires_s=0.3)
    model = ScriptedModel([Call(name="slow")], "Never mind.")
    async with running(store_url, Agent("a", model, tools=[slow])) as (app, _):
        chat = await app.create("a", "go")
        await idle(chat)
        _, asked, answered, _ = await chat.messages()
        result = answered.parts[0]
        assert isinstance(result, ToolResult)
        assert (result.synthetic, result.error) == (Synthetic.EXPIRED, True)
        with pytest.raises(RefusedError):
            await chat.submit(asked.calls[0].call_id, "here!")


async def test_a_client_tool_can_need_an_approval_first(store_url: str) -> None:
    risky = client_tool("risky", needs_approval=True)
    model = ScriptedModel([Call(name="risky")], "Done.")
    async with running(store_url, Agent("a", model, tools=[risky])) as (app, _):
        chat = await app.create("a", "go")
        call = await waiting_call(chat)
        assert call.state is CallState.ASKING
        await chat.approve(call.id, by="ada")
        while (call := (await chat.snapshot()).calls[0]).state is not CallState.EXTERNAL or (
            await chat.state() is not State.WAITING
        ):
            await rested(chat)
        await chat.submit(call.id, "done it")
        await idle(chat)
        assert said(await chat.messages())[2] == ("tool", "done it")


async def test_a_stop_answers_what_nobody_answered(store_url: str) -> None:
    model = ScriptedModel([Call(name="ask_user", arguments={"question": "Well?"})])
    async with running(store_url, Agent("a", model, tools=[ask_user()])) as (app, _):
        chat = await app.create("a", "go")
        await waiting_call(chat)
        await chat.stop()
        assert await chat.state() is State.IDLE
        assert said(await chat.messages())[2] == ("tool", "Not answered: stopped by the user.")


def test_a_client_tool_needs_a_name_and_a_schema_that_is_json() -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        client_tool("")
    with pytest.raises(ConfigError, match="its schema is no JSON"):
        client_tool("x", schema={"type": object()})


async def test_a_question_that_no_store_can_hold_is_asked_all_the_same(store_url: str) -> None:
    model = ScriptedModel([Call(name="ask_user", arguments={"question": "Where\x00?"})], "Thanks.")
    app = App(store_url, agents=[Agent("a", model, tools=[ask_user()])])
    async with app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(30.0) is State.WAITING
        (asked,) = await chat.open_calls()
        assert asked.why == "Where\N{REPLACEMENT CHARACTER}?"
        await chat.send("In Bern.")
        assert await chat.text() == "Thanks."
