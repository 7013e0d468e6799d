"""Run all of it: `make bench`, or `python -m bench sqlite` for a part."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path

import psycopg

from bench.chats import PATIENT, WORKER, Lane, lanes, question, register
from bench.cycles import postgres_cycles, sqlite_cycles
from bench.figures import Figures, interleaved, keep_on_disk, rate
from bench.handover import handover
from bench.hostile import hostile
from bench.large import large
from bench.long_chats import long_chats
from bench.many import many
from bench.memory import memory
from bench.million import million
from bench.models import models
from bench.page import page
from bench.processes import processes
from bench.raw import RawLanes, RawPostgres, RawPostgresLanes, RawSqlite, prepared, raw_rate, raw_sqlite_groups
from bench.schedules import schedules
from bench.server import server
from bench.surface import surface
from bench.tenants import tenants
from bench.turns import turn_bytes
from bench.way import way
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.connection import connect
from tests.support.postgres import PostgresServer

ROUNDS = 400
LANES = 32


async def one_chat(
    figures: Figures, store: Store, raw: Callable[[], Awaitable[object]], name: str, aim: float
) -> None:
    (lane,) = await lanes(store, WORKER, 1)
    await interleaved(50, ours=lane.commit, raw=raw)
    medians = await interleaved(ROUNDS, ours=lane.commit, raw=raw)
    note = f"{medians['ours'] * 1e3:.3f} ms against {medians['raw'] * 1e3:.3f} ms"
    figures.add(
        f"{name}: a chat's commit / one-row commit", medians["ours"] / medians["raw"], "×", at_most=aim, note=note
    )


async def by_length(figures: Figures, store: Store, written: Callable[[], Awaitable[float]], name: str) -> None:
    """The same commits in a chat of about 5 messages and in one of 5,000, in turns."""
    (long,) = await lanes(store, WORKER, 1)
    while long.snapshot.chat.length < 5_000:
        await long.commit()
    short: list[Lane] = []

    async def commit_short() -> None:
        if not short or short[-1].snapshot.chat.length > 8:
            short[:] = await lanes(store, WORKER, 1)
        await short[-1].commit()

    times: dict[str, list[float]] = {"short": [], "long": []}
    byte_counts = {"short": 0.0, "long": 0.0}
    for _ in range(100):
        short[:] = await lanes(store, WORKER, 1)
        for kind, lane in (("short", short[0]), ("long", long)):
            for n in range(8):
                before = await written()
                began = time.perf_counter()
                await lane.commit()
                if n >= 4:  # about message 5
                    times[kind].append(time.perf_counter() - began)
                    byte_counts[kind] += await written() - before
    cost = sorted(times["long"])[200] / sorted(times["short"])[200]
    figures.add(f"{name}: cost of a commit at message 5,000 / at message 5", cost, "×", at_most=1.1)
    note = f"{byte_counts['long'] / 400:,.0f} bytes each"
    ratio = byte_counts["long"] / byte_counts["short"]
    figures.add(f"{name}: bytes written at message 5,000 / at message 5", ratio, "×", at_most=1.1, note=note)


async def claims(figures: Figures, store: Store, name: str) -> None:
    line = register(store, f"{WORKER}-claims")
    held = 0
    medians: dict[int, dict[str, float]] = {}
    serial = 50_000_000
    for target in (10, 10_000):
        while held < target:
            some = min(500, target - held)
            await asyncio.gather(*(store.create_chat(question(serial + held + n)) for n in range(some)))
            held += len(await store.claim_chats(f"{WORKER}-claims", {"agent": some}, some))
            line.renew(f"{WORKER}-claims")
        fresh = iter(range(serial + 1_000_000 + target, serial + 2_000_000))
        times: dict[str, list[float]] = {"claim": [], "renew": []}
        for _ in range(60):
            await store.create_chat(question(next(fresh)))
            began = time.perf_counter()
            assert len(await store.claim_chats(f"{WORKER}-claims", {"agent": 1}, 1)) == 1
            times["claim"].append(time.perf_counter() - began)
            began = time.perf_counter()
            line.renew(f"{WORKER}-claims")
            times["renew"].append(time.perf_counter() - began)
        medians[target] = {kind: sorted(values)[30] for kind, values in times.items()}
    for kind in ("claim", "renew"):
        few, many = medians[10][kind], medians[10_000][kind]
        figures.add(
            f"{name}: {kind} with 10,000 chats held / with 10",
            many / few,
            "×",
            note=f"{few * 1e3:.2f} → {many * 1e3:.2f} ms",
        )
    line.close()


async def sqlite(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        async with open_store(f"sqlite:///{path}", PATIENT) as store:
            line = register(store, WORKER)
            raw = RawSqlite(Path(folder) / "raw.db")
            await one_chat(figures, store, raw.commit_one_row, "sqlite", 1.8)
            raw.close()
            await sqlite_group(figures, store, path)
            line.renew(WORKER)

            async def written() -> float:
                return float(store.stats()["wal_pages_written"] or 0) * 4096

            await by_length(figures, store, written, "sqlite")
            await claims(figures, store, "sqlite")
            line.close()


async def sqlite_group(figures: Figures, store: Store, path: Path) -> None:
    """In turns: our lanes at full speed, the same rows through a bare group commit, and in a tight loop."""
    speeds: dict[str, list[float]] = {"ours": [], "lanes": [], "loop": []}
    for _ in range(5):
        busy = await lanes(store, WORKER, LANES)
        speeds["ours"].append(await rate([lane.commit for lane in busy], 60))
        bare = RawLanes(path)
        speeds["lanes"].append(await raw_rate(bare, await lanes(store, WORKER, LANES), 60))
        bare.close()
        rounds = prepared(await lanes(store, WORKER, LANES), 60)
        connection = connect(str(path))
        connection.wal_autocheckpoint(1000)
        began = time.perf_counter()
        done = raw_sqlite_groups(connection, rounds)
        speeds["loop"].append(done / (time.perf_counter() - began))
        connection.close()
    ours, bare_lanes, loop = (sorted(speeds[kind])[2] for kind in ("ours", "lanes", "loop"))
    name = f"sqlite: {LANES} chats at once / "
    note = f"{ours:,.0f} against {bare_lanes:,.0f} commits/s"
    figures.add(name + "bare group commit of the same rows", ours / bare_lanes, "×", at_least=0.7, note=note)
    note = f"{ours:,.0f} against {loop:,.0f} commits/s"
    figures.add(name + "the same rows from a tight loop, no lanes", ours / loop, "×", note=note)


async def postgres_group(figures: Figures, store: PostgresStore) -> None:
    """In turns: our lanes at full speed, and the same rows through a bare group commit."""
    speeds: dict[str, list[float]] = {"ours": [], "lanes": []}
    connection = await store._connector.connect(asyncio.get_running_loop().time() + 8)
    bare = RawPostgresLanes(connection)
    for _ in range(5):
        busy = await lanes(store, WORKER, LANES)
        speeds["ours"].append(await rate([lane.commit for lane in busy], 60))
        speeds["lanes"].append(await raw_rate(bare, await lanes(store, WORKER, LANES), 60))
    await connection.close()
    ours, raw = (sorted(speeds[kind])[2] for kind in ("ours", "lanes"))
    name = f"postgres: {LANES} chats at once / bare group commit of the same rows"
    figures.add(name, ours / raw, "×", at_least=0.7, note=f"{ours:,.0f} against {raw:,.0f} commits/s")


@contextlib.asynccontextmanager
async def postgres_store() -> AsyncIterator[tuple[str, Store]]:
    with PostgresServer() as server:
        url = server.create_database()
        async with open_store(url, PATIENT) as store:
            yield url, store


async def postgres(figures: Figures) -> None:
    async with postgres_store() as (url, store):
        line = register(store, WORKER)
        raw = await RawPostgres.connect(url)
        await one_chat(figures, store, raw.commit_one_row, "postgres", 1.5)
        line.renew(WORKER)
        assert isinstance(store, PostgresStore)
        await postgres_group(figures, store)
        line.renew(WORKER)
        probe = await psycopg.AsyncConnection.connect(url, autocommit=True)

        async def written() -> float:
            row = await (await probe.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")).fetchone()
            assert row is not None
            return float(row[0])

        await by_length(figures, store, written, "postgres")
        await claims(figures, store, "postgres")
        await probe.close()
        await raw.close()
        line.close()


def imports(figures: Figures) -> None:
    """In a fresh interpreter, beside one that imports nothing."""
    script = "import time; t = time.perf_counter(); import holdfast; print(time.perf_counter() - t)"
    times = sorted(
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(9)
    )
    figures.add("import holdfast", times[4] * 1e3, "ms", at_most=150)


PARTS: dict[str, Callable[[Figures], Coroutine[None, None, None]]] = {
    "models": models,
    "sqlite": sqlite,
    "sqlite-cycles": sqlite_cycles,
    "postgres": postgres,
    "postgres-cycles": postgres_cycles,
    "turn-bytes": turn_bytes,
    "long-chats": long_chats,
    "many": many,
    "million": million,
    "memory": memory,
    "schedules": schedules,
    "page": page,
    "processes": processes,
    "tenants": tenants,
    "large": large,
    "handover": handover,
    "server": server,
    "surface": surface,
    "hostile": hostile,
    "way": way,
}


# Measured when asked for.
LONG = ("many", "million", "memory", "schedules", "page", "processes", "tenants", "large", "hostile", "surface")


def main() -> None:
    keep_on_disk()
    parts = sys.argv[1:] or ["import", *(name for name in PARTS if name not in LONG)]
    figures = Figures()
    if "import" in parts:
        imports(figures)
    for name, part in PARTS.items():
        if name in parts:
            asyncio.run(part(figures))
    figures.write()


main()
