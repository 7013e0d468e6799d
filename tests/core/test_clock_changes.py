"""When a cron comes on the days when clocks change, against tables written by hand from the zones' own rules.

Berlin and New York move by an hour, Lord Howe Island by half of one.
"""

import pytest

from holdfast.core.schedules import Cron, Every, Once
from holdfast.errors import InvalidInput
from holdfast.timetable import (
    MS_MAX,
    check_message,
    check_timing,
    instants,
    local_time,
    next_after,
    parsed_instant,
    shown_instants,
)

# Zone, day, cron -> the local times of that day, with their offsets. Each zone has both of its changes, and crons of
# both kinds: for fixed times, and those that go with the clock.
SPRING_AND_AUTUMN = [
    # Berlin, 29 March 2026: 02:00 +01:00 becomes 03:00 +02:00
    ("Europe/Berlin", "2026-03-29", "30 2 * * *", ["03:00+02:00"]),
    ("Europe/Berlin", "2026-03-29", "0,30 2 * * *", ["03:00+02:00"]),
    ("Europe/Berlin", "2026-03-29", "0 2,3 * * *", ["03:00+02:00"]),
    ("Europe/Berlin", "2026-03-29", "30 1,2,3 * * *", ["01:30+01:00", "03:00+02:00", "03:30+02:00"]),
    ("Europe/Berlin", "2026-03-29", "0 9 * * *", ["09:00+02:00"]),
    ("Europe/Berlin", "2026-03-29", "*/30 2 * * *", []),
    ("Europe/Berlin", "2026-03-29", "*/30 1-3 * * *", ["01:00+01:00", "01:30+01:00", "03:00+02:00", "03:30+02:00"]),
    # Berlin, 25 October 2026: 03:00 +02:00 becomes 02:00 +01:00
    ("Europe/Berlin", "2026-10-25", "30 2 * * *", ["02:30+02:00"]),
    ("Europe/Berlin", "2026-10-25", "0 3 * * *", ["03:00+01:00"]),
    ("Europe/Berlin", "2026-10-25", "0 1,2,3 * * *", ["01:00+02:00", "02:00+02:00", "03:00+01:00"]),
    (
        "Europe/Berlin",
        "2026-10-25",
        "*/30 2 * * *",
        ["02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00"],
    ),
    # New York, 8 March 2026: 02:00 -05:00 becomes 03:00 -04:00
    ("America/New_York", "2026-03-08", "15 2 * * *", ["03:00-04:00"]),
    ("America/New_York", "2026-03-08", "15 2 * * 0", ["03:00-04:00"]),
    ("America/New_York", "2026-03-08", "0 8 * * 1-5", []),
    ("America/New_York", "2026-03-08", "*/20 1-2 * * *", ["01:00-05:00", "01:20-05:00", "01:40-05:00"]),
    # New York, 1 November 2026: 02:00 -04:00 becomes 01:00 -05:00
    ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-04:00"]),
    ("America/New_York", "2026-11-01", "30 1 1 * *", ["01:30-04:00"]),
    ("America/New_York", "2026-11-01", "30 * * * *", None),  # 25 of them: below
    ("America/New_York", "2026-11-01", "*/30 1 * * *", ["01:00-04:00", "01:30-04:00", "01:00-05:00", "01:30-05:00"]),
    # Lord Howe, 4 October 2026: 02:00 +10:30 becomes 02:30 +11:00
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30+11:00"]),
    ("Australia/Lord_Howe", "2026-10-04", "30 2 * * *", ["02:30+11:00"]),
    ("Australia/Lord_Howe", "2026-10-04", "*/15 2 * * *", ["02:30+11:00", "02:45+11:00"]),
    ("Australia/Lord_Howe", "2026-10-04", "*/30 3 * * *", ["03:00+11:00", "03:30+11:00"]),
    # Lord Howe, 5 April 2026: 02:00 +11:00 becomes 01:30 +10:30
    ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["01:45+11:00"]),
    ("Australia/Lord_Howe", "2026-04-05", "0 2 * * *", ["02:00+10:30"]),
    (
        "Australia/Lord_Howe",
        "2026-04-05",
        "*/15 3 * * *",
        ["03:00+10:30", "03:15+10:30", "03:30+10:30", "03:45+10:30"],
    ),
    (
        "Australia/Lord_Howe",
        "2026-04-05",
        "*/15 1 * * *",
        ["01:00+11:00", "01:15+11:00", "01:30+11:00", "01:45+11:00", "01:30+10:30", "01:45+10:30"],
    ),
]


def on_day(zone: str, day: str, cron: str) -> list[str]:
    timing = Cron(expression=cron, zone=zone)
    check_timing(timing)
    found: list[str] = []
    for at in instants(timing, parsed_instant("day", day, zone) - 1):
        shown = local_time(at, zone)
        if not shown.startswith(day):
            return found
        found.append(shown[11:16] + shown[19:])
    return found


@pytest.mark.parametrize(("zone", "day", "cron", "expected"), SPRING_AND_AUTUMN)
def test_a_cron_comes_on_the_day_when_clocks_change_as_the_table_says(
    zone: str, day: str, cron: str, expected: list[str] | None
) -> None:
    found = on_day(zone, day, cron)
    if expected is None:
        assert len(found) == 25
    else:
        assert found == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_a_fixed_time_comes_exactly_once_on_every_day_of_four_years(zone: str) -> None:
    for cron in ("30 2 * * *", "45 1 * * *", "0 0 * * *"):
        timing, days = Cron(expression=cron, zone=zone), []
        for at in instants(timing, parsed_instant("day", "2025-01-01", zone) - 1):
            day = local_time(at, zone)[:10]
            if day == "2029-01-01":
                break
            days.append(day)
        assert len(days) == len(set(days)) == 4 * 365 + 1


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("cron", ["*/15 * * * *", "30 2 * * *", "*/30 1-2 * * *"])
def test_the_next_instant_is_the_same_from_wherever_it_is_asked(zone: str, cron: str) -> None:
    """Around both changes of a year, from every ten minutes: whoever looks, and whenever, finds the same instants."""
    timing = Cron(expression=cron, zone=zone)
    for day in {when for place, when, _, _ in SPRING_AND_AUTUMN if place == zone}:
        start = parsed_instant("day", day, zone) - 6 * 3_600_000
        walked = []
        for at in instants(timing, start):
            walked.append(at)
            if at > start + 40 * 3_600_000:
                break
        assert walked == sorted(set(walked))
        for after in range(start, start + 36 * 3_600_000, 600_000):
            assert next_after(timing, after) == next(at for at in walked if at > after)


def test_an_interval_is_counted_from_its_anchor_and_one_instant_comes_once() -> None:
    every = Every(ms=90_000, anchor_at=1_000)
    assert [next_after(every, at) for at in (-5, 0, 1_000, 90_999, 91_000)] == [1_000, 1_000, 91_000, 91_000, 181_000]
    assert next_after(Once(at=50), 49) == 50
    assert next_after(Once(at=50), 50) is None


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_instants_end_with_the_calendar_and_the_last_ones_can_be_shown(zone: str) -> None:
    day_ms = 86_400_000
    for timing in (Cron(expression="0 23 * * *", zone=zone), Every(ms=day_ms, zone=zone)):
        found = shown_instants(timing, MS_MAX - 3 * day_ms, 10)
        assert len(found) == 3
        assert [local_time(at, zone)[:8] for at in found] == ["9999-12-"] * 3
        assert shown_instants(timing, 253_402_300_799_000, 10) == []  # the last second of all
    for text in ("0001-01-01", "9999-12-31T23:59"):
        with pytest.raises(InvalidInput, match="from 1970 to 9999"):
            parsed_instant("at", text, zone)


@pytest.mark.parametrize(
    ("cron", "zone", "words"),
    [
        ("0 0 30 2 *", "UTC", "never comes"),
        ("0 0 31 4,6,9,11 *", "UTC", "never comes"),
        ("0 9 * *", "UTC", "has 4 fields"),
        ("* * * * * *", "UTC", "for seconds use an interval"),
        ("61 * * * *", "UTC", "bad minute"),
        ("0 9 * * FUNDAY", "UTC", "bad day-of-week"),
        ("", "UTC", "has 0 fields"),
        ("0 9 * * *", "Europe/Berln", "did you mean Europe/Berlin?"),
        ("0 9 * * *", "New York", "did you mean America/New_York?"),
        ("0 9 * * *", "../../etc/passwd", "is no time zone"),
        ("0 9 * * *", "EUROPE/BERLIN", "did you mean Europe/Berlin?"),
    ],
)
def test_what_never_comes_and_what_is_no_zone_is_refused_with_a_reason(cron: str, zone: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=r"cron|zone") as refused:
        check_timing(Cron(expression=cron, zone=zone))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("cron", "like"), [("@daily", "0 0 * * *"), ("@Weekly", "0 0 * * 0"), ("0 9 * * MON-FRI", "0 9 * * 1-5")]
)
def test_crons_have_the_usual_other_names(cron: str, like: str) -> None:
    for start in (0, 1_774_000_000_000):
        assert next_after(Cron(expression=cron), start) == next_after(Cron(expression=like), start)


@pytest.mark.parametrize("text", ["", "  ", "{when}", "{at.year}", "{at!r}", "{0}", "{at:>10}", "{", "}"])
def test_a_message_with_a_placeholder_that_there_is_none_of_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="message"):
        check_message(text)


def test_a_message_takes_the_known_placeholders_and_doubled_braces() -> None:
    check_message('{schedule} of {date} {time}, exactly {at}: {{"json": 1}}')
