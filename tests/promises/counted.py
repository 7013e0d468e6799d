"""A worker whose tools keep count, to be killed: `python -m tests.promises.counted URL COUNTER MOMENT`.

Every body adds a line to COUNTER when it is entered and another when it is about to return, each with its key. One
response asks for all four tools, so they run side by side. MOMENT says when this process kills itself with SIGKILL,
or where bodies wait to be killed:

    planned      the calls are committed, their start is not
    started      their start is committed, no body was entered
    body         every body waits, inside
    returned     every body has returned, no outcome is committed
    slow NAME    that tool's body waits, inside; the others return
"""

import asyncio
import sys
from typing import Any

from holdfast import Agent, App, Hook, StoreOptions, Tool, ToolContext, tool
from holdfast.testing import Call, ScriptedModel, arm
from tests.promises.program import Log, die, die_after_the_next_commit

TOOLS: dict[str, dict[str, Any]] = {
    "pure": {"replay": "pure"},
    "idempotent": {"replay": "idempotent"},
    "unsafe": {"replay": "unsafe"},
    "unsafe_ask": {"replay": "unsafe", "on_unknown": "ask"},
}


def counting_agent(log: Log, moment: str = "", url: str = "") -> Agent:
    """The guard keeps a call's start out of the commit of its response, so that there is something between them."""
    returning = asyncio.Barrier(len(TOOLS))

    def counting(name: str) -> Tool:
        async def body(amount: int, context: ToolContext) -> str:
            log.write(f"enter {name} {context.key}")
            if moment in ("body", f"slow {name}"):
                await asyncio.Event().wait()
            log.write(f"exit {name} {context.key}")
            if moment == "returned":
                await returning.wait()
                arm("commit.before", die)
            return f"{name} did it"

        made: Tool = tool(name=name, description="Count.", **TOOLS[name])(body)
        return made

    def guard(call: Any, _context: Any) -> None:
        if call.name == list(TOOLS)[-1] and moment == "planned":
            arm("write.journal.after", lambda: arm("commit.before", die))  # not a commit of the worker's own upkeep
        if call.name == list(TOOLS)[-1] and moment == "started":
            die_after_the_next_commit(url)

    model = ScriptedModel([Call(name=name, arguments={"amount": 5}) for name in TOOLS], "Done.")
    tools = [counting(name) for name in TOOLS]
    return Agent("counting", model, tools=tools, hooks=[Hook("before_tool", guard)])


async def work(url: str, agent: Agent) -> None:
    app = App(url, agents=[agent], options=StoreOptions(lease_ttl_ms=10_000))
    # One chat at a time: no claim of another one comes between a moment and its commit.
    async with app.worker(chats_max=1, poll_s=0.2):
        await asyncio.Event().wait()


if __name__ == "__main__":
    url, path, moment = sys.argv[1:]
    asyncio.run(work(url, counting_agent(Log(path), moment, url)))
