"""A turn as a value: what a program gets of it is the answer, or an error that names what is in the way."""

import asyncio
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

from holdfast import Agent, AgentLimits, App, Chat, agent_tools, ask_user, client_tool, tool
from holdfast.config import ModelFacts, Price
from holdfast.core.records import Cause, State
from holdfast.errors import (
    ConfigError,
    MessageDropped,
    NoTurn,
    RefusedError,
    TurnFailed,
    TurnRunning,
    TurnStopped,
    TurnTimeout,
    TurnWaits,
)
from holdfast.testing import Call, Fail, Hold, Say, ScriptedModel
from holdfast.turn import Turn
from tests.support.turns import QUICK, WAIT_S, Gate, running
from tests.support.waiting import eventually
from tests.tools.test_sub_agents import Boss

PAY = Call(name="pay", arguments={"amount": 7})


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def paying(*script: Any, name: str = "paying") -> Agent:
    model = ScriptedModel(*(script or ([Say(text="I will pay now."), PAY], "Paid.")), per="turn")
    return Agent(name, model, tools=[pay])


# --- answers that are none --------------------------------------------------------------------------------


def test_run_sync_raises_the_error_that_names_the_call_which_waits_for_an_approval(store_url: str) -> None:
    app = App(store_url, agents=[paying()])
    with pytest.raises(TurnWaits) as raised:
        app.run_sync("paying", "Pay them.")
    (call,) = raised.value.turn.open
    assert (call.kind, call.tool, call.arguments, call.why) == ("approval", "pay", '{"amount":7}', "Run pay?")
    assert f'approval of pay({{"amount":7}}), {call.id} of agent paying' in str(raised.value)
    assert raised.value.turn.partial_text == "I will pay now."


async def test_whoever_asks_for_the_text_of_a_turn_that_waits_is_told_what_is_open(store_url: str) -> None:
    agent = paying()
    async with running(store_url, agent) as (app, _):
        with pytest.raises(TurnWaits) as raised:
            await app.run(agent, "Pay them.")
        chat = raised.value.turn.chat
        for asked in (chat.text(), chat.output()):
            with pytest.raises(TurnWaits, match="approval of pay"):
                await asked
        turn = await chat.turn()
        with pytest.raises(TurnWaits, match="approval of pay"):
            assert turn.text
        assert (turn.state, turn.number, turn.partial_text) == ("waiting", 1, "I will pay now.")
        (call,) = turn.open
        await call.approve(by="ann")
        turn = await chat.turn()
        assert (turn.state, turn.text, turn.open) == ("done", "Paid.", ())
        assert await chat.text() == "Paid."


async def test_a_question_and_a_clients_tool_are_answered_by_their_handles(store_url: str) -> None:
    model = ScriptedModel(
        [Call(name="ask_user", arguments={"question": "Which city?"}), Call(name="locate")], "Thanks."
    )
    agent = Agent("a", model, tools=[ask_user(), client_tool("locate", "Where the user is.")])
    async with running(store_url, agent) as (app, _):
        chat = await app.create(agent, "Weather?")
        calls = {call.kind: call for call in (await chat.turn()).open}
        assert set(calls) == {"question", "client"}
        with pytest.raises(RefusedError, match="is external and does not take approve"):
            await calls["question"].approve()
        await calls["question"].answer("Bern")
        await calls["client"].submit({"lat": 46.9})
        assert await chat.text() == "Thanks."
        results = [
            part.content for message in await chat.messages() for part in message.parts if hasattr(part, "content")
        ]
        assert results == ["Bern", '{"lat":46.9}']


async def test_a_call_that_is_denied_tells_the_model_why(store_url: str) -> None:
    agent = paying()
    async with running(store_url, agent) as (app, _):
        chat = await app.create(agent, "Pay them.")
        (call,) = (await chat.turn()).open
        await call.deny("Not on a Monday.", by="ann")
        with pytest.raises(RefusedError, match="is denied"):
            await call.approve()
        assert await chat.text() == "Paid."
        assert "Not on a Monday." in str((await chat.messages())[2].parts[0])


async def test_a_turn_that_waits_for_a_running_sub_agent_is_waited_for_and_what_that_one_asks_is_open(
    store_url: str,
) -> None:
    held = ScriptedModel([Hold(name="work"), PAY], "Paid below.")
    agents = [Agent("parent", Boss("pay them"), tools=agent_tools(["child"])), Agent("child", held, tools=[pay])]
    app = App(store_url, agents=agents, retry=QUICK)
    async with app.worker(poll_s=0.2):
        chat = await app.create("parent", "Have them paid.")
        asking = asyncio.ensure_future(chat.turn())
        await held.reached("work")

        async def parked() -> bool:
            return await chat.state() is State.WAITING

        await eventually(parked, WAIT_S)
        assert not asking.done(), "nobody need do anything yet"
        held.resume("work")
        turn = await asking
        (call,) = turn.open
        assert (turn.state, call.agent, call.tool, call.chat.id != chat.id) == ("waiting", "child", "pay", True)
        await call.approve(by="ann")
        assert await chat.text() == "Paid below."


async def test_a_turn_that_was_stopped_has_no_answer_and_keeps_what_was_said(store_url: str) -> None:
    model = ScriptedModel([Say(text="I was about to"), Hold(name="here")])
    async with running(store_url, Agent("a", model, output=int)) as (app, _):
        chat = await app.create("a", "go")
        await model.reached("here")
        await chat.stop()
        turn = await chat.turn()
        assert (turn.state, turn.cause, turn.partial_text) == ("stopped", Cause.USER, "I was about to")
        for asked in (chat.text(), chat.output()):
            with pytest.raises(TurnStopped, match=r"was cut short \(user\)"):
                await asked


async def test_a_turn_that_ran_out_of_its_budget_has_no_answer(store_url: str) -> None:
    model = ScriptedModel([Say(text="Step."), Call(name="look")], per="turn")

    @tool(replay="pure")
    def look() -> str:
        """Look."""
        return "seen"

    agent = Agent("a", model, tools=[look], limits=AgentLimits(steps=1))
    async with running(store_url, agent) as (app, _):
        with pytest.raises(TurnStopped, match=r"budget: .*steps") as raised:
            await app.run(agent, "go")
    assert (raised.value.cause, raised.value.turn.partial_text) == (Cause.BUDGET, "Step.")


async def test_a_turn_that_failed_tells_why_and_a_retry_goes_on_with_the_same_turn(store_url: str) -> None:
    agent = Agent("a", ScriptedModel([Fail(status=401, message="bad key")]))
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a")
        sent = await chat.send("go")
        failed = await sent.turn()
        assert failed.state == "failed"
        assert failed.error is not None
        with pytest.raises(TurnFailed, match=f"{failed.error.code}: .*bad key") as raised:
            assert failed.text
        assert (raised.value.code, raised.value.chain) == (failed.error.code, failed.error.chain)
        agent.model = ScriptedModel("Here.")
        await chat.retry()
        assert ((await sent.turn()).text, (await sent.turn()).number) == ("Here.", 1)


async def test_a_turn_that_takes_longer_than_its_asker_waits_is_told_as_far_as_it_went(store_url: str) -> None:
    model = ScriptedModel([Say(text="So far"), Hold(name="here")])
    agent = Agent("a", model)
    async with running(store_url, agent) as (app, _):
        chat = await app.create(agent, "go")
        await model.reached("here")

        async def timed_out() -> TurnTimeout:
            with pytest.raises(TurnTimeout) as raised:
                await chat.turn(timeout_s=0.01)
            return raised.value

        async def streamed() -> bool:
            return (await timed_out()).turn.partial_text == "So far"

        await eventually(streamed, WAIT_S)
        error = await timed_out()
        assert isinstance(error, TimeoutError)
        assert (error.turn.state, error.timeout_s) == ("running", 0.01)
        with pytest.raises(TurnRunning):
            assert error.turn.text
        model.resume("here")
        assert await chat.text() == "So far"


async def test_a_chat_without_any_message_has_no_turn(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("Hi."))) as (app, _):
        chat = await app.create("a")
        with pytest.raises(NoTurn, match="send it a message first"):
            await chat.turn()
        with pytest.raises(NoTurn):
            await chat.text()


# --- the turn that took a message -------------------------------------------------------------------------


async def test_each_message_has_the_turn_that_took_it_whatever_is_queued(store_url: str) -> None:
    gate = Gate()
    agent = Agent("a", ScriptedModel([Call(name="gate")], "First.", after="echo"), tools=[gate.tool()])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a")
        sent = [await chat.send("one")]
        await gate.entered.wait()
        sent += [await chat.send("two"), await chat.send("three")]
        assert [one.placed for one in sent] == ["began", "queued", "queued"]
        early = asyncio.ensure_future(sent[1].turn())
        gate.opened.set()
        await chat.turn()
        turns = [await one.turn() for one in sent]
        assert [(turn.number, turn.text) for turn in turns] == [
            (1, "First."),
            (2, "You said: two"),
            (3, "You said: three"),
        ]
        assert await early == turns[1]
        again = await chat.send("three", key="k")
        assert (await again.turn()).number == 4
        await (await chat.send("five")).turn()
        assert (await (await chat.send("three", key="k")).turn()).number == 4, "the same message, asked for again"


async def test_a_message_that_steers_is_taken_by_the_turn_that_it_joined(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Steered.", "Later.")
    agent = Agent("a", model, tools=[gate.tool()])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "one")
        await gate.entered.wait()
        steered, queued = await chat.send("rather this", "steer"), await chat.send("two")
        gate.opened.set()
        await chat.turn()
        turns = [await steered.turn(), await queued.turn()]
        assert [(turn.number, turn.text) for turn in turns] == [(1, "Steered."), (2, "Later.")]
        assert turns[0].usage.responses == 2, "of the whole turn, from its start on"


async def test_a_message_that_interrupts_has_its_own_turn_and_the_one_before_was_superseded(store_url: str) -> None:
    model = ScriptedModel([Say(text="Well,"), Hold(name="here")], "Now.")
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a")
        first = await chat.send("one")
        await model.reached("here")
        second = await chat.send("stop that", "interrupt")
        assert (await second.turn()).text == "Now."
        turn = await first.turn()
        assert (turn.state, turn.cause, turn.partial_text) == ("stopped", Cause.SUPERSEDED, "Well,")


async def _withdraw(chat: Chat, message_id: str) -> None:
    await chat.withdraw(message_id)


async def _clear(chat: Chat, _: str) -> None:
    await chat.stop(clear_queue=True)


async def _edit(chat: Chat, _: str) -> None:
    await chat.edit((await chat.messages())[0].id, "rather this")


@pytest.mark.parametrize(("drop", "why"), [(_withdraw, "withdrawn"), (_clear, "cleared"), (_edit, "edited")])
async def test_a_message_that_no_turn_will_take_says_so(store_url: str, drop: Any, why: str) -> None:
    model = ScriptedModel([Hold(name="here"), Say(text="Done.")], "Done.", "Done.")
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "one")
        await model.reached("here")
        sent = await chat.send("two")
        waiting = asyncio.ensure_future(sent.turn())
        await drop(chat, sent.message_id)
        model.resume("here")
        for asked in (waiting, sent.turn()):
            with pytest.raises(MessageDropped) as raised:
                await asked
            assert raised.value.why == why


async def test_a_message_behind_a_turn_that_waits_is_told_of_what_is_open(store_url: str) -> None:
    agent = paying()
    async with running(store_url, agent) as (app, _):
        chat = await app.create(agent, "Pay them.")
        await chat.turn()
        sent = await chat.send("And?", "queue")
        turn = await sent.turn()
        assert (turn.state, turn.number, [call.tool for call in turn.open]) == ("waiting", None, ["pay"])
        with pytest.raises(TurnWaits, match="waits behind a turn"):
            assert turn.text
        await turn.open[0].deny()
        turn = await sent.turn()
        assert (turn.state, turn.number) == ("waiting", 2), "the script asks again in each turn"


async def test_a_message_behind_a_turn_that_failed_is_told_of_the_failure(store_url: str) -> None:
    gate = Gate()
    agent = Agent("a", ScriptedModel([Call(name="gate")], [Fail(status=401, message="bad key")]), tools=[gate.tool()])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "one")
        await gate.entered.wait()
        sent = await chat.send("two")
        gate.opened.set()
        turn = await sent.turn()
        assert (turn.state, turn.number) == ("failed", None)
        with pytest.raises(TurnFailed, match="bad key"):
            assert turn.text
        agent.model = ScriptedModel([Call(name="gate")], "Here.", "Two.")
        await chat.retry()
        assert (await sent.turn()).text == "Two."


async def test_a_message_that_answers_a_question_is_taken_by_the_turn_that_asked(store_url: str) -> None:
    model = ScriptedModel([Call(name="ask_user", arguments={"question": "Which city?"})], "Rain in Bern.", "Later.")
    async with running(store_url, Agent("a", model, tools=[ask_user()])) as (app, _):
        chat = await app.create("a", "Weather?")
        await chat.turn()
        sent = await chat.send("Bern")
        assert (sent.placed, (await sent.turn()).text) == ("joined", "Rain in Bern.")
        await (await chat.send("more")).turn()
        assert ((await sent.turn()).number, (await sent.turn()).text) == (1, "Rain in Bern.")


async def test_an_edited_message_has_the_turn_that_it_began(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("One.", "Two.", per="turn"))) as (app, _):
        chat = await app.create("a")
        first = await chat.send("one")
        before = await first.turn()
        edited = await chat.edit(str(first.message_id), "two")
        assert ((await edited.turn()).number, (await first.turn())) == (2, before), "what was said then was said"


# --- run --------------------------------------------------------------------------------------------------


async def test_a_question_with_a_key_is_asked_once_and_its_answer_stays_its_own(store_url: str) -> None:
    agent = Agent("a", ScriptedModel("One.", "Two."))
    async with running(store_url, agent) as (app, _):
        first = await app.run(agent, "go", key="k")
        await (await first.chat.send("more")).turn()
        again = await app.run(agent, "go", key="k")
        assert (again.chat.id, again.number, again.text) == (first.chat.id, 1, "One.")


async def test_an_agent_that_only_has_the_name_of_one_of_the_app_is_refused(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", "scripted")])
    async with app:
        with pytest.raises(ConfigError, match="another agent that is named 'a'"):
            await app.create(Agent("a", "scripted"), "go")


class Reply(BaseModel):
    total: int


async def test_an_agents_output_type_is_that_of_its_turns(store_url: str) -> None:
    agent = Agent("a", ScriptedModel('{"total": 5}'), output=Reply)
    plain = Agent("b", ScriptedModel("Hi."))
    app = App(store_url, agents=[agent, plain], retry=QUICK)
    async with app.worker():
        turn = await app.run(agent, "go")
        assert_type(turn, Turn[Reply])
        assert_type(turn.output, Reply)
        assert turn.output == Reply(total=5)
        chat = await app.create(agent, "go")
        assert_type(chat, Chat[Reply])
        assert (await chat.output()).total == 5
        with pytest.raises(ConfigError, match="declares no output type"):
            assert (await app.run(plain, "go")).output


# --- usage and cost -------------------------------------------------------------------------------------------


async def test_a_turn_knows_what_it_took_also_long_after(store_url: str) -> None:
    lost: list[Fail | Say] = [Fail(status=500, attempts=1), Say(text="One.")]
    agent = Agent("a", ScriptedModel(lost, "Two."))
    facts = {"scripted": ModelFacts(price=Price(input=1e6, output=2e6))}
    async with running(store_url, agent, models=facts) as (app, _):
        chat = await app.create("a")
        sent = await chat.send("one")
        now = await sent.turn()
        chat_row = (await chat.snapshot()).chat
        assert now.usage.responses == 1
        assert (now.usage.total_tokens, now.cost) == (chat_row.turn_tokens, chat_row.turn_cost)
        assert now.cost == now.usage.input_tokens + 2 * now.usage.output_tokens > 0
        await (await chat.send("two")).turn()
        assert await sent.turn() == now, "nothing that came after changes it"
