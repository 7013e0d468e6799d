"""A server whose standard error is not read: the pipe is full, or its reader has gone. It drains all the same."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from holdfast.app import App
from tests.server.program import make_app, run
from tests.server.supervised_program import run_supervised
from tests.support.forks import Fork

PROGRAMS = [pytest.param(run, "listening on", id="one"), pytest.param(run_supervised, "are ready", id="two")]
HOWS = ["full", "gone"]


@contextmanager
def unread(url: str, home: Path, begin: Callable[..., None], words: str, how: str) -> Iterator[Fork]:
    """A server that has said `words`, and from then on speaks to no one."""
    home.mkdir()
    ear, mouth = os.pipe()
    process = Fork(partial(begin, url, str(home), 0, worker=True), dict(os.environ), stderr=mouth)
    try:
        with open(ear, encoding="utf-8") as reader:  # noqa: PTH123  a descriptor
            while words not in (line := reader.readline()):
                assert line, "it ended"
            if how == "full":
                fill(mouth)
            else:
                reader.close()
            yield process
    finally:
        os.close(mouth)
        if process.poll() is None:
            process.kill()
        process.wait()


def fill(mouth: int) -> None:
    """Through a description of its own: the server's is one that blocks."""
    own = os.open(f"/proc/self/fd/{mouth}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(own, b"x" * size)
    os.close(own)


async def no_lease_is_open(url: str, home: Path) -> bool:
    app: App = make_app(url, str(home))
    async with app:
        return all(lease.ended is not None for lease in await app.store.list_workers())


@pytest.mark.parametrize(("begin", "words"), PROGRAMS)
@pytest.mark.parametrize("how", HOWS)
async def test_it_drains_when_it_is_told_to_go(
    begin: Callable[..., None], words: str, how: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    with unread(url, tmp_path / "home", begin, words, how) as process:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60.0) == 0
    assert await no_lease_is_open(url, tmp_path / "home")
