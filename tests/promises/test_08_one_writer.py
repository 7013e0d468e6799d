"""Promise 8: whoever lost a chat cannot write to it any more, and a write that is repeated happens once."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import Agent, App, Sent, tool
from holdfast.chat import Chat
from holdfast.core.records import Message, Role, Text
from holdfast.errors import KeyReused
from holdfast.store.records import Answer, Key
from holdfast.testing import Call, ScriptedModel
from tests.promises.program import Log, booking_agent
from tests.promises.surface import WAIT_S, app_of, journal, tool_texts
from tests.support.freezing import end_lease, freeze
from tests.support.programs import Program
from tests.support.scale import scaled
from tests.support.turns import Gate
from tests.support.waiting import until


async def test_a_worker_that_slept_past_its_lease_writes_nothing_on_waking(store_url: str, tmp_path: Path) -> None:
    log = tmp_path / "sleeper"
    app = app_of(store_url, booking_agent(Log(str(tmp_path / "successor"))))
    async with app:
        chat = await app.create("booking", "Book it.")
        with Program("tests.promises.program", store_url, str(log), "hold") as sleeper:
            await until(lambda: log.exists() and "slow" in log.read_text(), WAIT_S)
            freeze(sleeper.pid, store_url)
            end_lease(sleeper.pid, store_url)
            async with app.worker(poll_s=0.1):
                while await chat.state() != "idle":
                    await app.store.sweep()
            before = await journal(chat)
            os.kill(sleeper.pid, signal.SIGCONT)
            sleeper.say("a result that comes too late")
            sleeper.process.terminate()
            await asyncio.to_thread(sleeper.finish)
        assert await journal(chat) == before, "not a line was added"
        assert "too late" not in str(tool_texts(await chat.messages()))
        assert (await chat.snapshot()).chat.fence == 2


async def test_two_workers_at_once_give_a_chat_to_one_of_them(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.", per="chat")
    app = app_of(store_url, Agent("a", model, tools=[gate.tool()]))
    async with app, app.worker(poll_s=0.05) as one, app.worker(poll_s=0.05) as two:
        chats = [await app.create("a", f"chat {n}") for n in range(20)]
        await until(lambda: len(one.running_chats) + len(two.running_chats) == 20)
        assert set(one.running_chats) & set(two.running_chats) == set()
        gate.opened.set()
        for chat in chats:
            assert await chat.wait(WAIT_S) == "idle"
    assert gate.starts == 20
    assert len(model.requests) == 40


async def test_a_clients_call_that_is_repeated_under_its_key_happens_once(store_url: str) -> None:
    app = app_of(store_url, Agent("a", ScriptedModel(after="echo")))
    async with app, app.worker():
        chat = await app.create("a")
        first = await chat.send("only once", key=Key(principal="ada", key="k"))
        assert await chat.wait(WAIT_S) == "idle"
        with pytest.raises(KeyReused):
            await chat.send("something else", key=Key(principal="ada", key="k"))
        assert await chat.send("only once", key=Key(principal="ada", key="k")) == first
        assert [message.text for message in await chat.messages() if message.role == "user"] == ["only once"]


async def test_a_repeated_create_fork_or_edit_makes_no_second_chat_and_cuts_nothing_twice(store_url: str) -> None:
    app = app_of(store_url, Agent("a", ScriptedModel(after="echo")))
    async with app, app.worker():
        chat = await app.create("a", "hello", metadata={"n": 1}, key="create")
        assert await chat.wait(WAIT_S) == "idle"
        assert (await app.create("a", "hello", metadata={"n": 1}, key="create")).id == chat.id
        with pytest.raises(KeyReused):
            await app.create("a", "hello", metadata={"n": 2}, key="create")
        forked = await chat.fork(key="fork")
        assert (await chat.fork(key="fork")).id == forked.id
        said = (await chat.messages())[0].id
        edited = await chat.edit(said, "hello again", key="edit")
        assert await chat.wait(WAIT_S) == "idle"
        assert await chat.edit(said, "hello again", key="edit") == edited
        with pytest.raises(KeyReused):
            await chat.edit(said, "something else", key="edit")
        assert [message.text for message in await chat.messages()] == ["hello again", "You said: hello again"]
        assert len(await app.chats()) == 2


ASKED: dict[str, Callable[[App, Chat, str, str], Awaitable[object]]] = {
    "create": lambda app, _, __, key: _id_of(app.create("a", "hello", key=key)),
    "fork": lambda _, chat, __, key: _id_of(chat.fork(key=key)),
    "send": lambda _, chat, __, key: _answer_to(chat.send("more", key=key)),
    "edit": lambda _, chat, __, key: _answer_to(chat.edit("first", "other", key=key)),
    "approve": lambda _, chat, call_id, key: chat.approve(call_id, key=key),
    "deny": lambda _, chat, call_id, key: chat.deny(call_id, "no", key=key),
    "stop": lambda _, chat, __, key: chat.stop(key=key),
}


async def _id_of(made: Awaitable[Chat]) -> str:
    return (await made).id


async def _answer_to(sent: Awaitable[Sent]) -> Answer:
    return (await sent).answer


async def _after(pause_s: float, made: Awaitable[object]) -> object:
    """Spread out, so that each finds the one before it at another place."""
    await asyncio.sleep(pause_s)
    return await made


@pytest.mark.parametrize("asked", ASKED)
async def test_a_call_that_is_made_many_times_at_once_through_two_apps_happens_once(
    store_url: str, asked: str
) -> None:
    """A client whose connection was lost does not know whether its first try is still under way."""

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    def app() -> App:
        return app_of(store_url, Agent("a", ScriptedModel([Call(name="pay")], after="echo", per="chat"), tools=[pay]))

    one, two = app(), app()
    async with one, two:
        for n in range(scaled(2, 5)):
            opener = Message(id="first", role=Role.USER, parts=(Text(text=f"hello {n}"),))
            async with one.worker(poll_s=0.1):
                chat = await one.create("a", opener)
                assert await chat.wait(WAIT_S) == "waiting"
            (call_id,) = [call.id for call in await chat.open_calls()]
            before = len(await one.chats(limit=500))
            handles = [(one, one.chat(chat.id)), (two, two.chat(chat.id))] * 6
            tries = [ASKED[asked](*handle, call_id, f"key {n}") for handle in handles]
            answers = await asyncio.gather(*(_after(at * 0.0005, made) for at, made in enumerate(tries)))
            assert all(answer == answers[0] for answer in answers)
            assert len(await one.chats(limit=500)) == before + (asked in ("create", "fork"))
            kinds = [entry["kind"] for entry in await journal(chat)]
            assert all(kinds.count(kind) <= 1 for kind in ("message.queued", "history.cut", "stop.requested")), kinds
            await chat.stop(clear_queue=True)
