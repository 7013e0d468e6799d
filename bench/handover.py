"""How long a chat stands still when its worker goes: from the signal to the next step, begun by another process.

"Elsewhere" is a worker whose death nobody can see: its lock file is gone, as if it had been in another container or
on another machine. Only the end of its lease tells.
"""

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.figures import Figures
from bench.stepper import stepping
from holdfast import App
from holdfast.worker.sweeper import SWEEP_S
from tests.support.postgres import PostgresServer

ROUNDS = 7
ELSEWHERE_ROUNDS = 2
TTL_S = 30.0
SHORT_TTL_S = 5.0
GIVE_UP_S = 60.0


class Steppers:
    """Worker processes on one store, and the log of their steps."""

    def __init__(self, app: App, url: str, log: Path, ttl_s: float) -> None:
        self.app = app
        self._arguments = [url, str(log), str(ttl_s)]
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> "subprocess.Popen[bytes]":
        program = [sys.executable, "-m", "bench.stepper", *self._arguments]
        root = Path(__file__).resolve().parents[1]
        process = subprocess.Popen(program, cwd=root, stderr=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    async def registered(self, process: "subprocess.Popen[bytes]") -> str | None:
        """It holds its lease. Returns where its lock is."""
        while True:
            for lease in await self.app.store.list_workers():
                if lease.pid == process.pid:
                    return lease.lock_path
            await asyncio.sleep(0.02)

    async def time_to_step(self, of: int, began: float) -> float:
        """Until its first step. Returns after its second: then the chat has made progress, and can be hit again."""
        first = await self.next_step(of, began)
        await self.next_step(of, first)
        return first - began

    async def next_step(self, of: int, after: float) -> float:
        """When this process took its first step after that moment."""
        give_up_at = time.monotonic() + GIVE_UP_S
        while time.monotonic() < give_up_at:
            for line in self._log.read_text().splitlines() if self._log.exists() else ():
                pid, at = line.split()
                if int(pid) == of and int(at) / 1e9 > after:
                    return int(at) / 1e9
            await asyncio.sleep(0.01)
        raise TimeoutError(f"no step of {of} within {GIVE_UP_S:g} s")

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def _steppers(url: str, folder: Path, ttl_s: float) -> AsyncIterator[Steppers]:
    log = folder / f"steps-{time.monotonic_ns()}"
    async with stepping(url, str(log), ttl_s) as app:
        steppers = Steppers(app, url, log, ttl_s)
        try:
            yield steppers
        finally:
            steppers.end()


async def _stops(steppers: Steppers) -> list[float]:
    """SIGTERM, with a successor that waits."""
    chat = await steppers.app.create("stepper", "go")
    holder = steppers.start()
    await steppers.time_to_step(holder.pid, 0.0)
    times = []
    for _ in range(ROUNDS):
        successor = steppers.start()
        await steppers.registered(successor)
        began = time.monotonic()
        holder.send_signal(signal.SIGTERM)
        times.append(await steppers.time_to_step(successor.pid, began))
        holder = successor
    await chat.stop()
    return times


async def _kills(steppers: Steppers) -> list[float]:
    """SIGKILL, and the process is started again: interpreter, imports and all."""
    chat = await steppers.app.create("stepper", "go")
    holder = steppers.start()
    await steppers.time_to_step(holder.pid, 0.0)
    times = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        holder.kill()
        holder.wait()
        holder = steppers.start()
        times.append(await steppers.time_to_step(holder.pid, began))
    await chat.stop()
    return times


async def _kills_elsewhere(steppers: Steppers) -> list[float]:
    chat = await steppers.app.create("stepper", "go")
    holder = steppers.start()
    await steppers.time_to_step(holder.pid, 0.0)
    times = []
    for _ in range(ELSEWHERE_ROUNDS):
        lock_path = await steppers.registered(holder)
        assert lock_path is not None
        os.unlink(lock_path)  # noqa: PTH108
        successor = steppers.start()
        await steppers.registered(successor)
        began = time.monotonic()
        holder.kill()
        times.append(await steppers.time_to_step(successor.pid, began))
        holder = successor
    await chat.stop()
    return times


def _add(figures: Figures, name: str, times: list[float], aim: float) -> None:
    note = f"longest {max(times):.3f} s of {len(times)}"
    figures.add(f"handover, {name}", statistics.median(times), "s", at_most=aim, note=note)


async def _measure(figures: Figures, url: str, folder: Path, name: str) -> None:
    async with _steppers(url, folder, TTL_S) as steppers:
        _add(figures, f"{name}: SIGTERM to the successor's next step", await _stops(steppers), 1.0)
    async with _steppers(url, folder, TTL_S) as steppers:
        _add(figures, f"{name}: SIGKILL and restart to the next step", await _kills(steppers), 1.5)
    async with _steppers(url, folder, SHORT_TTL_S) as steppers:
        times = await _kills_elsewhere(steppers)
        aim = SHORT_TTL_S + 1.2 * SWEEP_S + 1.0
        _add(figures, f"{name}: SIGKILL elsewhere, lease {SHORT_TTL_S:g} s, to the next step", times, aim)


async def handover(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        await _measure(figures, f"sqlite:///{path / 'handover.db'}", path, "sqlite")
        with PostgresServer() as server:
            await _measure(figures, server.create_database(), path, "postgres")
