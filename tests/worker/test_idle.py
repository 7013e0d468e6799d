"""A worker with nothing to do costs nearly nothing: `make soak` measures how much, this is why.

What it asks of the database stands here as a table: who adds a service, or a question to one, changes it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple

import pytest

from holdfast.agent import Agent, Memory
from holdfast.app import App
from holdfast.config import Config
from holdfast.core.schedules import Once
from holdfast.models.scripted import ScriptedModel
from holdfast.owner_limits import OwnerLimits
from holdfast.store.schedule_records import NewSchedule
from holdfast.worker import chronicler, deliverer, lease_observer, pruner, stray_chats, sweeper
from holdfast.worker.sweeper import Sweeper
from holdfast.worker.worker import Worker
from tests.support.asked import asking
from tests.support.services import end_services
from tests.support.waiting import until

BEATS = 6  # of the watchdog, two a second
TIMERS_MAX = 24  # a poll, a sweep and a ping may fall into that time; 20 a second may not


async def test_while_nothing_happens_a_worker_is_woken_by_its_polls_and_sweeps_alone(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty wakes a second for deadlines, deltas and hints, with nothing to watch, flush or tell, were 1.5 % CPU."""
    loop = asyncio.get_running_loop()
    async with App(store_url, [Agent("a", ScriptedModel(after="echo"))]) as app, app.worker() as worker:
        assert worker.watchdog is not None
        chat = await app.create("a", "hello")
        await chat.text()  # everything has been at work once
        await until(lambda: not worker.running_chats and worker.pruner._receipts_left_s != 0)
        beats, quiet = count(1), asyncio.Event()
        beat, call_at = worker.watchdog._beat, loop.call_at
        set_for: list[float] = []

        def beating() -> None:
            beat()
            if next(beats) == BEATS:
                loop.call_soon_threadsafe(quiet.set)

        def counting(when: float, *arguments: Any, **more: Any) -> asyncio.TimerHandle:
            set_for.append(when - loop.time())
            return call_at(when, *arguments, **more)

        monkeypatch.setattr(worker.watchdog, "_beat", beating)
        monkeypatch.setattr(loop, "call_at", counting)
        await quiet.wait()
        monkeypatch.undo()
        assert len(set_for) < TIMERS_MAX, f"timers were set for {[round(s, 2) for s in set_for]} s"


class Idle(NamedTuple):
    """Of a service that has nothing to do: how often one round of it asks, and how long it waits for the next."""

    asks: int
    every_s: float
    round: Callable[[Worker], Awaitable[object]]


def swept(worker: Worker) -> Awaitable[object]:
    """A whole sweep, however short ago the last one was."""
    return Sweeper(worker.store, worker._note_trouble, worker.draws.tidy).run_once()


def told(worker: Worker) -> Awaitable[object]:
    """A look that counts what waits, as every one is that comes in its time."""
    worker.deliverer._summed_s = float("-inf")
    return worker.deliverer._look()


async def nothing(_: Worker) -> None:
    """It asks nothing, or only where the lease does not."""


SERVICES = {
    "Worker._claim_forever": Idle(1, 5.0, Worker.claim_once),
    "Sweeper.run_forever": Idle(1, 5.0, swept),
    "LeaseObserver.run_forever": Idle(1, 5.0, lambda worker: worker._observer.run_once()),
    "Strays.run_forever": Idle(1, 5.0, lambda worker: worker.strays.run_once()),
    "Scheduler.run_forever": Idle(1, 5.0, lambda worker: worker.scheduler.run_once()),
    "Deliverer.run_forever": Idle(1, 15.0, told),
    "Pruner.run_forever": Idle(11, 600.0, lambda worker: worker.pruner._prune_receipts()),
    "Chronicler.run_forever": Idle(0, 60.0, nothing),  # no agent here has a memory
    "Worker._doubt_in_time": Idle(0, 1.0, nothing),
    "Pulse.run_forever": Idle(0, 10.0, nothing),
}
ASKED_IN_A_MINUTE = 65  # it was 158 on SQLite and 182 on PostgreSQL, and 121 and 152 before there were schedules
ROUNDS = 3


def test_the_services_of_a_worker_wait_as_long_as_the_table_says() -> None:
    config = Config()
    assert {name: idle.every_s for name, idle in SERVICES.items() if idle.asks} == {
        "Worker._claim_forever": config.poll_s,
        "Sweeper.run_forever": sweeper.SWEEP_S,
        "LeaseObserver.run_forever": lease_observer.LOOK_S_MAX,
        "Strays.run_forever": stray_chats.COMPARE_S,
        "Scheduler.run_forever": config.poll_s,
        "Deliverer.run_forever": deliverer.NONE_LOOK_S,
        "Pruner.run_forever": pruner.RECEIPTS_S,
    }
    assert round(sum(idle.asks * 60 / idle.every_s for idle in SERVICES.values())) == ASKED_IN_A_MINUTE


async def nothing_there(_: App) -> None: ...


async def schedules(app: App) -> None:
    at = app.store.now_ms() + 365 * 86_400_000
    for n in range(20):
        await app.store.schedules.create(NewSchedule(name=f"s{n}", agent="a", message="go", timing=Once(at=at)))


async def an_endpoint(app: App) -> None:
    await app.webhooks.create("hook", "https://hooks.example/in")


async def an_owner_with_limits(app: App) -> None:
    await app.store.budgets.set("ann", OwnerLimits(tokens=1_000_000))


async def money_was_spent(app: App) -> None:
    """By a call that drew on a budget, which is there no more."""
    await an_owner_with_limits(app)
    await (await app.create("a", "hello", owner="ann")).text()
    await app.store.budgets.remove("ann")


# What an idle worker asks beside other things in the store; where it is not said, as beside none.
HOUSES: dict[str, tuple[Callable[[App], Awaitable[None]], dict[str, int]]] = {
    "nothing": (nothing_there, {}),
    "schedules": (schedules, {}),
    "an endpoint": (an_endpoint, {}),
    "an owner with limits": (an_owner_with_limits, {"Sweeper.run_forever": 2}),
    "money that was spent": (money_was_spent, {}),
}


@pytest.mark.parametrize("house", HOUSES)
async def test_a_worker_with_nothing_to_do_asks_the_database_as_often_as_the_table_says(
    store_url: str, house: str
) -> None:
    prepare, more = HOUSES[house]
    async with App(store_url, [Agent("a", ScriptedModel(after="echo"))]) as app, app.worker() as worker:
        await prepare(app)
        await until(lambda: not worker.running_chats)
        names = [task.get_coro().__qualname__ for task in worker._services]  # type: ignore[union-attr]
        await end_services(worker)  # the test does their rounds
        assert sorted(names) == sorted(SERVICES), "a service that the table does not know"
        assert bool(worker.draws.granted) == (house == "money that was spent")
        await app.store.budgets.fold(after_ms=-1)
        for idle in SERVICES.values():
            await idle.round(worker)  # the first look of each finds out what there is
        for name, idle in SERVICES.items():
            with asking(app.store) as asked:
                for _ in range(ROUNDS):
                    await idle.round(worker)
            assert asked.count == ROUNDS * more.get(name, idle.asks), name


async def test_an_agent_that_remembers_has_a_worker_ask_twice_a_minute_more(store_url: str) -> None:
    """What is owed, and what is ahead: one of them says as well whether older code indexed something."""
    remembers = Agent("a", ScriptedModel(after="echo"), memory=Memory())
    async with App(store_url, [remembers]) as app, app.worker() as worker:
        await end_services(worker)
        with asking(app.store) as asked:
            pauses = {await worker.chronicler.run_once() for _ in range(ROUNDS)}
        assert (asked.count, pauses) == (ROUNDS * 2, {chronicler.LOOK_S})
