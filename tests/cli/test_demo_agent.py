"""The agent `demo` of `holdfast serve`: a real kill that clients start and watch; it leaves nothing behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast import App, CallProgress, ChatHandedOver, ChatTakenOver
from holdfast.chat import Chat
from holdfast.cli.commands.demo_worker import AGENT, BATCH
from holdfast.cli.demo_agent import FOLDER, NAME, demo_agent
from holdfast.core.records import State, ToolResult
from holdfast.system import processes
from tests.support.turns import rested
from tests.support.waiting import eventually


@asynccontextmanager
async def demo(store_url: str, home: Path) -> AsyncIterator[App]:
    app = App(database=store_url, home=str(home))
    app.agents[NAME] = demo_agent(app)
    async with app, app.worker(grace_s=0.0):
        yield app


async def progress_of(chat: Chat, word: str) -> str:
    """What the demo has said, once it has said this."""
    said = ""
    async for update in chat.stream():
        if isinstance(update, CallProgress):
            said += update.text
            if word in said:
                return said
    raise AssertionError(f"it never said {word}: {said}")


async def results_of(chat: Chat) -> dict[str, ToolResult]:
    messages = await chat.messages()
    return {part.name: part for message in messages for part in message.parts if isinstance(part, ToolResult)}


async def victim_of(app: App) -> Chat:
    (line,) = [line for line in await app.chats() if line.agent == AGENT]
    return app.chat(line.id)


def workers_of(store_home: Path) -> list[str]:
    """The command lines of demo workers whose ledger is in that home."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if "demo_worker" in line and str(store_home) in line:
                found.append(line)
    return found


async def test_the_demo_kills_a_real_worker_of_a_chat_that_can_be_watched(store_url: str, tmp_path: Path) -> None:
    async with demo(store_url, tmp_path) as app:
        chat = await app.create(NAME, "go")
        turn = await chat.turn(timeout_s=90.0)
        victim = await victim_of(app)
        entries = [event.body async for event in victim.events()]
        answers = await results_of(victim)
        assert turn.state == "done", turn
        assert victim.id in (await results_of(chat))["kill_a_worker"].content
        assert await victim.state() is State.IDLE
    (lost,) = [entry for entry in entries if isinstance(entry, ChatHandedOver)]
    (taken,) = [entry for entry in entries if isinstance(entry, ChatTakenOver)]
    assert (lost.cause, lost.worker != taken.worker) == ("crash", True)
    assert {*BATCH, "find_customer", "check_charge"} == set(answers)
    assert answers["charge_card"].synthetic == "unknown", "begun once, and never again"
    assert (list((tmp_path / FOLDER).iterdir()), workers_of(tmp_path)) == ([], []), "nothing is left behind"


async def test_a_stop_ends_the_demos_worker_with_it(tmp_path: Path) -> None:
    async with demo(f"sqlite:///{tmp_path}/chats.db", tmp_path) as app:
        chat = await app.create(NAME, "go")
        await progress_of(chat, "Worker 1 is process")
        again = await app.create(NAME, "me too")
        await again.turn(timeout_s=60.0)
        assert "running already" in (await results_of(again))["kill_a_worker"].content
        await chat.stop()
        await rested(chat)

        async def gone() -> bool:
            return not workers_of(tmp_path) and processes.running_children() == 0

        await eventually(gone)
        assert await (await victim_of(app)).state() is not State.RUNNING


async def test_a_token_with_an_owner_starts_no_process(tmp_path: Path) -> None:
    async with demo(f"sqlite:///{tmp_path}/chats.db", tmp_path) as app:
        chat = await app.create(NAME, "go", owner="ann")
        await chat.turn(timeout_s=60.0)
        assert "no token with an owner" in (await results_of(chat))["kill_a_worker"].content
        assert [line for line in await app.chats() if line.agent == AGENT] == []
