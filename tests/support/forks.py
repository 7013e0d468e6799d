"""Processes that begin with their modules loaded: each is forked from one that has done nothing else.

To load a server, or a command, takes longer than most tests of one. What they do, and how they die, is as with any
other process. What happens while a program is loaded is for tests that start Python.
"""

import atexit
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

from holdfast.__main__ import main

_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.support.commands", "tests.server.program"])


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


def run_command(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str], given: str, timeout_s: float
) -> tuple[int, str, str]:
    """`holdfast` with these arguments and warnings as errors: its exit code, its output and its errors."""
    with ExitStack() as files:
        streams = [files.enter_context(TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(3)]
        streams[0].write(given)
        streams[0].seek(0)
        handed = [Connection(os.dup(stream.fileno())) for stream in streams]
        process = _context.Process(
            target=_as_command, args=(handed, list(arguments), str(folder), dict(environ)), daemon=True
        )
        process.start()
        for one in handed:
            one.close()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(["holdfast", *arguments], timeout_s)
        for stream in streams:
            stream.seek(0)
        return process.exitcode, streams[1].read(), streams[2].read()


def _as_command(streams: list[Connection], arguments: list[str], folder: str, environ: dict[str, str]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  it ends with the process
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.path[:0] = [folder, *environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["holdfast", *arguments]
    sys.orig_argv = [sys.executable, "-W", "error", "-m", "holdfast", *arguments]  # who begins anew, without its keys
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # a fork ends without


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
