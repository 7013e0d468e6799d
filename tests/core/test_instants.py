"""Instants in words, judged by the standard library's calendar."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.instants import iso

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_an_instant_reads_as_the_calendar_says(at_ms: int) -> None:
    expected = (EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")
    assert iso(at_ms) == expected.replace("+00:00", "Z")


def test_every_day_of_four_centuries_is_the_right_one() -> None:
    for day in range(-80_000, 80_000):
        assert iso(day * 86_400_000)[:10] == (EPOCH + timedelta(days=day)).date().isoformat()
