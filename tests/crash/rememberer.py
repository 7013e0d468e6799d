"""The workers that get killed while a model writes to its memory: `python -m tests.crash.rememberer URL`.

One process, which forks another for each case, so that only one has to import everything. A case is a crash point and
how often it is passed before: the chat's first step, a fact, a block. Or it is a point behind the fact's write, up to
the commit of the call's outcome: `memory.after:2+commit.after`. A line for each goes to standard output: the case,
which is its chat and its owner, too, and how it ended.
"""

import asyncio
import os
import signal
import sys

from holdfast import faults
from holdfast.agent import Agent, Memory
from holdfast.app import App
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from tests.support.turns import rested

UNPASSED = "vacuum.rebuilt:1"  # a chat that is killed there is not killed
POINTS = [f"{point}:{at}" for point in ("memory.before", "memory.after") for at in (1, 2, 3)]
POINTS += [f"memory.written:{at}" for at in (1, 2)]
BEHIND = ("commit.before", "commit.after", "ack.before", "write.chat.before", "write.journal.after")
CASES = [*POINTS, *(f"memory.after:{at}+{point}" for at in (2, 3) for point in BEHIND)]


def clerk() -> Agent:
    return Agent(
        "clerk",
        ScriptedModel(
            Call(name="memory", arguments={"action": "remember", "text": "likes tea"}),
            Call(name="memory", arguments={"action": "add", "block": "notes", "text": "a line"}),
            "Done.",
        ),
        memory=Memory(episodes=False),
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(case: str) -> None:
    first, _, behind = case.partition("+")
    point, _, at = first.partition(":")
    faults.arm(point, (lambda: faults.arm(behind, die)) if behind else die, at=int(at))


async def live(url: str, case: str) -> None:
    agent = clerk()
    app = App(url, [agent], options=StoreOptions(lease_ttl_ms=5_000))
    async with app:
        chat = await app.create(agent, "Hello.", owner=case, chat_id=case)
        arm(case)
        async with app.worker(poll_s=0.2):
            await rested(chat)


def main(url: str) -> None:
    async def warm_up() -> None:
        async with App(url, [clerk()]):
            pass

    asyncio.run(warm_up())
    for case in (*CASES, UNPASSED):
        child = os.fork()
        if child == 0:
            asyncio.run(live(url, case))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, f"{case} {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
