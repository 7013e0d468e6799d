"""Schedules: when an agent starts by itself, and what is decided about each instant of it.

Two small machines, as tables: a schedule is active, paused or ended; an occurrence is held, fired, ended or skipped.
`attend` looks at one schedule and says everything that has to happen to it now: which occurrences have ended, which
instants fire, wait or are skipped and why, what comes next. It has no clock and no calendar: the instants that are
due come in, as `timetable.py` finds them. An occurrence is open until its turn has ended, which its chat tells.
"""

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from itertools import groupby
from typing import Literal

from msgspec.structs import replace

from holdfast.core.records import Cause, Frozen, Record, State

FIRES_TOGETHER_MAX = 10  # in one transaction; the rest stays due
HELD_MAX = 1_000  # occurrences of one schedule that wait for another one's end
SKIPS_APART_MAX = 100  # skipped instants of one look that get a row each; older ones share one
EVERY_MS_MIN = 1_000
ON_TIME_MS = 10_000  # an instant that is found so late is on time, whatever the catch-up window: workers are busy
DAY_MS = 86_400_000


# --- what a schedule is ---------------------------------------------------------------------------------------------


class Cron(Record, tag="cron", tag_field="kind"):
    """Five fields, read on the wall clock of a zone."""

    expression: str
    zone: str = "UTC"


class Every(Record, tag="every", tag_field="kind"):
    """Whole intervals since `anchor_at`: where and when a worker started shifts nothing. `zone` is for messages."""

    ms: int
    anchor_at: int = 0
    zone: str = "UTC"


class Once(Record, tag="once", tag_field="kind"):
    at: int
    zone: str = "UTC"


Timing = Cron | Every | Once
Overlap = Literal["skip", "queue_one", "queue_all", "cancel", "allow"]
ChatMode = Literal["new", "same"]
Source = Literal["made", "code", "settings"]
PausedBy = Literal["person", "failures", "undeclared"]


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"  # no further instant will come


class ScheduleRecord(Frozen):
    """Every field is a column of its own."""

    id: str
    owner: str = ""
    name: str
    created_by: str = ""
    created_at: int

    # What was asked for.
    source: Source = "made"
    agent: str
    timing: Timing
    message: str
    chat: ChatMode = "new"
    overlap: Overlap = "skip"
    catch_up_ms: int = 3_600_000  # an instant that is found later than this is skipped
    jitter_ms: int = 0
    pause_after: int | None = None  # failures in a row

    # What became of it.
    updated_at: int
    state: ScheduleState = ScheduleState.ACTIVE
    paused_by: PausedBy | None = None
    note: str = ""
    failures: int = 0  # in a row
    next_at: int | None = None  # the first instant that is not decided
    due_at: int | None = None  # the same with its jitter; None unless it is active
    chat_id: str | None = None  # the chat that goes on, once there is one
    fired: int = 0
    skipped: int = 0
    stamp: int = 0  # drawn for each write, as a chat's is
    forgotten_to: int = 0  # up to this instant rows of occurrences were deleted: nothing tells what became of them
    decided_to: int = 0  # the last instant that was decided, by whatever clock


class OccurrenceState(StrEnum):
    HELD = "held"  # waits for the end of another one
    FIRED = "fired"  # its chat or message is there, and its turn is not over
    ENDED = "ended"
    SKIPPED = "skipped"


OccurrenceKind = Literal["scheduled", "triggered", "backfill"]
# late: found behind the catch-up window. superseded: a later instant was due at the same look. overlap: another one
# was open. queue_full: too many wait. refused: its chat did not take the message. paused, changed: it was due, and
# not yet decided, when its schedule was paused or got another time.
SkipReason = Literal["late", "superseded", "overlap", "queue_full", "refused", "paused", "changed"]
# withdrawn: its message was taken out of the queue, or its history was edited away. deleted: with its chat.
Outcome = Literal["done", "failed", "stopped", "budget", "deadline", "superseded", "withdrawn", "deleted"]
FAILURES: frozenset[Outcome] = frozenset({"failed", "budget", "deadline"})


class Occurrence(Frozen):
    """One instant of a schedule; or, where many were skipped at once, those from `at` to `upto`: `count` of them."""

    schedule_id: str
    at: int
    upto: int
    count: int = 1
    kind: OccurrenceKind = "scheduled"
    state: OccurrenceState
    reason: SkipReason | None = None
    detail: str = ""
    overlap: Overlap | None = None  # in place of the schedule's, for one that a person asked for
    chat_id: str | None = None
    message_id: str | None = None
    turn: int | None = None  # None: its message is queued, or was when it was last looked at
    seq: int = 0  # its message comes behind this line of the chat's journal
    decided_at: int
    fired_at: int | None = None
    ended_at: int | None = None
    outcome: Outcome | None = None


# --- the two machines -----------------------------------------------------------------------------------------------

ACTIVE, PAUSED, OVER = ScheduleState
HELD, FIRED, ENDED, SKIPPED = OccurrenceState


class ScheduleMove(StrEnum):
    PAUSE = "pause"  # by a person, with a note
    RESUME = "resume"
    FAIL = "fail"  # too often in a row
    UNDECLARE = "undeclare"  # its program or its settings do not name it any more
    CHANGE = "change"  # of when it fires, or of anything else
    RUN_OUT = "run_out"


# A missing pair is a refusal.
SCHEDULES: dict[ScheduleMove, dict[ScheduleState, ScheduleState]] = {
    ScheduleMove.PAUSE: {ACTIVE: PAUSED, PAUSED: PAUSED},
    ScheduleMove.RESUME: {ACTIVE: ACTIVE, PAUSED: ACTIVE},
    ScheduleMove.FAIL: {ACTIVE: PAUSED},
    ScheduleMove.UNDECLARE: {ACTIVE: PAUSED},
    ScheduleMove.CHANGE: {ACTIVE: ACTIVE, PAUSED: PAUSED, OVER: ACTIVE},
    ScheduleMove.RUN_OUT: {ACTIVE: OVER},
}


class OccurrenceMove(StrEnum):
    FIRE = "fire"
    SKIP = "skip"
    END = "end"
    BACKFILL = "backfill"


OCCURRENCES: dict[OccurrenceMove, dict[OccurrenceState, OccurrenceState]] = {
    OccurrenceMove.FIRE: {HELD: FIRED},
    OccurrenceMove.SKIP: {HELD: SKIPPED, FIRED: SKIPPED},  # the second: in the transaction that would have fired it
    OccurrenceMove.END: {FIRED: ENDED},
    OccurrenceMove.BACKFILL: {SKIPPED: HELD},
}


class Situation(StrEnum):
    """What an instant finds when it is due."""

    FREE = "free"
    OPEN = "open"  # an occurrence whose turn is not over
    WAITING = "waiting"  # and one that waits for its end


class Act(StrEnum):
    FIRE = "fire"
    HOLD = "hold"
    SKIP = "skip"
    CANCEL = "cancel"  # stop what is open, then fire


FREE, OPEN, WAITING = Situation

# What an instant that is not late does, by the schedule's policy. Every pair is decided.
OVERLAPS: dict[Overlap, dict[Situation, Act]] = {
    "skip": {FREE: Act.FIRE, OPEN: Act.SKIP, WAITING: Act.SKIP},
    "queue_one": {FREE: Act.FIRE, OPEN: Act.HOLD, WAITING: Act.SKIP},
    "queue_all": {FREE: Act.FIRE, OPEN: Act.HOLD, WAITING: Act.HOLD},
    "cancel": {FREE: Act.FIRE, OPEN: Act.CANCEL, WAITING: Act.CANCEL},
    "allow": {FREE: Act.FIRE, OPEN: Act.FIRE, WAITING: Act.FIRE},
}
# Of several instants that are found due at once, as after a downtime, only the newest fires under these.
ONLY_THE_NEWEST: frozenset[Overlap] = frozenset({"skip", "queue_one", "cancel"})


def moved(state: ScheduleState, move: ScheduleMove) -> ScheduleState | None:
    return SCHEDULES[move].get(state)


def jitter_of(schedule_id: str, at: int, jitter_ms: int) -> int:
    """By how much this instant is put off: every worker finds the same."""
    if jitter_ms <= 0:
        return 0
    digest = blake2b(f"{schedule_id} {at}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % jitter_ms


def due_of(schedule: ScheduleRecord, at: int) -> int:
    return at + jitter_of(schedule.id, at, schedule.jitter_ms)


# --- what a look at a schedule finds --------------------------------------------------------------------------------


class Seen(Frozen):
    """A fired occurrence, and what its chat says of it. `outcome` None: it is open."""

    occurrence: Occurrence
    outcome: Outcome | None = None
    queued: bool = False  # its message waits in its chat


class Due(Frozen):
    """Instants that are due, in order, and the first one behind them; `more`: that one is due as well."""

    instants: tuple[int, ...] = ()
    next_at: int | None = None
    more: bool = False


class Fire(Frozen):
    """`cancels`: what is open and has to be stopped first."""

    occurrence: Occurrence
    cancels: tuple[Seen, ...] = ()


class Attendance(Frozen):
    """Everything that one look decided. Occurrences as they are afterwards."""

    schedule: ScheduleRecord
    ended: tuple[Occurrence, ...] = ()
    fires: tuple[Fire, ...] = ()
    held: tuple[Occurrence, ...] = ()
    skipped: tuple[Occurrence, ...] = ()
    paused: bool = False  # by this look
    more: bool = False  # there was more to do than one look does


def outcome_of(state: State, cause: Cause | None) -> Outcome:
    """Of a turn that is over, by how it left its chat, or by what its end said."""
    if state is State.FAILED:
        return "failed"
    return _OUTCOMES[cause] if cause is not None else "done"


_OUTCOMES: dict[Cause, Outcome] = {
    Cause.USER: "stopped",
    Cause.PARENT: "stopped",
    Cause.SUPERSEDED: "superseded",
    Cause.BUDGET: "budget",
    Cause.DEADLINE: "deadline",
    Cause.SHUTDOWN: "stopped",
    Cause.LEASE_LOST: "stopped",
    Cause.CRASH: "failed",
}


def attend(
    schedule: ScheduleRecord,
    seen: Sequence[Seen],
    held: Sequence[Occurrence],
    due: Due,
    now: int,
    *,
    held_count: int | None = None,
    chat_asks: bool = False,
) -> Attendance:
    """`held`: the oldest that wait, `held_count` of them in all. `chat_asks`: the chat that goes on waits for an
    answer of a person, and would take the message for it.
    """
    look = _Look(schedule, seen, len(held) if held_count is None else held_count, now, chat_asks=chat_asks)
    look.settle(seen)
    look.release(held)
    if look.schedule.state is ACTIVE:
        look.decide(due)
    elif schedule.state is ACTIVE:
        look.leave_out(due)
    return look.attendance()


class _Look:
    def __init__(
        self, schedule: ScheduleRecord, seen: Sequence[Seen], held_count: int, now: int, *, chat_asks: bool
    ) -> None:
        self.schedule = schedule
        self.now = now
        self.chat_asks = chat_asks
        self.open = [one for one in seen if one.outcome is None]
        self.held_count = held_count
        self.room = 1 if schedule.chat == "same" else FIRES_TOGETHER_MAX
        self.ended: list[Occurrence] = []
        self.fires: list[Fire] = []
        self.held: list[Occurrence] = []
        self.skipped: list[Occurrence] = []
        self.more = False

    # --- what is over -----------------------------------------------------------------------------------------

    def settle(self, seen: Sequence[Seen]) -> None:
        failures = self.schedule.failures
        for one in seen:
            if one.outcome is None:
                continue
            state = OCCURRENCES[OccurrenceMove.END][one.occurrence.state]
            self.ended.append(replace(one.occurrence, state=state, outcome=one.outcome, ended_at=self.now))
            if one.outcome in FAILURES:
                failures += 1
            elif one.outcome == "done":
                failures = 0
        self.schedule = replace(self.schedule, failures=failures)
        limit = self.schedule.pause_after
        if limit is not None and failures >= limit and self.schedule.state is ACTIVE:
            words = f"paused after {failures} failure{'s' if failures != 1 else ''} in a row"
            after = SCHEDULES[ScheduleMove.FAIL][self.schedule.state]
            self.schedule = replace(
                self.schedule, state=after, paused_by="failures", note=words, next_at=None, due_at=None
            )

    # --- what waits -------------------------------------------------------------------------------------------

    def release(self, held: Sequence[Occurrence]) -> None:
        """The oldest first. While the schedule is paused only those go that a person asked for."""
        for occurrence in held:
            if self.schedule.state is PAUSED and occurrence.kind == "scheduled":
                continue
            rule = occurrence.overlap or self.schedule.overlap
            if self.chat_asks or (self._busy and rule != "allow"):
                return
            if not self.room:
                self.more = True
                return
            self.held_count -= 1
            self._fire(occurrence)

    @property
    def _busy(self) -> bool:
        return bool(self.open or self.fires)

    def _fire(self, occurrence: Occurrence, cancels: tuple[Seen, ...] = ()) -> None:
        self.room -= 1
        fired = replace(occurrence, state=FIRED, reason=None, detail="", fired_at=self.now)
        self.fires.append(Fire(occurrence=fired, cancels=cancels))

    # --- what is due ------------------------------------------------------------------------------------------

    def decide(self, due: Due) -> None:
        next_at, more = due.next_at, due.more
        for n, at in enumerate(due.instants):
            newest = n == len(due.instants) - 1 and not due.more
            if not self._decide_one(at, newest=newest):
                next_at, more = at, True
                break
        self.more |= more
        if not due.instants and next_at == self.schedule.next_at:
            return
        state = self.schedule.state if next_at is not None else SCHEDULES[ScheduleMove.RUN_OUT][self.schedule.state]
        due_at = due_of(self.schedule, next_at) if next_at is not None else None
        self.schedule = replace(self.schedule, state=state, next_at=next_at, due_at=due_at)

    def leave_out(self, due: Due) -> None:
        """What was due when this look paused the schedule."""
        self.skipped += left_out(self.schedule, due, self.now, "paused")

    def _decide_one(self, at: int, *, newest: bool) -> bool:
        """False: there is no room for it in this transaction."""
        schedule = self.schedule
        new = Occurrence(schedule_id=schedule.id, at=at, upto=at, state=HELD, decided_at=self.now)
        if self.now - due_of(schedule, at) > max(schedule.catch_up_ms, ON_TIME_MS):
            self._skip(new, "late")
            return True
        if not newest and schedule.overlap in ONLY_THE_NEWEST:
            self._skip(new, "superseded")
            return True
        return self.take(new, schedule.overlap)

    def take(self, new: Occurrence, overlap: Overlap) -> bool:
        """One instant that is not late. False: there is no room for it in this transaction."""
        act = OVERLAPS[overlap][self._situation]
        if self.chat_asks and act is Act.FIRE:
            act = Act.HOLD if not self.held_count else OVERLAPS[overlap][WAITING]
            act = Act.HOLD if act is Act.FIRE else act
        if act in (Act.FIRE, Act.CANCEL) and not self.room:
            return False
        if act is Act.SKIP:
            self._skip(new, "overlap")
        elif act is Act.HOLD:
            self._hold(new)
        else:
            self._fire(new, tuple(self.open) if act is Act.CANCEL else ())
        return True

    @property
    def _situation(self) -> Situation:
        if self.held_count:
            return WAITING
        return OPEN if self._busy else FREE

    def _hold(self, new: Occurrence) -> None:
        if self.held_count >= HELD_MAX:
            self._skip(new, "queue_full")
            return
        self.held_count += 1
        self.held.append(new)

    def _skip(self, new: Occurrence, reason: SkipReason) -> None:
        self.skipped.append(replace(new, state=SKIPPED, reason=reason))

    def attendance(self) -> Attendance:
        schedule = self.schedule
        schedule = replace(
            schedule, fired=schedule.fired + len(self.fires), skipped=schedule.skipped + len(self.skipped)
        )
        return Attendance(
            schedule=schedule,
            ended=tuple(self.ended),
            fires=tuple(self.fires),
            held=tuple(self.held),
            skipped=together(self.skipped),
            paused=schedule.paused_by == "failures" and self.schedule.state is PAUSED and bool(self.ended),
            more=self.more,
        )


def ask_for(
    schedule: ScheduleRecord,
    wanted: Sequence[Occurrence],
    seen: Sequence[Seen],
    now: int,
    *,
    held_count: int,
    chat_asks: bool = False,
) -> Attendance:
    """Occurrences that a person asks for, whatever the schedule's state: each by its own policy. What finds no room
    in this transaction is held, and goes with the next looks.
    """
    look = _Look(schedule, seen, held_count, now, chat_asks=chat_asks)
    for occurrence in wanted:
        if not look.take(occurrence, occurrence.overlap or schedule.overlap):
            look.more = True
            look._hold(occurrence)
    return look.attendance()


def left_out(schedule: ScheduleRecord, due: Due, now: int, reason: SkipReason) -> list[Occurrence]:
    """Instants that were due, and that nobody decides any more: each has its reason all the same."""
    return [
        Occurrence(schedule_id=schedule.id, at=at, upto=at, state=SKIPPED, reason=reason, decided_at=now)
        for at in due.instants
    ]


def together(skipped: Sequence[Occurrence]) -> tuple[Occurrence, ...]:
    """The newest a row each; of those before, neighbours with one reason share a row."""
    apart = list(skipped[-SKIPS_APART_MAX:])
    shared = []
    for _, some in groupby(skipped[:-SKIPS_APART_MAX], key=lambda one: one.reason):
        group = list(some)
        shared.append(replace(group[0], upto=group[-1].at, count=len(group)))
    return (*shared, *apart)
