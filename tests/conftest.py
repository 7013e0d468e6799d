"""Every test that asks for `store` runs on SQLite and on PostgreSQL: real ones, empty, for that test alone."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.clock import FakeClock
from holdfast.store import open_store
from holdfast.store.base import Store, StoreOptions
from tests.support.chats import close_all_hands

pytest_plugins = ("tests.support.fixtures", "tests.support.tallies")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/holdfast.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def store(store_url: str, clock: FakeClock) -> AsyncIterator[Store]:
    """Its time is `clock`: it passes when the test says so."""
    async with open_store(store_url, StoreOptions(clock=clock)) as store:
        yield store


@pytest.fixture(autouse=True)
def every_hand_lets_go() -> Iterator[None]:
    yield
    close_all_hands()


@pytest.fixture(autouse=True)
def no_crash_point_stays_armed() -> Iterator[None]:
    yield
    faults.disarm()
