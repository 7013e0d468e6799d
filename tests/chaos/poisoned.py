"""A worker process with an agent whose tool kills it: `python -m tests.chaos.poisoned URL AHEAD_MS`.

Its wall clock is so far ahead, so that nobody has to wait for a chat that rests after a crash.
"""

import asyncio
import os
import signal
import sys

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.base import tool
from tests.worker.lives import SteppedClock


@tool(replay="pure")  # so it is run again by whoever takes the chat over
async def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool(replay="pure")
async def live() -> str:
    return "alive"


def make_app(url: str, clock: SteppedClock) -> App:
    agents = [
        Agent("poison", ScriptedModel([Call(name="die")], "Survived."), tools=[die]),
        Agent("healthy", ScriptedModel([Call(name="live")], "Fine."), tools=[live]),
    ]
    return App(url, agents, options=StoreOptions(clock=clock, poll_interval_s=0.05))


if __name__ == "__main__":
    asyncio.run(make_app(sys.argv[1], SteppedClock(int(sys.argv[2]))).run_worker(poll_s=0.2))
