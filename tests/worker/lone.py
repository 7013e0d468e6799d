"""A worker in a process of its own, whose agent's one tool does what the command line says.

Usage: python -m tests.worker.lone URL TOOL TTL_MS HARD_LIMIT_S. It prints a line when its tool's body begins, and one
of JSON, with its figures, for each line it is sent; it ends when its input does.

The tools: `child` starts a process that ignores SIGTERM under the guard, prints its pid, and waits for ever;
`wait` only waits; `block` blocks the event loop for 5.5 s; `hang` blocks it for good; `seize` holds the GIL for good;
`quick` is quick.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

import holdfast
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.base import Tool, tool
from holdfast.worker.worker import Worker


def make_agent(work: Tool) -> Agent:
    return Agent("lone", ScriptedModel([Call(name="work")], "Done."), tools=[work])


def make_tool(kind: str, worker: list[Worker]) -> Tool:
    async def work() -> str:
        """Do it."""
        if kind == "child":
            guard = worker[0].guard
            assert guard is not None
            child = subprocess.Popen(  # noqa: ASYNC220  it has nobody else to serve
                ["sh", "-c", "trap '' TERM; echo up; exec sleep 1000"],
                stdout=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, **guard.environment},
            )
            guard.add(child.pid)
            assert child.stdout is not None
            child.stdout.readline()
            say(f"{child.pid} {guard.pid}")
            await asyncio.Event().wait()
        say(kind)
        if kind == "block":
            time.sleep(5.5)  # noqa: ASYNC251  this is the crime
        elif kind == "hang":
            while True:
                time.sleep(1)  # noqa: ASYNC251
        elif kind == "wait":
            await asyncio.Event().wait()
        elif kind == "seize":
            re.match(r"(a+)+b", "a" * 64)
        return kind

    made: Tool = tool(replay="pure", name="work")(work)
    return made


def figures(worker: Worker) -> dict[str, Any]:
    assert worker.watchdog is not None
    assert worker.guard is not None
    dog = worker.watchdog
    return {
        "name": worker.name,
        "count": dog.stall_count,
        "longest_ms": dog.longest_stall_ms,
        "stalls": [
            {"frozen": stall.frozen, "lasted_ms": stall.lasted_ms, "stack": stall.stack} for stall in dog.stalls
        ],
        "guard": worker.guard.pid,
        "health": holdfast.diagnostics(detailed=True),
    }


async def main(url: str, kind: str, ttl_ms: int, hard_limit_s: float) -> None:
    holder: list[Worker] = []
    app = App(url, [make_agent(make_tool(kind, holder))], options=StoreOptions(lease_ttl_ms=ttl_ms))
    loop = asyncio.get_running_loop()
    async with app, app.worker(poll_s=0.5, stall_limit_s=hard_limit_s) as worker:
        holder.append(worker)
        say("ready")
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while await reader.readline():
            say(json.dumps(figures(worker)))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
