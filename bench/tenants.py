"""Owners that share a store: `make bench BENCH_ARGS=tenants` (BENCH_PILE=10000).

One owner has a pile of queued chats, ten come after it with one each. What the ten wait for, as chats that are
answered before theirs, and in seconds; and what one claim costs beside piles and among very many owners.
"""

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from bench.chats import PATIENT, WORKER, register
from bench.figures import Figures
from bench.many import columns, numbers_to
from holdfast import Agent, App, Chat
from holdfast.core.records import Message, NewChat, Role, Text
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.testing import ScriptedModel
from tests.support.behind import sql
from tests.support.postgres import PostgresServer

PILE = int(os.environ.get("BENCH_PILE", "10000"))
SMALL = [f"small-{n}" for n in range(10)]


async def tenants(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for part in ("pile", "owners", "one"):
            await _measure(figures, f"sqlite:///{Path(folder)}/{part}.db", "sqlite", part)
    with PostgresServer() as server:
        for part in ("pile", "owners", "one"):
            await _measure(figures, server.create_database(), "postgres", part)


async def _measure(figures: Figures, url: str, name: str, part: str) -> None:
    async with open_store(url, PATIENT) as store:
        message = Message(id="asked", role=Role.USER, parts=(Text(text="What is the weather in Bern today?"),))
        await store.create_chat(NewChat(id="model", agent="agent", owner="big", message=message))
    if part == "pile":
        _copy(url, PILE, "'big'")
        await _waits(figures, url, name)
        return
    _copy(url, PILE, "'owner-' || CAST(numbers.n AS TEXT)" if part == "owners" else "'big'")
    words = f"{PILE:,} owners with a chat each" if part == "owners" else f"one owner's {PILE:,} chats"
    async with open_store(url, PATIENT) as store:
        line = register(store, WORKER)
        for limit in (1, 100):
            took = await _claim_time(store, limit)
            figures.add(f"{name}: a claim of {limit} beside {words}", took * 1e3, "ms")
        line.close()


async def _claim_time(store: Store, limit: int) -> float:
    times = []
    for _ in range(15):
        began = time.perf_counter()
        assert len(await store.claim_chats(WORKER, {"agent": limit}, limit)) == limit
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def _waits(figures: Figures, url: str, name: str) -> None:
    """By a real worker with a hundred slots, whose model answers at once."""
    agent = Agent("agent", ScriptedModel("It rains.", after="repeat"))
    async with App(url, agents=[agent], store_deadline_s=60) as app:
        chats = [await app.create("agent", "And in Basel?", owner=owner) for owner in SMALL]
        began = time.perf_counter()
        async with app.worker():
            waits = await asyncio.gather(*(_wait(chat, began) for chat in chats))
            before = sql(url, "SELECT count(*) FROM chats WHERE owner = 'big' AND state = 'idle'")[0][0]
    text = f"{name}: ten owners beside one with {PILE:,} queued chats"
    figures.add(f"{text}, answered before the last of them", before, "chats", at_most=1_000)
    figures.add(f"{text}, the longest wait", max(waits), "s", note=f"median {statistics.median(waits):.2f} s")


async def _wait(chat: Chat, began: float) -> float:
    await chat.turn(timeout_s=1_200)
    return time.perf_counter() - began


def _copy(url: str, count: int, owner: str) -> None:
    """Behind the store's back, each due."""
    for table, column in (("chats", "id"), ("journal", "chat_id")):
        sql(url, f"CREATE TABLE more AS SELECT * FROM {table} WHERE {column} = 'model'")
        names = columns(url, table)
        told = {column: "'copy-' || CAST(numbers.n AS TEXT)", "owner": owner}
        values = ", ".join(told.get(name, f"more.{name}") for name in names)
        sql(url, f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM more, {numbers_to(url, count)}")
        sql(url, "DROP TABLE more")
    sql(url, "ANALYZE")
