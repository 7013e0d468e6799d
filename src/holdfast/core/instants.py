"""Instants as people read them. The core has no clock and no calendar of the system's: this is arithmetic."""

_DAY_MS = 86_400_000
_ERA_DAYS = 146_097  # of 400 years


def iso(at_ms: int) -> str:
    """Wall-clock milliseconds as UTC: `2026-11-16T02:34:57.123Z`."""
    days, ms = divmod(at_ms, _DAY_MS)
    year, month, day = _date(days)
    seconds, ms = divmod(ms, 1_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z"


def _date(days: int) -> tuple[int, int, int]:
    """Days since 1970 as a date of the Gregorian calendar. Years are counted from March: the leap day comes last."""
    era, day_of_era = divmod(days + 719_468, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return era * 400 + year_of_era + (month <= 2), month, day
