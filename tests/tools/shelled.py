"""A worker in a process of its own, whose agent runs one command with the shell tool.

Usage: python -m tests.tools.shelled URL ROOT COMMAND. It ends when its input does.
"""

import asyncio
import sys

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.config import Permissions
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.shell.tool import shell_tool


async def main(url: str, root: str, command: str) -> None:
    model = ScriptedModel([Call(name="shell", arguments={"command": command})], "Done.")
    shell = shell_tool(root=root, contained=True)
    app = App(url, [Agent("shelled", model, tools=[shell], permissions=Permissions(mode="edit"))])
    async with app, app.worker(poll_s=0.5):
        await app.create("shelled", "go")
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
