from collections.abc import Iterator

import pytest

from holdfast.worker.bodies import SyncPool
from holdfast.worker.guard import Guard
from tests.tools.marked import living


@pytest.fixture
def guard() -> Iterator[Guard]:
    """Under it, no test leaves a process behind."""
    guard = Guard()
    guard.start()
    try:
        yield guard
        assert living(guard) == []
        assert guard.group_count == 0
    finally:
        guard.stop()


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    pool = SyncPool()
    yield pool
    pool.stop()
