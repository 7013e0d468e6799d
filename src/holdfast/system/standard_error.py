"""Lines for who reads standard error, whole and in order. It may be that no one does: the pipe is full, its reader is
gone, the terminal was closed. A thread of its own waits for it, and who has something to say waits for a second at
most, once: a process that could be neither drained nor ended because of what it had to say would be a bad joke.
"""

import os
import sys
import threading
from collections import deque
from contextlib import suppress

from holdfast.system import threads

WAIT_S = 1.0
UNWRITTEN_MAX = 256  # lines; what comes beyond them is dropped


class LineWriter:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After a fork: the thread, and what it has to write, are the other process's."""
        self._changed = threading.Condition()
        self._unwritten: deque[tuple[int, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._stuck = False

    def write(self, fd: int, line: bytes) -> None:
        """Raises nothing. Returns when the line is written; while an earlier one is stuck, at once."""
        with self._changed:
            if len(self._unwritten) >= UNWRITTEN_MAX:
                return
            if self._thread is None:
                self._thread = threads.start("standard-error", self._write_all)
            self._unwritten.append((fd, line))
            self._changed.notify_all()
            if not self._stuck and not self._changed.wait_for(lambda: not self._unwritten, WAIT_S):
                self._stuck = True

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unwritten)
                fd, rest = self._unwritten[0]
            with suppress(OSError):
                while rest:
                    rest = rest[os.write(fd, rest) :]
            with self._changed:
                self._unwritten.popleft()
                self._stuck = self._stuck and bool(self._unwritten)
                self._changed.notify_all()


_writer = LineWriter()
os.register_at_fork(after_in_child=_writer.forget)


def write_line(text: str) -> None:
    """Raises nothing, and takes a second at most."""
    try:
        fd = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # none, or one that the program around us has put in its place
        with suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(text + "\n")
        return
    _writer.write(fd, (text + "\n").encode(errors="backslashreplace"))
