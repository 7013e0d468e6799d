"""A fleet of worker processes, and what blows at it: SIGKILL, SIGTERM, SIGSTOP, restarts, a database that is gone."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from tests.chaos.weather import Orders, Weather
from tests.support.forks import Fork, fork_module

GIVE_UP_S = 120.0  # on a process that was told to stop


class Member:
    """One worker process, from its start to its end."""

    def __init__(self, life: str, process: Fork) -> None:
        self.life = life
        self.process = process
        self.busy = False  # frozen, or on its way out
        self.stopped = self.killed = False  # which is noted before the blow: its end is seen in several places
        self.was_frozen = False

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def fell(self) -> bool:
        """It ended, and nobody had told it to."""
        return (
            not self.alive and not self.stopped and not (self.killed and self.process.returncode == -signal.SIGKILL)
        )


class Stopped(msgspec.Struct, frozen=True):
    """How a member took SIGTERM. One that had not got as far as to listen for it is ended by it."""

    life: str
    took_s: float
    code: int


class Fleet:
    """`async with Fleet(...)`: so many members at all times; one that is gone is replaced."""

    def __init__(self, url: str, folder: Path, weather: Weather) -> None:
        self.url = url
        self.weather = weather
        self.evidence = folder / "evidence"
        self.words = folder / "stderr"
        self.members: list[Member] = []
        self.lives = 0
        self.stops: list[Stopped] = []
        self.ends: list[str] = []  # members that ended although nobody had told them to
        self.ended_frozen = 0  # by their guard, because they stood still with the write lock of a SQLite file

    async def __aenter__(self) -> "Fleet":
        for _ in range(self.weather.workers):
            await self.launch()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            member.process.kill()  # also ends what is stopped
            await member.process.ended()

    @property
    def at_work(self) -> bool:
        """Each of them has asked a model."""
        said = self.evidence.read_bytes() if self.evidence.exists() else b""
        return all(f'"life":"{member.life}"'.encode() in said for member in self.members)

    async def launch(self) -> Member:
        self.lives += 1
        orders = Orders(self.url, str(self.evidence), f"w{self.lives}", self.weather)
        with self.words.open("ab") as words:
            process = fork_module("tests.chaos.member", msgspec.json.encode(orders).decode(), stderr=words)
        member = Member(orders.life, process)
        self.members.append(member)
        return member

    async def kill(self, member: Member) -> None:
        if self._fallen(member):
            return
        member.killed = True
        member.process.kill()
        code = await member.process.ended()
        if code == -signal.SIGKILL and member in self.members:  # else it ended before this blow
            self.members.remove(member)

    async def stop(self, member: Member) -> None:
        """Bounded by the caller's patience; whoever was killed meanwhile has not stopped."""
        if self._fallen(member):
            return
        member.busy = member.stopped = True
        began = time.monotonic()
        member.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(GIVE_UP_S):
            code = await member.process.ended()
        if code != -signal.SIGKILL:
            self.stops.append(Stopped(member.life, time.monotonic() - began, code))
            self.members.remove(member)

    async def freeze(self, member: Member, for_s: float) -> None:
        if self._fallen(member):
            return
        member.busy = member.was_frozen = True
        member.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        member.process.send_signal(signal.SIGCONT)
        member.busy = False

    def _fallen(self, member: Member) -> bool:
        """Nobody is there to be struck. If nobody had told it to go, the judge hears of it."""
        self.count_the_fallen()
        return not member.alive

    def count_the_fallen(self) -> None:
        for member in [member for member in self.members if member.fell]:
            self.members.remove(member)
            if self._ended_by_its_guard(member):
                self.ended_frozen += 1
            else:
                last_words = self.words.read_text(errors="replace")[-2000:]
                self.ends.append(f"{member.life} ended by itself with {member.process.returncode}: {last_words}")

    def _ended_by_its_guard(self, member: Member) -> bool:
        """As `system/guard_process.py` promises: nobody could write to the file for as long as it stood still."""
        killed = member.process.returncode == -signal.SIGKILL
        return killed and member.was_frozen and self.url.startswith("sqlite")


class Storm:
    """Blows at random, by a seed, until its time is over. Afterwards the fleet is whole again."""

    def __init__(self, fleet: Fleet, seed: int, restart_server: Callable[[], None] | None) -> None:
        self._fleet = fleet
        self._dice = random.Random(seed)
        self._restart_server = restart_server
        self._under_way: set[asyncio.Task[None]] = set()
        self._first = ["kill", "stop", "freeze"]  # whatever the dice say, each of them comes
        self._dice.shuffle(self._first)
        self.blows: Counter[str] = Counter()

    async def blow(self) -> None:
        weather, dice = self._fleet.weather, self._dice
        loop = asyncio.get_running_loop()
        end = loop.time() + weather.storm_s
        half = loop.time() + weather.storm_s / 2
        while loop.time() < end:
            await asyncio.sleep(dice.uniform(0.2, 1.8) * weather.blow_s)
            if self._restart_server is not None and loop.time() > half:
                self._begin(self._restart(self._restart_server))
                self._restart_server = None
            self._strike()
        await asyncio.gather(*self._under_way)
        self._fleet.count_the_fallen()

    def _strike(self) -> None:
        weather, dice, fleet = self._fleet.weather, self._dice, self._fleet
        if not fleet.members:
            return
        member = dice.choice(fleet.members)
        what = self._first[0] if self._first else dice.choice(("kill", "kill", "stop", "stop", "freeze"))
        if what != "kill" and member.busy:
            return
        self._first = self._first[1:]
        if what == "kill":
            self.blows["kills"] += 1
            self._begin(self._replace(fleet.kill(member)))
        elif what == "stop":
            self.blows["stops"] += 1
            self._begin(self._replace(fleet.stop(member)))
        else:
            self.blows["freezes"] += 1
            self._begin(fleet.freeze(member, weather.ttl_s * dice.uniform(1.1, 1.5)))

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _replace(self, end: Coroutine[object, object, None]) -> None:
        await end
        await asyncio.sleep(self._dice.uniform(0, self._fleet.weather.blow_s))
        if len(self._fleet.members) < self._fleet.weather.workers:
            await self._fleet.launch()

    async def _restart(self, restart: Callable[[], None]) -> None:
        self.blows["server restarts"] += 1
        await asyncio.to_thread(restart)


def seed_of(default: int) -> int:
    return int(os.environ.get("HOLDFAST_RANDOM_CHAOS", default))
