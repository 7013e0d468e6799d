"""What callers give and get of schedules, beside the records of the core."""

from holdfast.core import schedules as core
from holdfast.core.codec import check_text
from holdfast.core.records import Frozen
from holdfast.core.schedules import ChatMode, Occurrence, Overlap, ScheduleRecord, Timing
from holdfast.errors import InvalidInput
from holdfast.timetable import check_message, check_timing

NAME_CHARS_MAX = 200
MESSAGE_BYTES_MAX = 64 << 10
CATCH_UP_MS_MAX = 366 * core.DAY_MS
OVERLAPS: tuple[Overlap, ...] = tuple(core.OVERLAPS)


class NewSchedule(Frozen):
    """What a schedule is made or changed with."""

    name: str
    agent: str
    message: str
    timing: Timing
    owner: str = ""
    chat: ChatMode = "new"
    overlap: Overlap = "skip"
    catch_up_ms: int = 3_600_000
    jitter_ms: int = 0
    pause_after: int | None = None

    def check(self) -> None:
        """Raises InvalidInput."""
        for field in ("name", "agent", "owner"):
            check_text(field, getattr(self, field), bytes_max=512)
        if not self.name.strip() or len(self.name) > NAME_CHARS_MAX:
            raise InvalidInput("name", f"has 1 to {NAME_CHARS_MAX} characters")
        if not self.agent:
            raise InvalidInput("agent", "is empty: say which agent it starts")
        check_text("message", self.message, bytes_max=MESSAGE_BYTES_MAX)
        check_message(self.message)
        check_timing(self.timing)
        if self.chat not in ("new", "same"):
            raise InvalidInput("chat", "is `new` (one for each occurrence) or `same` (one that goes on)")
        check_overlap(self.overlap)
        if not 0 <= self.catch_up_ms <= CATCH_UP_MS_MAX:
            raise InvalidInput("catch_up", "is from 0 to a year")
        if not 0 <= self.jitter_ms <= core.DAY_MS:
            raise InvalidInput("jitter", "is from 0 to a day")
        if self.pause_after is not None and not 1 <= self.pause_after <= 1_000:
            raise InvalidInput("pause_after", "is a number of failures in a row, 1 or more; none: never")


def check_overlap(overlap: str | None) -> None:
    if overlap is not None and overlap not in OVERLAPS:
        raise InvalidInput("overlap", f"is one of {', '.join(OVERLAPS)}")


class Attended(Frozen):
    """What one transaction did for a schedule."""

    schedule: ScheduleRecord
    fired: tuple[Occurrence, ...] = ()
    skipped: tuple[Occurrence, ...] = ()
    held: tuple[Occurrence, ...] = ()
    ended: tuple[Occurrence, ...] = ()
    paused: bool = False
    more: bool = False
    now: int = 0


class Declared(Frozen):
    made: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()  # that are not declared any more
