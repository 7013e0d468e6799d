"""Lists, sweeps and searches where there are very many chats: `make bench BENCH_ARGS=many` (BENCH_CHATS=200000)."""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from bench.chats import PATIENT, WORKER, register
from bench.figures import Figures
from holdfast.core import commands as cmd
from holdfast.core.records import External, Message, NewChat, Role, State, Text, ToolCall, attempt_id
from holdfast.errors import StoreTimeout
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter
from tests.support.behind import sql
from tests.support.postgres import PostgresServer

CHATS = int(os.environ.get("BENCH_CHATS", "200000"))
WAITING = CHATS // 10
OWNERS = 2_000
SEARCHES = {"sqlite": 12, "postgres": 20}  # so many once made a read take 6.7 and 8 seconds

FILTERS = {
    "all": ChatFilter(),
    "of an owner": ChatFilter(owner="owner-7"),
    "of an owner, by metadata": ChatFilter(owner="owner-7", metadata={"tenant": "t3"}),
    "of an owner, searched": ChatFilter(owner="owner-7", search="nowhere to be found"),
    "of a rare agent": ChatFilter(agent="nobody"),
    "failed": ChatFilter(state=State.FAILED),
    "waiting": ChatFilter(state=State.WAITING),
    "running": ChatFilter(state=State.RUNNING),
    "archived": ChatFilter(archived=True),
    "by metadata that none has": ChatFilter(metadata={"tenant": "nobody"}),
    "searched for what none has": ChatFilter(search="nowhere to be found"),
}


async def many(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/bench.db"
        async with open_store(url, PATIENT) as store:
            await _measure(figures, store, url, "sqlite")
    with PostgresServer() as server:
        url = server.create_database()
        async with open_store(url, PATIENT) as store:
            await _measure(figures, store, url, "postgres")


async def _measure(figures: Figures, store: Store, url: str, name: str) -> None:
    line = register(store, WORKER)
    await two_models(store)
    _copy(url, "resting", CHATS - WAITING)
    _copy(url, "waiting", WAITING)
    sql(url, "ANALYZE")
    for filter_name, wanted in FILTERS.items():
        slow = wanted.search or (wanted.metadata and not wanted.owner)
        took = await _median(lambda wanted=wanted: store.list_chats(wanted), 3 if slow else 15)  # type: ignore[misc]
        text = f"{name}: list of {CHATS:,} chats, {filter_name}"
        figures.add(text, took * 1e3, "ms", at_most=None if slow and not wanted.owner else 20)
    await store.sweep()
    figures.add(f"{name}: sweep beside {WAITING:,} approvals", await _median(store.sweep, 9) * 1e3, "ms", at_most=40)
    took = await _median(store.find_violations, 3)
    figures.add(f"{name}: doctor's look at all of them", took * 1e3, "ms")
    await _beside_searches(figures, store, name)
    line.close()


async def _beside_searches(figures: Figures, store: Store, name: str) -> None:
    """One chat read again and again, alone and while many search for what is nowhere, as fast as they are let.

    The searches share the machine's cores with the reads, and on SQLite the interpreter too: that much slower a
    read may be, but it waits for none of them.
    """
    at_once = SEARCHES[name]
    nowhere = ChatFilter(search="nowhere to be found")

    async def searching() -> None:
        while True:
            with suppress(StoreTimeout):  # so many have to wait for their turn
                await store.list_chats(nowhere)

    alone = await _read_times(store)
    searches = [asyncio.ensure_future(searching()) for _ in range(at_once)]
    await asyncio.sleep(1)
    beside = await _read_times(store)
    for search in searches:
        search.cancel()
    await asyncio.wait(searches)
    times = f"{alone[0] * 1e3:.1f} → {beside[0] * 1e3:.1f} ms"
    note = f"median {times}, longest {alone[1] * 1e3:.0f} → {beside[1] * 1e3:.0f} ms"
    figures.add(f"{name}: a chat read beside {at_once} searches / alone", beside[0] / alone[0], "×", note=note)
    figures.add(f"{name}: the longest read beside {at_once} searches", beside[1] * 1e3, "ms", at_most=1_000)


async def _read_times(store: Store) -> tuple[float, float]:
    """Median and longest."""
    times = []
    for n in range(200):
        began = time.perf_counter()
        await store.read_chat(f"resting-{n + 1}")
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)
    return statistics.median(times), max(times)


async def _median(run: Callable[[], Awaitable[object]], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def two_models(store: Store) -> None:
    for id in ("resting", "waiting"):
        message = Message(id=f"user-{id}", role=Role.USER, parts=(Text(text="What is the weather in Bern today?"),))
        await store.create_chat(NewChat(id=id, agent="agent", message=message, title="The weather"))
        (snapshot,) = await store.claim_chats(WORKER, {"agent": 1}, 1)
        by = cmd.Writer(WORKER, snapshot.chat.fence, snapshot.chat.epoch)
        call = ToolCall(call_id="pay", name="pay", arguments="{}")
        asks = id == "waiting"
        said = Message(id="said", role=Role.ASSISTANT, parts=(call,) if asks else (Text(text="It rains."),))
        plans = (cmd.PlannedCall(id="pay"),) if asks else ()
        responded = cmd.Respond(by=by, message=said, attempt=attempt_id(by.fence, 1), plans=plans)
        rest: tuple[cmd.Command, ...] = (cmd.FinishTurn(by=by),)
        if asks:
            rest = (cmd.Delegate(by=by, call_id="pay", external=External.QUESTION, question="Pay?"), cmd.Park(by=by))
        await store.commit(snapshot, (responded, *rest), f"commit-{id}")


def _copy(url: str, model: str, count: int) -> None:
    """Behind the store's back: a quarter of a million chats would take it minutes."""
    for table, column in (("chats", "id"), ("calls", "chat_id"), ("journal", "chat_id")):
        sql(url, f"CREATE TABLE more AS SELECT * FROM {table} WHERE {column} = '{model}'")
        names = columns(url, table)
        id = f"'{model}-' || CAST(numbers.n AS TEXT)"
        told = {
            column: id,
            "owner": f"'owner-' || CAST(numbers.n % {OWNERS} AS TEXT)",
            "metadata": "'{\"tenant\":\"t' || CAST(numbers.n % 10 AS TEXT) || '\"}'",
        }
        values = ", ".join(told.get(name, f"more.{name}") for name in names)
        sql(url, f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM more, {numbers_to(url, count)}")
        sql(url, "DROP TABLE more")


def numbers_to(url: str, count: int) -> str:
    """A table `numbers` of one column `n`."""
    if url.startswith("sqlite"):
        walk = f"WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})"
        return f"({walk} SELECT n FROM n) AS numbers"
    return f"generate_series(1, {count}) AS numbers(n)"


def columns(url: str, table: str) -> list[str]:
    if url.startswith("sqlite"):
        return [row[0] for row in sql(url, "SELECT name FROM pragma_table_info(?)", (table,))]
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = ? AND table_schema = 'public'"
    return [row[0] for row in sql(url, query, (table,))]
