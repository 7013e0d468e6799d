"""Promise 7: a chat that has something to do always has somebody who will do it, and one query can check that."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Agent
from holdfast.testing import Call, Fail, Hold, Say, ScriptedModel
from tests.promises.program import Log, booking_agent
from tests.promises.surface import WAIT_S, app_of
from tests.support.programs import Program
from tests.support.turns import Gate
from tests.support.waiting import until

PROGRAM = "tests.promises.program"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_worker_that_goes_leaves_its_chat_to_the_next_one(
    store_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    app = app_of(store_url, booking_agent(Log(str(tmp_path / "successor"))))
    async with app:
        chat = await app.create("booking", "Book it.")
        assert await app.store.find_violations() == [], "before anybody took it"
        with Program(PROGRAM, store_url, str(log), "hold") as program:
            await until(lambda: log.exists() and "slow" in log.read_text(), WAIT_S)
            assert await app.store.find_violations() == [], "while it is worked on"
            os.kill(program.pid, number)
            with suppress(BrokenPipeError):  # one that was killed may be gone already
                program.say("on")
            program.process.wait(WAIT_S)
        async with app.worker(poll_s=0.2):
            assert await chat.wait(WAIT_S) == "idle"
        assert await app.store.find_violations() == []
        assert await app.store.read_repairs() == {}, "nothing had to be put right"


async def test_a_chat_that_waits_has_no_owner_and_one_that_may_expire_has_its_hour(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    app = app_of(store_url, Agent("a", model, tools=[gate.tool(needs_approval=True)]))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "waiting"
        assert (await chat.snapshot()).chat.worker is None
        assert await app.store.find_violations() == []


async def test_a_chat_at_rest_has_neither_owner_nor_hour_however_it_came_there(store_url: str) -> None:
    model = ScriptedModel("Fine.", [Say(text="Half "), Hold(name="here")], [Fail(status=400)])
    app = app_of(store_url, Agent("a", model))
    async with app, app.worker():
        chat = await app.create("a", "one")
        assert await chat.wait(WAIT_S) == "idle"
        await chat.send("two")
        await model.reached("here")
        await chat.stop()
        assert await chat.wait(WAIT_S) == "idle"
        await chat.send("three")
        assert await chat.wait(WAIT_S) == "failed"
        resting = (await chat.snapshot()).chat
        assert (resting.worker, resting.wake_at) == (None, None)
        assert await app.store.find_violations() == []


async def test_a_chat_of_an_agent_that_nobody_has_waits_for_one_that_does(store_url: str) -> None:
    old = app_of(store_url, Agent("old", ScriptedModel("Old.")))
    new = app_of(store_url, Agent("new", ScriptedModel("New.")))
    async with new:
        chat = await new.create("new", "go")
        async with old, old.worker(poll_s=0.1) as worker:
            await (await old.create("old", "go")).text()
            assert worker.claims_taken == 1
        assert await new.store.find_violations() == []
        async with new.worker():
            assert await chat.text() == "New."
