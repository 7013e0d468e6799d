"""A program: a worker that lost its lease and does not know, and goes on writing with its old fence.

Usage: python -m tests.fleet.revenant URL COUNT. It claims COUNT chats, gives up its lease as a crash would, says
`claimed`, waits for a line, and then repeats its writes until it gets another line. Last it prints how many were
accepted, and how many were refused with which error, as JSON.
"""

import asyncio
import os
import sys
from collections import Counter

import msgspec

from holdfast.core.records import LeaseEnd
from holdfast.errors import HoldfastError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import DeltaBatch, StoreOptions, WorkerInfo
from tests.fleet.claimer import Runner, say

NAME = "revenant"


class Report(msgspec.Struct):
    accepted: int
    refused: dict[str, int]


async def haunt(store: Store, runners: list[Runner], told: "asyncio.Future[str]") -> Report:
    accepted, refused = 0, Counter[str]()
    commands = [runner.response("too late") for runner in runners]
    over = False
    while not over:
        over = told.done()  # before a last round: there is one, however late this process gets to it
        for runner, command in zip(runners, commands, strict=True):
            chat = runner.held.chat
            try:
                await store.commit(runner.held, [command], f"late-{chat.id}")
                accepted += 1
            except HoldfastError as error:
                refused[type(error).__name__] += 1
            deltas = DeltaBatch(
                chat=chat,
                attempt=command.attempt,
                first_k=0,
                bodies=(b'{"part":"text","text":"too late"}',),
            )
            if await store.add_deltas([deltas]) == (chat.id,):
                refused["deltas"] += 1
            else:
                accepted += 1
    return Report(accepted=accepted, refused=dict(refused))


async def main(url: str, count: int) -> Report:
    loop = asyncio.get_running_loop()
    async with open_store(url, StoreOptions()) as store:
        line = store.lease_line()
        line.register(WorkerInfo(worker=NAME, host="", pid=os.getpid()))
        snapshots = await store.claim_chats(NAME, {"agent": count}, count)
        assert len(snapshots) == count
        await store.recovery.end_lease(NAME, LeaseEnd.SILENT)
        line.close()
        say("claimed")
        await loop.run_in_executor(None, sys.stdin.readline)
        told = asyncio.ensure_future(loop.run_in_executor(None, sys.stdin.readline))
        return await haunt(store, [Runner(store, NAME, snapshot) for snapshot in snapshots], told)


if __name__ == "__main__":
    say(msgspec.json.encode(asyncio.run(main(sys.argv[1], int(sys.argv[2])))).decode())
