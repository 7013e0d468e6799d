"""When a schedule's instants are: crons on the wall clock of a zone, intervals, one instant; and its message then.

A cron is walked on the wall clock, and the zone says which instants a wall time is. On the days when clocks change:

- A cron for fixed times (neither minute nor hour begins with `*`) fires once a day as it says: a time that the clock
  skips is taken at the first moment behind the gap, a time that comes twice the first time only.
- Any other one goes with the clock: what the clock skips does not come, what comes twice comes twice.

`cronsim` reads the expression and walks the wall clock without a zone. Its own walk with a zone loses times on the
days of Lord Howe Island, whose clocks move by half an hour.
"""

import difflib
import string
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.core.schedules import EVERY_MS_MIN, Cron, Due, Every, Once, ScheduleRecord, Timing, due_of
from holdfast.errors import InvalidInput

DUE_TOGETHER_MAX = 500  # instants that one look decides
LEFT_OUT_MAX = 10_000  # instants that a pause or a change finds due and skips
SHOWN_MAX = 1_000  # instants of a preview
MS_MAX = 253_402_214_399_000  # a day before the year 9999 ends: every zone's clock can show it
_MESSAGE_FIELDS = ("at", "date", "time", "schedule")
_REPEATED = timedelta(hours=3)  # clocks that are set back show at most so much again
_MINUTE = timedelta(minutes=1)
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_NO_ZONES = ("localtime", "posixrules", "Factory")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANY_DAY = datetime(2024, 1, 1)  # noqa: DTZ001  on a wall clock: what begins here is walked without a zone


# --- checks ---------------------------------------------------------------------------------------------------------


def check_timing(timing: Timing) -> None:
    """Raises InvalidInput, which says what is wrong and what would do."""
    zone_of(timing.zone)
    if timing.zone in _NO_ZONES or timing.zone.startswith(("posix/", "right/")):
        words = f"{timing.zone!r} is a file of this machine, and another's may say otherwise"
        raise InvalidInput("zone", f"{words}; use a name such as Europe/Berlin or UTC")
    if isinstance(timing, Every):
        if not EVERY_MS_MIN <= timing.ms <= MS_MAX:
            raise InvalidInput("every", "is a whole number of milliseconds, one second or more")
        if not 0 <= timing.anchor_at <= MS_MAX:
            raise InvalidInput("anchor", "is an instant from 1970 to 9999")
    elif isinstance(timing, Once):
        if not 0 <= timing.at <= MS_MAX:
            raise InvalidInput("at", "is an instant from 1970 to 9999")
    else:
        _check_cron(timing)


def zone_of(name: str) -> ZoneInfo:
    """Raises InvalidInput, which names the nearest zone."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        wanted, known = name.strip().replace(" ", "_"), available_timezones()
        near = [zone for zone in known if zone.lower() == wanted.lower()]
        near = near or difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "use a name such as Europe/Berlin or UTC"
        raise InvalidInput("zone", f"{name!r} is no time zone; {hint}") from None


def _check_cron(timing: Cron) -> None:
    expression = _fields(timing.expression)
    count = len(expression.split())
    if count != 5:
        seconds = "; for seconds use an interval" if count == 6 else ""
        raise InvalidInput(
            "cron", f"{timing.expression!r} has {count} fields, it needs 5: minute hour day month weekday{seconds}"
        )
    try:
        found = next(_walk(expression, _ANY_DAY), None)
    except CronSimError as error:
        what = str(error)
        if _is_impossible(expression, what):
            raise InvalidInput("cron", f"{timing.expression!r} never comes: no such day in those months") from None
        words = what[:1].lower() + what[1:]
        raise InvalidInput(
            "cron", f"{timing.expression!r} cannot be read: {words}; such as '30 9 * * 1-5' for 9:30 on weekdays"
        ) from None
    if found is None:
        raise InvalidInput("cron", f"{timing.expression!r} never comes in the next 50 years")


def _is_impossible(expression: str, error: str) -> bool:
    """The day field is sound by itself: it is the months that have no such day."""
    if "day-of-month" not in error:
        return False
    minute, hour, day, _, weekday = expression.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", _ANY_DAY)
    except CronSimError:
        return False
    return True


def check_message(text: str) -> None:
    """Raises InvalidInput for a placeholder that there is none of."""
    if not text.strip():
        raise InvalidInput("message", "says nothing: a schedule starts its agent with a message")
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise InvalidInput("message", f"{error}; a brace that is meant as such is written twice: {{{{ }}}}") from None
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in _MESSAGE_FIELDS or spec or conversion:
            known = ", ".join(f"{{{field}}}" for field in _MESSAGE_FIELDS)
            raise InvalidInput(
                "message", f"{{{name}}} is no placeholder; known are {known}, and a brace is written twice: {{{{ }}}}"
            )


# --- instants -------------------------------------------------------------------------------------------------------


def next_after(timing: Timing, after: int) -> int | None:
    """The first instant behind this one; None: no more come."""
    if isinstance(timing, Once):
        return timing.at if timing.at > after else None
    if isinstance(timing, Every):
        steps = (after - timing.anchor_at) // timing.ms + 1
        at = timing.anchor_at + max(steps, 0) * timing.ms
        return at if at <= MS_MAX else None
    if after >= MS_MAX:
        return None
    try:
        found = _next_of_cron(_fields(timing.expression), zone_of(timing.zone), _datetime(after))
    except OverflowError:  # a wall time of a zone that is behind: the year 10000 elsewhere
        return None
    return _ms(found) if found is not None else None


def instants(timing: Timing, after: int) -> Iterator[int]:
    while (at := next_after(timing, after)) is not None and at <= MS_MAX:
        yield at
        after = at


def shown_instants(timing: Timing, after: int, count: int) -> list[int]:
    """For who wants to see them before anything is saved. Raises InvalidInput."""
    check_timing(timing)
    if not 1 <= count <= SHOWN_MAX:
        raise InvalidInput("count", f"is 1 to {SHOWN_MAX}")
    return list(islice(instants(timing, after), count))


def due_now(schedule: ScheduleRecord, now: int, at_most: int = DUE_TOGETHER_MAX) -> Due:
    """What is due of an active schedule."""
    at = schedule.next_at
    found: list[int] = []
    while at is not None and due_of(schedule, at) <= now and len(found) < at_most:
        found.append(at)
        at = next_after(schedule.timing, at)
    return Due(instants=tuple(found), next_at=at, more=at is not None and due_of(schedule, at) <= now)


def _fields(expression: str) -> str:
    return _ALIASES.get(expression.strip().lower(), expression)


def _walk(expression: str, start: datetime) -> Iterator[datetime]:
    """Wall times behind this one. Bounded: cronsim gives up after 50 years without one."""
    try:
        yield from CronSim(expression, start)
    except (OverflowError, ValueError):  # behind the year 9999
        return


@lru_cache(maxsize=1024)
def _is_fixed(expression: str) -> bool:
    minute, hour, *_ = expression.split()
    return not minute.startswith("*") and not hour.startswith("*")


def _next_of_cron(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    local = after.astimezone(zone)
    start = local.replace(tzinfo=None)
    fixed = _is_fixed(expression)
    offset = local.utcoffset()
    if any((after + near).astimezone(zone).utcoffset() != offset for near in (-_REPEATED, _REPEATED)):
        start -= _REPEATED  # wall times of before may come again
    best: datetime | None = None
    for wall in _walk(expression, start):
        # A later wall time may be an earlier instant, where clocks are set back; not than its own first one.
        if best is not None and _first(wall, zone) > best:
            break
        for instant in _instants_of(wall, zone, fixed=fixed):
            if instant > after and (best is None or instant < best):
                best = instant
    return best


def _first(wall: datetime, zone: ZoneInfo) -> datetime:
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def _instants_of(wall: datetime, zone: ZoneInfo, *, fixed: bool) -> list[datetime]:
    """None, one or two."""
    first = _first(wall, zone)
    if first.astimezone(zone).replace(tzinfo=None) != wall:  # the clock skips it
        return [_behind_gap(wall, zone)] if fixed else []
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return [first] if fixed or second == first else [first, second]


def _behind_gap(wall: datetime, zone: ZoneInfo) -> datetime:
    while _first(wall, zone).astimezone(zone).replace(tzinfo=None) != wall:
        wall += _MINUTE
    return _first(wall, zone)


def _datetime(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)


def _ms(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(milliseconds=1)


# --- words ----------------------------------------------------------------------------------------------------------


def local_time(at_ms: int, zone: str) -> str:
    """On the wall clock there: `2026-03-29T03:00:00+02:00`."""
    return _datetime(at_ms).astimezone(zone_of(zone)).isoformat()


def message_at(schedule: ScheduleRecord, at_ms: int) -> str:
    """The schedule's message for one instant."""
    local = _datetime(at_ms).astimezone(zone_of(schedule.timing.zone))
    values = {
        "at": local.isoformat(),
        "date": local.date().isoformat(),
        "time": f"{local:%H:%M}",
        "schedule": schedule.name,
    }
    return schedule.message.format(**values)


def instant_of(moment: datetime, zone: str) -> int:
    """In ms. A moment without an offset is one of that zone."""
    return _ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=zone_of(zone)))


def parsed_instant(field: str, text: str, zone: str = "UTC") -> int:
    """Raises InvalidInput."""
    try:
        at = instant_of(datetime.fromisoformat(text), zone)
    except (ValueError, OverflowError):
        raise InvalidInput(field, f"{text!r} is no instant; write it as 2026-03-29T09:00 or with an offset") from None
    if not 0 <= at <= MS_MAX:
        raise InvalidInput(field, f"{text!r} is not an instant from 1970 to 9999")
    return at
