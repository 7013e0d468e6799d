"""Every test that asks for `store` runs on SQLite and on PostgreSQL: real ones, empty, for that test alone."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from holdfast import faults
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.chats import close_all_hands
from tests.support.scratch import scratch_folder

pytest_plugins = (
    "tests.support.fixtures",
    "tests.support.selection",
    "tests.support.bounds",
    "tests.support.tallies",
)

os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch_folder()))  # where `tmp_path` is made

# A run in the background of a shell is told to ignore Ctrl-C, and so would be all that it starts and sends Ctrl-C to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A failing example is shown as it was found, with the line that reproduces it. Making it small first takes Hypothesis
# up to five minutes for each test that fails: `--hypothesis-profile=shrink` does that, for who sits in front of it.
FOUND_AT_ONCE = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
# How long an example takes, or its making, decides nothing: a machine that stands still for a moment is no failure.
UNTIMED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
# The same code gets the same examples, and so the same verdict; `--hypothesis-profile=explore` draws others.
settings.register_profile("same", phases=FOUND_AT_ONCE, derandomize=True, **UNTIMED)
settings.register_profile("explore", phases=FOUND_AT_ONCE, **UNTIMED)
settings.register_profile("shrink", **UNTIMED)
settings.load_profile("same")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """With our tables and nothing in them, or nothing at all (`bare_database`)."""
    if request.param == "sqlite":
        path = tmp_path / "holdfast.db"
        if request.node.get_closest_marker("bare_database") is None:
            shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
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
