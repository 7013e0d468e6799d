"""One of two workers that share a family of chats: `python -m tests.tools.family URL LOG NAME`.

The parent waits for its child; the child's tool writes `NAME work` to LOG and waits for a line on stdin. On SIGTERM
the worker drains without grace and the process ends.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.base import tool
from holdfast.tools.sub_agents import agent_tools
from tests.promises.program import Log
from tests.tools.test_sub_agents import Boss


def family_agents(log: Log, name: str, hold: Callable[[], object] = sys.stdin.readline) -> list[Agent]:
    def work() -> str:
        """Work."""
        log.write(f"{name} work")
        return f"done by {name}, {hold()}".strip()

    child: Any = ScriptedModel([Call(name="work")], "42")
    return [
        Agent("parent", Boss("one"), tools=agent_tools(["child"])),
        Agent("child", child, tools=[tool(replay="pure")(work)]),
    ]


if __name__ == "__main__":
    url, path, name = sys.argv[1:4]
    app = App(url, agents=family_agents(Log(path), name), options=StoreOptions(lease_ttl_ms=10_000))
    asyncio.run(app.run_worker(grace_s=0.0, poll_s=0.1))
