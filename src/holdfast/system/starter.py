"""The starter's side in this process: started, told what to cover, asked for processes. See `starter_process.py`.

What it starts is a child of this process, which waits for it. It ends with us, and with `end`; its children do not.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.system import starter_process
from holdfast.system.starter_process import receive, send

ANSWER_S = 10.0
_LOADER = ("LD_LIBRARY_PATH",)  # what an interpreter may need to find its own libraries

Cover = tuple[str, bytes]  # how, and what
View = tuple[list[tuple[str, bytes]], list[tuple[bytes, bytes]], bool, int, int, int]  # see `sandbox_process.View`
Order = tuple[list[bytes], list[bytes], dict[bytes, bytes], bytes, list[int], View | None]  # `starter_process.Order`
# Isolated: neither the environment, nor the folder, nor what is installed has a say in what it imports.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from holdfast.system.starter_process import main; main()"
PACKAGES = str(Path(starter_process.__file__).parents[2])


class CannotCover(Exception):
    """This system does not let us."""


class StartResult(NamedTuple):
    """A process; or what kept it from running, and at what: see `starter_process.start`."""

    pid: int
    errno: int
    at: str


class Process(Protocol):
    """As `subprocess.Popen` has it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class StartedProcess:
    """A child of this process that the starter made."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        found = self._reap(0)
        assert found is not None
        return found

    def _reap(self, options: int) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, options)
                except ChildProcessError:  # reaped by other code: Popen says the same
                    pid, status = self.pid, 0
                if pid == self.pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Starter:
    """The program, from our side. Not for several threads at once."""

    def __init__(self) -> None:
        """Raises CannotCover, and OSError."""
        if sys.platform != "linux":
            raise CannotCover("only Linux gives a process a view of its own of the files")
        self.problems: list[str] = []  # what it cannot close, whatever is covered
        self.channel, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, PACKAGES],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _LOADER if name in os.environ},
                start_new_session=True,
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        try:
            self._hear()
            self._map_users()
            send(self.channel, "mapped")
            self.problems = _told(self._hear())
        except BaseException:
            self.end()
            raise

    def cover(self, covers: Sequence[Cover]) -> list[str]:
        """What it cannot, and why. Raises OSError."""
        self.ask(covers, None)
        return self.answer()[0]

    def ask(self, covers: Sequence[Cover], order: Order | None, fds: Sequence[int] = ()) -> None:
        """For a process, whose files are covered first. Raises OSError: then it will not be."""
        send(self.channel, (list(covers), order), fds)

    def answer(self) -> tuple[list[str], StartResult]:
        """What is not covered, and the process. Raises OSError: then it is unknown whether there is one."""
        problems, started = self._hear()
        return [*self.problems, *_told(problems)], StartResult(*started)

    def kill(self) -> None:
        """From any thread: what waits for its answer is told that it ended. `end` is still to be called."""
        self._process.kill()

    def end(self) -> None:
        self.channel.close()
        self._process.kill()
        self._process.wait()

    def let_go(self) -> None:
        """In a forked process, whose starter it is not."""
        self.channel.close()

    def _hear(self) -> Any:
        self.channel.settimeout(ANSWER_S)
        try:
            (result, problem), _ = receive(self.channel)
        except (EOFError, ValueError):
            raise OSError("it ended") from None
        if problem is not None:
            raise CannotCover(problem)
        return result

    def _map_users(self) -> None:
        """Each to itself; all of them where we are root, so that files look the same, and only ours where not."""
        folder = f"/proc/{self._process.pid}"
        ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
        try:
            if os.geteuid() != 0:
                _write(f"{folder}/setgroups", "deny")
            for name, own in ids.items():
                _write(f"{folder}/{name}", _all_of(name) if os.geteuid() == 0 else f"{own} {own} 1\n")
        except OSError as error:
            raise CannotCover(f"map users: {error.strerror}") from error


def _told(problems: list[tuple[bytes, str]]) -> list[str]:
    return [f"{os.fsdecode(path)}: {why}" for path, why in problems]


def _all_of(name: str) -> str:
    rows = [line.split() for line in Path(f"/proc/self/{name}").read_text().splitlines()]
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
