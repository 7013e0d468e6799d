"""The processes that get killed while they fire an occurrence: `python -m tests.crash.firer URL`.

One process, which forks another for each point and each kind of chat, so that only one has to import everything. A
line goes to standard output for each: its name, which is the schedule's and its owner's, too, and how it ended.
"""

import asyncio
import os
import signal
import sys

from holdfast import faults
from holdfast.core.schedules import ChatMode, Every
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.store.schedule_records import NewSchedule
from holdfast.system.clock import FakeClock

MINUTE = 60_000
UNPASSED = "vacuum.rebuilt"  # a firing that is killed there is not killed
COMMITTED = ("commit.after", "ack.before")
PASSED = ("schedule.before", "schedule.chat", "schedule.after", "commit.before", *COMMITTED)
CHATS: tuple[ChatMode, ...] = ("new", "same")
FIRINGS = [(f"{point}-{chat}", point, chat) for point in (*PASSED, UNPASSED) for chat in CHATS]


async def fire(url: str, name: str, point: str, chat: ChatMode) -> None:
    """The second instant of a schedule: a chat that goes on is there then, and busy with the first one."""
    clock = FakeClock()
    async with open_store(url, StoreOptions(clock=clock)) as store:
        new = NewSchedule(
            name=name,
            owner=name,
            agent="agent",
            message="{at}",
            timing=Every(ms=MINUTE),
            chat=chat,
            overlap="allow",
        )
        schedule = await store.schedules.create(new)
        for armed in (UNPASSED, point):
            faults.arm(armed, lambda: os.kill(os.getpid(), signal.SIGKILL))
            clock.advance(MINUTE)
            await store.schedules.attend(schedule.id)


async def warm_up(url: str) -> None:
    async with open_store(url, StoreOptions()):
        pass


def main(url: str) -> None:
    asyncio.run(warm_up(url))
    for name, point, chat in FIRINGS:
        child = os.fork()
        if child == 0:
            asyncio.run(fire(url, name, point, chat))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, f"{name} {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
