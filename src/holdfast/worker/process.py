"""A worker, or a server with one, as a process: runs until it is told to go, drains, and says what it waits for.

The first SIGTERM or Ctrl-C drains; the second one exits now. Whatever is left over is handed to other workers by the
end of the lease, and the guard ends the children.
"""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from holdfast.safe_text import safe
from holdfast.system import garbage, threads
from holdfast.system.standard_error import write_line
from holdfast.worker import stacks

SAY_EVERY_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    write_line(f"holdfast: {safe(text)}")


class Service(Protocol):
    async def start(self) -> None:
        """May be cancelled, and leaves nothing behind then."""

    async def stop(self) -> None:
        """Drain: bounded by the grace."""

    def waiting_for(self) -> str:
        """For the person who waits for the end of `stop`."""


async def run_until_told(
    service: Service, grace_s: float, say: Say = say_on_stderr, *, supervised: bool = False
) -> None:
    """Starts the service; returns when it is drained. SIGUSR1 writes all stacks and tasks to standard error.

    A second signal does not return: it ends the process, with the exit code that the signal has. Where the process is
    `supervised`, it does nothing: the supervisor, the terminal and a service manager may each tell all processes of
    the first, and when it is time to leave at once the supervisor ends them.
    """
    told: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    with _listening(told, say, supervised=supervised):
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
        with garbage.settled():
            number = await told
        await _drain(service, number, grace_s, say, "" if supervised else "; once more to leave at once")


@contextmanager
def _listening(told: "asyncio.Future[signal.Signals]", say: Say, *, supervised: bool) -> Iterator[None]:
    """Signals are heard by a thread of their own: the loop, and with it the main thread, may be what hangs, and the
    kernel gives a second signal to any thread that it likes, which interrupts nothing in the main one.
    """
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    ours = set(SIGNALS)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # else it means something to the program around us
        ours.add(signal.SIGUSR1)
    if supervised:
        ours.add(signal.SIGHUP)  # of a terminal that goes: the supervisor says what follows
    # The wakeup first and the handlers last, and at the end the other way round: a signal that met a handler of ours
    # and no wakeup would go unheard.
    fd_before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in ours}
    threads.start("signals", lambda: _hear(ear, ours, told, say, supervised=supervised))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # While a supervised one leaves, any other is the first one once more, or for the supervisor to act upon.
            signal.signal(number, signal.SIG_IGN if supervised else handler)
        signal.set_wakeup_fd(fd_before)
        mouth.close()  # which ends the thread


def _hear(
    ear: socket.socket,
    ours: set[signal.Signals],
    told: "asyncio.Future[signal.Signals]",
    say: Say,
    *,
    supervised: bool,
) -> None:
    loop, heard = told.get_loop(), False
    telling: threading.Thread | None = None
    with ear:
        while numbers := ear.recv(64):
            for number in (signal.Signals(byte) for byte in numbers if byte in ours):
                if number is signal.SIGUSR1:
                    # Not by this thread: a standard error that is not read must not make it deaf.
                    if telling is None or not telling.is_alive():
                        telling = threads.start("stacks", lambda: stacks.write(loop))
                elif number is signal.SIGHUP or (heard and supervised):
                    continue
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


async def _drain(service: Service, number: signal.Signals, grace_s: float, say: Say, more: str) -> None:
    began = time.monotonic()
    say(f"{number.name}: draining, at most {grace_s:g} s{more}")
    stopping = asyncio.ensure_future(service.stop())
    while not (await asyncio.wait((stopping,), timeout=SAY_EVERY_S))[0]:
        say(f"still waiting for {service.waiting_for()} after {time.monotonic() - began:.0f} s")
    await stopping
    say(f"drained in {time.monotonic() - began:.1f} s")
