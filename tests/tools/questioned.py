"""A worker whose agent calls a tool that asks the person: `questioned.py STORE LOG STEP…`, until it is killed.

Each step is what the model does next: `hold` calls the tool, and an id has the person asked that question.
"""

import asyncio
import sys

from holdfast.agent import Agent
from holdfast.models.scripted import Call, ScriptedModel
from tests.support.turns import running
from tests.tools.test_mcp import program

HOLD = Call(name="t_hold", arguments={})


def agent(log: str, *steps: str) -> Agent:
    asked = {step: Call(name="t_ask_person", arguments={"question": step}) for step in steps}
    model = ScriptedModel(*([HOLD if step == "hold" else asked[step]] for step in steps), "Done.")
    return Agent("a", model, tools=[program("stdio", "--log", log, elicitation=True)])


async def main() -> None:
    url, log, *steps = sys.argv[1:]
    async with running(url, agent(log, *steps)):
        print("up", flush=True)  # noqa: T201  it is a program
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())
