"""What happens to schedules inside one transaction, written once for both stores: programs, each a generator that
yields what it asks of the transaction and is sent the answer.

Each store has a player for them (`sqlite/schedules.py`, `postgres/schedules.py`). A firing is the occurrence's row,
its chat or message, and the schedule's next instant, all or nothing, under the schedule's lock. A row of (schedule,
instant) that is there already is never fired again, whatever clocks and counters say.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Raw
from msgspec.structs import astuple, replace

from holdfast.core import schedules as core
from holdfast.core.change import Change
from holdfast.core.codec import check_text, decode_entry, encode
from holdfast.core.commands import Command, Send, Stop, Withdraw
from holdfast.core.instants import iso
from holdfast.core.journal import TurnEnded, TurnStarted
from holdfast.core.limits import Limits
from holdfast.core.notices import Notice, NoticeKind
from holdfast.core.records import Cause, Frozen, Message, NewChat, Role, State, Text
from holdfast.core.schedules import (
    Attendance,
    ChatMode,
    Fire,
    Occurrence,
    OccurrenceState,
    Outcome,
    Overlap,
    ScheduleMove,
    ScheduleRecord,
    ScheduleState,
    Seen,
    Source,
    Timing,
    attend,
    due_of,
    outcome_of,
)
from holdfast.errors import ConfigError, HoldfastError, InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.ids import new_id, new_stamp
from holdfast.store.records import Answer
from holdfast.store.schedule_statements import (
    OCCURRENCE_COLUMNS,
    ScheduleStatements,
    moving_row,
    occurrence_of,
    schedule_of,
    schedule_row,
)
from holdfast.timetable import check_message, check_timing, due_now, instants, message_at, next_after

T = TypeVar("T")

SCHEDULES = "schedules"  # the topic that rings when one is made or changed
BACKFILL_MAX = 1_000
KEPT_MAX = 10_000  # occurrences of one schedule that are over: the newest stay
TRIMMED_EVERY = 500  # occurrences
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


_ASKED = tuple(name for name in NewSchedule.__struct_fields__ if name not in ("name", "owner"))


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


# --- what a program asks of its transaction ---


class Now(NamedTuple):
    """Answer: the wall clock, in ms: the server's, where there is one."""


class Rows(NamedTuple):
    """Answer: the rows of a statement."""

    statement: str
    values: tuple[Any, ...] = ()


class MakeChat(NamedTuple):
    """Answer: an Answer, or the error that refuses it; then nothing of it is written."""

    new: NewChat


class SendTo(NamedTuple):
    """Answer: the same. No chat is sent to twice in one transaction."""

    chat_id: str
    commands: tuple[Command, ...]


class Tell(NamedTuple):
    """Of what happened, to endpoints outside that hear of it."""

    notices: tuple[Notice, ...]


class Ring(NamedTuple):
    """Tell waiters, once it is committed."""

    topics: tuple[str, ...]


Step = Now | Rows | MakeChat | SendTo | Tell | Ring
Program = Generator[Step, Any, T]
REFUSALS = (RefusedError, InvalidInput, LimitReached, NotFound)


class Player(Protocol):
    """Plays a program in one write transaction of its store."""

    async def __call__(self, program: "ProgramOf[T]") -> T: ...


class ProgramOf(Protocol[T]):  # type: ignore[misc]
    """Makes the program anew, where a transaction has to be tried again."""

    def __call__(self) -> Program[T]: ...


# --- the programs ---


class Programs:
    """What happens inside one transaction, whichever store's."""

    def __init__(self, sql: ScheduleStatements, limits: Limits) -> None:
        self._sql = sql
        self._limits = limits

    # --- making and changing --------------------------------------------------------------------------------------

    def create(self, schedule_id: str, new: NewSchedule, source: Source, by: str) -> Program[ScheduleRecord]:
        now = yield Now()
        if found := (yield Rows(self._sql.read, (schedule_id,))):
            return schedule_of(found[0])  # asked for again
        if (yield Rows(self._sql.lock_named, (new.owner, new.name))):
            raise InvalidInput("name", f"there is a schedule {new.name!r} already: give this one another name")
        made = self._made(schedule_id, new, source, by, now)
        if made.next_at is None:
            raise InvalidInput("at", "is in the past: give an instant that is still to come")
        yield from self._insert(made)
        return made

    def _made(self, schedule_id: str, new: NewSchedule, source: Source, by: str, now: int) -> ScheduleRecord:
        values: dict[str, Any] = {name: getattr(new, name) for name in NewSchedule.__struct_fields__}
        made = ScheduleRecord(
            id=schedule_id, source=source, created_by=by, created_at=now, updated_at=now, stamp=new_stamp(), **values
        )
        return started(made, now)

    def _insert(self, made: ScheduleRecord) -> Program[None]:
        ((count,),) = yield Rows(self._sql.count_of, (made.owner,))
        if count >= self._limits.schedules_max:
            raise LimitReached("schedules of an owner", count, self._limits.schedules_max, "remove some")
        yield Rows(self._sql.insert, schedule_row(made))
        yield Ring((SCHEDULES,))

    def _locked(self, schedule_id: str) -> Program[ScheduleRecord]:
        found = yield Rows(self._sql.lock, (schedule_id,))
        if not found:
            raise NotFound("schedule", schedule_id)
        return schedule_of(found[0])

    def _write(self, before: ScheduleRecord, after: ScheduleRecord, now: int) -> Program[ScheduleRecord]:
        """Compare and swap. The row is locked, so a miss is a fault."""
        written = replace(after, stamp=new_stamp(), updated_at=now)
        values = (*schedule_row(written)[1:], before.id, before.stamp)
        if not (yield Rows(self._sql.update, values)):
            raise RefusedError(
                f"schedule {before.id!r} changed meanwhile: look again", reason="moved_on", state="", command="write"
            )
        return written

    def change(self, schedule_id: str, new: NewSchedule) -> Program[ScheduleRecord]:
        now = yield Now()
        before = yield from self._locked(schedule_id)
        _check_made(before)
        if new.name != before.name and (yield Rows(self._sql.lock_named, (before.owner, new.name))):
            raise InvalidInput("name", f"there is a schedule {new.name!r} already: give this one another name")
        after = changed(replace(before, name=new.name), new, now)
        if after.state is ScheduleState.ENDED:
            raise InvalidInput("at", "is in the past: give an instant that is still to come")
        written = yield from self._write(before, after, now)
        yield Ring((SCHEDULES,))
        return written

    def pause(self, schedule_id: str, note: str) -> Program[ScheduleRecord]:
        now = yield Now()
        before = yield from self._locked(schedule_id)
        after = paused(before, "person", note)
        return (yield from self._write(before, after, now))

    def resume(self, schedule_id: str) -> Program[ScheduleRecord]:
        now = yield Now()
        before = yield from self._locked(schedule_id)
        state = _move(before, ScheduleMove.RESUME)
        if before.state is ScheduleState.ACTIVE:
            return before
        after = started(replace(before, state=state, paused_by=None, note="", failures=0), now)
        written = yield from self._write(before, after, now)
        yield Ring((SCHEDULES,))
        return written

    def remove(self, schedule_id: str) -> Program[ScheduleRecord]:
        """Its chats stay."""
        removed = yield from self._locked(schedule_id)
        yield Rows(self._sql.remove_occurrences, (schedule_id,))
        yield Rows(self._sql.remove, (schedule_id,))
        return removed

    def forget(self, owner: str) -> Program[int]:
        found = yield Rows(self._sql.of_owner, (owner,))
        for (schedule_id,) in found:
            yield Rows(self._sql.remove_occurrences, (schedule_id,))
            yield Rows(self._sql.remove, (schedule_id,))
        return len(found)

    def declare(self, source: Source, agents: frozenset[str], wanted: Sequence[NewSchedule]) -> Program["Declared"]:
        """What a program, or its settings, say there is. It looks after schedules of its own agents only."""
        now = yield Now()
        made: list[str] = []
        other: list[str] = []
        for new in wanted:
            found = yield Rows(self._sql.lock_named, (new.owner, new.name))
            if not found:
                drawn = self._made(new_id("sched"), new, source, source, now)
                yield from self._insert(drawn)
                made.append(new.name)
                continue
            before = schedule_of(found[0])
            if before.source != source or before.agent not in agents:
                whose = "was made at run time" if before.source == "made" else f"is declared in {before.source}"
                raise ConfigError(
                    f"schedule {new.name!r}: there is one of that name, which {whose} for the agent "
                    f"{before.agent!r}: give one of them another name"
                )
            after = changed(before, new, now)
            if before.paused_by == "undeclared":
                after = started(replace(after, state=ScheduleState.ACTIVE, paused_by=None, note=""), now)
            if after != before:
                yield from self._write(before, after, now)
                other.append(new.name)
        gone = yield from self._undeclared(source, agents, {(new.owner, new.name) for new in wanted}, now)
        if made or other or gone:
            yield Ring((SCHEDULES,))
        return Declared(made=tuple(made), changed=tuple(other), paused=gone)

    def _undeclared(
        self, source: Source, agents: frozenset[str], named: set[tuple[str, str]], now: int
    ) -> Program[tuple[str, ...]]:
        gone: list[str] = []
        after_id = ""
        while found := (yield Rows(self._sql.declared, (source, after_id))):
            for row in found:
                before = schedule_of(row)
                after_id = before.id
                ours = before.agent in agents and (before.owner, before.name) not in named
                if ours and before.state is ScheduleState.ACTIVE:
                    where = "code" if source == "code" else "the settings"
                    yield from self._write(
                        before, paused(before, "undeclared", f"no longer declared in {where}"), now
                    )
                    gone.append(before.name)
        return tuple(gone)

    # --- firing ---------------------------------------------------------------------------------------------------

    def attend(self, schedule_id: str) -> Program["Attended | None"]:
        """Everything that is to be done for one schedule now. None: it is gone, or another worker is at it."""
        found = yield Rows(self._sql.lock_if_free, (schedule_id,))
        if not found:
            return None
        now = yield Now()
        before = schedule_of(found[0])
        ((open_count, held_count),) = yield Rows(self._sql.counts, (schedule_id, schedule_id))
        if not open_count and not held_count and (before.due_at is None or before.due_at > now):
            return Attended(schedule=before, now=now)  # another worker was here first
        seen = (yield from self._seen(schedule_id)) if open_count else []
        waiting = (yield Rows(self._sql.held, (schedule_id, str(before.state)))) if held_count else []
        held = [occurrence_of(row) for row in waiting]
        active = before.state is ScheduleState.ACTIVE
        due = due_now(before, now) if active else core.Due(next_at=before.next_at)
        chat_asks = yield from self._chat_asks(before)
        plan = attend(before, seen, held, due, now, held_count=held_count, chat_asks=chat_asks)
        return (yield from self._carry_out(before, plan, frozenset((one.at, one.upto) for one in held), now))

    def trigger(
        self, schedule_id: str, message_id: str, overlap: Overlap | None
    ) -> Program[tuple["Attended", Occurrence]]:
        before = yield from self._locked(schedule_id)
        now = yield Now()
        if found := (yield Rows(self._sql.by_message, (message_id,))):
            return Attended(schedule=before), occurrence_of(found[0])  # asked for again
        at = now
        # An instant of its timing is not taken: it is still to be decided, or may be backfilled.
        while next_after(before.timing, at - 1) == at or (
            yield Rows(self._sql.read_occurrence, (schedule_id, at, at))
        ):
            at += 1
        wanted = Occurrence(
            schedule_id=schedule_id,
            at=at,
            upto=at,
            kind="triggered",
            state=OccurrenceState.HELD,
            overlap=overlap,
            message_id=message_id,
            decided_at=now,
        )
        seen = yield from self._seen(schedule_id)
        ((held_count,),) = yield Rows(self._sql.held_count, (schedule_id,))
        chat_asks = yield from self._chat_asks(before)
        plan = core.ask_for(before, (wanted,), seen, now, held_count=held_count, chat_asks=chat_asks)
        attended = yield from self._carry_out(before, plan, frozenset(), now)
        yield Ring((SCHEDULES,))
        found = yield Rows(self._sql.read_occurrence, (schedule_id, at, at))
        return attended, occurrence_of(found[0])

    def backfill(
        self, schedule_id: str, since: int, until: int, overlap: Overlap
    ) -> Program[tuple[ScheduleRecord, int, int]]:
        """The schedule, how many instants wait to be fired now, and how many were fired or waited already."""
        schedule = yield from self._locked(schedule_id)
        now = yield Now()
        if not 0 <= since <= until <= now:
            raise InvalidInput("until", "a backfill is of the past: since <= until <= now")
        wanted = _past_instants(schedule, since, until)
        ((held_count,),) = yield Rows(self._sql.held_count, (schedule_id,))
        if held_count + len(wanted) > core.HELD_MAX:
            what = "let them be done first, or backfill a part"
            raise LimitReached("waiting occurrences", held_count + len(wanted), core.HELD_MAX, what)
        taken = 0
        for at in wanted:
            occurrence = Occurrence(
                schedule_id=schedule_id,
                at=at,
                upto=at,
                kind="backfill",
                state=OccurrenceState.HELD,
                overlap=overlap,
                decided_at=now,
            )
            taken += len((yield Rows(self._sql.backfill, astuple(occurrence))))
        yield Ring((SCHEDULES,))
        return schedule, taken, len(wanted) - taken

    def _chat_asks(self, schedule: ScheduleRecord) -> Program[bool]:
        """Whether the chat that goes on waits: for a person, who would be answered by a schedule."""
        if schedule.chat != "same" or schedule.chat_id is None:
            return False
        found = yield Rows(self._sql.chat_state, (schedule.chat_id,))
        return bool(found) and found[0][0] == State.WAITING

    def _seen(self, schedule_id: str) -> Program[list[Seen]]:
        found = yield Rows(self._sql.seen, (schedule_id,))
        width = len(OCCURRENCE_COLUMNS)
        seen = []
        for row in found:
            seen.append((yield from self._seen_one(occurrence_of(row[:width]), row[width:])))
        return sorted(seen, key=lambda one: one.occurrence.at)

    def _seen_one(self, occurrence: Occurrence, chat: Sequence[Any]) -> Program[Seen]:
        chat_id, state, turn, turn_started_at, cause, over = chat
        if chat_id is None:
            return Seen(occurrence=occurrence, outcome="deleted")
        if not over:
            return Seen(occurrence=occurrence, queued=occurrence.turn is None)
        if occurrence.turn is None:
            number = yield from self._turn_of(occurrence)
            if number is None:
                return Seen(occurrence=occurrence, outcome="withdrawn")
            occurrence = replace(occurrence, turn=number)
            yield Rows(self._sql.move, moving_row(occurrence))
        if turn == occurrence.turn:
            if turn_started_at is not None:
                return Seen(occurrence=occurrence)
            return Seen(occurrence=occurrence, outcome=outcome_of(State(state), Cause(cause) if cause else None))
        outcome = yield from self._outcome_of(occurrence)
        return Seen(occurrence=occurrence, outcome=outcome)

    def _turn_of(self, occurrence: Occurrence) -> Program[int | None]:
        """That took its message, which was queued. None: none ever will."""
        chat_id, message_id = occurrence.chat_id, occurrence.message_id
        found = yield Rows(self._sql.line_of, (chat_id, occurrence.seq, message_id))
        if not found:
            return None
        before = yield Rows(self._sql.entry_at, (chat_id, found[0][0] - 1))
        entry = decode_entry(before[0][0]) if before else None
        return entry.turn if isinstance(entry, TurnStarted) else None

    def _outcome_of(self, occurrence: Occurrence) -> Program[Outcome]:
        """Of a turn behind which others have begun: its end is in the journal."""
        start = f'{{"kind":"turn.ended","turn":{occurrence.turn},%'
        found = yield Rows(self._sql.ends, (occurrence.chat_id, occurrence.seq, start))
        entry = decode_entry(found[0][0]) if found else None
        if not isinstance(entry, TurnEnded):
            return "superseded"
        return outcome_of(entry.state, entry.cause)

    def _carry_out(
        self, before: ScheduleRecord, plan: Attendance, waited: frozenset[tuple[int, int]], now: int
    ) -> Program["Attended"]:
        schedule = plan.schedule
        for occurrence in plan.ended:
            yield Rows(self._sql.move, moving_row(occurrence))
        fired: list[Occurrence] = []
        skipped, decided_before = yield from self._put(plan.skipped)
        held, _ = yield from self._put(plan.held)
        schedule = replace(schedule, skipped=schedule.skipped - decided_before)
        for fire in plan.fires:
            known = (fire.occurrence.at, fire.occurrence.upto) in waited
            what, chat_id = yield from self._fire(schedule, fire, now, known=known)
            if what is None:
                schedule = replace(schedule, fired=schedule.fired - 1)
            elif what.state is OccurrenceState.SKIPPED:
                schedule = replace(schedule, fired=schedule.fired - 1, skipped=schedule.skipped + 1)
                skipped.append(what)
            else:
                fired.append(what)
                schedule = replace(schedule, chat_id=chat_id if schedule.chat == "same" else schedule.chat_id)
        if schedule != before:
            schedule = yield from self._write(before, schedule, now)
        if skipped or plan.paused:
            yield Tell(_notices(schedule, skipped, now, paused=plan.paused))
        if _rows(schedule) // TRIMMED_EVERY != _rows(before) // TRIMMED_EVERY:
            yield Rows(self._sql.trim, (schedule.id, schedule.id, KEPT_MAX))
        return Attended(
            schedule=schedule,
            fired=tuple(fired),
            skipped=tuple(skipped),
            held=tuple(held),
            ended=plan.ended,
            paused=plan.paused,
            more=plan.more,
            now=now,
        )

    def _put(self, decided: Sequence[Occurrence]) -> Program[tuple[list[Occurrence], int]]:
        """Those whose rows were written, and of how many instants there was a row already."""
        put = []
        for occurrence in decided:
            if (yield Rows(self._sql.put, astuple(occurrence))):
                put.append(occurrence)
        return put, sum(one.count for one in decided) - sum(one.count for one in put)

    def _fire(
        self, schedule: ScheduleRecord, fire: Fire, now: int, *, known: bool
    ) -> Program[tuple[Occurrence | None, str | None]]:
        """The row first: one that is there already fires nothing."""
        same = schedule.chat_id if schedule.chat == "same" else None
        if same is not None and not (yield Rows(self._sql.chat_state, (same,))):
            same = None  # it was deleted: another one goes on in its place
        message_id = fire.occurrence.message_id or new_id("msg")
        chat_id = same or new_id("chat")
        occurrence = replace(fire.occurrence, chat_id=chat_id, message_id=message_id)
        if known:
            yield Rows(self._sql.move, moving_row(occurrence))
        elif not (yield Rows(self._sql.put, astuple(occurrence))):
            return None, same
        message = Message(
            id=message_id,
            role=Role.USER,
            parts=(Text(text=message_at(schedule, occurrence.at)),),
            created_at=now,
            metadata=_metadata(schedule, occurrence),
        )
        for other_id, commands in _calling_off(fire, same):
            yield SendTo(other_id, commands)  # what is over by now refuses, and that is well
        if same is None:
            answer = yield MakeChat(_new_chat(schedule, chat_id, message, occurrence))
        else:
            answer = yield SendTo(same, _commands(fire, same, message))
        if isinstance(answer, HoldfastError):
            words = str(answer)[:500]
            state = core.OCCURRENCES[core.OccurrenceMove.SKIP][occurrence.state]
            occurrence = replace(occurrence, state=state, reason="refused", detail=words, chat_id=same, fired_at=None)
        else:
            assert isinstance(answer, Answer)
            turn = answer.turn if answer.placed == "began" else None
            occurrence = replace(occurrence, turn=turn, seq=max(0, answer.seq - _LINES_BACK))
        yield Rows(self._sql.move, moving_row(occurrence))
        return occurrence, chat_id


def _notices(
    schedule: ScheduleRecord, skipped: Sequence[Occurrence], now: int, *, paused: bool
) -> tuple[Notice, ...]:
    about = {"schedule_id": schedule.id, "schedule": schedule.name, "agent": schedule.agent}
    if schedule.owner:
        about["owner"] = schedule.owner
    told: list[tuple[NoticeKind, dict[str, Any]]] = []
    for one in skipped:
        what = {"at": one.at, "upto": one.upto, "count": one.count, "reason": one.reason}
        told.append(("schedule.skipped", what))
    if paused:
        told.append(("schedule.paused", {"reason": schedule.note, "failures": schedule.failures}))
    return tuple(
        Notice(kind=kind, owner=schedule.owner, at=now, data=Raw(encode(about | what))) for kind, what in told
    )


def _rows(schedule: ScheduleRecord) -> int:
    """Of its occurrences that were ever written, about."""
    return schedule.fired + schedule.skipped


_LINES_BACK = 4  # what one message adds to a journal, at most: its own lines lie behind the number that is kept


def _commands(fire: Fire, chat_id: str, message: Message) -> tuple[Command, ...]:
    """To a chat that goes on: behind what it does, or in its place."""
    if not fire.cancels:
        return (Send(message=message),)
    queued = [one.occurrence for one in fire.cancels if one.queued and one.occurrence.chat_id == chat_id]
    gone = tuple(Withdraw(message_id=one.message_id) for one in queued if one.message_id is not None)
    return (*gone, Send(message=message, mode="interrupt"))


def _calling_off(fire: Fire, same: str | None) -> list[tuple[str, tuple[Command, ...]]]:
    """For each other chat in which something is open: what waits there is withdrawn, and what runs is stopped.
    Several are in one where the schedule sent to a chat that went on before it was changed.
    """
    found: dict[str, list[Command]] = {}
    for one in sorted(fire.cancels, key=lambda one: not one.queued):
        occurrence = one.occurrence
        if occurrence.chat_id is None or occurrence.chat_id == same:
            continue
        withdrawn = one.queued and occurrence.message_id is not None
        what = Withdraw(message_id=str(occurrence.message_id)) if withdrawn else Stop(turn=occurrence.turn)
        found.setdefault(occurrence.chat_id, []).append(what)
    return [(chat_id, tuple(commands)) for chat_id, commands in found.items()]


def _metadata(schedule: ScheduleRecord, occurrence: Occurrence) -> Raw:
    told = {"schedule": schedule.id, "schedule_name": schedule.name, "occurrence_at": iso(occurrence.at)}
    return Raw(encode(told))


def _new_chat(schedule: ScheduleRecord, chat_id: str, message: Message, occurrence: Occurrence) -> NewChat:
    return NewChat(
        id=chat_id,
        agent=schedule.agent,
        owner=schedule.owner,
        metadata=_metadata(schedule, occurrence),
        message=message,
    )


def sent_in(changes: Sequence[Change]) -> Sequence[Change]:
    """From the change on that took the message in, if there is one."""
    return next((changes[n:] for n, change in enumerate(changes) if change.sent is not None), changes)


def started(schedule: ScheduleRecord, now: int) -> ScheduleRecord:
    """Active from now on: what lies behind is not made up for. Without an instant to come it has ended."""
    next_at = next_after(schedule.timing, now)
    if next_at is None:
        return replace(schedule, state=ScheduleState.ENDED, next_at=None, due_at=None)
    return replace(schedule, next_at=next_at, due_at=due_of(schedule, next_at))


def changed(before: ScheduleRecord, new: NewSchedule, now: int) -> ScheduleRecord:
    """With what is asked for now. Another timing begins now; a pause stays a pause."""
    values: dict[str, Any] = {name: getattr(new, name) for name in _ASKED}
    after = replace(before, **values)
    if after.timing == before.timing and after.jitter_ms == before.jitter_ms:
        return after
    state = _move(before, ScheduleMove.CHANGE)
    after = replace(after, state=state)
    return started(after, now) if state is ScheduleState.ACTIVE else after


def paused(before: ScheduleRecord, by: core.PausedBy, note: str) -> ScheduleRecord:
    move = ScheduleMove.UNDECLARE if by == "undeclared" else ScheduleMove.PAUSE
    state = _move(before, move)
    return replace(before, state=state, paused_by=by, note=note, next_at=None, due_at=None)


def _move(schedule: ScheduleRecord, move: ScheduleMove) -> ScheduleState:
    state = core.moved(schedule.state, move)
    if state is None:
        words = f"a schedule that has {schedule.state} does not take {move}: give it another time first"
        raise RefusedError(words, reason="state", state=schedule.state, command=move)
    return state


def _check_made(schedule: ScheduleRecord) -> None:
    if schedule.source != "made":
        where = "code" if schedule.source == "code" else "the settings"
        raise RefusedError(
            f"schedule {schedule.name!r} is declared in {where}: change it there",
            reason="state",
            state=schedule.state,
            command="change",
        )


def _past_instants(schedule: ScheduleRecord, since: int, until: int) -> list[int]:
    found: list[int] = []
    for at in instants(schedule.timing, since - 1):
        if at > until or (schedule.next_at is not None and at >= schedule.next_at):
            break
        found.append(at)
        if len(found) > BACKFILL_MAX:
            raise InvalidInput("until", f"there are more than {BACKFILL_MAX:,} instants until then: backfill a part")
    return found
