"""One of three workers that carry a turn: `python -m tests.worker.carrier URL LIFE`.

The first looks the weather up and is then caught in the middle of the model's next answer; the second hears that
answer and is caught in the tool that it asks for; the third runs the tool again and ends the turn. Each says `ready`,
and what it has come to, and goes on until it is killed or told to stop.
"""

import asyncio
import sys

from holdfast import Agent, App, tool
from holdfast.models.scripted import Call, Count, Say, ScriptedModel, Stall, Step
from holdfast.tools.context import ToolContext

AGENT = "travel"
QUESTION = "Book me a dry train to Bern."
SECRET = "sk-carried-0123456789abcdef"
ANSWER = "Booked: the 10:02 to Bern, and take an umbrella."


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def made(life: int) -> Agent:
    @tool(replay="pure")
    async def weather(city: str) -> str:
        """The weather in a city."""
        await asyncio.sleep(0.15)
        return f"rain in {city}"

    @tool(replay="idempotent")
    async def book(train: str, context: ToolContext) -> str:
        """Book a train."""
        if life == 2:
            say("booking")
            await asyncio.sleep(600)
        await asyncio.sleep(0.2)
        return f"booked {train}, key {context.key}, paid with {SECRET}"

    caught: list[Step] = [Say(text="It rains. I take", pace_s=0.1), Stall()]
    heard: list[Step] = [
        Say(text="It rains. I take the 10:02, which has the shortest walk to the station.", pace_s=0.04),
        Count(input_tokens=900, output_tokens=40, cached_tokens=700, reasoning_tokens=12, cache_write_tokens=50),
        Call(name="book", arguments={"train": "10:02"}),
    ]
    model = ScriptedModel(
        [Say(text="Let me look at the weather.", pace_s=0.04), Call(name="weather", arguments={"city": "Bern"})],
        caught if life == 1 else heard,
        [Say(text=ANSWER, pace_s=0.04)],
        name="scripted:travel-model",
    )
    return Agent(AGENT, model, tools=[weather, book])


async def work(url: str, life: int) -> None:
    app = App(url, [made(life)])
    async with app, app.worker(poll_s=0.2):
        say("ready")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
