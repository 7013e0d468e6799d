"""What a step costs from end to end: a worker drives chats through a scripted model and one trivial tool.

A cycle is one response with one call, and the call's result, each durable before anything else happens. It is timed
from the moment the tool returns until it is called again, in the middle of a turn that never ends.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

from bench.chats import PATIENT, WORKER, lanes, register
from bench.figures import Async, Figures, interleaved
from bench.raw import Bare, RawLanes, RawPostgres, RawPostgresLanes, RawSqlite, raw_rate
from holdfast import Agent, AgentLimits, App, CompactionPolicy, tool
from holdfast.store.postgres.store import PostgresStore
from holdfast.testing import Call, Say, ScriptedModel
from holdfast.tools.context import ToolContext
from tests.support.postgres import PostgresServer

ROUNDS = 300
CHATS = 32
CYCLES_EACH = 40
_TEXT = "I will look that up and come back with what I find. "
_RESULT = "It is 14 degrees and raining in Bern, with more rain to come. "
_serial = count(1)


class Seat:
    """One chat. Its tool returns as often as it is told to, then waits."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._left = 0
        self._go: asyncio.Future[None] = loop.create_future()
        self.called: asyncio.Future[None] = loop.create_future()

    async def take_call(self) -> None:
        if self._left > 0:
            self._left -= 1
            return
        self.called.set_result(None)
        await self._go

    async def cycles(self, how_many: int) -> None:
        loop = asyncio.get_running_loop()
        go, self._go, self.called = self._go, loop.create_future(), loop.create_future()
        self._left = how_many - 1
        go.set_result(None)
        await self.called

    async def cycle(self) -> None:
        await self.cycles(1)


class Stage:
    """An app with a worker, and chats on it that go when told."""

    def __init__(self, url: str, context_limit: int | None = None) -> None:
        self._seats: dict[str, Seat] = {}

        @tool
        async def weather(city: str, context: ToolContext) -> str:
            """Current weather in a city."""
            await self._seats[context.chat_id].take_call()
            return _RESULT

        says, asks = Say(text=_TEXT, piece_chars=30), Call(name="weather", arguments='{"city":"Bern"}')
        model = ScriptedModel([says, asks], after="repeat")
        agent = Agent(
            "cycler",
            model,
            tools=[weather],
            limits=AgentLimits(steps=1_000_000),
            compaction=CompactionPolicy(context_limit=context_limit),
        )
        self.app = App(url, [agent], options=PATIENT)

    async def chats(self, how_many: int) -> list[Seat]:
        """Each in its first call of the tool."""
        seats = [await self._chat() for _ in range(how_many)]
        for seat in seats:
            await seat.called
        return seats

    async def _chat(self) -> Seat:
        chat_id = f"cycles_{next(_serial):06d}"
        seat = self._seats[chat_id] = Seat()
        await self.app.create("cycler", "What is the weather in Bern?", chat_id=chat_id)
        return seat


async def one_cycle(figures: Figures, stage: Stage, raw: Async, name: str) -> None:
    async def two_commits() -> None:
        await raw()
        await raw()

    (seat,) = await stage.chats(1)
    await interleaved(50, ours=seat.cycle, raw=two_commits)
    medians = await interleaved(ROUNDS, ours=seat.cycle, raw=two_commits)
    note = f"{medians['ours'] * 1e3:.3f} ms against {medians['raw'] * 1e3:.3f} ms"
    figures.add(
        f"{name}: a model+tool cycle / two one-row commits",
        medians["ours"] / medians["raw"],
        "×",
        at_most=2.5,
        note=note,
    )


async def by_age(figures: Figures, stage: Stage, name: str) -> None:
    """A chat up to its 500th cycle, within what a runner keeps in memory (`history_limit`), and far beyond that."""
    (old,) = await stage.chats(1)
    await old.cycles(410)
    await against_young(figures, stage, old, f"{name}: cycle 500 of a chat / cycle 5", at_most=1.15)
    await old.cycles(200)
    await against_young(figures, stage, old, f"{name}: cycle 750, past history_limit / cycle 5", at_most=None)


async def against_young(figures: Figures, stage: Stage, old: Seat, name: str, at_most: float | None) -> None:
    """90 cycles of an old chat, and cycles 4 to 6 of fresh ones, in turns."""
    times: dict[str, list[float]] = {"old": [], "young": []}
    for _ in range(30):
        (young,) = await stage.chats(1)
        await young.cycles(2)
        for _ in range(3):
            for kind, seat in (("old", old), ("young", young)):
                began = time.perf_counter()
                await seat.cycle()
                times[kind].append(time.perf_counter() - began)
    aged, fresh = statistics.median(times["old"]), statistics.median(times["young"])
    figures.add(name, aged / fresh, "×", at_most=at_most, note=f"{fresh * 1e3:.3f} → {aged * 1e3:.3f} ms")


async def together(figures: Figures, stage: Stage, bare: Bare, name: str) -> None:
    """In turns: chats at full speed, and the rows of as many commits through a bare group commit."""
    seats = await stage.chats(CHATS)
    speeds: dict[str, list[float]] = {"ours": [], "raw": []}
    for _ in range(5):
        began = time.perf_counter()
        await asyncio.gather(*(seat.cycles(CYCLES_EACH) for seat in seats))
        speeds["ours"].append(CHATS * CYCLES_EACH / (time.perf_counter() - began))
        rows = await lanes(stage.app.store, WORKER, CHATS)
        speeds["raw"].append(await raw_rate(bare, rows, 2 * CYCLES_EACH))
    ours, raw = (statistics.median(speeds[kind]) for kind in ("ours", "raw"))
    note = f"2 × {ours:,.0f} cycles/s against {raw:,.0f} commits/s"
    share = f"{name}: {CHATS} chats at once, two commits a cycle / bare group commit"
    figures.add(share, 2 * ours / raw, "×", at_least=0.25, note=note)


@contextlib.asynccontextmanager
async def staged(url: str, context_limit: int | None = None) -> AsyncIterator[Stage]:
    stage = Stage(url, context_limit)
    async with stage.app.worker(grace_s=0.0, chats_max=1_000):
        line = register(stage.app.store, WORKER)
        yield stage
        line.close()


async def sqlite_cycles(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        async with staged(f"sqlite:///{path}") as stage:
            raw = RawSqlite(Path(folder) / "raw.db")
            await one_cycle(figures, stage, raw.commit_one_row, "sqlite")
            raw.close()
            await by_age(figures, stage, "sqlite")
            bare = RawLanes(path)
            await together(figures, stage, bare, "sqlite")
            bare.close()


async def postgres_cycles(figures: Figures) -> None:
    with PostgresServer() as server:
        url = server.create_database()
        async with staged(url) as stage:
            raw = await RawPostgres.connect(url)
            await one_cycle(figures, stage, raw.commit_one_row, "postgres")
            await raw.close()
            await by_age(figures, stage, "postgres")
            assert isinstance(stage.app.store, PostgresStore)
            connection = await stage.app.store._connector.connect(asyncio.get_running_loop().time() + 8)
            await together(figures, stage, RawPostgresLanes(connection), "postgres")
            await connection.close()
