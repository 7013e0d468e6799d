"""Processes that begin with their modules loaded: each is forked from one that has done nothing else.

To load a server takes longer than most tests of one. What they do, and how they die, is as with any other process.
"""

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TextIO

_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.server.program"])


class Fork:
    """What a test does with a process, by the names that `subprocess` has for it."""

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
        environ: Mapping[str, str],
        files_max: int | None = None,
    ) -> None:
        """`target` is a function of a module. `environ` is all of its environment."""
        reading, writing = os.pipe()
        self.stderr: TextIO = os.fdopen(reading, encoding="utf-8")
        with Connection(writing) as error:  # in this shape it can be handed over
            given = (target, arguments, dict(options), dict(environ), error, files_max)
            self._process = _context.Process(target=_begin, args=given, daemon=True)
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a fork", timeout_s or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _begin(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    environ: dict[str, str],
    error: Connection,
    files_max: int | None,
) -> None:
    os.dup2(error.fileno(), 2)
    error.close()
    os.environ.clear()
    os.environ.update(environ)
    if files_max is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    target(*arguments, **options)
