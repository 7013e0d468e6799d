"""A program: a process with several workers that claim chats and work on them at full speed until none is left.

Usage: python -m tests.fleet.claimer URL NAME WORKERS TTL_MS. It says `ready`, waits for a line, works, and prints
what happened as JSON. Each worker has a lease of its own, renewed by a thread of its own.
"""

import asyncio
import os
import sys
import threading
import time

import msgspec

from holdfast.core import commands as cmd
from holdfast.core.records import Snapshot, State
from holdfast.errors import HoldfastError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter, StoreOptions, WorkerInfo
from holdfast.system import threads
from tests.support.chats import Hand, call

RENEW_EVERY_S = 0.1
CLAIM_LIMIT = 4


class Report(msgspec.Struct):
    """What one process did."""

    claimed: dict[str, list[str]]  # by worker
    seconds: float
    commits: int
    renewals: int
    renewal_s_max: float
    overtaken_max: int  # commits of this process that were made while one renewal waited
    errors: list[str]


class Commits:
    """Of all workers of this process."""

    count = 0


class LeaseKeeper:
    """A worker's lease, renewed from a thread until it is told to stop; it notes how long each renewal took, and how
    many commits overtook it, which a machine that stands still does not change."""

    def __init__(self, store: Store, worker: str, commits: Commits) -> None:
        self._store = store
        self._worker = worker
        self._commits = commits
        self._stop = threading.Event()
        self._registered = threading.Event()
        self.renewals_s: list[float] = []
        self.overtaken_max = 0
        self.errors: list[str] = []
        self._thread = threads.start(f"lease-{worker}", self._keep)

    def _keep(self) -> None:
        line = self._store.lease_line()
        try:
            line.register(WorkerInfo(worker=self._worker, host="", pid=os.getpid()))
            self._registered.set()
            while not self._stop.wait(RENEW_EVERY_S):
                began, before = time.monotonic(), self._commits.count
                line.renew(self._worker)
                self.renewals_s.append(time.monotonic() - began)
                self.overtaken_max = max(self.overtaken_max, self._commits.count - before)
            line.retire(self._worker)
        except HoldfastError as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            line.close()

    def wait_until_registered(self) -> None:
        assert self._registered.wait(30), self.errors

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


class Runner(Hand):
    """Drives one claimed chat; the lease belongs to somebody else."""

    def __init__(self, store: Store, worker: str, snapshot: Snapshot) -> None:
        self.store = store
        self.name = worker
        self.attempts = 0
        self.snapshot = snapshot

    async def run(self) -> int:
        """Two steps with a tool each, then the answer. Returns how many commits that took."""
        chat_id = self.held.chat.id
        for n in range(2):
            await self.respond(f"step {n}", call(f"{chat_id}-k{n}"), id=f"{chat_id}-r{n}")
            await self.finish(f"{chat_id}-k{n}", f"result {n}")
        await self.commit(self.response("done", id=f"{chat_id}-done"), cmd.FinishTurn(by=self.by))
        return 5


class Worker:
    def __init__(self, store: Store, name: str, commits: Commits) -> None:
        self._store = store
        self.name = name
        self.keeper = LeaseKeeper(store, name, commits)
        self.claimed: list[str] = []
        self._commits = commits
        self.errors: list[str] = []

    async def work(self) -> None:
        try:
            while True:
                snapshots = await self._store.claim_chats(self.name, {"agent": CLAIM_LIMIT}, CLAIM_LIMIT)
                self.claimed += [snapshot.chat.id for snapshot in snapshots]
                for snapshot in snapshots:
                    made = await Runner(self._store, self.name, snapshot).run()
                    self._commits.count += made
                if not snapshots and not await self._some_are_free():
                    return
        except HoldfastError as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    async def _some_are_free(self) -> bool:
        """Nothing to be had may also mean that others were looking at the same chats just then."""
        running = await self._store.list_chats(ChatFilter(state=State.RUNNING), limit=10_000)
        return any(line.worker is None for line in running)


async def main(url: str, name: str, workers: int, ttl_ms: int) -> Report:
    async with open_store(url, StoreOptions(lease_ttl_ms=ttl_ms)) as store:
        commits = Commits()
        team = [Worker(store, f"{name}-w{n}", commits) for n in range(workers)]
        for worker in team:
            worker.keeper.wait_until_registered()
        say("ready")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        began = time.monotonic()
        await asyncio.gather(*(worker.work() for worker in team))
        seconds = time.monotonic() - began
        for worker in team:
            worker.keeper.stop()
        renewals = [took for worker in team for took in worker.keeper.renewals_s]
        return Report(
            claimed={worker.name: worker.claimed for worker in team},
            seconds=seconds,
            commits=commits.count,
            renewals=len(renewals),
            renewal_s_max=max(renewals, default=0.0),
            overtaken_max=max(worker.keeper.overtaken_max for worker in team),
            errors=[error for worker in team for error in (*worker.errors, *worker.keeper.errors)],
        )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    url, name, workers, ttl_ms = sys.argv[1:]
    say(msgspec.json.encode(asyncio.run(main(url, name, int(workers), int(ttl_ms)))).decode())
