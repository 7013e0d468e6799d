"""A process with a local model. It says who the server is, and waits.

Usage: python -m tests.models.local_owner URL HOW. `worker`: an app with a worker; `bare`: models alone, so that no
guard knows the server; `forked`: the same, and a fork of this process, which is named too, lives on.
"""

import asyncio
import os
import signal
import sys

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.base import Settings
from tests.models.conftest import asking

BRIEF = Settings(max_tokens=4)


async def main(url: str, how: str) -> None:
    app = App(url, [Agent("a", "local", settings=BRIEF)], local_slots=1, local_context=256)
    async with app:
        if how == "worker":
            async with app.worker():
                await (await app.create("a", "Say hello.")).text()
                await tell_and_wait(app)
        else:
            async for _ in app.models.get("local").stream(asking()):
                break
            await tell_and_wait(app, fork=how == "forked")


async def tell_and_wait(app: App, *, fork: bool = False) -> None:
    (figures,) = app.models.local_figures().values()
    while figures["pid"] is None:
        await asyncio.sleep(0.01)
        (figures,) = app.models.local_figures().values()
    other = os.fork() if fork else None
    if other == 0:
        signal.pause()
    sys.stdout.write(f"{figures['pid']} {other or ''}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
