"""The wall clock is set while chats run: the server's on PostgreSQL, the machine's on SQLite. It is really moved.

A step of it moves what people chose an instant for, and nothing else: no lease ends by it, none outlives its worker
by it, and no chat waits for it to come round again.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.app import App
from holdfast.core.journal import TurnEnded
from holdfast.core.records import State
from tests.long.crew import CALM_S, Crew, create, fences, registered, renewed, rest, taken_over
from tests.long.member import EXPIRES_S
from tests.support.postgres import PostgresServer
from tests.support.tallies import Figures
from tests.support.turns import entries
from tests.support.waiting import eventually
from tests.support.wall_clock import WallClock

HOUR_S = 3_600
LOSSES = 3  # after which a chat rests for five seconds
pytestmark = pytest.mark.timeout(170)


@pytest.fixture
def wall() -> Iterator[WallClock]:
    with WallClock() as clock:
        yield clock


@pytest.fixture(params=["sqlite", "postgres-server", "postgres-workers"])
def crew(request: pytest.FixtureRequest, wall: WallClock, tmp_path: Path) -> Iterator[Crew]:
    """By whose clock is moved: the machine's, the database server's, or that of the machines that workers run on."""
    if request.param == "sqlite":
        with Crew(f"sqlite:///{tmp_path}/holdfast.db", tmp_path, environment=wall.environment) as crew:
            yield crew
        return
    servers, workers = (wall.environment, {}) if request.param == "postgres-server" else ({}, wall.environment)
    with (
        PostgresServer(environment=servers) as server,
        Crew(server.create_database(), tmp_path, environment=workers) as crew,
    ):
        yield crew


@pytest.fixture
async def app(crew: Crew) -> AsyncIterator[App]:
    async with App(crew.url, [], lease_ttl_s=crew.ttl_s) as app:
        yield app


@pytest.mark.parametrize("ahead_s", [40, -HOUR_S])
async def test_a_living_worker_keeps_its_lease_and_its_chats_when_the_clock_is_set(
    crew: Crew, app: App, wall: WallClock, ahead_s: int
) -> None:
    members = [crew.launch(), crew.launch()]
    workers = await registered(crew.url, members)
    chat_ids = await create(app, "gated", 4)
    await crew.at_the_gate(4)
    wall.set_ahead_s(ahead_s)
    await renewed(crew.url, workers.values(), times=6)
    assert await registered(crew.url, members) == workers
    crew.open_gate()
    await rest(app, chat_ids)
    assert set((await fences(app, chat_ids)).values()) == {1}, "a chat was taken from a worker that lives"
    assert set(crew.entered().values()) == {1}
    assert [member.stop() for member in members] == [0, 0]


async def test_a_lost_host_loses_its_chats_though_the_clock_was_set_back_by_an_hour(
    crew: Crew, app: App, wall: WallClock, figures: Figures
) -> None:
    victim = crew.launch(elsewhere=not crew.url.startswith("sqlite"))
    await registered(crew.url, [victim])
    chat_ids = await create(app, "checker", 3)
    await crew.at_the_gate(3, victim.life)
    heir = crew.launch()
    await registered(crew.url, [heir])
    before = await fences(app, chat_ids)
    victim.kill()
    wall.set_ahead_s(-HOUR_S)
    took_s = await taken_over(app, chat_ids, before)
    figures(f"takeover from a dead worker, lease {crew.ttl_s:g} s, after a step back by an hour", took_s, "s")
    crew.open_gate()
    await rest(app, chat_ids)
    assert heir.stop() == 0


async def test_chats_that_nobody_held_are_claimed_at_once_when_the_clock_was_set_back(
    crew: Crew, app: App, wall: WallClock, figures: Figures
) -> None:
    chat_ids = await create(app, "payer", 3)
    wall.set_ahead_s(-HOUR_S)
    crew.launch()
    took_s = await rest(app, chat_ids)
    figures("chats created before a step back by an hour had ended, from the start of a worker", took_s, "s")
    assert await app.store.find_violations() == []


async def test_a_chat_that_rests_after_crashes_is_not_stranded_when_the_clock_is_set_back(
    crew: Crew, app: App, wall: WallClock
) -> None:
    [chat_id] = await create(app, "checker", 1)
    for _ in range(LOSSES):
        victim = crew.launch()
        await crew.at_the_gate(1, victim.life)
        victim.kill()
    heir = crew.launch()

    async def rests() -> bool:
        chat = (await app.store.read_chat(chat_id)).chat
        return chat.unclean == LOSSES and chat.worker is None

    await eventually(rests, CALM_S)
    wall.set_ahead_s(-HOUR_S)
    await crew.at_the_gate(1, heir.life)
    crew.open_gate()
    await rest(app, [chat_id])


@pytest.mark.parametrize("crew", ["sqlite", "postgres-server"], indirect=True)
async def test_an_expiry_follows_the_clock_that_it_was_set_by(crew: Crew, app: App, wall: WallClock) -> None:
    [chat_id] = await create(app, "asker", 1)
    crew.launch()

    async def waits() -> bool:
        return (await app.store.read_chat(chat_id)).chat.state is State.WAITING

    await eventually(waits, CALM_S)
    wall.set_ahead_s(EXPIRES_S + 60)
    await rest(app, [chat_id])


@pytest.mark.parametrize(
    ("agent", "ahead_s", "detail"), [("patient", HOUR_S, None), ("brief", -HOUR_S, "max_seconds")]
)
async def test_a_turn_has_the_time_that_it_was_given_however_the_clock_is_set(
    crew: Crew, app: App, wall: WallClock, agent: str, ahead_s: int, detail: str | None
) -> None:
    [chat_id] = await create(app, agent, 1)
    worker = (await registered(crew.url, [crew.launch()])).values()
    await crew.at_the_gate(1)
    await renewed(crew.url, worker, times=4)  # which takes longer than `brief` has time
    wall.set_ahead_s(ahead_s)
    crew.open_gate()
    await rest(app, [chat_id])
    [ended] = [entry for entry in await entries(app.chat(chat_id)) if isinstance(entry, TurnEnded)]
    assert (ended.detail and ended.detail.partition(":")[0]) == detail
