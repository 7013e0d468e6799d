"""Several processes that were started at a terminal, and what SIGHUP means when it has gone."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.server.supervised_program import run_in_background, run_supervised, run_under_nohup
from tests.server.test_processes import all_ready, health, is_there, pids
from tests.support.servers import server
from tests.support.waiting import eventually, until


class Terminal:
    def __init__(self) -> None:
        self.window, self.fd = os.openpty()

    def close(self) -> None:
        """Its window, as a person does."""
        os.close(self.window)
        self.window = -1


@contextmanager
def terminal() -> Iterator[Terminal]:
    it = Terminal()
    try:
        yield it
    finally:
        os.close(it.fd)
        if it.window >= 0:
            it.close()


async def test_all_drain_when_their_terminal_is_closed(tmp_path: Path) -> None:
    with (
        terminal() as shown,
        server(url(tmp_path), tmp_path / "home", begin=run_supervised, terminal=shown.fd) as running,
    ):
        await all_ready(running)
        shown.close()
        assert await asyncio.to_thread(running.process.wait, 30.0) == 0
        await until(lambda: any("SIGHUP: draining 2 processes" in line for line in running.said))


async def test_under_nohup_they_outlive_their_terminal_and_sighup_replaces_them_later(tmp_path: Path) -> None:
    with (
        terminal() as shown,
        server(url(tmp_path), tmp_path / "home", begin=run_under_nohup, terminal=shown.fd) as running,
    ):
        await all_ready(running)
        before = set(await pids(running))
        shown.close()
        await until(lambda: any("the terminal was closed" in line for line in running.said))
        assert set(await pids(running)) == before

        async def is_replaced() -> bool:
            if not any("2 processes are replaced" in line for line in running.said):
                running.process.send_signal(signal.SIGHUP)
            now = set(await pids(running))
            return len(now) == 2 and not now & before

        await eventually(is_replaced)
        assert running.stop() == 0


async def test_sighup_replaces_what_runs_in_the_background_of_a_shell_that_has_gone(tmp_path: Path) -> None:
    """Who logs out tells it nothing. It took the first SIGHUP after that, days later, for the end of the terminal,
    and all were gone.
    """
    home = tmp_path / "home"
    with terminal() as shown, server(url(tmp_path), home, begin=run_in_background, terminal=shown.fd) as running:
        await all_ready(running)
        before = set(await pids(running))
        supervisor = psutil.Process(min(before)).ppid()
        try:
            (home / "log-out").touch()
            await until(lambda: running.process.poll() is not None)
            for _ in range(2):  # with what it is asked the supervisor looks around
                await health(running)
            os.kill(supervisor, signal.SIGHUP)

            async def is_replaced() -> bool:
                assert is_there(supervisor)
                now = set(await pids(running))
                return len(now) == 2 and not now & before

            await eventually(is_replaced)
        finally:
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)
            await until(lambda: not is_there(supervisor))


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/holdfast.db"
