"""Forking and deleting a chat of 800 MB beside a chat that commits: `make bench BENCH_ARGS=large`.

`BENCH_LARGE_MB` for another size.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from msgspec.structs import replace

from bench.chats import PATIENT, WORKER, Lane, lanes, register
from bench.figures import Figures
from holdfast.core.records import NewChat
from holdfast.errors import HoldfastError
from holdfast.store import open_store
from holdfast.store.contract import Store
from tests.support.behind import sql
from tests.support.postgres import PostgresServer

SIZE_MB = int(os.environ.get("BENCH_LARGE_MB", "800"))
MESSAGE_BYTES = 100_000
MESSAGES = SIZE_MB * 1_000_000 // MESSAGE_BYTES


async def large(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await fork_and_delete(figures, f"sqlite:///{Path(folder)}/bench.db", "sqlite")
    with PostgresServer() as server:
        await fork_and_delete(figures, server.create_database(), "postgres")


async def fork_and_delete(figures: Figures, url: str, name: str) -> None:
    # So that what takes longer than the deadline is measured, too.
    async with open_store(url, replace(PATIENT, deadline_s=120)) as store:
        line = register(store, WORKER)
        (lane,) = await lanes(store, WORKER, 1)
        await a_large_chat(store, url)
        await timed(figures, f"{name}: 5 s of nothing", lane, asyncio.sleep(5))
        await timed(figures, f"{name}: fork of {SIZE_MB} MB", lane, store.fork_chat("large", "copy"))
        await timed(figures, f"{name}: delete of {SIZE_MB} MB", lane, store.delete_chat("large"))
        line.close()


async def a_large_chat(store: Store, url: str) -> None:
    """At rest, of text that does not compress; written past the store, which would take minutes for it."""
    await store.create_chat(NewChat(id="large", agent="agent"))
    random_text = f"hex(randomblob({MESSAGE_BYTES // 2}))"
    if url.startswith("postgresql"):
        words = f"SELECT md5(random()::text || n || word) FROM generate_series(1, {MESSAGE_BYTES // 32}) AS word"
        random_text = f"(SELECT string_agg(md5, '') FROM ({words}) AS words)"
    for start in range(0, MESSAGES, 100):
        counted = f"SELECT {start} UNION ALL SELECT n + 1 FROM counted WHERE n < {start + 99}"
        columns = "chat_id, seq, stamp, at, role, pos, ref, body"
        values = f"'large', n + 2, 0, 0, 'user', n, 'message_' || n, {random_text}"
        sql(
            url,
            f"WITH RECURSIVE counted (n) AS ({counted}) INSERT INTO journal ({columns}) SELECT {values} FROM counted",
        )
    sql(url, f"UPDATE chats SET length = {MESSAGES}, seq = {MESSAGES + 1} WHERE id = 'large'")


@contextlib.asynccontextmanager
async def busy(lane: Lane) -> AsyncIterator[list[float]]:
    """Commits of another chat, one after the other: how long each took."""
    waits: list[float] = []
    done = False

    async def commit_on() -> None:
        while not done:
            began = time.perf_counter()
            try:
                await lane.commit()
            finally:
                waits.append(time.perf_counter() - began)

    task = asyncio.create_task(commit_on())
    try:
        yield waits
    finally:
        done = True
        await task


async def timed(figures: Figures, name: str, lane: Lane, verb: Awaitable[object]) -> None:
    async with busy(lane) as waits:
        began = time.perf_counter()
        note = ""
        try:
            await verb
        except HoldfastError as error:
            note = f"{type(error).__name__}: {error}"
        total_s = time.perf_counter() - began
    figures.add(f"{name}, in all", total_s, "s", note=note)
    ordered = sorted(waits)
    note = f"{len(waits):,} commits, median {ordered[len(waits) // 2] * 1e3:.2f} ms"
    figures.add(f"{name}, longest wait of another chat's commit", ordered[-1] * 1e3, "ms", note=note)
