from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast import processes
from holdfast.worker.bodies import SyncPool
from holdfast.worker.guard import Guard
from tests.support.waiting import until
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
