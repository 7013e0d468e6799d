"""A worker process that will be killed: `python -m tests.worker.mortal URL EVIDENCE LIFE AHEAD_MS SCRIPTS`.

It claims and runs chats until somebody kills it, or `HOLDFAST_CRASH_AT` does. A model's hold and a tool's gate last a
moment here. It says `ready` when it holds its lease.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from holdfast.app import App
from holdfast.models.scripted import Hold, Response, Stall, Step
from tests.worker.evidence import Evidence
from tests.worker.lives import QUICK, SteppedClock, agents, options
from tests.worker.toolbox import Gates

MOMENT_S = 0.03

Scripts = tuple[tuple[Response, ...], ...]


def in_a_moment(scripts: Scripts) -> Scripts:
    return tuple(tuple(tuple(map(_in_a_moment, response)) for response in script) for script in scripts)


def _in_a_moment(step: Step) -> Step:
    return Stall(for_s=MOMENT_S) if isinstance(step, Hold) else step


async def work(url: str, path: str, life: str, ahead_ms: int, scripts: Scripts) -> None:
    evidence = Evidence(Path(path), life)
    made = agents(in_a_moment(scripts), evidence, Gates(MOMENT_S), summary_s=MOMENT_S)
    app = App(url, made, retry=QUICK, options=options(SteppedClock(ahead_ms)))
    async with app, app.worker(poll_s=0.1):
        print("ready", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    written = msgspec.json.decode(sys.argv[5], type=Scripts)
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), written))
