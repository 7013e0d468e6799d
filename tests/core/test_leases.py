"""An observer ends a lease whose number stood still before its eyes for a TTL; nothing else ends one."""

import pytest
from msgspec.structs import replace

from holdfast.core.leases import LeaseWatch, margin_ms
from holdfast.core.records import Lease, LeaseEnd

TTL_MS = 30_000
LOOK_MS = 5_000


def lease(renewal: int, worker: str = "w1", ttl_ms: int = TTL_MS, ended: LeaseEnd | None = None) -> Lease:
    return Lease(
        worker=worker, host="h", pid=1, lock_path=None, started_at=0, renewed_at=0, ttl_ms=ttl_ms, renewal=renewal,
        ended=ended,
    )  # fmt: skip


def watched(watch: LeaseWatch, renewal: int, start_ms: int, end_ms: int, step_ms: int = LOOK_MS) -> list[int]:
    """When the lease was found silent, over looks from `start_ms` to `end_ms`."""
    return [at for at in range(start_ms, end_ms + 1, step_ms) if watch.look([lease(renewal)], at)]


def test_a_number_that_stands_still_for_a_ttl_is_silent_and_not_a_moment_before() -> None:
    watch = LeaseWatch()
    assert watched(watch, 7, 100_000, 125_000) == []
    assert watch.look([lease(7)], 129_999) == []
    assert watch.look([lease(7)], 130_000) == [lease(7)]
    assert watch.look([lease(7)], 131_000) == [lease(7)], "until somebody has ended it"


def test_the_count_begins_with_the_first_answer_not_with_the_lease() -> None:
    """Whoever starts late knows nothing of what was before."""
    assert LeaseWatch().look([lease(7)], 10**12) == []


@pytest.mark.parametrize("renewal", [8, 6, 0], ids=["higher", "lower, after a restore", "first"])
def test_another_number_begins_the_count_anew(renewal: int) -> None:
    watch = LeaseWatch()
    watched(watch, 7, 0, 25_000)
    assert watched(watch, renewal, 29_000, 58_999) == []
    assert watch.look([lease(renewal)], 59_000) == [lease(renewal)]


@pytest.mark.parametrize("gap_ms", [TTL_MS // 3 + 1, TTL_MS, 10 * TTL_MS, -1])
def test_a_break_begins_the_count_anew(gap_ms: int) -> None:
    """The observer slept, was frozen, or could not ask: it does not know who could do what meanwhile."""
    watch = LeaseWatch()
    watched(watch, 7, 0, 25_000)
    back_ms = 25_000 + gap_ms
    assert watched(watch, 7, back_ms, back_ms + TTL_MS - 1) == []
    assert watch.look([lease(7)], back_ms + TTL_MS) == [lease(7)]


def test_a_gap_of_a_third_is_no_break() -> None:
    assert watched(LeaseWatch(), 7, 0, TTL_MS, TTL_MS // 3) == [TTL_MS]


def test_two_looks_in_the_same_millisecond_are_no_break() -> None:
    watch = LeaseWatch()
    for at in range(0, TTL_MS, LOOK_MS):
        assert [watch.look([lease(7)], at), watch.look([lease(7)], at)] == [[], []]
    assert watch.look([lease(7)], TTL_MS) == [lease(7)]


def test_a_worker_whose_number_is_not_the_one_that_was_seen_lives() -> None:
    watch = LeaseWatch()
    assert not watch.moved(lease(7)), "who has seen nothing knows nothing"
    watch.look([lease(7)], 0)
    assert [watch.moved(lease(renewal)) for renewal in (6, 7, 8)] == [True, False, True]


def test_the_locks_that_can_be_tried_are_those_of_leases_that_have_one() -> None:
    watch = LeaseWatch()
    here, elsewhere = replace(lease(1, "here"), lock_path="/lock"), lease(1, "elsewhere")
    watch.look([here, elsewhere, replace(lease(1, "gone", ended=LeaseEnd.RETIRED), lock_path="/old")], 0)
    assert watch.lock_paths == ["/lock"]


def test_every_lease_has_its_own_ttl() -> None:
    watch, short, long = LeaseWatch(), lease(1, "short", 3_000), lease(1, "long")
    for at in range(0, 3_000, 1_000):
        assert watch.look([short, long], at) == []
    assert watch.look([short, long], 3_000) == [short]
    assert watch.pause_ms == 500, "often enough for the shortest"


def test_a_lease_that_was_gone_for_a_look_is_seen_for_the_first_time_again() -> None:
    watch = LeaseWatch()
    watched(watch, 7, 0, 20_000)
    watch.look([], 25_000)
    assert watched(watch, 7, 30_000, 59_999) == []


def test_an_ended_lease_is_nobodys_to_end() -> None:
    watch = LeaseWatch()
    for at in range(0, 2 * TTL_MS, LOOK_MS):
        assert watch.look([lease(7, ended=LeaseEnd.RETIRED)], at) == []


@pytest.mark.parametrize(
    ("ttl_ms", "margin"), [(30_000, 3_000), (60_000, 6_000), (10_000, 2_000), (3_000, 750), (1_000, 250)]
)
def test_trust_ends_a_tenth_and_at_least_two_seconds_early_but_leaves_a_short_lease_most_of_its_time(
    ttl_ms: int, margin: int
) -> None:
    assert margin_ms(ttl_ms) == margin
