"""holdfast, by its public API: an app, one worker or several. The tool may run again, as it does in the others."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator

import msgspec
from workload import ANSWER, QUESTION, TEXT, Workload

from holdfast import Agent, AgentLimits, App, tool
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    Opened,
    Request,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)
from holdfast.tools.context import ToolContext

work = Workload()


class PlainModel:
    """One of our own, as plain as those that the others are given. The question says which chat asks."""

    name = "plain:model"
    provider = "plain"
    context_limit = None

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        cycle = len(request.messages) // 2
        yield Opened()
        if work.asked(request.messages[0].text.split()[-1], cycle):
            yield TextDelta(text=TEXT)
            yield CallStarted(index=0, name="weather")
            yield CallArguments(index=0, text=msgspec.json.encode({"city": "Bern", "cycle": cycle}).decode())
            yield CallEnded(index=0)
        else:
            yield TextDelta(text=ANSWER)
        yield Usage(input_tokens=100, output_tokens=20)
        yield ResponseFinished()


def build() -> App:
    @tool(replay="pure")
    async def weather(city: str, cycle: int, context: ToolContext) -> str:
        """Current weather in a city."""
        return await work.tool(context.chat_id, cycle)

    limits = AgentLimits(steps=1_000_000)
    return App(work.database, [Agent("cycler", PlainModel(), tools=[weather], limits=limits)])


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
