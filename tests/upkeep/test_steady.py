"""`make steady`: which tests a bound of wall time could turn, and what its table says of them."""

import asyncio
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.store.records import StoreOptions
from tests.steady.__main__ import name_of, read_outcomes
from tests.support.bounds import bounds_of, named_bounds
from tests.support.waiting import until

MOMENT_S = 3.0


async def waits_a_moment() -> None:
    async with asyncio.timeout(MOMENT_S):
        await asyncio.Event().wait()


async def waits_with_patience() -> None:
    async with asyncio.timeout(30.0):
        await asyncio.Event().wait()


def hurries_the_store() -> StoreOptions:
    return StoreOptions(deadline_s=0.5, poll_interval_s=0.1)


def has_a_short_lease() -> StoreOptions:
    return StoreOptions(lease_ttl_ms=1_500)


def measures() -> None:
    began = time.monotonic()
    assert time.monotonic() - began < 60


async def waits_until() -> None:
    await until(lambda: True)


@pytest.mark.parametrize(
    ("function", "bounds"),
    [
        (waits_a_moment, ["timeout(3)"]),
        (waits_with_patience, []),
        (hurries_the_store, ["deadline_s=0.5"]),
        (has_a_short_lease, ["lease_ttl_ms=1500"]),
        (measures, ["time.monotonic() - began < 60"]),
        (waits_until, []),
    ],
)
def test_a_bound_is_what_a_machine_under_load_could_miss(function: object, bounds: list[str]) -> None:
    assert [bound.partition(" ")[2] for bound in named_bounds(function)] == bounds


async def test_a_bound_is_found_however_far_away_it_stands(request: pytest.FixtureRequest) -> None:
    async def deep() -> None:
        await waits_a_moment()

    assert [bound.partition(" ")[2] for bound in bounds_of(request.node)] == ["timeout(3)"], deep


@pytest.mark.parametrize("rest_s", [0.5, 60.0])
def test_a_parameter_may_be_a_bound(rest_s: float, request: pytest.FixtureRequest) -> None:
    assert bounds_of(request.node) == (["rest_s=0.5"] if rest_s < 1 else [])


def test_a_test_that_failed_once_is_bad_and_named(tmp_path: Path) -> None:
    """Whatever else its parameters are."""
    case = '<testcase classname="tests.worker.test_it" name="{}" time="1.5">{}</testcase>'
    cases = [
        case.format("test_a[sqlite-time 1]", ""),
        case.format("test_a[sqlite-time 2]", "<failure/>"),
        case.format("test_b[time 1]", ""),
        case.format("test_b[time 2]", ""),
    ]
    (tmp_path / "junit.xml").write_text(f"<testsuites>{''.join(cases)}</testsuites>")
    bad, good = read_outcomes(tmp_path / "junit.xml")
    assert (bad.name, bad.summary, bad.passed) == (
        "worker.test_it test_a[sqlite]",
        "1 passed, 1 failed; slowest 1.5 s",
        False,
    )
    assert bad.shown == ["test_a[sqlite-time 2]"]
    assert (good.name, good.summary, good.passed) == ("worker.test_it test_b", "2 passed; slowest 1.5 s", True)
    for name in ("test_c[a-b]", "test_c[time 3-a-b]", "test_c[a-time 3-b]", "test_c[a-b-time 12]"):
        assert name_of(ElementTree.fromstring(case.format(name, ""))) == "worker.test_it test_c[a-b]"
