"""What a cycle of model and tool asks of the machine, as literal figures: who adds to one of them changes it here.

They are counts, not times, so that a busy machine changes none of them. A cycle is a response with one call and the
call's result, each durable before anything else happens.
"""

import asyncio
import fcntl
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import Agent, AgentLimits, App, tool
from holdfast.store.records import StoreOptions
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing import Call, Say, ScriptedModel
from holdfast.worker import deltas
from tests.support.asked import asking
from tests.support.services import end_services

CYCLES = 20
NO_RENEWALS = StoreOptions(lease_ttl_ms=3_600_000)
WRITER = "holdfast-sqlite-writer"


class Turnstile:
    """A tool that lets so many calls pass, and keeps the one after them."""

    def __init__(self) -> None:
        self.left = 0
        self.kept = asyncio.Event()
        self._go = asyncio.Event()

    async def come(self) -> None:
        if self.left == 0:
            self.kept.set()
            await self._go.wait()
            self._go.clear()
        self.left -= 1

    async def cycles(self, count: int) -> None:
        self.left = count
        self.kept.clear()
        self._go.set()
        await self.kept.wait()


@asynccontextmanager
async def cycling(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[App, Turnstile]]:
    """A chat that has had some cycles and stands in its tool. Nothing else goes on: no flush, and no service."""
    monkeypatch.setattr(deltas, "FLUSH_INTERVAL_S", 600.0)
    turnstile = Turnstile()

    @tool
    async def look_up(city: str) -> str:
        """The weather."""
        await turnstile.come()
        return "It rains."

    says, asks = Say(text="I will look that up. "), Call(name="look_up", arguments='{"city":"Bern"}')
    model = ScriptedModel([says, asks], after="repeat")
    agent = Agent("a", model, tools=[look_up], limits=AgentLimits(steps=10_000))
    async with App(url, [agent], options=NO_RENEWALS) as app, app.worker(grace_s=0.0) as worker:
        await app.create("a", "What is the weather in Bern?")
        await turnstile.kept.wait()
        await end_services(worker)
        await turnstile.cycles(5)
        yield app, turnstile


@pytest.fixture
def sqlite_url(sqlite_template: Any, tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


async def test_a_cycle_on_sqlite_is_eight_writes_in_two_commits(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cycling(sqlite_url, monkeypatch) as (app, turnstile):
        assert isinstance(app.store, SqliteStore)
        writer = app.store._transactor.check_writable()
        told: Counter[str] = Counter()
        writer._connection.exec_trace = lambda _, statement, __: not told.update((statement,))
        pages, syscalls = writer.wal_pages_written, _counted(monkeypatch)
        transactions = writer.transactions
        await turnstile.cycles(CYCLES)
        monkeypatch.undo()
        writer._connection.exec_trace = None
        writes = {text: count for text, count in told.items() if text.split()[0] in ("INSERT", "UPDATE", "DELETE")}
        assert writes == {
            sql.UPDATE_CHAT_STEP: 2 * CYCLES,
            sql.INSERT_JOURNAL: 2 * CYCLES,
            sql.PUT_CALL: 2 * CYCLES,
            sql.BUDGETS.insert_line: CYCLES,
        }
        assert syscalls == {"flock": 4 * (writer.transactions - transactions), "stat": syscalls["flock"] // 2}
        assert told["COMMIT"] == 2 * CYCLES
        assert (writer.wal_pages_written - pages) / CYCLES < 12.5


def _counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the writer's thread asks of the system."""
    counts: Counter[str] = Counter()

    def counting(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counted(*given: Any, **more: Any) -> Any:
            if threading.current_thread().name == WRITER:
                counts[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(module, name, counted)

    counting(fcntl, "flock")
    counting(os, "stat")
    return counts


async def test_a_cycle_is_two_round_trips_to_postgresql(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cycling(postgres_url, monkeypatch) as (app, turnstile):
        committer: Any = app.store._committer  # type: ignore[attr-defined]
        batches, commits = committer.batches, committer.commits
        with asking(app.store) as asked:
            await turnstile.cycles(CYCLES)
        assert (committer.batches - batches, committer.commits - commits) == (2 * CYCLES, 2 * CYCLES)
        assert asked.count == 0


async def test_a_cycle_is_five_steps_of_three_tasks(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner goes on after each commit, the body is run at once, and who sees it through commits its outcome."""
    async with cycling(store_url, monkeypatch) as (_, turnstile):
        steps: Counter[str] = Counter()
        run = asyncio.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            callback: Any = handle._callback  # type: ignore[attr-defined]
            task = getattr(callback, "__self__", None)
            if isinstance(task, asyncio.Task):
                work: Any = task.get_coro()
                steps[work.__qualname__] += 1
            run(handle)

        monkeypatch.setattr(asyncio.Handle, "_run", counted)
        await turnstile.cycles(CYCLES)
        monkeypatch.undo()
        ours = {name: steps[name] for name in ("Runner.run", "ToolCalls._see_through", "Body._call")}
        # The last call stands in the tool: it has begun, and its outcome is none of these cycles'.
        assert ours == {
            "Runner.run": 2 * CYCLES,
            "ToolCalls._see_through": 2 * CYCLES + 1,
            "Body._call": CYCLES + 1,
        }
