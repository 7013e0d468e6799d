"""A worker process whose chats take one step after the other for ever: `python -m bench.stepper URL LOG TTL_S`.

Every step writes the process and the time into the log, in the middle of the step, in its tool.
"""

import asyncio
import os
import sys
import time

from holdfast import Agent, AgentLimits, App, tool
from holdfast.testing import Call, Say, ScriptedModel

STEP_S = 0.02


def stepping(url: str, log: str, ttl_s: float) -> App:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @tool(replay="pure")
    async def step() -> str:
        """Take one."""
        os.write(fd, b"%d %d\n" % (os.getpid(), time.monotonic_ns()))
        await asyncio.sleep(STEP_S)
        return "done"

    model = ScriptedModel([Say(text="On we go."), Call(name="step")], after="repeat")
    agent = Agent("stepper", model, tools=[step], limits=AgentLimits(steps=1_000_000))
    return App(url, [agent], lease_ttl_s=ttl_s)


if __name__ == "__main__":
    asyncio.run(stepping(sys.argv[1], sys.argv[2], float(sys.argv[3])).run_worker())
