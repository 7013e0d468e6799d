"""The processes that get killed while they approve a call with "always": `python -m tests.crash.keeper URL`.

One process, which forks another for each point, so that only one has to import everything. A line goes to standard
output for each: the point, which is its chat and its owner, too, the call, and how it ended.
"""

import asyncio
import os
import signal
import sys

from holdfast import faults
from holdfast.core import commands as cmd
from holdfast.store import open_store
from holdfast.store.records import Key, StoreOptions
from tests.support.chats import Hand
from tests.support.kept import PAY, asking

RULES = (PAY, "allow call(tell)")
UNPASSED = "vacuum.rebuilt"  # an approval that is killed there is not killed
PASSED = [point for point in faults.POINTS if point.startswith(("write.", "commit.", "ack."))]


def approval(call_id: str) -> cmd.Approve:
    return cmd.Approve(call_id=call_id, by="ann", always="owner")


def key(point: str) -> Key:
    return Key(principal="ann", key=point)


async def keep(url: str, point: str) -> None:
    async with open_store(url, StoreOptions()) as store:
        _, call_id = await asking(store, *RULES, owner=point, chat_id=point, agent=point, hand=Hand(store, point))
        os.write(1, f"{point} {call_id} ".encode())
        faults.arm(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
        await store.submit(point, approval(call_id), key(point))


async def warm_up(url: str) -> None:
    async with open_store(url, StoreOptions()):
        pass


def main(url: str) -> None:
    asyncio.run(warm_up(url))
    for point in (*PASSED, UNPASSED):
        child = os.fork()
        if child == 0:
            asyncio.run(keep(url, point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
