"""What more processes bring: `make bench BENCH_ARGS=processes`. BENCH_PROCESSES=1,2,4 and BENCH_SECONDS=10.

`holdfast serve --processes N` drives 32 chats that never end. They are made over one connection, so that they come to
one process. Counted are cycles, the CPU time of the processes and of PostgreSQL's backends, and how many commits
share a transaction. On a machine that others use, too, look at the CPU per cycle.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import psutil  # type: ignore[import-untyped]

from bench.figures import Figures
from tests.support.postgres import PostgresServer

COUNTS = [int(count) for count in os.environ.get("BENCH_PROCESSES", "1,2,4").split(",")]
SECONDS = float(os.environ.get("BENCH_SECONDS", "10"))
CHATS = 32
ROOT = Path(__file__).resolve().parents[1]


class Counted(NamedTuple):
    """So far, of all processes together."""

    at_s: float
    cpu_s: float
    server_cpu_s: float
    commits: float
    groups: float  # transactions that these shared
    claims: float
    wakes: float

    def since(self, before: "Counted") -> "Counted":
        return Counted._make(now - then for now, then in zip(self, before, strict=True))


async def processes(figures: Figures) -> None:
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            await _measure(figures, "sqlite", f"sqlite:///{folder}/bench.db", Path(folder), count, None)
    with PostgresServer() as server:
        for count in COUNTS:
            with tempfile.TemporaryDirectory() as folder:
                url = server.create_database()
                await _measure(
                    figures, "postgres", url, Path(folder), count, url.rpartition("/")[2].partition("?")[0]
                )


async def _measure(figures: Figures, name: str, url: str, folder: Path, count: int, database: str | None) -> None:
    async with _serving(url, folder, count) as client:
        for _ in range(CHATS):
            answer = await client.post("/api/chats", json={"agent": "cycler", "message": "What is the weather?"})
            assert answer.status_code == 201, answer.text
        spread = await _spread(client)
        (folder / "go").touch()
        await asyncio.sleep(2.0)
        before = await _counted(client, database)
        await asyncio.sleep(SECONDS)
        found = (await _counted(client, database)).since(before)
    cycles = found.commits / 2
    load = os.getloadavg()[0]
    title = f"{name}: {CHATS} chats, {count} process{'es' if count > 1 else ''}"
    note = f"spread {'/'.join(map(str, spread))}; load {load:.0f}"
    figures.add(f"{title}, cycles", cycles / found.at_s, "/s", note=note)
    note = f"and {found.server_cpu_s / cycles * 1e3:.2f} in PostgreSQL" if database else ""
    figures.add(f"{title}, CPU per cycle", found.cpu_s / cycles * 1e3, "ms", note=note)
    note = f"{found.claims / found.at_s:.0f} claims/s, {found.wakes / found.at_s:.0f} wakes/s"
    figures.add(f"{title}, commits per transaction", found.commits / max(found.groups, 1), "", note=note)


async def _spread(client: httpx.AsyncClient) -> list[int]:
    while True:
        spread = [worker["chats"] for worker in _workers((await client.get("/health")).json())]
        if sum(spread) == CHATS:
            return sorted(spread)
        await asyncio.sleep(0.05)


def _workers(health: dict[str, Any]) -> list[dict[str, Any]]:
    return [worker for app in health["apps"] for worker in app["workers"]]


async def _counted(client: httpx.AsyncClient, database: str | None) -> Counted:
    health = (await client.get("/health")).json()
    pids = [process["pid"] for process in health.get("processes", [health["process"]])]
    stores = [app["store"] for app in health["apps"]]
    # A cycle's transactions: on SQLite those of claims and leases are among them, a few in a second.
    groups = sum(store.get("write_transactions") or store.get("commit_batches") or 0 for store in stores)
    return Counted(
        at_s=time.monotonic(),
        cpu_s=sum(_cpu_s(psutil.Process(pid)) for pid in pids),
        server_cpu_s=sum(_cpu_s(backend) for backend in _backends(database)),
        commits=sum(worker["commits"] for worker in _workers(health)),
        groups=groups,
        claims=sum(worker["claims_made"] for worker in _workers(health)),
        wakes=sum(store.get("wakes_heard") or 0 for store in stores),
    )


def _cpu_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _backends(database: str | None) -> Iterator[Any]:
    if database is not None:
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or ())
            if words.startswith("postgres:") and f" {database} " in words:
                yield process


@asynccontextmanager
async def _serving(url: str, folder: Path, count: int) -> AsyncIterator[httpx.AsyncClient]:
    with _server(url, folder, count) as address:
        token = (folder / "home" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60.0, trust_env=False) as client:
            yield client


@contextmanager
def _server(url: str, folder: Path, count: int) -> Iterator[str]:
    words = [sys.executable, "-m", "holdfast", "serve", "bench.cycler:app", "--port", "0", "--processes", str(count)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOLDFAST_DATABASE": url, "HOLDFAST_HOME": str(folder / "home")}
    environ |= {"HOLDFAST_GRACE_S": "0.1"}
    last = "listening on" if count == 1 else "processes are ready"
    address = ""
    with subprocess.Popen(words, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "listening on" in line:
                    address = line.split()[-1]
                if last in line:
                    break
            yield address
        finally:
            process.terminate()
            process.communicate(timeout=60)
