"""A worker in a process of its own, to be killed: `python -m tests.skills.mortal URL FOLDER`. It says `waiting` when
its tool's body has begun, which never ends.
"""

import asyncio
import sys

from holdfast.agent import Agent, CompactionPolicy
from holdfast.app import App
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.skills.shelf import Skills
from holdfast.tools.base import tool


def agent_of(folder: str, model: ScriptedModel, *, mortal: bool) -> Agent:
    @tool(replay="pure")
    async def wait() -> str:
        """Wait."""
        if mortal:
            sys.stdout.write("waiting\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
        return "waited"

    policy = CompactionPolicy(model=ScriptedModel(after="echo"), keep_turns=1)
    return Agent("a", model, tools=[wait], skills=[Skills(folder)], compaction=policy)


def script() -> ScriptedModel:
    activate = Call(name="skill", arguments={"name": "review"})
    return ScriptedModel([activate], "Ready.", [Call(name="wait")], "Done.")


async def main(url: str, folder: str) -> None:
    app = App(url, agents=[agent_of(folder, script(), mortal=True)])
    async with app.worker():
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
