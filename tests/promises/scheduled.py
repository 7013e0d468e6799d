"""A worker as a process of its own, to be killed: `python -m tests.promises.scheduled URL`. It says `ready` when it
is, and drains when its input ends.
"""

import asyncio
import signal
import sys

from holdfast import Agent, App, StoreOptions
from holdfast.testing import ScriptedModel
from holdfast.worker import stacks


async def main(url: str) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, stacks.write, loop)
    agent = Agent("echo", ScriptedModel(after="echo"))
    app = App(url, [agent], options=StoreOptions(lease_ttl_ms=3_000), poll_s=0.5, grace_s=1.0)
    async with app.worker():
        print("ready", flush=True)  # noqa: T201  for who started it
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
