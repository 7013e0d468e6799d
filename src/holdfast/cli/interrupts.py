"""Ctrl-C: once is a wish, twice is now. Also when the event loop is what hangs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SHOW_CURSOR = "\x1b[?25h"


class Pressed:
    """Whether Ctrl-C was pressed once, as a signal or as a key, and not forgotten since."""

    once = False


@contextmanager
def interrupts(
    once: Callable[[], None], leave: Callable[[], None] = lambda: None, pressed: Pressed | None = None
) -> Iterator[None]:
    """In the main thread: the first SIGINT calls `once` in the event loop, the second one `leave`, and exits."""
    loop = asyncio.get_running_loop()
    pressed = pressed or Pressed()

    def handle(number: int, _frame: FrameType | None) -> None:
        if pressed.once:
            leave()
            leave_now(128 + number)
        pressed.once = True
        loop.call_soon_threadsafe(once)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def leave_now(code: int) -> NoReturn:
    """Without waiting for anything: whatever is unfinished goes on elsewhere, and the guard ends the children."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), f"\r{SHOW_CURSOR}\n".encode())
    os._exit(code)
