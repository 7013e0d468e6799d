"""A chat that kills every worker that takes it is given up; the fleet, and everybody else's chats, live on."""

import asyncio
import signal

from holdfast.app import App
from holdfast.core.journal import ChatFailed
from holdfast.core.records import Cause, State
from tests.chaos.poisoned import make_app
from tests.support.chats import journal
from tests.support.forks import Fork, fork_module
from tests.support.waiting import eventually
from tests.worker.lives import BACKOFF_MS, SteppedClock

WORKERS = 2
DEATHS = 5
BOUND_S = 90.0


class Supervisor:
    """Starts a worker again when it dies, as a service manager does. Each new one is past the last one's backoff."""

    def __init__(self, url: str, clock: SteppedClock) -> None:
        self._url = url
        self._clock = clock
        self._running: set[Fork] = set()
        self.ends: list[int] = []

    async def keep_up(self, workers: int) -> None:
        async with asyncio.TaskGroup() as seats:
            for _ in range(workers):
                seats.create_task(self._keep_one_up())

    async def _keep_one_up(self) -> None:
        while True:
            process = fork_module("tests.chaos.poisoned", self._url, str(self._clock.ahead_ms))
            self._running.add(process)
            self.ends.append(await process.ended())
            self._running.discard(process)
            self._clock.ahead_ms += BACKOFF_MS

    async def end(self) -> list[int]:
        """Tell all to go. How they went."""
        leaving = list(self._running)
        for process in leaving:
            process.terminate()
        return [await process.ended() for process in leaving]

    def kill(self) -> None:
        for process in self._running:
            process.kill()


async def all_up(app: App) -> bool:
    """As many workers as there are seats hold a lease; the dead do not any more."""
    return sum(lease.ended is None for lease in await app.store.list_workers()) == WORKERS


async def test_a_chat_that_kills_its_worker_every_time_fails_after_five_and_the_fleet_lives(store_url: str) -> None:
    """Every successor crashes on the same chat: a poison chat takes down the fleet."""
    clock = SteppedClock()
    supervisor = Supervisor(store_url, clock)
    async with asyncio.timeout(BOUND_S), make_app(store_url, clock) as app:
        poison = await app.create("poison", "go")
        others = [await app.create("healthy", f"{n}") for n in range(10)]
        fleet = asyncio.create_task(supervisor.keep_up(WORKERS))
        try:
            assert await poison.wait() is State.FAILED
            for chat in [*others, await app.create("healthy", "one more")]:
                assert await chat.text() == "Fine."
            await eventually(lambda: all_up(app))  # who is still starting dies of SIGTERM
            assert supervisor.ends == [-signal.SIGKILL] * DEATHS
            fleet.cancel()
            await asyncio.wait((fleet,))
            assert await supervisor.end() == [0] * WORKERS, "nobody died of it any more"
        finally:
            fleet.cancel()
            supervisor.kill()
        failed = (await poison.snapshot()).chat
        assert failed.error is not None
        assert (failed.error.code, failed.error.cause) == ("crash", Cause.CRASH)
        assert "5 workers in a row" in failed.error.message
        assert ChatFailed(error=failed.error) in await journal(app.store, poison.id)
        assert await app.store.find_violations() == []
