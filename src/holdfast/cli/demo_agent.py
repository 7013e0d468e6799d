"""The agent `demo` of `holdfast serve`: a kill that can be started from the page and watched there.

Its one tool makes a chat with the agent `shop` on the same database, starts a real worker process for it, kills that
with SIGKILL in the middle of three tools, and starts another. No worker of the server has the agent `shop`, so none
takes the chat over before the one that is started for it. The processes are children of a tool like any other: they
end with the call, however that ends, and the guard ends them should the server be killed.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.cli.commands.demo_worker import AGENT, BATCH, DATABASE, ORDER, SEEN_S, WAIT_S, DemoFailed, Ledger, until
from holdfast.core.records import Message, NewChat, Role, Text
from holdfast.errors import HoldfastError, ToolFailed
from holdfast.ids import new_id
from holdfast.models.scripted import Call, Say, ScriptedModel
from holdfast.store.records import Key
from holdfast.system import processes
from holdfast.system.cover import ProcessSpec
from holdfast.system.processes import Child
from holdfast.tools.base import tool
from holdfast.tools.context import ToolContext

NAME = "demo"
FOLDER = "demo"  # in the home: what the tools of the shop did to the world, one folder per call
DEADLINE_S = 150.0
REST_S = 2.0  # for the chat to stop, where the demo is stopped


def demo_agent(app: App) -> Agent:
    """Of an app whose database the demo's workers can open, too."""
    running = asyncio.Lock()  # one at a time: it is for people to look at

    @tool(replay="idempotent", deadline_s=DEADLINE_S, acts=lambda _: [])
    async def kill_a_worker(context: ToolContext) -> str:
        """Make a chat, kill its worker with -9 in the middle of three tools, and let another one go on."""
        if context.owner:
            raise ToolFailed("The demo starts and kills processes of this machine: no token with an owner may.")
        if running.locked():
            raise ToolFailed("The demo is running already: watch that one, or wait for its end.")
        async with running:
            return await _Demo(app, context).run()

    model = ScriptedModel(
        [Say(text="I make a chat, and kill its worker in the middle of its tools."), Call(name=kill_a_worker.name)],
        "That was it. Open the timeline of that chat to see what became of it.",
        after="echo",
        per="turn",
    )
    return Agent(NAME, model, tools=[kill_a_worker])


class _Demo:
    """One call of the tool."""

    def __init__(self, app: App, context: ToolContext) -> None:
        self._app = app
        self._context = context
        self._chat_id = ""
        self._folder = Path()
        self._ledger = Ledger("")

    async def run(self) -> str:
        chat = await self._chat()
        try:
            await self._kill(chat)
        except DemoFailed as error:
            await self._give_up(chat)
            raise ToolFailed(f"{error}.") from error
        except BaseException:
            await self._give_up(chat)
            raise
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        state = await chat.state()
        return f"The chat {chat.id} lost its worker to kill -9 and came to its end: it is {state}."

    async def _chat(self) -> Chat:
        """The same one again, where the server was killed and the call runs again."""
        context = self._context
        chat_id = context.kept.get(context.call_id)
        if chat_id is None:
            chat_id = new_id("chat")
            await context.keep(context.call_id, chat_id)
        self._lay_out(chat_id)
        message = Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=ORDER),))
        new = NewChat(id=chat_id, agent=AGENT, title="A worker is killed", message=message)
        await self._app.store.create_chat(new, Key(principal=NAME, key=context.key, request=chat_id))
        context.progress(f"The chat is {chat_id}: watch its timeline.\n")
        return self._app.chat(chat_id)

    def _lay_out(self, chat_id: str) -> None:
        self._folder = Path(self._app.config.home).absolute() / FOLDER / chat_id
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ledger = Ledger(str(self._folder / "ledger"))

    async def _kill(self, chat: Chat) -> None:
        say = self._context.progress
        async with self._worker() as first:
            say(f"Worker 1 is process {first.pid}.\n")
            if not self._begun_by_others(first.pid):  # else it was killed before the server was
                await until(lambda: self._ledger.begun(first.pid) >= set(BATCH), lambda: first.alive)
                await asyncio.sleep(SEEN_S)
                os.kill(first.pid, signal.SIGKILL)
                await first.exited()
                say(f"kill -9 {first.pid}: it died in the middle of {', '.join(BATCH)}.\n")
            else:
                await self._until_rest(chat, first)
                return
        async with self._worker() as second:
            say(f"Worker 2 is process {second.pid}: it finds the chat in the journal and goes on.\n")
            await self._until_rest(chat, second)

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Child]:
        """A worker process. Its database is in its environment: a password is not for the list of processes."""
        libpq = {name: value for name, value in os.environ.items() if name.startswith("PG")}
        env = processes.environment({**libpq, DATABASE: self._database, "HOLDFAST_HOME": str(self._folder)})
        program = [sys.executable, "-m", "holdfast.cli.commands.demo_worker", "", str(self._folder / "ledger")]
        child = processes.start(ProcessSpec(program, env, str(self._folder)), children=self._context.children)
        try:
            yield child
        finally:
            await child.end()

    @property
    def _database(self) -> str:
        file = self._app.store.file
        return self._app.config.database_url if file is None else f"sqlite:///{Path(file).absolute()}"

    def _begun_by_others(self, pid: int) -> bool:
        return any(what == "begins" and name in BATCH and by != pid for what, name, _, by in self._ledger.read())

    async def _until_rest(self, chat: Chat, child: Child) -> None:
        resting = asyncio.ensure_future(chat.wait(WAIT_S))
        try:
            await until(resting.done, lambda: child.alive)
            resting.result()
        finally:
            resting.cancel()

    async def _give_up(self, chat: Chat) -> None:
        """No worker will come for it: it does not stay at work where that can be helped."""
        with suppress(HoldfastError, TimeoutError, OSError):
            async with asyncio.timeout(REST_S):
                await chat.stop(clear_queue=True)
                async with self._worker():
                    await chat.wait(WAIT_S)
