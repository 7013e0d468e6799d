"""A supervisor and its servers as processes of their own, to be killed: `tests.support.servers` starts it.

The servers are forks of the supervisor, so that a test does not wait for Python to load them; what they are handed is
what any other would be.
"""

import asyncio
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from holdfast.cli.supervisor.supervisor import CLOSING_S, START_S, Supervisor
from holdfast.errors import ConfigError
from holdfast.server.serve import serve
from holdfast.system import siblings
from holdfast.system.supervised import VARIABLE, Handed, supervised
from holdfast.worker.process import say_on_stderr
from tests.server.program import make_app

DESCRIPTORS_MAX = 4_096


class Forked:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start_server(url: str, home: str, port: int, worker: bool, handed: Handed) -> Forked:
    pid = os.fork()
    if pid:
        return Forked(pid)
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _close_all_but(handed.descriptors)
        os.environ[VARIABLE] = handed.encoded()
        while (Path(home) / f"hold-{handed.slot + 1}").exists():  # it loads its program, and will not be done with it
            time.sleep(0.01)
        babble = Path(home) / f"babble-{handed.slot + 1}"
        if babble.exists():
            babble.unlink()
            os.write(handed.line, b"no message\n")
        asyncio.run(serve(make_app(url, home, port), worker=worker, place=supervised()))
        (Path(home) / f"drained-{handed.slot + 1}").touch()
        while (Path(home) / f"stay-{handed.slot + 1}").exists():  # it has drained, and is not gone
            time.sleep(0.01)
        code = 0
    except ConfigError as error:
        say_on_stderr(str(error))
    finally:
        os._exit(code)


def _close_all_but(kept: tuple[int, ...]) -> None:
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, DESCRIPTORS_MAX)


def run_supervised(
    url: str,
    home: str,
    port: int,
    *,
    worker: bool,
    processes: int = 2,
    start_s: float = START_S,
    closing_s: float = CLOSING_S,
    yield_s: float = siblings.YIELD_S,
) -> None:
    siblings.YIELD_S, siblings.FRESH_S = yield_s, max(siblings.FRESH_S, yield_s)
    start = partial(start_server, url, home, port, worker)
    sys.exit(Supervisor(processes, start, start_s=start_s, closing_s=closing_s).run())


def run_under_nohup(url: str, home: str, port: int, *, worker: bool) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run_supervised(url, home, port, worker=worker)


def run_in_background(url: str, home: str, port: int, *, worker: bool) -> None:
    """Of a shell, which is this process and ends when it is told to log out."""
    if not os.fork():
        os.setpgid(0, 0)
        run_supervised(url, home, port, worker=worker, closing_s=0.0)
    while not (Path(home) / "log-out").exists():
        time.sleep(0.01)
    os._exit(0)
