"""Promise 2. No committed step happens again: the model is not asked again for it, its tools are not run again.

Not after `kill -9` right after a commit, not after a shutdown, not by a worker whose lease was lost and who does not
know it yet, not by a retry after a failure.
"""

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from holdfast import Agent
from holdfast.testing import Call, Fail, Hold, Say, ScriptedModel
from tests.promises.program import Log, booking_agent
from tests.promises.surface import QUICK, WAIT_S, app_of, judge, told_of, tool_texts, weather
from tests.support.freezing import end_lease, freeze
from tests.support.programs import Program
from tests.support.turns import Gate
from tests.support.waiting import until

PROGRAM = "tests.promises.program"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_a_turn_whose_worker_is_killed_after_every_commit_asks_and_runs_everything_once(
    store_url: str, tmp_path: Path
) -> None:
    moments = ["response 0", "result look", "response 1", "result quick", "response 2"]
    done: dict[str, list[str]] = {}
    app = app_of(store_url, booking_agent(Log(os.devnull)))
    async with app:
        chat = await app.create("booking", "Book it.")
        for moment in moments:
            path = tmp_path / moment
            with Program(PROGRAM, store_url, str(path), moment) as program:
                assert program.process.wait(WAIT_S) == -signal.SIGKILL, f"it was to die at {moment}"
            done[moment] = sorted(lines(path))
        assert await chat.state() == "idle"
        assert [message.role for message in await chat.messages()] == [
            *("user", "assistant", "tool", "assistant", "tool", "tool", "assistant")
        ]
        assert tool_texts(await chat.messages()) == ["seen", "quick", "slow"]
        assert (await chat.messages())[-1].text == "Booked."
    assert done == {
        "response 0": ["model 0"],
        "result look": ["look"],
        "response 1": ["model 1"],
        "result quick": ["quick", "slow"],
        "response 2": ["model 2", "slow"],  # whose result was not committed: it may run again, its sibling may not
    }


async def test_a_worker_that_slept_through_its_lease_does_nothing_that_its_successor_did(
    store_url: str, tmp_path: Path
) -> None:
    sleeper_log, successor_log = tmp_path / "sleeper", tmp_path / "successor"
    released = threading.Event()
    app = app_of(store_url, booking_agent(Log(str(successor_log)), "hold", lambda: released.wait() and "awake"))
    async with app:
        chat = await app.create("booking", "Book it.")
        with Program(PROGRAM, store_url, str(sleeper_log), "hold") as program:
            await until(lambda: "slow" in lines(sleeper_log), WAIT_S)
            while "quick" not in tool_texts(await chat.messages()):
                await told_of(chat, "message")
            freeze(program.pid, store_url)
            end_lease(program.pid, store_url)
            async with app.worker(poll_s=0.1):
                while "slow" not in lines(successor_log):
                    await app.store.sweep()
                os.kill(program.pid, signal.SIGCONT)
                program.say("asleep")
                program.process.terminate()
                await asyncio.to_thread(program.finish)
                released.set()
                assert await chat.wait(WAIT_S) == "idle"
        assert tool_texts(await chat.messages()) == ["seen", "quick", "slow, awake"]
    assert sorted(lines(sleeper_log)) == ["look", "model 0", "model 1", "quick", "slow"]
    assert lines(successor_log) == ["slow", "model 2"]


async def test_a_shutdown_between_two_steps_repeats_neither_the_response_nor_its_tool(store_url: str) -> None:
    gate = Gate()
    gate.opened.set()
    model = ScriptedModel([Say(text="First. "), Call(name="gate")], [Hold(name="second"), Say(text="Second.")])
    app = app_of(store_url, Agent("a", model, tools=[gate.tool()]))
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.0):
            await model.reached("second")
        model.resume("second")
        async with app.worker():
            assert await chat.wait(WAIT_S) == "idle"
        assert [message.text for message in await chat.messages()] == ["go", "First. ", "", "Second."]
    assert gate.starts == 1
    asked = [sum(message.role == "assistant" for message in request.messages) for request in model.requests]
    assert asked == [0, 1, 1], "only the step that was cut is asked for again"
    judge(model)


async def test_a_step_that_finishes_while_its_worker_shuts_down_is_not_repeated(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    app = app_of(store_url, Agent("a", model, tools=[gate.tool(replay="pure")]))
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=WAIT_S):
            await gate.entered.wait()
            gate.opened.set()
        async with app.worker():
            assert await chat.wait(WAIT_S) == "idle"
    assert (gate.starts, len(model.requests)) == (1, 2)


@pytest.mark.parametrize("replay", ["pure", "idempotent", "unsafe"])
async def test_a_retry_after_a_failure_begins_behind_the_last_committed_step(store_url: str, replay: str) -> None:
    gate = Gate()
    gate.opened.set()
    model = ScriptedModel([Call(name="gate")], [Fail(status=400)])
    app = app_of(store_url, Agent("a", model, tools=[gate.tool(replay=replay)], retry=QUICK))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "failed"
        model.script = ScriptedModel("not asked for", "Done.").script
        await chat.retry()
        assert await chat.wait(WAIT_S) == "idle"
        assert tool_texts(await chat.messages()) == ["through"]
    assert gate.starts == 1
    assert [len(request.messages) for request in model.requests] == [1, 3, 3]
    judge(model)


async def test_a_worker_that_takes_over_runs_only_the_calls_without_a_result(store_url: str) -> None:
    held = Gate()
    ran: list[str] = []

    async def note(city: str) -> str:
        """Note."""
        ran.append(city)
        return city

    model = ScriptedModel([Call(name="note", arguments={"city": "Bern"}), Call(name="gate")], "Done.")
    app = app_of(store_url, Agent("a", model, tools=[note, held.tool(replay="pure"), weather]))
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.0):
            await held.entered.wait()
            while "Bern" not in tool_texts(await chat.messages()):
                await told_of(chat, "message")
        held.opened.set()
        async with app.worker():
            assert await chat.wait(WAIT_S) == "idle"
        assert tool_texts(await chat.messages()) == ["Bern", "through"]
    assert (ran, held.starts, len(model.requests)) == (["Bern"], 2, 2)
    judge(model)
