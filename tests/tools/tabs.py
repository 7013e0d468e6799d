"""A worker that dies when its model has called a tool, before anything is done: `python -m tests.tools.tabs URL`."""

import asyncio
import os
import signal
import sys

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.hooks import Hook
from holdfast.models.scripted import Call, ScriptedModel


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def work(url: str) -> None:
    model = ScriptedModel([Call(name="open_tab", arguments={"path": "a"})], "Done.")
    app = App(url, agents=[Agent("tabs", model, hooks=[Hook("on_step", die)])])
    async with app.worker(poll_s=0.1):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
