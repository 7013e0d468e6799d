"""A worker process that stands still when it is told to: `python -m tests.worker.frozen URL`.

It says `ready`, then obeys one line: `inside` stops it in the middle of a write, with the lock that all writers need;
`outside` while it writes nothing. Its lease, and so what its guard waits for, has a TTL of two seconds.
"""

import asyncio
import signal
import sys

from holdfast import faults
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import ScriptedModel
from holdfast.store.records import StoreOptions


def stand_still() -> None:
    signal.raise_signal(signal.SIGSTOP)  # to this thread: with kill, it would run on until another one takes it


async def work(url: str) -> None:
    app = App(url, agents=[Agent("a", ScriptedModel(after="echo"))], options=StoreOptions(lease_ttl_ms=2_000))
    async with app, app.worker(poll_s=0.1):
        print("ready", flush=True)  # noqa: T201
        match (await asyncio.to_thread(sys.stdin.readline)).strip():
            case "inside":
                faults.arm("write.chat.before", stand_still)
                await app.create("a", "never told")
            case _:
                await app.store._transactor.read(lambda _: stand_still())  # type: ignore[attr-defined]
        print("on again", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
