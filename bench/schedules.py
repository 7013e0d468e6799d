"""A fleet with very many schedules: `make bench BENCH_ARGS=schedules` (BENCH_SCHEDULES=100000).

How long it takes until the last of those that are due in the same second has begun, and what a worker asks of the
database while nothing is due, beside very many schedules and beside none.
"""

import asyncio
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.figures import Figures
from holdfast import Agent, App
from holdfast.core.schedules import Once
from holdfast.store.schedule_records import NewSchedule
from holdfast.testing import ScriptedModel
from tests.support.asked import asking
from tests.support.behind import sql
from tests.support.postgres import PostgresServer
from tests.support.programs import Program

SCHEDULES = int(os.environ.get("BENCH_SCHEDULES", "100000"))
DUE = 1_000
WORKERS = 4
IDLE_S = 30.0
FAR_MS = 365 * 86_400_000


async def schedules(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/bench.db"
        await _measure(figures, url, "sqlite")
    with PostgresServer() as server:
        await _measure(figures, server.create_database(), "postgres")


async def _measure(figures: Figures, url: str, name: str) -> None:
    async with _app(url) as app:
        bare = await _idle(app)
        bare_ms = await _look_ms(app)
        await _copy(app, url)
        full = await _idle(app)
        figures.add(f"{name}: asked by an idle worker in a minute, no schedules", bare, "times", at_most=80)
        figures.add(f"{name}: the same beside {SCHEDULES:,} schedules", full, "times", at_most=bare * 1.2 + 4)
        figures.add(f"{name}: one look for work, no schedules", bare_ms, "ms")
        figures.add(f"{name}: the same beside {SCHEDULES:,} schedules", await _look_ms(app), "ms", at_most=20)
        await _storm(figures, app, url, name)


def _app(url: str) -> App:
    return App(url, [Agent("echo", ScriptedModel(after="echo"))])


async def _idle(app: App) -> float:
    """Transactions that a worker with nothing to do asks for, in a minute."""
    async with app.worker():
        await asyncio.sleep(3.0)  # what every start does
        with asking(app.store) as asked:
            began = time.monotonic()
            await asyncio.sleep(IDLE_S)
            return asked.count / (time.monotonic() - began) * 60


async def _look_ms(app: App) -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        await app.store.schedules.look()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


async def _copy(app: App, url: str) -> None:
    """One as the store makes it, and very many of its kind: none is due within the hour."""
    at = app.store.now_ms() + FAR_MS
    new = NewSchedule(name="model", agent="echo", message="go {at}", timing=Once(at=at))
    model = await app.store.schedules.create(new)
    columns = [*model.__struct_fields__]
    drawn = {"id": "'sched_copy_' || n", "name": "'copy ' || n", "owner": "'owner ' || (n % 100)"}
    selected = ", ".join(drawn.get(name, name) for name in columns)
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {SCHEDULES})"
    sql(url, f"INSERT INTO schedules {numbers} SELECT {selected} FROM schedules, numbers WHERE name = 'model'")
    sql(url, "ANALYZE")


async def _storm(figures: Figures, app: App, url: str, name: str) -> None:
    with ExitStack() as stack:
        fleet = [stack.enter_context(Program("tests.promises.scheduled", url)) for _ in range(WORKERS)]
        for worker in fleet:
            await asyncio.to_thread(worker.hear)
        at = app.store.now_ms() + 5_000
        timing = f'{{"kind":"once","at":{at}}}'
        due = f"SELECT id FROM schedules WHERE id LIKE 'sched_copy_%' ORDER BY id LIMIT {DUE}"
        sql(url, f"UPDATE schedules SET timing = '{timing}', next_at = {at}, due_at = {at} WHERE id IN ({due})")
        left = DUE
        while left:
            await asyncio.sleep(0.25)
            ((left,),) = sql(url, f"SELECT {DUE} - count(*) FROM chats WHERE turn = 1 AND turn_started_at IS NULL")
        ((fired_ms, count),) = sql(url, f"SELECT max(fired_at) - {at}, count(*) FROM occurrences WHERE at = {at}")
        first = "SELECT min(at) AS at FROM journal WHERE role = 'assistant' GROUP BY chat_id"
        ((began_ms,),) = sql(url, f"SELECT max(words.at) - {at} FROM ({first}) AS words")
        assert count == DUE
    figures.add(f"{name}: {DUE:,} due at once: the last has its chat", fired_ms / 1000, "s", at_most=5)
    figures.add(f"{name}: {DUE:,} due at once: the last has begun and said its first words", began_ms / 1000, "s")
