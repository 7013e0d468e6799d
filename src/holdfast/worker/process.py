"""A worker, or a server with one, as a process: runs until it is told to go, drains, and says what it waits for.

The first SIGTERM or Ctrl-C drains; the second one exits now. Whatever is left over is handed to other workers by the
end of the lease, and the guard ends the children.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from holdfast.safe_text import safe
from holdfast.system import threads
from holdfast.worker import stacks

SAY_EVERY_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    print(f"holdfast: {safe(text)}", file=sys.stderr, flush=True)  # noqa: T201  the person at the terminal is waiting


class Service(Protocol):
    async def start(self) -> None:
        """May be cancelled, and leaves nothing behind then."""

    async def stop(self) -> None:
        """Drain: bounded by the grace."""

    def waiting_for(self) -> str:
        """For the person who waits for the end of `stop`."""


async def run_until_told(service: Service, grace_s: float, say: Say = say_on_stderr) -> None:
    """Starts the service; returns when it is drained. SIGUSR1 writes all stacks and tasks to standard error.

    A second signal does not return: it ends the process, with the exit code that the signal has.
    """
    told: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    with _listening(told, say):
        starting = asyncio.ensure_future(service.start())
        try:
            await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not starting.done():  # it waits for its database, say
                starting.cancel()
                await asyncio.wait((starting,))
        if starting.cancelled():
            say(f"{told.result().name}: left before it had started")
            return
        await starting
        await _drain(service, await told, grace_s, say)


@contextmanager
def _listening(told: "asyncio.Future[signal.Signals]", say: Say) -> Iterator[None]:
    """Signals are heard by a thread of their own: the loop, and with it the main thread, may be what hangs, and the
    kernel gives a second signal to any thread that it likes, which interrupts nothing in the main one.
    """
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    ours = set(SIGNALS)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # else it means something to the program around us
        ours.add(signal.SIGUSR1)
    # The wakeup first and the handlers last, and at the end the other way round: a signal that met a handler of ours
    # and no wakeup would go unheard.
    fd_before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in ours}
    threads.start("signals", lambda: _hear(ear, ours, told, say))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(fd_before)
        mouth.close()  # which ends the thread


def _hear(ear: socket.socket, ours: set[signal.Signals], told: "asyncio.Future[signal.Signals]", say: Say) -> None:
    loop, heard = told.get_loop(), False
    telling: threading.Thread | None = None
    with ear:
        while numbers := ear.recv(64):
            for number in (signal.Signals(byte) for byte in numbers if byte in ours):
                if number is signal.SIGUSR1:
                    # Not by this thread: a standard error that is not read must not make it deaf.
                    if telling is None or not telling.is_alive():
                        telling = threads.start("stacks", lambda: stacks.write(loop))
                elif heard:
                    say(f"{number.name} again: leaving now; what is left over goes on elsewhere")
                    os._exit(128 + number)
                else:
                    heard = True
                    with suppress(RuntimeError):  # the loop is closed: there is nothing left to tell
                        loop.call_soon_threadsafe(_tell, told, number)


def _tell(told: "asyncio.Future[signal.Signals]", number: signal.Signals) -> None:
    if not told.done():  # cancelled with its waiter
        told.set_result(number)


async def _drain(service: Service, number: signal.Signals, grace_s: float, say: Say) -> None:
    began = time.monotonic()
    say(f"{number.name}: draining, at most {grace_s:g} s; once more to leave at once")
    stopping = asyncio.ensure_future(service.stop())
    while not (await asyncio.wait((stopping,), timeout=SAY_EVERY_S))[0]:
        say(f"still waiting for {service.waiting_for()} after {time.monotonic() - began:.0f} s")
    await stopping
    say(f"drained in {time.monotonic() - began:.1f} s")
