"""Promise 3. An `unsafe` tool starts at most once per call, whatever crashes, however many workers.

After a crash between start and result the model is told "outcome unknown, verify", or a person is asked. A `pure`
tool is simply rerun; an `idempotent` one is rerun with the same key. And whoever finished is not asked again because
a sibling was slow. If the worker lives and does not know either, it is the same.
"""

import asyncio
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Agent, Chat
from holdfast.testing import Call, ScriptedModel
from tests.promises.counted import TOOLS, counting_agent
from tests.promises.program import Log
from tests.promises.surface import WAIT_S, app_of, journal, judge, told_of, tool_texts
from tests.promises.vanishing import WAYS, vanishing
from tests.support.freezing import end_lease, freeze
from tests.support.programs import Program
from tests.support.turns import Gate
from tests.support.waiting import eventually, until

PROGRAM = "tests.promises.counted"

# Killed at this moment, how often was each body entered and left in the end, and what was told of it?
TABLE = """
moment           pure        idempotent  unsafe       unsafe_ask
planned          1 1 did     1 1 did     1 1 did      1 1 did
started          1 1 did     1 1 did     0 0 unknown  0 0 asked
body             2 1 did     2 1 did     1 0 unknown  1 0 asked
returned         2 2 did     2 2 did     1 1 unknown  1 1 asked
slow_pure        2 1 did     1 1 did     1 1 did      1 1 did
slow_idempotent  1 1 did     2 1 did     1 1 did      1 1 did
slow_unsafe      1 1 did     1 1 did     1 0 unknown  1 1 did
slow_unsafe_ask  1 1 did     1 1 did     1 1 did      1 0 asked
"""
HEADER, *ROWS = [re.split(r"\s{2,}", line.strip()) for line in TABLE.strip().splitlines()]
EXPECTED = {row[0]: dict(zip(HEADER[1:], row[1:], strict=True)) for row in ROWS}
# In what state the process must have left the calls, or it did not die at its moment.
LEFT = {"planned": {"planned"}, "started": {"started"}, "body": {"started"}, "returned": {"started"}}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def brought_to_its_end(program: Program, chat: Chat, path: Path, moment: str) -> None:
    if moment == "body":
        await until(lambda: len(lines(path)) == len(TOOLS), WAIT_S)
        program.process.kill()
    elif moment.startswith("slow"):
        await until(lambda: len(lines(path)) == 2 * len(TOOLS) - 1, WAIT_S)

        async def the_others_are_durable() -> bool:
            return len(tool_texts(await chat.messages())) == len(TOOLS) - 1

        await eventually(the_others_are_durable, WAIT_S)
        program.process.kill()
    assert program.process.wait(WAIT_S) == -signal.SIGKILL, f"it was to die at {moment}"


async def person_answers(chat: Chat) -> list[str]:
    """What was asked, and answered: as many questions as there are."""
    asked = []
    while await chat.wait(WAIT_S) == "waiting":
        for call in await chat.open_calls():
            assert call.kind == "question"
            asked.append(call.why or "")
            await call.answer("a person looked")
    return asked


def told(text: str, name: str) -> str:
    if text == f"{name} did it":
        return "did"
    if text == "a person looked":
        return "asked"
    known = rf'Outcome unknown: {name} was started at 20\d\d-\S+Z with the arguments {{"amount": ?5}}, and its worker'
    assert re.match(known, text), text
    return "unknown"


@pytest.mark.parametrize("moment", EXPECTED)
async def test_a_worker_killed_at_this_moment_leaves_each_tool_as_its_replay_class_says(
    store_url: str, tmp_path: Path, moment: str
) -> None:
    path = tmp_path / "counter"
    agent = counting_agent(Log(str(path)))
    app = app_of(store_url, agent)
    async with app:
        chat = await app.create("counting", "Go.")
        with Program(PROGRAM, store_url, str(path), moment.replace("_", " ", 1)) as program:
            await brought_to_its_end(program, chat, path, moment)
        left = {call.name: call.state for call in (await chat.snapshot()).calls}
        if moment in LEFT:
            assert set(left.values()) == LEFT[moment]
        else:
            assert Counter(left.values()) == {"done": 3, "started": 1}
        async with app.worker(poll_s=0.1):
            asked = await person_answers(chat)
        texts = tool_texts(await chat.messages())
        assert await chat.text() == "Done."
    counted = Counter(tuple(line.split()[:2]) for line in lines(path))
    found = {
        name: f"{counted['enter', name]} {counted['exit', name]} {told(text, name)}"
        for name, text in zip(TOOLS, texts, strict=True)
    }
    assert found == EXPECTED[moment]
    questions = [told(question, "unsafe_ask") for question in asked]
    assert questions == (["unknown"] if found["unsafe_ask"].endswith("asked") else []), "a person sees the same"
    keys = {name: {line.split()[2] for line in lines(path) if line.split()[1] == name} for name in TOOLS}
    assert all(len(of_one) <= 1 for of_one in keys.values()), "a rerun has the key of the first run"
    assert len(set().union(*keys.values())) == sum(map(len, keys.values())), "and no other call has it"
    assert isinstance(agent.model, ScriptedModel)
    judge(agent.model)


async def test_a_shutdown_that_runs_out_of_grace_does_not_start_an_unsafe_tool_again(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    app = app_of(store_url, Agent("a", model, tools=[gate.tool()]))
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.0):
            await gate.entered.wait()
        gate.opened.set()
        async with app.worker():
            assert await chat.wait(WAIT_S) == "idle"
        (text,) = tool_texts(await chat.messages())
    assert (gate.starts, text[:15]) == (1, "Outcome unknown")
    judge(model)


async def test_a_worker_that_slept_through_its_lease_and_its_successor_start_it_once(
    store_url: str, tmp_path: Path
) -> None:
    """Frozen in the body, and woken when the model has long been told that nobody knows."""
    path = tmp_path / "counter"
    app = app_of(store_url, counting_agent(Log(str(path))))
    async with app:
        chat = await app.create("counting", "Go.")
        with Program(PROGRAM, store_url, str(path), "slow unsafe") as sleeper:
            await until(lambda: "enter unsafe " in path.read_text() if path.exists() else False, WAIT_S)
            while len(tool_texts(await chat.messages())) < len(TOOLS) - 1:
                await told_of(chat, "message")
            freeze(sleeper.pid, store_url)
            end_lease(sleeper.pid, store_url)
            async with app.worker(poll_s=0.1):
                while await chat.state() != "idle":
                    await app.store.sweep()
            before = await journal(chat)
            os.kill(sleeper.pid, signal.SIGCONT)
            sleeper.process.terminate()
            await asyncio.to_thread(sleeper.process.wait, WAIT_S)
        assert await journal(chat) == before
    assert sum(line.startswith("enter unsafe ") for line in lines(path)) == 1


async def test_an_edit_over_a_lost_unsafe_call_does_not_start_it_again(store_url: str, tmp_path: Path) -> None:
    path = tmp_path / "counter"
    app = app_of(store_url, counting_agent(Log(str(path))))
    async with app:
        chat = await app.create("counting", "Go.")
        with Program(PROGRAM, store_url, str(path), "body") as program:
            await brought_to_its_end(program, chat, path, "body")
        await chat.edit((await chat.messages())[0].id, "Go, but otherwise.")
        async with app.worker(poll_s=0.1):
            await person_answers(chat)
            assert await chat.wait(WAIT_S) == "idle"
        assert [message.text for message in await chat.messages() if message.role == "user"] == ["Go, but otherwise."]
    entered = [line.split()[2] for line in lines(path) if line.startswith("enter unsafe ")]
    assert len(entered) == len(set(entered)) == 2, "once by the call that was cut away, once by the new turn's own"


# --- and although the worker lives ----------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_an_outcome_that_a_living_worker_does_not_know_is_told_or_asked_like_after_a_crash(
    store_url: str, tmp_path: Path, way: str
) -> None:
    paths = {name: tmp_path / name for name in ("told", "asked")}
    tools = [vanishing(way, name="told"), vanishing(way, name="asked", on_unknown="ask")]
    calls = [Call(name=name, arguments={"path": str(path)}) for name, path in paths.items()]
    model = ScriptedModel(calls, "Done.")
    app = app_of(store_url, Agent("a", model, tools=tools))
    try:
        async with app, app.worker(grace_s=0.0):
            chat = await app.create("a", "go")
            assert await chat.wait(WAIT_S) == "waiting", "for a person, and no worker holds it"
            snapshot = await chat.snapshot()
            assert [(call.name, call.state) for call in snapshot.calls] == [
                ("told", "unknown"),
                ("asked", "external"),
            ]
            (asked,) = await chat.open_calls()
            await asked.answer("a person looked")
            assert await chat.wait(WAIT_S) == "idle"
            text, answer = tool_texts(await chat.messages())
    finally:
        entered = [lines(path) for path in paths.values()]
        for path in paths.values():
            path.unlink(missing_ok=True)
    assert list(map(len, entered)) == [1, 1]
    assert answer == "a person looked"
    assert re.match(r"Outcome unknown: told was started at 20\d\d-\S+Z with the arguments \{.*\}\. ", text), text
    assert WAYS[way][2] in text
    assert text.endswith("It may or may not have taken effect. Verify before you try again.")
    assert asked.kind == "question"
    assert _without(asked.why, "asked") == _without(text, "told"), "a person sees what the model is told"
    judge(model)


def _without(text: str | None, name: str) -> str:
    return re.sub(r"20\d\d-\S+Z", "then", (text or "").replace(name, "tool"))


async def test_an_idempotent_call_whose_process_is_killed_runs_again_with_the_same_key_and_a_pure_one_is_an_error(
    store_url: str, tmp_path: Path
) -> None:
    paths = {name: tmp_path / name for name in ("idempotent", "pure")}
    tools = [vanishing("its process is killed", name=name, replay=name) for name in paths]
    calls = [Call(name=name, arguments={"path": str(path)}) for name, path in paths.items()]
    app = app_of(store_url, Agent("a", ScriptedModel(calls, "Done."), tools=tools))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "idle"
        again, error = tool_texts(await chat.messages())
        told = await journal(chat)
    assert [len(lines(path)) for path in paths.values()] == [3, 1]
    assert len(set(lines(paths["idempotent"]))) == 1, "under the same key"
    assert again.startswith("Outcome unknown: idempotent was started at ")
    assert error.startswith("The tool's process was ended by a signal: killed (SIGKILL)")
    reruns = [entry["detail"] for entry in told if entry["kind"] == "call.changed" and entry["state"] == "planned"]
    assert len(reruns) == 2
    assert all(detail.startswith("runs again: The tool's process was ended") for detail in reruns)
