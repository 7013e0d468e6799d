"""holdfast, by its public API: an app, one worker or several. The tool may run again, as it does in the others."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator

from workload import ANSWER, QUESTION, TEXT, Workload

from holdfast import Agent, AgentLimits, App, tool
from holdfast.models.base import Request, StreamPart
from holdfast.testing import Call, Say, ScriptedModel
from holdfast.tools.context import ToolContext

work = Workload()


class NotedModel(ScriptedModel):
    """A script that notes when it is asked, and by which chat: the question says so."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        cycle = sum(1 for message in request.messages if message.role == "tool")
        work.asked(next(message.text for message in request.messages if message.role == "user").split()[-1], cycle)
        async for part in super().stream(request):
            yield part


def build() -> App:
    @tool(replay="pure")
    async def weather(city: str, cycle: int, context: ToolContext) -> str:
        """Current weather in a city."""
        return await work.tool(context.chat_id, cycle)

    says = Say(text=TEXT, piece_chars=30)
    script: list[list[object]] = [
        [says, Call(name="weather", arguments={"city": "Bern", "cycle": n})] for n in range(work.cycles)
    ]
    limits = AgentLimits(steps=1_000_000)
    return App(work.database, [Agent("cycler", NotedModel(*script, ANSWER), tools=[weather], limits=limits)])


async def main() -> None:
    app = build()
    others = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--option", "worker"])
        for _ in range(work.processes - 1 if work.option != "worker" else 0)
    ]
    try:
        async with app.worker(chats_max=-(-work.at_once // work.processes)):  # else the first to look takes all
            if work.option == "worker":
                await asyncio.Event().wait()
            while len(await app.store.list_workers()) < work.processes:  # noqa: ASYNC110  of other processes
                await asyncio.sleep(0.01)
            await work.drive(lambda chat: one(app, chat))
    finally:
        for process in others:
            process.terminate()
        for process in others:
            process.wait()


async def one(app: App, chat_id: str) -> None:
    chat = await app.create("cycler", f"{QUESTION} {chat_id}", chat_id=chat_id, key=chat_id)
    turn = await chat.turn()
    if turn.state != "done":
        raise SystemExit(f"{chat_id}: {turn.state} {turn.error}")


if __name__ == "__main__":
    asyncio.run(main())
