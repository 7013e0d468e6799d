"""A schedule as a program or `holdfast.toml` declares it: `Schedule(…)`, and `[schedules.NAME]`."""

import difflib
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from holdfast.errors import ConfigError


class Schedule(Struct, frozen=True, forbid_unknown_fields=True):
    """When an agent starts by itself: a cron, an interval, or one instant.

    >>> Schedule("report", agent="support", message="Report of {date}", cron="0 9 * * 1-5", zone="Asia/Tokyo").cron
    '0 9 * * 1-5'

    The message may hold `{at}`, `{date}`, `{time}` and `{schedule}`. `chat` is `new` for a chat each time, or `same`
    for one that goes on. `overlap` says what happens while an occurrence is open: docs/how-to/schedules.md.
    """

    name: str
    agent: str
    message: str
    cron: str | None = None  # five fields, or @daily and the like, on the wall clock of `zone`
    every_s: float | None = None  # counted from `starting`, or from 1970: when a worker starts shifts nothing
    starting: datetime | None = None
    at: datetime | None = None  # once; without an offset it is meant in `zone`
    zone: str = "UTC"
    chat: Literal["new", "same"] = "new"
    overlap: Literal["skip", "queue_one", "queue_all", "cancel", "allow"] = "skip"
    catch_up_s: float = 3600.0  # an instant that is found later than this, as after a downtime, is skipped
    jitter_s: float = 0.0  # each instant is put off by a share of it: the same for every worker
    pause_after: int | None = None  # failures in a row
    owner: str = ""

    def __post_init__(self) -> None:
        given = [name for name in ("cron", "every_s", "at") if getattr(self, name) is not None]
        if len(given) != 1:
            told = " and ".join(given) or "none of them"
            raise ConfigError(f"schedule {self.name!r}: give one of cron, every_s and at, not {told}")
        if self.starting is not None and self.every_s is None:
            raise ConfigError(f"schedule {self.name!r}: starting is for every_s alone")


_KEYS = tuple(field for field in Schedule.__struct_fields__ if field != "name")


def schedules_of(table: Any, where: str) -> tuple[Schedule, ...]:
    """Those that `[schedules.NAME]` tables of a file declare. Raises ConfigError, which names the nearest key."""
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise ConfigError(f"{where}: schedules holds a table for each schedule: [schedules.NAME]")
    found = []
    for name, entry in table.items():
        for key in entry:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
                raise ConfigError(f"{where}: schedules.{name}: {key} is no key of a schedule; {hint}")
        try:
            found.append(msgspec.convert({"name": name, **entry}, Schedule))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: schedules.{name} does not fit: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return tuple(found)
