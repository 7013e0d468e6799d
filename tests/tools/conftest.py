import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.system import processes
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import SyncPool
from tests.support.waiting import until
from tests.tools.filed import Files
from tests.tools.marked import living


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    """Under it, no test leaves a process behind."""
    guard = Guard()
    guard.start()
    try:
        yield guard
        # On a machine that stood still nobody waits for the end of a deaf child any more; it is brought about.
        await until(lambda: not processes._endings)
        assert living(guard) == []
        assert guard.group_count == 0
    finally:
        guard.stop()


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    pool = SyncPool()
    yield pool
    pool.stop()


@pytest.fixture
def expire(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`expire(999.0)`: the deadline of so many seconds that was set last is over, now. A test that waits for a short
    one cannot know what a slow machine did before it.
    """
    real = asyncio.timeout
    limits: dict[float | None, asyncio.Timeout] = {}

    def timeout(delay: float | None) -> asyncio.Timeout:
        limits[delay] = real(delay)
        return limits[delay]

    def over(delay: float) -> None:
        limits[delay].reschedule(asyncio.get_running_loop().time())

    monkeypatch.setattr(asyncio, "timeout", timeout)
    return over


@pytest.fixture
def files(tmp_path: Path) -> Files:
    root = tmp_path / "root"
    root.mkdir()
    return Files(root)
