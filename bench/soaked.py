"""The worker process of a soak: `python -m bench.soaked URL SAMPLE_S`. Every so often it prints its health as JSON.

Its chats stream, call a tool in the loop and one in a thread, and rest.
"""

import asyncio
import json
import sys
import time

import holdfast
from holdfast import Agent, App, tool
from holdfast.testing import Call, Say, ScriptedModel

HISTORY_LIMIT = 100


@tool(replay="pure")
async def look() -> str:
    """Look around."""
    await asyncio.sleep(0.01)
    return "All is quiet. " * 20


@tool(replay="pure")
def count() -> str:
    """Count, in a thread."""
    time.sleep(0.01)
    return "Forty-two. " * 20


def soaked(url: str) -> App:
    says = Say(text="I will have a look at that and come back with what I find. " * 3, pace_s=0.005)
    model = ScriptedModel([says, Call(name="look")], [says, Call(name="count")], [says], per="turn")
    # A small limit, so that the chats that go on and on reach it.
    return App(url, [Agent("soaked", model, tools=[look, count])], history_limit=HISTORY_LIMIT)


async def sample(app: App, every_s: float) -> None:
    while True:
        if app.workers and app.workers[0].running:
            told = {"at": time.monotonic(), **holdfast.diagnostics(detailed=True)}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
        await asyncio.sleep(every_s)


async def main(url: str, every_s: float) -> None:
    app = soaked(url)
    sampling = asyncio.create_task(sample(app, every_s))
    await app.run_worker()
    sampling.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
