"""A worker in a process of its own, whose agent gives one task to a real coding program.

Usage: python -m tests.long.coding_agent_worker URL FOLDER NAME PROVIDER. It ends when its input does.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.config import Permissions
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from tests.support.coding_programs import real_agent

TASK = "Make made.txt."


def make_app(
    url: str, folder: Path, name: str, provider: str, calls: Sequence[dict[str, Any]] = ({"task": TASK},)
) -> App:
    """The calls, by their arguments, one after the other."""
    made = real_agent(name, folder, provider, deadline_s=300.0)
    model = ScriptedModel(*([Call(name=name, arguments=arguments)] for arguments in calls), "Done.")
    rules = Permissions(mode="edit", rules=[f"allow run({name} edit)"])
    agent = Agent("lead", model, tools=[made], permissions=rules)
    return App(url, [agent], options=StoreOptions(lease_ttl_ms=30_000))


async def main(url: str, folder: str, name: str, provider: str) -> None:
    async with make_app(url, Path(folder), name, provider) as app, app.worker(poll_s=0.5):
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
