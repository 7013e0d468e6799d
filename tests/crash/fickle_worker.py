"""A worker whose model says something else each time it is asked: `python -m tests.crash.fickle_worker URL SEED`.

It prints a line when it is at work, and lives until it is killed.
"""

import asyncio
import random
import sys

from holdfast import Agent, App, StoreOptions, tool
from holdfast.models.scripted import Written
from holdfast.testing import Call, Say, Think
from tests.support.fickle import FickleModel

# Attempts often begin alike: what they have in common is to stay on the screen.
OPENINGS = ("The weather in Bern is", "The weather in Basel is", "It")
WORDS = ("wet", "dry", "warm,", "cold,", "and", "then", "🌧", "grüezi", "tomorrow.\n\n", "later")


@tool(replay="pure")
async def look() -> str:
    """Look out of the window."""
    return "clouds"


def script(dice: random.Random) -> list[Written]:
    def words() -> str:
        return " ".join([dice.choice(OPENINGS), *dice.choices(WORDS, k=dice.randint(5, 30))])

    def say() -> Say:
        return Say(text=words(), piece_chars=dice.randint(1, 9), pace_s=0.02)

    return [[Think(text=words(), piece_chars=9), say(), Call(name="look")], [say()]]


async def work(url: str, seed: int) -> None:
    dice = random.Random(seed)
    agent = Agent("fickle", FickleModel(lambda _: script(dice)), tools=[look])
    app = App(url, agents=[agent], options=StoreOptions(lease_ttl_ms=10_000))
    async with app.worker(poll_s=0.2):
        print("at work", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
