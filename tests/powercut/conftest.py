"""A disk that can be cut off and can fail, and the scenario as it goes when it does neither."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.crash.reference import Reference, play_undisturbed
from tests.powercut.images import PREFIXES
from tests.support.powercut import PowerCutVFS


@pytest.fixture
def disk() -> Iterator[PowerCutVFS]:
    with PowerCutVFS() as vfs:
        yield vfs


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    """By prefix: the runs that share a store in these tests, undisturbed."""
    url = f"sqlite:///{tmp_path_factory.mktemp('reference')}/holdfast.db"
    return asyncio.run(play_undisturbed(url, PREFIXES))
