"""Processes that begin with their modules loaded: each is forked from one that has done nothing else.

To load a server, a worker or a command takes longer than most tests of one. What they do, and how they die, is as
with any other process. What happens while a program is loaded is for tests that start Python.
"""

import atexit
import fcntl
import math
import os
import resource
import runpy
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import connection, get_context
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, NamedTuple, Self, TextIO

from holdfast import faults
from holdfast.__main__ import main
from tests.support.waiting import until

_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.support.commands", "tests.server.program", "mcp.server.mcpserver"])
# `multiprocessing` asks for the end of every process of ours when it starts another one: one thread at a time.
_asking = threading.Lock()

Stream = int | IO[Any] | None
"""As for `subprocess`: PIPE, DEVNULL, a file or its number; None is what we have ourselves."""


class Fork:
    """What a test does with a process, by the names that `subprocess` has for it."""

    def __init__(
        self,
        target: Callable[[], None],
        environ: Mapping[str, str],
        *,
        folder: Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        start_new_session: bool = False,
        files_max: int | None = None,
    ) -> None:
        """`target` can be pickled: a function of a module, or a `partial` of one. `environ` is all of its
        environment. The other options are as for `subprocess`, and `files_max` is how many files it may open.
        """
        with ExitStack() as handed:

            def hand(fd: int) -> connection.Connection:  # in this shape it can be handed over
                return handed.enter_context(connection.Connection(fd))

            self.stdin, given = _writable(stdin)
            self.stdout, said = _readable(stdout, 1)
            self.stderr, lamented = (None, os.dup(said)) if stderr == subprocess.STDOUT else _readable(stderr, 2)
            begin = _Beginning(
                (hand(given), hand(said), hand(lamented)),
                dict(environ),
                None if folder is None else str(folder),
                start_new_session,
                files_max,
            )
            self._process = _context.Process(target=_begin, args=(begin, target), daemon=True)
            with _asking:
                self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _asking:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        return code

    async def ended(self) -> int:
        """Its exit code, once there is one; whatever else is under way goes on."""
        await until(lambda: self.poll() is not None, deadline_s=math.inf)
        return self.wait()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still says, on standard output and on standard error, and wait for its end."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        heard = {"stdout": "", "stderr": ""}

        def hear(name: str, stream: TextIO) -> None:
            heard[name] = stream.read()

        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.close()
        pipes = [(name, stream) for name in heard if (stream := getattr(self, name)) and not stream.closed]
        ears = [threading.Thread(target=hear, args=pipe, daemon=True) for pipe in pipes]
        for ear in ears:
            ear.start()
        for ear in ears:
            ear.join(None if give_up_at is None else max(0.0, give_up_at - time.monotonic()))
            if ear.is_alive():
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        for _, stream in pipes:
            stream.close()
        self.wait(None if give_up_at is None else max(0.0, give_up_at - time.monotonic()))
        return heard["stdout"], heard["stderr"]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def fork_module(module: str, *arguments: str, environ: Mapping[str, str] | None = None, **options: Any) -> Fork:
    """`python -m module arguments`, in this folder; `environ` is added to our own variables."""
    return Fork(partial(_as_module, module, arguments), {**os.environ, **(environ or {})}, **options)


def fork_command(arguments: Sequence[str], folder: Path, environ: Mapping[str, str], **options: Any) -> Fork:
    """`holdfast` with these arguments, and warnings as errors."""
    return Fork(partial(_as_command, tuple(arguments)), environ, folder=folder, **options)


def run_command(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str], given: str, timeout_s: float
) -> tuple[int, str, str]:
    """Its exit code, its output and its errors."""
    with ExitStack() as files:
        streams = [files.enter_context(TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(3)]
        streams[0].write(given)
        streams[0].seek(0)
        process = fork_command(arguments, folder, environ, stdin=streams[0], stdout=streams[1], stderr=streams[2])
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        for stream in streams:
            stream.seek(0)
        return code, streams[1].read(), streams[2].read()


# In the new process


class _Beginning(NamedTuple):
    streams: tuple[connection.Connection, connection.Connection, connection.Connection]
    environ: dict[str, str]
    folder: str | None
    new_session: bool
    files_max: int | None


def _begin(begin: _Beginning, target: Callable[[], None]) -> None:
    for number, stream in enumerate(begin.streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  they end with the process
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    os.environ.clear()
    os.environ.update(begin.environ)
    time.tzset()
    faults.arm_from_environment()
    if begin.folder is not None:
        os.chdir(begin.folder)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started under, nohup as well
    if begin.new_session:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if begin.files_max is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (begin.files_max, begin.files_max))
    try:
        target()
    except KeyboardInterrupt:  # as Python ends of it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception:  # noqa: BLE001  whatever it is
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # a fork ends without


def _as_module(module: str, arguments: tuple[str, ...]) -> None:
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _as_command(arguments: tuple[str, ...]) -> None:
    sys.path[:0] = [str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["holdfast", *arguments]
    sys.orig_argv = [sys.executable, "-W", "error", "-m", "holdfast", *arguments]  # who begins anew, without its keys
    main()


# The streams of a process: our end, and the number that is to be its own


def _readable(stream: Stream, ours: int) -> tuple[TextIO | None, int]:
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        return os.fdopen(reading, encoding="utf-8"), writing
    return None, _duplicate(stream, ours)


def _writable(stream: Stream) -> tuple[TextIO | None, int]:
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        return os.fdopen(writing, "w", encoding="utf-8"), reading
    return None, _duplicate(stream, 0)


def _duplicate(stream: Stream, ours: int) -> int:
    if stream == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR)
    if stream is None:
        return os.dup(ours)
    return os.dup(stream if isinstance(stream, int) else stream.fileno())
