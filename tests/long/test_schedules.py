"""Five real workers on each store, schedules of one second, kills, freezes, restarts, and a clock that is set: every
occurrence exactly once, or skipped with a reason. Ten minutes; HOLDFAST_TEST_SCHEDULES_S says otherwise.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from holdfast import Agent, App
from holdfast.testing import ScriptedModel
from tests.promises.test_12_a_schedules_occurrence_fires_once import EVERY_MS, schedules
from tests.support.freezing import freeze
from tests.support.occurrences import judge
from tests.support.postgres import PostgresServer
from tests.support.programs import ROOT
from tests.support.tallies import Figures
from tests.support.wall_clock import WallClock

SECONDS = int(os.environ.get("HOLDFAST_TEST_SCHEDULES_S", "600"))
WORKERS = 5
LEAVE_S_MAX = 240.0  # beside a load of 30 it took a minute to start, and to notice that it is to leave
STEPS_S = (-20, -5, 5, 30)  # by which the clock is set
pytestmark = pytest.mark.timeout(SECONDS + 280)


class Place(NamedTuple):
    """A database, what its workers run with, and the clock that counts there: the machine's, or the server's."""

    url: str
    environment: Mapping[str, str]
    wall: WallClock


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        wall = stack.enter_context(WallClock())
        if request.param == "sqlite":
            yield Place(f"sqlite:///{tmp_path}/holdfast.db", wall.environment, wall)
            return
        server = stack.enter_context(PostgresServer(environment=wall.environment))
        yield Place(server.create_database(), {}, wall)


class LiveWorker:
    """A process of its own from the start: a clock that is moved has to be there when Python is loaded."""

    def __init__(self, place: Place) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  as long as this worker
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.promises.scheduled", place.url],
            cwd=ROOT,
            env={**os.environ, **place.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def leave(self) -> None:
        """It drains, and is waited for."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(LEAVE_S_MAX)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGUSR1)  # its stacks
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self._said.seek(0)
            pytest.fail(f"a worker did not drain within {LEAVE_S_MAX:g} s:\n{self._said.read()[-20_000:].decode()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.process.wait(30)
        self._said.close()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


class Storm:
    def __init__(self, place: Place, stack: ExitStack, seed: int) -> None:
        self.place = place
        self.stack = stack
        self.dice = random.Random(seed)
        self.ahead_s = 0
        self.done: Counter[str] = Counter()
        self.workers = [stack.enter_context(LiveWorker(place)) for _ in range(WORKERS)]

    async def blow(self) -> None:
        """One misfortune, and a worker in the place of each that is gone."""
        what = self.dice.choice(("kill", "kill", "freeze", "restart", "clock"))
        victim = self.dice.randrange(WORKERS)
        worker = self.workers[victim]
        self.done[what] += 1
        if what == "kill":
            worker.send(signal.SIGKILL)
        elif what == "freeze":
            with suppress(ProcessLookupError):
                await asyncio.to_thread(freeze, worker.process.pid, self.place.url)
                await asyncio.sleep(self.dice.uniform(0.5, 5.0))
            worker.send(signal.SIGCONT)
        elif what == "restart":
            await asyncio.to_thread(worker.leave)
        else:
            self.ahead_s += self.dice.choice(STEPS_S)
            self.place.wall.set_ahead_s(self.ahead_s)
        for n, one in enumerate(self.workers):
            if one.process.poll() is not None:
                self.workers[n] = self.stack.enter_context(LiveWorker(self.place))


async def test_five_workers_in_a_storm_fire_each_occurrence_once_or_say_why_not(
    place: Place, figures: Figures
) -> None:
    agents = [Agent("echo", ScriptedModel(after="echo"))]
    async with App(place.url, agents) as app:
        made = [await app.schedules.create(schedule) for schedule in schedules()]
        with ExitStack() as stack:
            storm = Storm(place, stack, seed=12)
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                await asyncio.sleep(storm.dice.uniform(0.5, 3.0))
                await storm.blow()
            for schedule in made:
                await app.schedules.pause(schedule.id, "the storm is over")
        ends: Counter[str] = Counter()
        for schedule in made:
            ends += await judge(app, await app.schedules.get(schedule.id), EVERY_MS)
        figures("misfortunes", storm.done.total(), f"({dict(storm.done)})")
        figures("instants decided", ends.total(), f"({dict(ends)})")
        # A step back stops a schedule for as long, so how many there are is no promise; that there are some is.
        assert ends.total() > SECONDS / 2
