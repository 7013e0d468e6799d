"""A schedule as a program or `holdfast.toml` declares it: `Schedule(…)`, and `[schedules.NAME]`."""

from datetime import datetime
from typing import Literal

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
