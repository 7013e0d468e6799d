"""A worker in a process of its own, whose agent gives one task to a stand-in for a coding program.

Usage: python -m tests.tools.coding_worker URL FOLDER KIND. It says "ready", and ends when its input does.
"""

import asyncio
import sys
from pathlib import Path

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.config import Permissions
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from tests.tools.coded import KINDS, CodingBench

RULES = [f"allow run({kind} edit)" for kind in KINDS]


def make_app(url: str, folder: Path, kind: str) -> App:
    made = CodingBench(folder).tool(kind, deadline_s=600.0, grace_s=0.2)
    model = ScriptedModel([Call(name=kind, arguments={"task": "mend it"})], "Mended.")
    agent = Agent("coder", model, tools=[made], permissions=Permissions(mode="edit", rules=RULES))
    return App(url, [agent], options=StoreOptions(lease_ttl_ms=30_000))


async def main(url: str, folder: Path, kind: str) -> None:
    async with make_app(url, folder, kind) as app, app.worker(poll_s=0.5):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
