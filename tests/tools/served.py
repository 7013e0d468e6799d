"""A worker in a process of its own, whose agent uses a tool server and is then asked for something that hangs.

Usage: python -m tests.tools.served URL. It prints the server's pid once a call hangs, and ends when its input does.
"""

import asyncio
import sys

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.mcp_servers import McpServer
from holdfast.models.scripted import Call, ScriptedModel
from tests.support.programs import ROOT
from tests.support.waiting import until


async def main(url: str) -> None:
    args = ["-I", "-S", str(ROOT / "tests" / "support" / "mcp_plain.py")]
    server = McpServer("t", command=sys.executable, args=args)
    model = ScriptedModel([Call(name="t_hang", arguments={"name": "one"})], "Done.")
    app = App(url, [Agent("served", model, tools=[server])])
    async with app, app.worker(poll_s=0.5) as worker:
        await app.create("served", "go")
        await until(lambda: any(link.figures()["calls_open"] for link in worker.tool_servers.links), 60.0)
        sys.stdout.write(f"{worker.tool_servers.links[0].figures()['pid']}\n")
        sys.stdout.flush()
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
