"""The process that gets killed: plays the scenario and writes down what it was told.

`python -m tests.crash.writer URL LOG [CROWD]`. A line goes to LOG before each step (what the process is about to ask
for, and all it knows) and one after it, once the store has answered. Lines are flushed to the kernel: the process is
killed, not the machine. `HOLDFAST_CRASH_AT` says where it dies. With CROWD, as many runs of the scenario as that
share the store at once, so that their writes share transactions.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast.core.records import Snapshot
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.store.sqlite import writer as sqlite_writer
from holdfast.system.clock import FakeClock
from tests.support.forks import Fork, fork_module
from tests.support.lines import append_line, read_lines
from tests.support.programs import ROOT
from tests.support.scenario import STEPS, Run

WRITER_S_MAX = 60
CHECKPOINT_PAGES = 100  # so that the scenario is long enough to reach some


class Line(msgspec.Struct):
    """`answered` False: about to ask. `held` and `wall_ms` are what the process knows at that moment."""

    prefix: str
    step: str
    answered: bool
    wall_ms: int
    held: dict[str, Snapshot]
    answer: msgspec.Raw


def read_log(path: Path) -> list[Line]:
    return read_lines(path, Line) if path.exists() else []


def locks_of(log: Path) -> Path:
    """Where the workers of the process with this log hold their locks."""
    return log.with_suffix(".locks")


def start_writer(url: str, folder: Path, *arguments: str, crash_at: str | None = None) -> Fork:
    """This program as a process of its own, which leaves its log in `folder`."""
    return fork_module(
        "tests.crash.writer",
        *(url, str(folder / "log"), *arguments),
        environ={"HOLDFAST_CRASH_AT": crash_at} if crash_at else {},
        folder=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


class Log:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, run: Run, *, answered: bool, answer: object = None) -> None:
        told = msgspec.Raw(msgspec.json.encode(answer))
        line = Line(run.prefix, run.step.name, answered, run.clock.wall_ms(), run.held, told)
        append_line(self._fd, line)


async def write(url: str, log: Log, crowd: int) -> None:
    sqlite_writer.CHECKPOINT_PAGES = CHECKPOINT_PAGES
    clock = FakeClock()
    store = open_store(url, StoreOptions(clock=clock))
    runs = [
        Run(store, clock, url, prefix=f"{n}-" if crowd else "", locks=locks_of(log.path))
        for n in range(max(1, crowd))
    ]

    async def play(run: Run, first: int) -> None:
        for step in STEPS[first:]:
            if crowd and step.alone:
                continue
            run.step = step
            log.write(run, answered=False)
            log.write(run, answered=True, answer=await run.play(step))

    # Opening comes first and once; the runs that share the store begin behind it.
    log.write(runs[0], answered=False)
    log.write(runs[0], answered=True, answer=await runs[0].play(STEPS[0]))
    await asyncio.gather(*(play(run, 1) for run in runs))
    for run in runs:
        run.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], Log(Path(sys.argv[2])), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
