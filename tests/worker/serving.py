"""A worker process: `python -m tests.worker.serving URL GRACE_S`. Its agents' tools do what their names say.

Says `running` once a tool runs, so that a test can send its signals then.
"""

import asyncio
import sys
import time

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.base import tool


def said(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@tool(replay="pure")
async def wait(seconds: float) -> str:
    """Wait."""
    said("running")
    await asyncio.sleep(seconds)
    return "waited"


@tool(replay="pure")
async def block(seconds: float) -> str:
    """Block the event loop."""
    said("running")
    time.sleep(seconds)  # noqa: ASYNC251  a tool that does what no tool should
    return "blocked"


@tool(replay="pure")
async def ignore(seconds: float) -> str:
    """Ignore every cancellation."""
    said("running")
    while True:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:  # a tool that does what no tool should
            continue


def agent(name: str, seconds: float) -> Agent:
    model = ScriptedModel([Call(name=name, arguments={"seconds": seconds})], "Done.", per="chat")
    return Agent(f"{name} {seconds:g}", model, tools=[wait, block, ignore])


AGENTS = [agent("wait", 0.5), agent("wait", 60), agent("block", 60), agent("ignore", 60)]


async def main(url: str, grace_s: float) -> None:
    await App(url, agents=AGENTS).run_worker(grace_s=grace_s)
    said("left")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
