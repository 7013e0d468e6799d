"""`make quick`: which tests it leaves out, and why."""

import asyncio
import importlib.util
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.postgres import PostgresServer
from tests.support.selection import NEVER_QUICK, PROCESSES, is_quick, needs_process
from tests.support.story import Story


def starts_one() -> None:
    subprocess.run(["true"], check=True)


def calls_who_starts_one() -> None:
    starts_one()


async def starts_one_of_asyncio() -> None:
    await asyncio.create_subprocess_exec("true")


@contextmanager
def lasting() -> Iterator[None]:
    signal.alarm(0)
    yield


class Program:
    @property
    def pid(self) -> int:
        return subprocess.Popen("true").pid


class OwnProgram(Program):
    pass


def has_a_class_that_starts_one() -> object:
    return OwnProgram()


def names_a_server() -> object:
    return PostgresServer


def tells_a_story() -> Story:
    def deep() -> Story:
        return Story()

    return deep()


def calls_itself(depth: int) -> None:
    if depth:
        calls_itself(depth - 1)


@pytest.mark.parametrize(
    "function",
    [
        starts_one, calls_who_starts_one, starts_one_of_asyncio, lasting, Program, has_a_class_that_starts_one,
        names_a_server,
    ],
)  # fmt: skip
def test_who_starts_or_ends_a_process_however_far_away_is_found(function: Any) -> None:
    assert needs_process(function, {})


@pytest.mark.parametrize("function", [tells_a_story, calls_itself, Story])
def test_who_does_not_is_let_through(function: Any) -> None:
    assert not needs_process(function, {})


def test_a_test_of_both_stores_is_quick_on_sqlite_alone(store_url: str, request: pytest.FixtureRequest) -> None:
    """This one starts nothing of its own: only the store makes the difference."""
    assert is_quick(request.node, {}) == store_url.startswith("sqlite")


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_of_several_seeds_the_first_is_quick(seed: int, request: pytest.FixtureRequest) -> None:
    assert is_quick(request.node, {}) == (seed == 7)


def test_every_module_and_file_that_is_named_is_there(request: pytest.FixtureRequest) -> None:
    """A name that moved would let through whatever uses it."""
    assert [name for name in PROCESSES if importlib.util.find_spec(name) is None] == []
    tests = [path.relative_to(request.config.rootpath) for path in request.config.rootpath.glob("tests/*/test_*.py")]
    assert [start for start in NEVER_QUICK if not any(path.as_posix().startswith(start) for path in tests)] == []


def test_a_fixture_that_has_a_process_counts_for_all_who_ask_for_it(
    asked_for: None, request: pytest.FixtureRequest
) -> None:
    assert not is_quick(request.node, {})


@pytest.fixture
def asked_for() -> None:
    calls_who_starts_one()
