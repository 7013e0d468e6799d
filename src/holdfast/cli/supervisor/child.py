"""One process under the supervisor: how it is started, what it was handed, what it says."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, Protocol

import msgspec

from holdfast.system import keys
from holdfast.system.siblings import LoadTable
from holdfast.system.supervised import LINE_BYTES_MAX, VARIABLE, Handed

ChildState = Literal["starting", "ready", "draining"]


class Process(Protocol):
    pid: int

    def poll(self) -> int | None:
        """Its exit code, once it has ended; of one that a signal ended, that signal's number below zero."""

    def send_signal(self, number: int) -> None: ...


Start = Callable[[Handed], Process]


def start_anew(handed: Handed) -> Process:
    """The command that this process is, once more, in a fresh interpreter: it loads its code as it is now."""
    with keys.handed_on() as (environ, keys_fd):
        fds = (*handed.descriptors, *(() if keys_fd is None else (keys_fd,)))
        return subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**environ, VARIABLE: handed.encoded()},
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
        )


class Slots:
    """What the processes share: memory for their figures, an ear for each, a pipe that says that we live. One more
    than there are processes, for the successor of one that still drains.
    """

    def __init__(self, count: int, memory_fd: int) -> None:
        """`memory_fd`: a file without a name."""
        self.count = count
        self._table_fd = memory_fd
        os.ftruncate(memory_fd, LoadTable.size(count))
        self.table = LoadTable(memory_fd, count)
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
        self._life, self._alive = os.pipe()
        self._taken: set[int] = set()

    def take(self) -> int:
        slot = min(set(range(self.count)) - self._taken)
        self._taken.add(slot)
        return slot

    def free(self, slot: int) -> None:
        self.table.clear(slot)
        self._taken.discard(slot)

    def handed(self, slot: int, line: int, *, first: bool) -> Handed:
        mouths = [mouth.fileno() for _, mouth in self._pairs]
        ear = self._pairs[slot][0].fileno()
        return Handed(slot, self.count, first, line, self._life, self._table_fd, ear, mouths)

    def close(self) -> None:
        self.table.close()
        for end in (end for pair in self._pairs for end in pair):
            end.close()
        os.close(self._life)
        os.close(self._alive)


class Child:
    def __init__(self, start: Start, slots: Slots, *, first: bool, replaces: "Child | None" = None) -> None:
        """Raises OSError."""
        self.line, theirs = socket.socketpair()
        self.slot = slots.take()
        self.first = first
        self.replaces = replaces
        self.state: ChildState = "starting"
        self.grace_s = 25.0  # as it says when it is ready
        self.listens: tuple[str, int] | None = None
        self.started_s = time.monotonic()
        self.was_ready = False
        self.beside = 1  # how many were starting at once while this one did, itself among them
        self.kill_s: float | None = None  # when it is ended, if it has not left by then
        self.is_ended = False
        self.line.setblocking(False)
        self._said = bytearray()
        self._unsent = bytearray()
        try:
            self._process = start(slots.handed(self.slot, theirs.fileno(), first=first))
        except OSError:
            self.line.close()
            slots.free(self.slot)
            raise
        finally:
            theirs.close()

    @property
    def number(self) -> int:
        return self.slot + 1

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def is_spare(self) -> bool:
        """It waits to take the place of one that is still there."""
        return self.replaces is not None and self.replaces.state != "draining"

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def drain(self, extra_s: float) -> None:
        """Once: it hears no second one."""
        if self.state != "draining":
            self.state = "draining"
            self.kill_s = time.monotonic() + self.grace_s + extra_s
            self.signal(signal.SIGTERM)

    def end(self) -> None:
        self.kill_s, self.is_ended = None, True
        self.signal(signal.SIGKILL)

    def read(self) -> Iterator[dict[str, Any]]:
        """What it said since the last time. Raises OSError, ValueError where the line is of no use any more."""
        while True:
            try:
                data = self.line.recv(1 << 16)
            except BlockingIOError:
                return
            if not data:
                raise OSError("the line was closed")
            self._said += data
            while (end := self._said.find(b"\n")) >= 0:
                line = bytes(self._said[:end])
                del self._said[: end + 1]
                try:
                    message = msgspec.json.decode(line, type=dict[str, Any])
                except msgspec.DecodeError as error:
                    raise ValueError(f"no message: {error}") from error
                yield message
            if len(self._said) > LINE_BYTES_MAX:
                raise ValueError("a message without an end")

    def say(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """What a process that hangs does not take is kept up to a bound; beyond it, it is not told."""
        data = msgspec.json.encode(message) + b"\n"
        if fds:  # the answer to the first thing it says
            with suppress(OSError):
                socket.send_fds(self.line, [data], list(fds))
            return
        if len(self._unsent) + len(data) <= 2 * LINE_BYTES_MAX:
            self._unsent += data
        self.send()

    def send(self) -> None:
        with suppress(OSError):
            while self._unsent:
                del self._unsent[: self.line.send(self._unsent)]

    def close(self) -> None:
        self.line.close()
