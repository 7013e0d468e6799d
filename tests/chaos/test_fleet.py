"""A fleet under a storm: real processes that are killed, stopped, frozen and restarted while they work.

In `make test` the lease is 2 s and the storm short; `make soak` blows with the figures of a deployment for as long as
`HOLDFAST_SOAK_STORM_S` says. `HOLDFAST_RANDOM_CHAOS` is the seed, which the tally names.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from holdfast.app import App
from holdfast.core.records import NewChat, State
from holdfast.store.records import ChatFilter
from tests.chaos.judge import judge, read_findings, tally
from tests.chaos.storm import Fleet, Storm, seed_of
from tests.chaos.weather import Weather, brisk, real, scripts
from tests.support.chats import new_chat
from tests.support.postgres import PostgresServer
from tests.support.tallies import Tell
from tests.worker.evidence import read_evidence

SOAK_S = float(os.environ.get("HOLDFAST_SOAK_STORM_S", "0"))
# Two of the four in `make test`: each store, and each size of a fleet.
STORMS = [("sqlite", 2), ("postgres", 5)] if not SOAK_S else list(product(("sqlite", "postgres"), (2, 5)))
AT_ONCE = 10
UP_S = 120.0  # half of which it may take until a fleet is at work, however slow the machine is
CALM_S = 60.0 + SOAK_S * 2  # within which everything is done once the storm is over


def weather_of(workers: int) -> Weather:
    return real(workers, SOAK_S) if SOAK_S else brisk(workers)


async def rest(app: App, deadline_s: float) -> None:
    """Until nothing is at work any more. If that does not come, the judge says which."""
    give_up_at = asyncio.get_running_loop().time() + deadline_s
    busy = (State.RUNNING, State.STOPPING, State.WAITING)
    while asyncio.get_running_loop().time() < give_up_at:
        if not any([await app.store.list_chats(ChatFilter(state=state), limit=1) for state in busy]):
            return
        await asyncio.sleep(0.1)


@pytest.mark.timeout(240 + SOAK_S * 4)
@pytest.mark.parametrize(("store_url", "workers"), STORMS, indirect=["store_url"])
async def test_a_fleet_that_is_killed_stopped_frozen_and_restarted_ends_every_chat_and_repeats_nothing(
    store_url: str, workers: int, tmp_path: Path, request: pytest.FixtureRequest, tell: Tell
) -> None:
    seed, weather = seed_of(workers), weather_of(workers)
    restart_server: Callable[[], None] | None = None
    if not store_url.startswith("sqlite"):
        server: PostgresServer = request.getfixturevalue("postgres_server")
        restart_server = server.restart
    async with App(store_url, [], lease_ttl_s=weather.ttl_s) as app:
        fleet = Fleet(store_url, tmp_path, weather)
        storm = Storm(fleet, seed, restart_server)
        async with fleet:
            chat_ids = await create_chats(app, fleet)
            await storm.blow()
            while len(fleet.members) < workers:
                await fleet.launch()
            await rest(app, CALM_S)
            await asyncio.gather(*(fleet.stop(member) for member in list(fleet.members)))
        evidence = read_evidence(fleet.evidence)
        findings = await read_findings(app.store, chat_ids)
        tell(tally(fleet, storm, findings, evidence, seed))
        assert await judge(app.store, fleet, findings, evidence) == []
    assert min(storm.blows[name] for name in ("kills", "stops", "freezes")) > 0
    assert sum(finding.snapshot.chat.fence - 1 for finding in findings) > workers, "nobody was at work in the storm"


def batched(news: list[NewChat], size: int) -> Iterator[list[NewChat]]:
    for start in range(0, len(news), size):
        yield news[start : start + size]


async def create_chats(app: App, fleet: Fleet) -> list[str]:
    """By agents that only the fleet knows. One after the other until all members are at work, and then the rest at
    once: a storm that comes when most is done, because one member was slow to start, would find nobody to hand over.
    """
    made = len(scripts(fleet.weather))
    news = [new_chat(agent=f"agent-{n % made}") for n in range(fleet.weather.chats)]
    created = 0
    while not fleet.at_work:
        assert created < len(news) / 2, "the fleet does not get to work"
        await app.store.create_chat(news[created])
        created += 1
        await asyncio.sleep(UP_S / len(news))
    for some in batched(news[created:], AT_ONCE):  # more at once would wait for each other until their deadline
        await asyncio.gather(*(app.store.create_chat(new) for new in some))
    return [new.id for new in news]
