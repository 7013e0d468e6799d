"""The processes that get killed while a call of theirs reaches a child: `python -m tests.crash.reacher URL`.

As `keeper`: one process, which forks another for each point. A line goes to standard output for each: what it did,
the point, which is in its chats' ids, and how it ended.
"""

import asyncio
import os
import signal
import sys

from holdfast import faults
from holdfast.core import commands as cmd
from holdfast.core.records import Message
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.store.test_descendants import spawn
from tests.support.chats import Hand, call, new_chat, user

POINTS = ["write.chat.after", "write.queue.after", "commit.before", "commit.after"]
DEEDS: dict[str, Message | None] = {"message": user("more", id="more"), "cancel": None}


async def reach(url: str, deed: str, point: str) -> None:
    name = f"{deed}-{point}"
    async with open_store(url, StoreOptions()) as store:
        hand, other = Hand(store, f"{name}-1"), Hand(store, f"{name}-2")
        await store.create_chat(new_chat(id=name, agent=name))
        (hand.snapshot,) = await hand.claim(name)
        await spawn(hand, f"{name}-child", name)
        (other.snapshot,) = await other.claim(name)
        await spawn(other, f"{name}-below", name)
        await hand.respond(call("r"))
        os.write(1, f"{deed} {point} ".encode())
        faults.arm(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
        said = DEEDS[deed]
        await hand.commit(cmd.Reach(by=hand.by, call_id="r", child_id=f"{name}-child", message=said))


async def warm_up(url: str) -> None:
    async with open_store(url, StoreOptions()):
        pass


def main(url: str) -> None:
    asyncio.run(warm_up(url))
    for deed in DEEDS:
        for point in POINTS:
            child = os.fork()
            if child == 0:
                asyncio.run(reach(url, deed, point))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
