"""Promise 5. A user's stop is not a shutdown. Stop keeps the partial text, answers open calls, and the chat rests, or
takes its next message. Shutdown hands the chat to another worker, which goes on. The cause is durable and visible to
model, API and UI. Neither can be mistaken for the other, whichever comes first, and not after a crash either.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Agent, App, Chat
from holdfast.testing import Call, Fail, Hold, Say, ScriptedModel, Stall
from holdfast.worker import tool_body
from tests.promises.surface import LATER, WAIT_S, Stubborn, app_of, journal, judge, streamed, told_of, tool_texts
from tests.support.freezing import freeze
from tests.support.programs import Program
from tests.support.turns import Gate


class Scene(NamedTuple):
    app: App
    chat: Chat
    model: ScriptedModel
    gate: Gate


async def in_mid_stream(scene: Scene) -> None:
    await scene.model.reached("here")
    assert await streamed(scene.chat) == "Half an "


async def in_a_tool(scene: Scene) -> None:
    await scene.gate.entered.wait()


async def in_a_retry_wait(scene: Scene) -> None:
    entry = await told_of(scene.chat, "attempt.failed")
    assert entry["retry_in_ms"] == 1_000 * int(LATER)


async def before_an_approval(scene: Scene) -> None:
    assert await scene.chat.wait(WAIT_S) == "waiting"


Moment = tuple[list[Any], Callable[[Scene], Awaitable[None]]]
MOMENTS: dict[str, Moment] = {
    "in mid-stream": ([Say(text="Half an "), Hold(name="here"), Say(text="answer.")], in_mid_stream),
    "in a tool": ([Call(name="gate")], in_a_tool),
    "in a retry's wait": ([Fail(status=503, retry_after=LATER, attempts=1), Say(text="Here I am.")], in_a_retry_wait),
    "before an approval": ([Call(name="asked")], before_an_approval),
}


def scene_of(store_url: str, response: list[Any]) -> tuple[App, ScriptedModel, Gate]:
    gate = Gate()
    model = ScriptedModel(response, after="echo")
    asked = gate.tool(name="asked", needs_approval=True)
    agent = Agent("a", model, tools=[gate.tool(replay="pure"), asked])
    return app_of(store_url, agent), model, gate


def causes(told: list[dict[str, Any]]) -> set[str]:
    return {entry["cause"] for entry in told if entry.get("cause")}


# What history holds behind the user's message once the chat rests again.
STOPPED = {
    "in mid-stream": [("assistant", "Half an ")],
    "in a tool": [
        ("assistant", ""),
        ("tool", "Cancelled while it ran: stopped by the user. It may have taken effect"),
    ],
    "in a retry's wait": [],
    "before an approval": [("assistant", ""), ("tool", "Never ran: stopped by the user.")],
}
HANDED_OVER = {
    "in mid-stream": [("assistant", "Half an answer.")],
    "in a tool": [("assistant", ""), ("tool", "through"), ("assistant", "You said: Begin.")],
    "in a retry's wait": [("assistant", "Here I am.")],
    "before an approval": [("assistant", ""), ("tool", "through"), ("assistant", "You said: Begin.")],
}


def matches(messages: list[Any], expected: list[tuple[str, str]]) -> bool:
    texts = [message.parts[0].content if message.role == "tool" else message.text for message in messages]
    told = [(str(message.role), text) for message, text in zip(messages, texts, strict=True)]
    return [role for role, _ in told] == [role for role, _ in expected] and all(
        text.startswith(start) for (_, text), (_, start) in zip(told, expected, strict=True)
    )


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_stop_keeps_what_there_is_and_the_chat_rests_for_good(store_url: str, moment: str) -> None:
    response, reach = MOMENTS[moment]
    app, model, gate = scene_of(store_url, response)
    async with app:
        async with app.worker():
            chat = await app.create("a", "Begin.")
            await reach(Scene(app, chat, model, gate))
            await chat.stop()
            assert await chat.wait(WAIT_S) == "idle"
        before = await chat.snapshot()
        async with app.worker():
            await app.store.sweep()  # a worker that finds something to do would do it now
        snapshot, messages, told = await chat.snapshot(), await chat.messages(), await journal(chat)
        assert matches(messages[1:], STOPPED[moment])
        assert (snapshot.chat.cause, snapshot.chat.version) == ("user", before.chat.version)
        assert [entry["cause"] for entry in told if entry["kind"] == "stop.requested"] == ["user"]
        assert [entry["cause"] for entry in told if entry["kind"] == "turn.ended"] == ["user"]
        assert causes(told) == {"user"}
        assert [message.stopped for message in messages if message.stopped] == ["user"] * (moment == "in mid-stream")
    assert len(model.requests) == 1
    assert model.open_streams == 0


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_shutdown_commits_nothing_of_what_it_cut_and_another_worker_goes_on(
    store_url: str, moment: str
) -> None:
    response, reach = MOMENTS[moment]
    app, model, gate = scene_of(store_url, response)
    async with app:
        async with app.worker(grace_s=0.0):
            chat = await app.create("a", "Begin.")
            await reach(Scene(app, chat, model, gate))
        left = await chat.snapshot()
        waits = moment == "before an approval"
        assert left.chat.state == ("waiting" if waits else "running")
        assert (left.chat.worker, left.chat.cause, left.chat.error) == (None, None, None)
        assert tool_texts(await chat.messages()) == []
        gate.opened.set()
        model.resume("here")
        model.script = ScriptedModel([step for step in response if not isinstance(step, Fail)], after="echo").script
        async with app.worker():
            if waits:
                await chat.approve(left.calls[0].id)
            while await chat.state() != "idle":
                await chat.wait(WAIT_S)
        assert matches((await chat.messages())[1:], HANDED_OVER[moment])
        told = await journal(chat)
        assert causes(told) <= {"shutdown"}
        assert not {"stop.requested", "chat.failed"} & {entry["kind"] for entry in told}
        assert [message.stopped for message in await chat.messages() if message.stopped] == []
        assert (await chat.snapshot()).chat.cause is None
    judge(model)


async def test_a_stop_with_a_queue_takes_the_next_message_and_the_model_sees_what_was_stopped(store_url: str) -> None:
    model = ScriptedModel([Say(text="Half an "), Call(name="gate"), Hold(name="here"), Stall()], "Next.")
    app = app_of(store_url, Agent("a", model, tools=[Gate().tool()]))
    async with app, app.worker():
        chat = await app.create("a", "one")
        await model.reached("here")
        await chat.send("two")
        await chat.stop()
        assert await chat.wait(WAIT_S) == "idle"
        assert (await chat.messages())[-1].text == "Next."
    seen = model.requests[-1].messages
    assert [(str(message.role), message.text) for message in seen if message.role != "tool"] == [
        *(("user", "one"), ("assistant", "Half an "), ("user", "two"))
    ]
    assert [text.partition(".")[0] for text in tool_texts(seen)] == ["Never ran: stopped by the user"]
    judge(model)


async def test_a_stop_and_an_interruption_are_told_apart(store_url: str) -> None:
    model = ScriptedModel([Say(text="Half an "), Hold(name="here"), Stall()], "Brief.")
    app = app_of(store_url, Agent("a", model))
    async with app, app.worker():
        chat = await app.create("a", "go")
        await model.reached("here")
        await chat.send("be brief", mode="interrupt")
        assert await chat.wait(WAIT_S) == "idle"
        assert (await chat.messages())[1].stopped == "superseded"
        told = await journal(chat)
        assert [entry["cause"] for entry in told if entry["kind"] == "stop.requested"] == ["superseded"]


# --- both at once ---------------------------------------------------------------------------------------


async def test_a_stop_while_the_worker_drains_is_carried_out_by_it(store_url: str) -> None:
    model = ScriptedModel([Say(text="Half an "), Hold(name="here"), Stall()])
    app = app_of(store_url, Agent("a", model))
    async with app:
        worker = app.new_worker(grace_s=WAIT_S)
        await worker.start()
        chat = await app.create("a", "go")
        await model.reached("here")
        draining = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0)
        await chat.stop()
        await draining
        assert (await chat.state(), (await chat.snapshot()).chat.cause) == ("idle", "user")
        assert (await chat.messages())[-1].text == "Half an "


async def test_a_stop_that_comes_while_a_shutdown_cuts_a_tool_wins(store_url: str) -> None:
    stubborn = Stubborn()
    model = ScriptedModel([Call(name="stubborn")], "Never.")
    app = app_of(store_url, Agent("a", model, tools=[stubborn.tool(replay="pure")]))
    async with app:
        worker = app.new_worker()
        await worker.start()
        chat = await app.create("a", "go")
        await stubborn.entered.wait()
        shutdown = asyncio.ensure_future(worker.stop(0.0))
        await stubborn.cancelled.wait()
        await chat.stop()
        assert await chat.state() == "stopping"
        stubborn.let_go.set()
        await shutdown
        async with app.worker():
            assert await chat.wait(WAIT_S) == "idle"
        assert (await chat.snapshot()).chat.cause == "user"
        assert "too late" not in tool_texts(await chat.messages())
    assert len(model.requests) == 1, "work that nobody wants any more is not done"


async def test_a_shutdown_that_comes_while_a_stop_is_carried_out_does_not_undo_it(store_url: str) -> None:
    stubborn = Stubborn()
    model = ScriptedModel([Call(name="stubborn")], "Never.")
    app = app_of(store_url, Agent("a", model, tools=[stubborn.tool(replay="pure")]))
    async with app:
        worker = app.new_worker()
        await worker.start()
        chat = await app.create("a", "go")
        await stubborn.entered.wait()
        await chat.stop()
        await stubborn.cancelled.wait()
        shutdown = asyncio.ensure_future(worker.stop(0.0))
        await asyncio.sleep(0)
        stubborn.let_go.set()
        await shutdown
        async with app.worker():
            assert await chat.wait(WAIT_S) == "idle"
        assert (await chat.snapshot()).chat.cause == "user"
        assert causes(await journal(chat)) == {"user"}
    assert len(model.requests) == 1


async def test_a_stop_before_a_crash_wins_after_it_and_keeps_what_was_streamed(
    store_url: str, tmp_path: Path
) -> None:
    model = ScriptedModel(after="echo")
    app = app_of(store_url, Agent("talking", model))
    async with app:
        chat = await app.create("talking", "go")
        with Program("tests.promises.program", store_url, str(tmp_path / "log"), "never") as program:
            assert await streamed(chat) == "Half an "
            freeze(program.pid, store_url)  # it is not to notice the stop before it dies
            await chat.stop()
            os.kill(program.pid, signal.SIGKILL)
        async with app.worker(poll_s=0.1):
            assert await chat.wait(WAIT_S) == "idle"
        partial = (await chat.messages())[-1]
        assert (partial.text, partial.stopped, (await chat.snapshot()).chat.cause) == ("Half an ", "user", "user")
    assert len(model.requests) == 0, "the model is not asked for what nobody wants any more"


async def test_a_crash_without_a_stop_is_no_stop(store_url: str, tmp_path: Path) -> None:
    app = app_of(store_url, Agent("talking", ScriptedModel("A whole answer.")))
    async with app:
        chat = await app.create("talking", "go")
        with Program("tests.promises.program", store_url, str(tmp_path / "log"), "never") as program:
            assert await streamed(chat) == "Half an "
            os.kill(program.pid, signal.SIGKILL)
        async with app.worker(poll_s=0.1):
            assert await chat.wait(WAIT_S) == "idle"
        answer = (await chat.messages())[-1]
        assert (answer.text, answer.stopped, (await chat.snapshot()).chat.cause) == ("A whole answer.", None, None)
        resets = [entry for entry in await journal(chat) if entry["kind"] == "preview.reset"]
        assert [entry["cause"] for entry in resets] == ["crash"], "clients forget what was streamed"


async def test_what_a_tool_says_because_it_was_cancelled_is_not_its_result(store_url: str) -> None:
    stubborn = Stubborn()
    stubborn.let_go.set()
    app = app_of(store_url, Agent("a", ScriptedModel([Call(name="stubborn")]), tools=[stubborn.tool()]))
    async with app, app.worker():
        chat = await app.create("a", "go")
        await stubborn.entered.wait()
        await chat.stop()
        assert await chat.wait(WAIT_S) == "idle"
        assert stubborn.cancelled.is_set()
        assert [text.partition(".")[0] for text in tool_texts(await chat.messages())] == [
            "Cancelled while it ran: stopped by the user"
        ]


async def test_stopping_is_shown_until_it_is_true(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_body, "KILL_S", WAIT_S)  # the tool is not given up while we look
    stubborn = Stubborn()
    agent = Agent("a", ScriptedModel([Call(name="stubborn")]), tools=[stubborn.tool()])
    app = app_of(store_url, agent, Agent("b", ScriptedModel(after="echo")))
    async with app, app.worker():
        chat = await app.create("a", "go")
        await stubborn.entered.wait()
        await chat.stop()
        await stubborn.cancelled.wait()
        assert await (await app.create("b", "time passes")).text() == "You said: time passes"
        assert await chat.state() == "stopping", "the tool still runs"
        stubborn.let_go.set()
        assert await chat.wait(WAIT_S) == "idle"
