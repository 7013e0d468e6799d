"""A steady load through a worker process for a long time: `make soak`, or `python -m bench.soak MINUTES [PNG]`.

A process per store, both at the same time. Its health is sampled all the while; at the end no figure may trend upward
(`bench/trends.py` says what that means), and then, with nothing left to do, it must use less than 1 % of a processor.
"""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench.figures import Figures
from bench.soaked import soaked
from bench.trends import trend
from holdfast import App
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = 600
SAMPLE_S_MIN = 0.5
# New chats at a time, and how often each makes way for the next at most: four a second. A machine that is busy with
# something else gets fewer; without this bound ever more of them would run at once there, and look like a leak.
SHORT = 4
SHORT_S = 1.0
TALKATIVE = 5  # chats that go on from message to message at a time, so that history in memory is used
TURNS = 25  # of such a chat, beyond the limit of what is kept; then comes a new one
IDLE_S = 25.0
IDLE_CPU_MAX = 1.0

Told = Mapping[str, Any]


class Watched:
    """A figure: where it stands in a sample, and how much of it is no growth."""

    def __init__(self, unit: str, allowance: float, read: Callable[[Told], float | None]) -> None:
        self.unit = unit
        self.allowance = allowance
        self.read = read


def _public(name: str) -> Callable[[Told], float | None]:
    return lambda told: told["diagnostics"][name]


def _mib(value: float | None) -> float | None:
    return None if value is None else value / (1 << 20)


def _own_bytes(told: Told) -> float:
    return float(told["process"]["rss_bytes"] - told["apps"][0]["store"].get("memory_bytes", 0))


WATCHED = {
    "threads": Watched("", 1, _public("thread_count")),
    "tasks": Watched("", 4, _public("asyncio_task_count")),
    "running executions": Watched("", 3, _public("running_executions")),
    "history in memory": Watched("messages", 30, _public("conversation_history_size")),
    # SQLite's page caches fill up to their own limit as the file grows, over hours: bounded, and no growth of ours.
    "RSS without SQLite's caches": Watched("MiB", 3, lambda told: _mib(_own_bytes(told))),
    "descriptors": Watched("", 2, lambda told: told["process"]["descriptors"]),
    "WAL": Watched("MiB", 4, lambda told: _mib(told["apps"][0]["store"].get("wal_bytes"))),
}


class Soak:
    """One worker process under load."""

    def __init__(self, name: str, url: str, seconds: float) -> None:
        self.name = name
        self._url = url
        self._seconds = seconds
        self.samples: list[Told] = []
        self._heard = asyncio.Event()
        self.chats = 0
        self.idle_cpu = 0.0
        self.sample_s = max(SAMPLE_S_MIN, seconds / SAMPLES)

    async def run(self) -> None:
        async with self._process() as process, soaked(self._url) as app:
            async with asyncio.timeout(60):
                await self._heard.wait()
            async with asyncio.TaskGroup() as load:
                for _ in range(SHORT):
                    load.create_task(self._new_chats(app))
                for n in range(TALKATIVE):
                    load.create_task(self._long_chats(app, TURNS * (n + 1) // TALKATIVE))
            await self._idle(psutil.Process(process.pid))
            end = self.samples[0]["at"] + self._seconds
            self.samples = [told for told in self.samples if told["at"] <= end]  # while the load was steady
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.soaked", self._url, str(self.sample_s)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        hearing = asyncio.create_task(self._hear(process))
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await hearing

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.samples.append(json.loads(line))
            self._heard.set()

    async def _new_chats(self, app: App) -> None:
        """One after the other."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        while (began := loop.time()) < end:
            chat = await app.create("soaked", "How is it?")
            self.chats += 1
            await chat.wait(60)
            await asyncio.sleep(max(0.0, began + SHORT_S - loop.time()))

    async def _long_chats(self, app: App, first_turns: int) -> None:
        """One after the other, each of many turns. They do not all begin anew at the same time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        turns = first_turns
        while loop.time() < end:
            chat = await app.create("soaked", "How is it?")
            for _ in range(turns):
                await chat.wait(60)
                await chat.send("And now?")
            await chat.wait(60)
            turns = TURNS

    async def _idle(self, process: psutil.Process) -> None:
        await asyncio.sleep(2.0)  # what follows a turn is over
        before = process.cpu_times()
        await asyncio.sleep(IDLE_S)
        after = process.cpu_times()
        self.idle_cpu = 100 * (after.user + after.system - before.user - before.system) / IDLE_S

    # --- what came of it

    def judge(self, figures: Figures) -> bool:
        times = [told["at"] for told in self.samples]
        good = True
        for name, watched in WATCHED.items():
            values = [watched.read(told) for told in self.samples]
            if None in values:
                continue  # PostgreSQL's WAL is not this process's
            found = trend(times, [value for value in values if value is not None], watched.allowance)
            note = f"{found.median:.4g} {watched.unit}".strip()
            figures.add(
                f"soak, {self.name}: growth of {name}, second half", found.growth, watched.unit, at_most=found.bound,
                note=f"median {note}",
            )  # fmt: skip
            good = good and found.flat
        figures.add(f"soak, {self.name}: CPU of an idle worker", self.idle_cpu, "%", at_most=IDLE_CPU_MAX)
        statuses = {told["status"] for told in self.samples} - {"ok"}
        reasons = sorted({reason for told in self.samples for reason in told["reasons"]})
        print(f"  {self.chats:,} chats, {len(self.samples)} samples; {', '.join(reasons) or 'always ok'}")
        return good and self.idle_cpu <= IDLE_CPU_MAX and "unhealthy" not in statuses


def plot(soaks: list[Soak], minutes: float, file: str) -> None:
    pyplot: Any = import_module("matplotlib.pyplot")  # only here, and only for developers
    figure, rows = pyplot.subplots(len(WATCHED), 1, sharex=True, figsize=(9, 11), layout="constrained")
    for axes, (name, watched) in zip(rows, WATCHED.items(), strict=True):
        for soak in soaks:
            points = [(told["at"] - soak.samples[0]["at"], watched.read(told)) for told in soak.samples]
            if all(value is not None for _, value in points):
                axes.plot([at / 60 for at, _ in points], [value for _, value in points], label=soak.name, lw=0.9)
        axes.set_ylabel(f"{name}\n({watched.unit})" if watched.unit else name, fontsize=8)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.axvline(minutes / 2, color="grey", ls=":", lw=0.8)
    rows[0].legend(loc="lower right", fontsize=8)
    rows[-1].set_xlabel("minutes; judged from the dotted line on")
    figure.suptitle(f"One worker under a steady load, {minutes:g} minutes", fontsize=11)
    figure.savefig(file, dpi=80)
    print(f"  plotted into {file}")


async def main(minutes: float, file: str | None) -> bool:
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        soaks = [
            Soak("sqlite", f"sqlite:///{folder}/soak.db", minutes * 60),
            Soak("postgres", server.create_database(), minutes * 60),
        ]
        print(f"soak: {minutes:g} minutes on both stores", flush=True)
        async with asyncio.TaskGroup() as together:
            for soak in soaks:
                together.create_task(soak.run())
    figures = Figures()
    verdicts = [soak.judge(figures) for soak in soaks]
    figures.write()
    if file is not None:
        plot(soaks, minutes, file)
    return all(verdicts)


if __name__ == "__main__":
    passed = asyncio.run(main(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
    sys.exit(0 if passed else 1)
