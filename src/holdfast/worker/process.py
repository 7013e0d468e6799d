"""A worker as a process: runs until it is told to go, drains, and says what it waits for.

The first SIGTERM or Ctrl-C drains; the second one exits now. Whatever is left over is handed to other workers by the
end of the lease, and the guard ends the children.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

from holdfast.worker.watchdog import install_signal_dump
from holdfast.worker.worker import Worker

SAY_EVERY_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr, flush=True)  # noqa: T201  the person at the terminal is waiting


async def run_until_told(worker: Worker, say: Say = say_on_stderr) -> None:
    """Starts the worker; returns when it is drained. SIGUSR1 writes all stacks and tasks to standard error.

    A second signal does not return: it ends the process, with the exit code that the signal has.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[signal.Signals] = loop.create_future()

    def hear(number: signal.Signals) -> None:
        for again in SIGNALS:
            # Not by way of the loop, which may be what hangs.
            loop.remove_signal_handler(again)
            signal.signal(again, leave)
        if not told.done():
            told.set_result(number)

    def leave(number: int, _frame: object) -> None:
        say(f"{signal.Signals(number).name} again: leaving now; what is left over goes on elsewhere")
        os._exit(128 + number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, hear, number)
    remove_dump = install_signal_dump()
    try:
        await _start(worker, told)
        await _drain(worker, await told, say)
    finally:
        remove_dump()
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _start(worker: Worker, told: "asyncio.Future[signal.Signals]") -> None:
    """A signal during the start is heard: what has started by then is stopped again."""
    starting = asyncio.ensure_future(worker.start())
    await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
    await starting


async def _drain(worker: Worker, number: signal.Signals, say: Say) -> None:
    began = time.monotonic()
    say(f"{number.name}: draining, at most {worker.config.grace_s:g} s; once more to leave at once")
    stopping = asyncio.ensure_future(worker.stop())
    while not (await asyncio.wait((stopping,), timeout=SAY_EVERY_S))[0]:
        say(f"still waiting for {_waiting_for(worker)} after {time.monotonic() - began:.0f} s")
    await stopping
    say(f"drained in {time.monotonic() - began:.1f} s")


def _waiting_for(worker: Worker) -> str:
    tools = [f"{tool.tool} ({tool.age_s:.0f} s)" for tool in worker.running_tools()]
    chats = len(worker.running_chats)
    words = f"{chats} chat{'s' if chats != 1 else ''}" if chats else "the store"
    return words + (f", running {', '.join(tools[:5])}" if tools else "")
