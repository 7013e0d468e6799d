"""A worker whose agent mends a failing test in a folder, as a good run of a model did: `… URL FOLDER`.

It looks, searches, reads, runs the test, edits, runs it again and commits. It lives until it is killed.
"""

import asyncio
import sys

from holdfast import Agent, App, Permissions, StoreOptions
from holdfast.models.scripted import Written
from holdfast.testing import Call, Say, ScriptedModel
from holdfast.tools.files.tools import file_tools
from holdfast.tools.plan import plan_tool
from holdfast.tools.shell.tool import shell_tool

RUN = "python3 test_till.py && echo passed"
COMMIT = "git add -A && git -c user.name=Ada -c user.email=ada@example.com commit -q -m 'Till: add, do not subtract'"


def say(text: str) -> Say:
    return Say(text=text, piece_chars=4, pace_s=0.01)


GOOD_RUN: list[Written] = [
    [say("Let me see what is here. "), Call(name="list_files", arguments={})],
    [
        Call(name="search_files", arguments={"pattern": "def total"}),
        Call(name="read_file", arguments={"path": "till.py"}),
    ],
    [say("I run the test first. "), Call(name="shell", arguments={"command": RUN})],
    [
        say("It subtracts. "),
        Call(name="edit_file", arguments={"path": "till.py", "old": "left - 1 * right", "new": "left + right"}),
    ],
    [Call(name="shell", arguments={"command": RUN})],
    [say("It passes. "), Call(name="shell", arguments={"command": COMMIT})],
    [say("The test passes, and the change is committed.")],
]


def agent(folder: str) -> Agent:
    tools = [*file_tools(folder), shell_tool(root=folder), plan_tool()]
    return Agent("carpenter", ScriptedModel(*GOOD_RUN), tools=tools, permissions=Permissions(mode="ask"))


async def work(url: str, folder: str) -> None:
    app = App(url, agents=[agent(folder)], options=StoreOptions(lease_ttl_ms=10_000))
    async with app.worker(poll_s=0.2):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2]))
