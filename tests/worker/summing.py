"""A worker in a process of its own that says `summarising` when it makes a summary, and never comes to an end of it.

Usage: python -m tests.worker.summing URL WAY. The way is one of those that lead to a compaction.
"""

import asyncio
import sys

from holdfast import CompactionPolicy
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import Response, Say, ScriptedModel, Stall
from tests.support.counting import CountingModel


class Summaries(ScriptedModel):
    def _choose(self, request: object) -> Response:
        print("summarising", flush=True)  # noqa: T201
        return super()._choose(request)  # type: ignore[arg-type]


def agent(way: str, *summary: Say | Stall) -> Agent:
    model = CountingModel(after="echo", context_limit=4_096 if way == "near_limit" else None)
    return Agent("a", model, compaction=CompactionPolicy(model=Summaries(summary, after="repeat")))


async def work(url: str, way: str) -> None:
    app = App(url, [agent(way, Stall())])
    async with app, app.worker(poll_s=0.1):
        print("ready", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2]))
