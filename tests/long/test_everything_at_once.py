"""One storm of all that the tests know: workers are killed, stopped and frozen, connections cut, the database server
restarted, and at last its primary is killed and a synchronous standby takes over. The judge is that of `tests/chaos`.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from holdfast.app import App
from holdfast.core.records import State
from holdfast.errors import StoreError
from holdfast.store.records import ChatFilter
from tests.chaos.judge import judge, read_findings, tally
from tests.chaos.storm import Fleet, Storm, seed_of
from tests.chaos.weather import AGENTS, Weather
from tests.support.chats import new_chat
from tests.support.postgres import OWNER, PostgresServer
from tests.support.standby import Standby, pair_url
from tests.support.tallies import Figures, Tell
from tests.support.waiting import until
from tests.worker.evidence import read_evidence

WORKERS = 4
WEATHER = Weather(workers=WORKERS, chats=400, steps=6, storm_s=40.0, pace_s=0.05, tool_s=0.5, ttl_s=4.0)
CUT_S = 1.0  # on average, from one cut of connections to the next
CALM_S = 120.0
BUSY = (State.RUNNING, State.STOPPING, State.WAITING)
CUT = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{OWNER}' AND random() < 0.5"


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, Standby]]:
    with PostgresServer() as primary, Standby(primary) as standby:
        standby.make_synchronous()
        yield primary, standby


class Database:
    """What blows at the database: cuts all the time, a restart at a third of the storm, the failover at two."""

    def __init__(self, primary: PostgresServer, standby: Standby, seed: int) -> None:
        self._primary = primary
        self._standby = standby
        self._dice = random.Random(seed)
        self.cut = self.restarts = self.failovers = 0

    async def blow(self, storm_s: float) -> None:
        await self._cut_for(storm_s / 3, self._primary)
        await asyncio.to_thread(self._primary.restart, "immediate")
        self.restarts += 1
        await self._cut_for(storm_s / 3, self._primary)
        await asyncio.to_thread(self._primary.kill9)
        await asyncio.to_thread(self._standby.promote)
        self.failovers += 1
        await self._cut_for(storm_s / 3, self._standby)

    async def _cut_for(self, for_s: float, server: PostgresServer) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + for_s
        while loop.time() < end:
            await asyncio.sleep(self._dice.uniform(0.2, 1.8) * CUT_S)
            self.cut += await asyncio.to_thread(_cut, server)


def _cut(server: PostgresServer) -> int:
    with psycopg.connect(server.url("postgres", user="postgres"), autocommit=True, connect_timeout=10) as connection:
        [(count,)] = connection.execute(CUT.encode()).fetchall()
    return int(count)


@pytest.mark.timeout(420)
async def test_a_storm_of_everything_repeats_nothing_and_leaves_nobody_behind(
    pair: tuple[PostgresServer, Standby], tmp_path: Path, figures: Figures, tell: Tell
) -> None:
    primary, standby = pair
    seed = seed_of(13)
    url = pair_url(primary, standby, primary.create_database().rpartition("/")[2])
    async with App(url, [], lease_ttl_s=WEATHER.ttl_s) as app:
        fleet = Fleet(url, tmp_path, WEATHER)
        storm, database = Storm(fleet, seed, None), Database(primary, standby, seed)
        async with fleet:
            chat_ids = await create(app)
            await until(lambda: fleet.at_work, CALM_S)
            await asyncio.gather(storm.blow(), database.blow(WEATHER.storm_s))
            while len(fleet.members) < WORKERS:
                await fleet.launch()
            await rest(app)
            await asyncio.gather(*(fleet.stop(member) for member in list(fleet.members)))
        evidence = read_evidence(fleet.evidence)
        findings = await read_findings(app.store, chat_ids)
        tell(tally(fleet, storm, findings, evidence, seed))
        figures("connections cut, restarts, failovers", f"{database.cut}, {database.restarts}, {database.failovers}")
        assert await judge(app.store, fleet, findings, evidence) == []


async def create(app: App) -> list[str]:
    news = [new_chat(agent=f"agent-{n % AGENTS}") for n in range(WEATHER.chats)]
    for new in news:
        await app.store.create_chat(new)
    return [new.id for new in news]


async def rest(app: App) -> None:
    """Until nothing is at work any more. If that does not come, the judge says which."""
    give_up_at = asyncio.get_running_loop().time() + CALM_S
    while asyncio.get_running_loop().time() < give_up_at:
        with suppress(StoreError):
            if not any([await app.store.list_chats(ChatFilter(state=state), limit=1) for state in BUSY]):
                return
        await asyncio.sleep(0.2)
