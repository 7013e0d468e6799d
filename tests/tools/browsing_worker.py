"""A worker in a process of its own, whose chat has a page open, that stands still.

    python -m tests.tools.browsing_worker STORE_URL FOLDER PAGE_URL BROWSER

FOLDER is for temporary files. It tells one line of JSON: the mark of what it started, and what the call came to. It
stops when its input ends.
"""

import asyncio
import json
import sys
import tempfile

from holdfast import Agent, App, Permissions, browse_tools
from holdfast.testing import Call, ScriptedModel
from tests.tools.every_tool import results


async def main(store_url: str, folder: str, page_url: str, browser: str) -> None:
    tempfile.tempdir = folder
    model = ScriptedModel([Call(name="browse_open", arguments={"url": page_url})], "Read.")
    rules = Permissions(mode="ask", rules=["allow reach(127.0.0.1:*)"])
    agent = Agent("surfer", model, tools=browse_tools(program=browser), permissions=rules)
    app = App(store_url, [agent])
    async with app, app.worker() as worker:
        turn = await app.run(agent, "Go.")
        assert worker.guard is not None
        [said] = [result.content for result in results(await turn.chat.messages())]
        sys.stdout.write(f"{json.dumps({'mark': worker.guard.mark, 'said': said})}\n")
        sys.stdout.flush()
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
