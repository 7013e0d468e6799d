"""What this process asks of the system, as Python's audit hook tells it: listened to, and held up.

A hook is never taken out again; without a `Watch` it does nothing. A thread that is held stands in the middle of its
work, at the very call, as it would on a disk or a network that hangs.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KINDS = frozenset(
    {
        "open", "os.scandir", "os.listdir", "os.mkdir", "os.rename", "os.remove", "os.link", "os.fork", "os.exec",
        "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto",
        "socket.sendmsg",
    }
)  # fmt: skip
HELD_S = 120.0  # no longer than a test may take

Place = tuple[str, str]  # a kind, and the last part of the path or the name that it is about

_watch: "Watch | None" = None
_installed = False


class Watch:
    """`calls`: all that were made. Those at `hold` wait, once each, until they are let go."""

    def __init__(self, *hold: Place) -> None:
        self.calls: list[Place] = []
        self.held: set[Place] = set()
        self._hold = set(hold)
        self._let_go = threading.Event()

    def let_go(self) -> None:
        self._let_go.set()

    def hear(self, kind: str, arguments: tuple[object, ...]) -> None:
        call = kind, _name(arguments[1] if kind == "os.rename" else arguments[0])
        self.calls.append(call)
        if call in self._hold:
            self._hold.remove(call)
            self.held.add(call)
            self._let_go.wait(HELD_S)


def _name(of: object) -> str:
    if isinstance(of, int):
        try:
            of = str(Path(f"/proc/self/fd/{of}").readlink())
        except OSError:
            return ""
    return Path(os.fsdecode(of)).name if isinstance(of, str | bytes) else ""


def _hear(kind: str, arguments: tuple[object, ...]) -> None:
    if _watch is not None and kind in KINDS:
        _watch.hear(kind, arguments)


@contextmanager
def watched(*hold: Place) -> Iterator[Watch]:
    """Every call of this process, of all its threads, until the block ends."""
    global _watch, _installed
    if not _installed:
        sys.addaudithook(_hear)
        _installed = True
    _watch = made = Watch(*hold)
    try:
        yield made
    finally:
        _watch = None
        made.let_go()
