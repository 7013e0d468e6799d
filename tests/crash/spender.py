"""The processes that get killed while they draw, spend and fold: `python -m tests.crash.spender URL`.

One process, which forks another for each point, so that only one has to import everything. A line goes to standard
output for each: the point, which is its owner, its chat and its worker, too, and how it ended.
"""

import asyncio
import os
import signal
import sys

from msgspec.structs import replace

from holdfast import faults
from holdfast.core.budgets import Estimate
from holdfast.core.spending import Bill
from holdfast.owner_limits import OwnerLimits
from holdfast.store import open_store
from holdfast.store.budgets import Draw, Granted
from holdfast.store.records import StoreOptions
from tests.support.chats import Hand, call, new_chat

DAY = "2026-11-17"
LIMITS = OwnerLimits(day_tokens=100)
SPENT = 40
UNPASSED = "vacuum.rebuilt"
DRAWN = ["draw.before", "draw.after"]
FOLDED = ["fold.before", "fold.after"]
COMMITTED = [point for point in faults.POINTS if point.startswith("write.") and "receipt" not in point]
PASSED = [*DRAWN, *COMMITTED, "commit.before", "commit.after", "ack.before", *FOLDED]


def drawn(point: str) -> Draw:
    wanted = Estimate(tokens=100)
    return Draw(id=f"{point}-draw", worker=point, owner=point, chat_id=point, day=DAY, wanted=wanted, limits=LIMITS)


async def spend(url: str, point: str) -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async with open_store(url, StoreOptions()) as store:
        await store.create_chat(new_chat(id=point, agent=point, owner=point))
        hand = Hand(store, point)
        (hand.snapshot,) = await hand.claim(point)
        if point in DRAWN:
            faults.arm(point, kill)
        assert isinstance(await store.budgets.draw(drawn(point)), Granted)
        if point in PASSED and point not in FOLDED:
            faults.arm(point, kill)
        bill = Bill(day=DAY, reservations=(drawn(point).id,))
        await hand.commit(replace(hand.response(call(point), start=False), tokens=SPENT, bill=bill))
        if point in FOLDED:
            faults.arm(point, kill)
        await store.budgets.fold(0)


async def warm_up(url: str) -> None:
    async with open_store(url, StoreOptions()):
        pass


def main(url: str) -> None:
    asyncio.run(warm_up(url))
    for point in (*PASSED, UNPASSED):
        child = os.fork()
        if child == 0:
            asyncio.run(spend(url, point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, f"{point} {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
