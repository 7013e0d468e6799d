"""Some turns, one after the other: `python -m tests.worker.traced_turns URL COUNT`. Says `done`, and ends."""

import asyncio
import sys

from holdfast import Agent, App


async def work(url: str, count: int) -> None:
    app = App(url, [Agent("echo", "scripted")])
    async with app, app.worker():
        for _ in range(count):
            await app.run("echo", "hello")
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
