"""A worker whose tool a person must approve, to be killed: `python -m tests.tools.asking URL LOG HOW`.

HOW says who asks: `tool`, by its own `needs_approval`; `hook`, with an expiry of an hour; `sibling`: the tool asks
while another call's body waits, inside. LOG gets a line whenever the model is asked and a body begins.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.hooks import Ask, Hook
from holdfast.models.scripted import Call
from holdfast.store.records import StoreOptions
from holdfast.tools.base import Tool, tool
from tests.promises.program import Log, LoggedModel

HOUR_S = 3_600.0


async def forever() -> None:
    await asyncio.Event().wait()


def paying_agent(log: Log, how: str, slow: Callable[[], Awaitable[object]] = forever) -> Agent:
    async def pay(amount: int) -> str:
        """Pay."""
        log.write("pay")
        return f"paid {amount}"

    async def look() -> str:
        """Look, slowly."""
        log.write("look")
        await slow()
        return "seen"

    def ask(call: Any, _context: Any) -> Ask | None:
        return Ask(question=f"Really {call.name}?", expires_s=HOUR_S) if call.name == "pay" else None

    calls = [Call(name="pay", arguments={"amount": 5}), *([Call(name="look")] if how == "sibling" else [])]
    paying: Tool = tool(pay) if how == "hook" else tool(needs_approval=True)(pay)
    return Agent(
        "paying",
        LoggedModel(log, calls, "Done."),
        tools=[paying, tool(replay="pure")(look)],
        hooks=[Hook("before_tool", ask)] if how == "hook" else [],
    )


async def work(url: str, agent: Agent) -> None:
    app = App(url, agents=[agent], options=StoreOptions(lease_ttl_ms=10_000))
    async with app.worker(poll_s=0.2):
        await forever()


if __name__ == "__main__":
    url, path, how = sys.argv[1:4]
    asyncio.run(work(url, paying_agent(Log(path), how)))
