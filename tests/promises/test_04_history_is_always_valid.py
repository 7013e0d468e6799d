"""Promise 4. History is always one a provider accepts: every tool call has exactly one result, adjacent, in order,
before any request is built; a real one, or a synthetic one that is marked so.

Each test leaves a chat's history in a state that other runtimes could not continue from, goes on, and has every
request judged that the model ever got.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Agent, AgentLimits, App, Ask, Chat, Hook, Veto, tool
from holdfast.testing import Call, Cut, Fail, Hold, Say, Script, ScriptedModel, Stall, Think, Together
from tests.promises.program import Log, booking_agent
from tests.promises.surface import QUICK, WAIT_S, app_of, judge, streamed, told_of, tool_texts, weather
from tests.support.freezing import freeze
from tests.support.programs import Program
from tests.support.turns import Gate
from tests.support.waiting import until

BERN = Call(name="weather", arguments={"city": "Bern"})


class FirstThenEcho(ScriptedModel):
    """Plays its response once, whatever comes of it, and repeats the user's words from then on."""

    def __init__(self, response: Any) -> None:
        super().__init__(response, after="echo")

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        if self.requests and request.attempt == 1:
            self.script = Script(after="echo")
        async for part in super().stream(request):
            yield part


class Scene(NamedTuple):
    """What a way of cutting a turn short has at hand."""

    app: App
    chat: Chat
    model: ScriptedModel
    gate: Gate


async def stop_in_the_gate(scene: Scene) -> None:
    await scene.gate.entered.wait()
    await scene.chat.stop()


async def stop_with_one_of_two_results(scene: Scene) -> None:
    await scene.gate.entered.wait()
    while "rain in Bern" not in tool_texts(await scene.chat.messages()):
        await told_of(scene.chat, "message")
    await scene.chat.stop()


async def stop_at_the_hold(scene: Scene) -> None:
    await scene.model.reached("here")
    await scene.chat.stop()


async def interrupt_in_the_gate(scene: Scene) -> None:
    await scene.gate.entered.wait()
    await scene.chat.send("Instead.", mode="interrupt")


async def steer_in_the_gate(scene: Scene) -> None:
    await scene.gate.entered.wait()
    await scene.chat.send("By the way.", mode="steer")
    scene.gate.opened.set()


async def edit_in_the_gate(scene: Scene) -> None:
    await scene.gate.entered.wait()
    await scene.chat.edit((await scene.chat.messages())[0].id, "Otherwise.")


async def waiting_call(scene: Scene) -> str:
    assert await scene.chat.wait(WAIT_S) == "waiting"
    return (await scene.chat.snapshot()).calls[0].id


async def deny(scene: Scene) -> None:
    await scene.chat.deny(await waiting_call(scene), "Not on my watch.")


async def interrupt_a_wait(scene: Scene) -> None:
    await waiting_call(scene)
    await scene.chat.send("Never mind.", mode="interrupt")


async def edit_a_wait(scene: Scene) -> None:
    await waiting_call(scene)
    await scene.chat.edit((await scene.chat.messages())[0].id, "Otherwise.")


async def stop_a_wait(scene: Scene) -> None:
    await waiting_call(scene)
    await scene.chat.stop()


async def leave_it_alone(scene: Scene) -> None:
    pass


async def fail_and_retry(scene: Scene) -> None:
    assert await scene.chat.wait(WAIT_S) == "failed"
    await scene.chat.retry()


PARALLEL: list[Any] = [Say(text="Two. "), Together(calls=(BERN, Call(name="gate")))]
HALF_ARGUMENTS = [Say(text="Reading. "), Call(name="weather", arguments='{"city":"Be'), Hold(name="here"), Stall()]

# How a turn is cut short, after which first response, and what the model is told of the calls (None: they are gone).
CASES: dict[str, tuple[list[Any], Callable[[Scene], Awaitable[None]], list[str] | None]] = {
    "stop in a tool": ([Call(name="gate")], stop_in_the_gate, ["Cancelled while it ran: stopped by the user"]),
    "stop with one of two results": (
        PARALLEL,
        stop_with_one_of_two_results,
        ["rain in Bern", "Cancelled while it ran: stopped by the user"],
    ),
    "stop in mid-text": ([Say(text="Half a "), Hold(name="here"), Stall()], stop_at_the_hold, []),
    "stop in mid-arguments": (HALF_ARGUMENTS, stop_at_the_hold, ["Never ran: stopped by the user"]),
    "stop in reasoning": ([Think(text="Hmm"), Hold(name="here"), Stall()], stop_at_the_hold, []),
    "stop before the first word": ([Hold(name="here"), Stall()], stop_at_the_hold, []),
    "interrupt in a tool": ([Call(name="gate")], interrupt_in_the_gate, ["Cancelled while it ran: superseded"]),
    "steer in a tool": (PARALLEL, steer_in_the_gate, ["rain in Bern", "through"]),
    "edit in a tool": ([Call(name="gate")], edit_in_the_gate, None),
    "deny": ([Call(name="asked")], deny, ['Denied: a person refused this call. They said: "Not on my watch."']),
    "nobody answers": ([Call(name="expiring")], leave_it_alone, ["Denied: nobody answered the approval in time."]),
    "a guard's veto": ([Call(name="vetoed"), BERN], leave_it_alone, ["Not that.", "rain in Bern"]),
    "stop while waiting": ([Call(name="asked"), BERN], stop_a_wait, ["Never ran: stopped by", "rain in Bern"]),
    "interrupt while waiting": ([Call(name="asked")], interrupt_a_wait, ["Never ran: the user sent a new message"]),
    "edit while waiting": ([Call(name="asked")], edit_a_wait, None),
    "tools that are not there": (
        [Call(name="hidden"), Call(name="no_such_tool")],
        leave_it_alone,
        ["hidden", "no_s"],
    ),
    "arguments that are no JSON": ([Call(name="weather", arguments='{"city":')], leave_it_alone, ["The arguments"]),
    "arguments that are no object": ([Call(name="weather", arguments="[1]")], leave_it_alone, ["The arguments"]),
    "an answer without a word": ([], leave_it_alone, []),
    "only reasoning": ([Think(text="Hmm.")], leave_it_alone, []),
    "a lost stream after a call": ([BERN, Cut(attempts=1)], leave_it_alone, ["rain in Bern"]),
    "failure and retry": ([Say(text="Half "), Fail(status=400)], fail_and_retry, []),
}


def agent_with(model: ScriptedModel, gate: Gate) -> Agent:
    @tool(needs_approval=True)
    async def asked() -> str:
        """Needs a person."""
        return "allowed"

    async def plain() -> str:
        """Nothing special."""
        return "ran"

    def guard(call: Any, _context: Any) -> Any:
        if call.name == "expiring":
            return Ask(question="Really?", expires_s=0.001)
        return Veto(reason="Not that.") if call.name == "vetoed" else None

    names = ("expiring", "vetoed", "hidden")
    tools = [weather, gate.tool(), asked, *(tool(name=name)(plain) for name in names)]
    active = ["weather", "gate", "asked", "expiring", "vetoed"]
    hooks = [Hook("before_tool", guard)]
    return Agent("a", model, tools=tools, active_tools=active, hooks=hooks, retry=QUICK)


async def at_rest(chat: Chat) -> None:
    while await chat.state() != "idle":
        assert await chat.wait(WAIT_S) != "failed"


def told_to_the_model(model: ScriptedModel) -> list[str]:
    return tool_texts(model.requests[-1].messages)


@pytest.mark.parametrize("case", CASES)
async def test_a_turn_that_was_cut_short_leaves_a_history_that_can_be_continued(store_url: str, case: str) -> None:
    response, cut, results = CASES[case]
    model, gate = FirstThenEcho(response), Gate()
    app = app_of(store_url, agent_with(model, gate))
    async with app, app.worker(poll_s=0.05):
        chat = await app.create("a", "Begin.")
        await cut(Scene(app, chat, model, gate))
        await at_rest(chat)
        await chat.send("Go on.")
        await at_rest(chat)
        assert await chat.text() == "You said: Go on."
    told = told_to_the_model(model)
    assert [text.startswith(start) for text, start in zip(told, results or [], strict=True)] == [True] * len(told)
    judge(model)


async def test_a_result_that_the_runtime_wrote_is_marked_and_one_of_a_tool_is_not(store_url: str) -> None:
    model, gate = FirstThenEcho(PARALLEL), Gate()
    app = app_of(store_url, agent_with(model, gate))
    async with app, app.worker():
        chat = await app.create("a", "Begin.")
        await stop_with_one_of_two_results(Scene(app, chat, model, gate))
        await at_rest(chat)
        results: list[Any] = [message.parts[0] for message in await chat.messages() if message.role == "tool"]
        assert [(result.synthetic, result.error) for result in results] == [(None, False), ("cancelled", True)]


async def test_calls_that_never_began_are_answered_too(store_url: str) -> None:
    model, gate = FirstThenEcho([Call(name="gate"), BERN, BERN]), Gate()
    app = app_of(store_url, Agent("a", model, tools=[gate.tool(), weather], limits=AgentLimits(parallel_calls=1)))
    async with app, app.worker():
        chat = await app.create("a", "Begin.")
        await stop_in_the_gate(Scene(app, chat, model, gate))
        await at_rest(chat)
        await chat.send("Go on.")
        await at_rest(chat)
    assert [text.partition(":")[0] for text in told_to_the_model(model)] == [
        *("Cancelled while it ran", "Never ran", "Never ran")
    ]
    judge(model)


@pytest.mark.parametrize("replay", ["pure", "unsafe"])
async def test_a_worker_that_goes_away_in_a_tool_leaves_a_history_that_can_be_continued(
    store_url: str, replay: str
) -> None:
    model, gate = FirstThenEcho(PARALLEL), Gate()
    app = app_of(store_url, Agent("a", model, tools=[weather, gate.tool(replay=replay)]))
    async with app:
        chat = await app.create("a", "Begin.")
        async with app.worker(grace_s=0.0):
            await gate.entered.wait()
            while "rain in Bern" not in tool_texts(await chat.messages()):
                await told_of(chat, "message")
        gate.opened.set()
        async with app.worker():
            await at_rest(chat)
        told = told_to_the_model(model)
    assert told[0] == "rain in Bern"
    assert told[1].startswith("through" if replay == "pure" else "Outcome unknown")
    judge(model)


async def test_a_crash_in_mid_batch_leaves_a_history_that_can_be_continued(store_url: str, tmp_path: Path) -> None:
    agent = booking_agent(Log(os.devnull))
    app = app_of(store_url, agent)
    async with app:
        chat = await app.create("booking", "Begin.")
        log = tmp_path / "log"
        with Program("tests.promises.program", store_url, str(log), "hold") as program:
            await until(lambda: log.exists() and "slow" in log.read_text(), WAIT_S)
            os.kill(program.pid, signal.SIGKILL)
        async with app.worker(poll_s=0.1):
            await at_rest(chat)
        assert tool_texts(await chat.messages()) == ["seen", "quick", "slow"]
    assert isinstance(agent.model, ScriptedModel)
    judge(agent.model)


async def test_a_stop_before_a_crash_leaves_what_was_streamed_as_a_valid_message(
    store_url: str, tmp_path: Path
) -> None:
    model = ScriptedModel("never asked", after="echo")
    app = app_of(store_url, Agent("talking", model))
    async with app:
        chat = await app.create("talking", "Begin.")
        with Program("tests.promises.program", store_url, str(tmp_path / "log"), "never") as program:
            await streamed(chat)
            freeze(program.pid, store_url)
            await chat.stop()
        async with app.worker(poll_s=0.1):
            await at_rest(chat)
            await chat.send("Go on.")
            await at_rest(chat)
    assert [message.text for message in model.requests[-1].messages] == ["Begin.", "Half an ", "Go on."]
    judge(model)


async def test_a_fork_of_a_chat_with_open_calls_is_complete(store_url: str) -> None:
    model, gate = FirstThenEcho(PARALLEL), Gate()
    app = app_of(store_url, agent_with(model, gate))
    async with app, app.worker():
        chat = await app.create("a", "Begin.")
        await gate.entered.wait()
        fork = await chat.fork()
        await fork.send("Go on.")
        await at_rest(fork)
        assert await fork.text() == "You said: Go on."
        await chat.stop()
        await at_rest(chat)
    judge(model)


async def test_a_budget_that_ends_a_turn_after_calls_leaves_them_answered(store_url: str) -> None:
    model = FirstThenEcho([BERN])
    app = app_of(store_url, Agent("a", model, tools=[weather], limits=AgentLimits(steps=1)))
    async with app, app.worker():
        chat = await app.create("a", "Begin.")
        await at_rest(chat)
        await chat.send("Go on.")
        await at_rest(chat)
    assert told_to_the_model(model) == ["rain in Bern"]
    judge(model)


async def test_a_call_that_was_cut_off_keeps_its_text_on_record_and_is_sent_as_an_empty_object(
    store_url: str,
) -> None:
    model, gate = FirstThenEcho(HALF_ARGUMENTS), Gate()
    app = app_of(store_url, agent_with(model, gate))
    async with app, app.worker():
        chat = await app.create("a", "Begin.")
        await stop_at_the_hold(Scene(app, chat, model, gate))
        await at_rest(chat)
        assert (await chat.messages())[1].calls[0].arguments == '{"city":"Be'
        await chat.send("Go on.")
        await at_rest(chat)
    assert model.requests[-1].messages[1].calls[0].arguments == "{}"
    assert model.requests[-1].messages[1].text == "Reading. "
    judge(model)


async def test_many_acts_at_once_leave_a_history_that_can_be_continued(store_url: str) -> None:
    model, gate = ScriptedModel(PARALLEL, PARALLEL, after="echo"), Gate()
    app = app_of(store_url, agent_with(model, gate))
    async with app, app.worker():
        chat = await app.create("a", "Begin.")
        await gate.entered.wait()
        gate.opened.set()
        await asyncio.gather(
            chat.send("One.", mode="steer"), chat.send("Two."), chat.stop(), chat.send("Three.", mode="interrupt")
        )
        await at_rest(chat)
        await chat.send("Go on.")
        await at_rest(chat)
        assert await chat.text() == "You said: Go on."
        spoken = [message.text for message in await chat.messages() if message.role == "user"]
        assert sorted(spoken) == ["Begin.", "Go on.", "One.", "Three.", "Two."]
    judge(model)
