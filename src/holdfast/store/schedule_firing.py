"""Programs of schedules: what their instants do, and what people ask for. See `schedule_steps.py`.

A firing is the occurrence's row, its chat or message, and the schedule's next instant, all or nothing, under the
schedule's lock. A row of (schedule, instant) that is there already is never fired again, whatever clocks and counters
say. Several schedules go in one transaction, so that a firing costs a part of its round trips; those that send to
chats that are there already go alone, because they wait for others' locks.
"""

from collections.abc import Sequence
from itertools import groupby, islice, takewhile
from typing import Any, NamedTuple

from msgspec.structs import astuple, replace

from holdfast.core import schedules as core
from holdfast.core.codec import encode
from holdfast.core.instants import iso
from holdfast.core.records import Message, Role, State, Text
from holdfast.core.schedules import (
    Attendance,
    Fire,
    Occurrence,
    OccurrenceState,
    Overlap,
    ScheduleRecord,
    ScheduleState,
    attend,
)
from holdfast.errors import HoldfastError, InvalidInput, LimitReached
from holdfast.ids import new_id, new_stamp
from holdfast.store.records import Answer
from holdfast.store.schedule_messages import calling_off, commands, metadata_of, new_chat, notices_of
from holdfast.store.schedule_records import Attended
from holdfast.store.schedule_statements import key_of, occurrence_of, schedule_of
from holdfast.store.schedule_steps import (
    SCHEDULES,
    MakeChats,
    Move,
    Now,
    Program,
    Programs,
    Put,
    Ring,
    Rows,
    SendTo,
    Swap,
    Tell,
    abreast,
    moved_on,
)
from holdfast.store.schedule_turns import seen_of
from holdfast.timetable import DUE_TOGETHER_MAX, LEFT_OUT_MAX, due_now, instants, message_at, next_after

BACKFILL_MAX = 1_000
MEMBERS_MAX = LEFT_OUT_MAX + 1  # instants of a row that tells of several
KEPT_MAX = 10_000  # occurrences of one schedule that are over: the newest stay
TRIMMED_EVERY = 500  # occurrences
_LINES_BACK = 4  # what one message adds to a journal, at most: its own lines lie behind the number that is kept


class AttendedSome(NamedTuple):
    done: list[Attended]
    alone: list[str]  # to be attended to in a transaction each


class _Counts(NamedTuple):
    fired: int = 0  # that are open
    held: int = 0


class Firing(Programs):
    def attend(self, schedule_id: str) -> Program[Attended | None]:
        """Everything that is to be done for one schedule now. None: it is gone, or another worker is at it."""
        found, counts, now = yield from self._lock_some((schedule_id,), None, 1)
        if not found:
            return None
        return (yield from self._attend(found[0], counts.get(schedule_id, _Counts()), now))

    def attend_some(self, schedule_ids: Sequence[str], due_by: int | None, at_most: int) -> Program[AttendedSome]:
        """The same for several. Those that are gone, not due by then, or that another worker is at, are left out."""
        found, counts, now = yield from self._lock_some(schedule_ids, due_by, at_most)
        alone = [one.id for one in found if _reaches_other_chats(one)]
        programs = [
            self._attend(one, counts.get(one.id, _Counts()), now) for one in found if not _reaches_other_chats(one)
        ]
        done = yield from abreast(programs)
        return AttendedSome(done, alone)

    def _lock_some(
        self, schedule_ids: Sequence[str], due_by: int | None, at_most: int
    ) -> Program[tuple[list[ScheduleRecord], dict[str, _Counts], int]]:
        """What is counted is counted under the locks."""
        listed = encode(list(schedule_ids)).decode()
        rows = yield Rows(self._sql.lock_some, (listed, due_by, due_by, at_most))
        if not rows:
            return [], {}, 0
        now = yield Now()
        listed = encode([row[0] for row in rows]).decode()
        counts: dict[str, _Counts] = {}
        for schedule_id, state, count in (yield Rows(self._sql.counts, (listed, listed))):
            counts[schedule_id] = counts.get(schedule_id, _Counts())._replace(**{state: count})
        return [schedule_of(row) for row in rows], counts, now

    def _attend(self, before: ScheduleRecord, counts: _Counts, now: int) -> Program[Attended]:
        if not any(counts) and (before.due_at is None or before.due_at > now):
            return Attended(schedule=before, now=now)  # another worker was here first
        seen = (yield from seen_of(self._sql, before.id)) if counts.fired else []
        waiting = (yield Rows(self._sql.held, (before.id, str(before.state)))) if counts.held else []
        held = [occurrence_of(row) for row in waiting]
        active = before.state is ScheduleState.ACTIVE
        due = (yield from self._due(before, now, DUE_TOGETHER_MAX)) if active else core.Due(next_at=before.next_at)
        chat_asks = yield from self._chat_asks(before)
        plan = attend(before, seen, held, due, now, held_count=counts.held, chat_asks=chat_asks)
        if plan.paused and due.more:
            due = yield from self._due(before, now, LEFT_OUT_MAX)
            plan = attend(before, seen, held, due, now, held_count=counts.held, chat_asks=chat_asks)
        decided = [at for at in due.instants if plan.schedule.next_at is None or at < plan.schedule.next_at]
        decided_to = max((before.decided_to, *decided[-1:]))
        plan = replace(plan, schedule=replace(plan.schedule, decided_to=decided_to))
        return (yield from self._carry_out(before, plan, frozenset(map(key_of, held)), now))

    def _due(self, schedule: ScheduleRecord, now: int, at_most: int) -> Program[core.Due]:
        """Without those that come again, under a clock that was set back, and that a row of several tells of."""
        due = due_now(schedule, now, at_most)
        if not due.instants or due.instants[0] > schedule.decided_to:
            return due
        rows = yield Rows(self._sql.shared, (schedule.id, due.instants[-1], due.instants[0]))
        known = {at for row in rows for at in _members(schedule, occurrence_of(row)) or ()}
        return replace(due, instants=tuple(at for at in due.instants if at not in known))

    def trigger(
        self, schedule_id: str, message_id: str, overlap: Overlap | None
    ) -> Program[tuple[Attended, Occurrence]]:
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
        seen = yield from seen_of(self._sql, schedule_id)
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
        if wanted and wanted[0] <= schedule.forgotten_to:
            words = (
                f"what became of instants up to {iso(schedule.forgotten_to)} is forgotten, and they may have fired"
            )
            raise InvalidInput("since", f"{words}: backfill from behind it")
        ((held_count,),) = yield Rows(self._sql.held_count, (schedule_id,))
        if held_count + len(wanted) > core.HELD_MAX:
            what = "let them be done first, or backfill a part"
            raise LimitReached("waiting occurrences", held_count + len(wanted), core.HELD_MAX, what)
        yield from self._taken_out(schedule, wanted)
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

    def _taken_out(self, schedule: ScheduleRecord, wanted: Sequence[int]) -> Program[None]:
        """Of rows that tell of several skipped instants: they go on telling of the others."""
        if not wanted:
            return
        taken = set(wanted)
        for row in (yield Rows(self._sql.shared, (schedule.id, wanted[-1], wanted[0]))):
            shared = occurrence_of(row)
            members = _members(schedule, shared)
            if members is None or taken.isdisjoint(members):
                continue  # of another timing, which it had before: none of these
            yield Rows(self._sql.drop, key_of(shared))
            left = [list(run) for is_taken, run in groupby(members, taken.__contains__) if not is_taken]
            if left:
                yield Put(tuple(replace(shared, at=run[0], upto=run[-1], count=len(run)) for run in left))

    def rewind(self, schedule_id: str) -> Program[ScheduleRecord | None]:
        """After a clock that was far ahead: what it said of instants that are still to come is taken back, but for
        what it fired. None: there is nothing to take back.
        """
        found, _, now = yield from self._lock_some((schedule_id,), None, 1)
        if not found or found[0].state is not ScheduleState.ACTIVE or found[0].decided_to <= now:
            return None
        before = found[0]
        start = max(now, before.forgotten_to)
        next_at = next_after(before.timing, start)
        if next_at is None or before.next_at is None or next_at >= before.next_at:
            return None
        coming = [at for at in islice(instants(before.timing, start), BACKFILL_MAX) if at < before.next_at]
        yield from self._taken_out(before, coming)
        rows = yield Rows(self._sql.take_back, (schedule_id, start))
        gone = sum(count for (count,) in rows)
        after = replace(before, next_at=next_at, due_at=core.due_of(before, next_at), skipped=before.skipped - gone)
        return (yield from self._swap(before, after, now))

    def prune(self, before_ms: int, at_most: int) -> Program[int]:
        """Forget rows that were over before then: and that they are forgotten is noted in the same transaction."""
        count = 0
        for schedule_id, upto in (yield Rows(self._sql.prunable, (before_ms, at_most))):
            found, _, _ = yield from self._lock_some((schedule_id,), None, 1)
            if found:
                yield Rows(self._sql.forgotten, (upto, schedule_id, upto))
                count += len((yield Rows(self._sql.prune, (schedule_id, upto, before_ms))))
        return count

    def _chat_asks(self, schedule: ScheduleRecord) -> Program[bool]:
        """Whether the chat that goes on waits: for a person, who would be answered by a schedule."""
        if schedule.chat != "same" or schedule.chat_id is None:
            return False
        found = yield Rows(self._sql.chat_state, (schedule.chat_id,))
        return bool(found) and found[0][0] == State.WAITING

    # --- carrying out -----------------------------------------------------------------------------------------------

    def _carry_out(
        self, before: ScheduleRecord, plan: Attendance, waited: frozenset[tuple[str, int, int]], now: int
    ) -> Program[Attended]:
        """The rows first: an instant whose row is there already fires nothing, and is not counted again."""
        same = yield from self._chat_that_goes_on(plan)
        fires = [_with_chat(fire, same) for fire in plan.fires]
        new = [fire.occurrence for fire in fires if key_of(fire.occurrence) not in waited]
        decided = (*plan.skipped, *plan.held, *new)
        there = (yield Put(decided)) if decided else set()
        skipped = [one for one in plan.skipped if key_of(one) in there]
        known = [fire for fire in fires if key_of(fire.occurrence) in there | waited]
        ends = yield from self._fire(plan.schedule, known, same, now)
        moved = (*plan.ended, *ends)
        if moved:
            yield Move(moved)
        fired = [one for one in ends if one.state is OccurrenceState.FIRED]
        refused = [one for one in ends if one.state is OccurrenceState.SKIPPED]
        told_before = sum(one.count for one in plan.skipped) - sum(one.count for one in skipped)
        schedule = replace(
            plan.schedule,
            fired=plan.schedule.fired - len(plan.fires) + len(fired),
            skipped=plan.schedule.skipped - told_before + len(refused),
            chat_id=fired[-1].chat_id if fired and plan.schedule.chat == "same" else plan.schedule.chat_id,
        )
        if _rows(schedule) // TRIMMED_EVERY != _rows(before) // TRIMMED_EVERY:
            schedule = yield from self._trimmed(schedule)
        if schedule != before:
            schedule = yield from self._swap(before, schedule, now)
        skipped += refused
        if skipped or plan.paused:
            yield Tell(notices_of(schedule, skipped, now, paused=plan.paused))
        return Attended(
            schedule=schedule,
            fired=tuple(fired),
            skipped=tuple(skipped),
            held=tuple(one for one in plan.held if key_of(one) in there),
            ended=plan.ended,
            paused=plan.paused,
            more=plan.more,
            now=now,
        )

    def _trimmed(self, schedule: ScheduleRecord) -> Program[ScheduleRecord]:
        """What goes beyond the newest KEPT_MAX rows, and the note that it is forgotten."""
        found = yield Rows(self._sql.oldest_kept, (schedule.id, KEPT_MAX))
        if not found:
            return schedule
        yield Rows(self._sql.trim, (schedule.id, found[0][0]))
        return replace(schedule, forgotten_to=max(schedule.forgotten_to, found[0][0] - 1))

    def _swap(self, before: ScheduleRecord, after: ScheduleRecord, now: int) -> Program[ScheduleRecord]:
        """Compare and swap: the row is locked, so a miss is a fault."""
        written = replace(after, stamp=new_stamp(), updated_at=now)
        if before.id not in (yield Swap(((before, written),))):
            raise moved_on(before)
        return written

    def _chat_that_goes_on(self, plan: Attendance) -> Program[str | None]:
        """None: a new one is made. One that was deleted is followed by another."""
        same = plan.schedule.chat_id if plan.schedule.chat == "same" else None
        if same is None or not plan.fires:
            return None
        return same if (yield Rows(self._sql.chat_state, (same,))) else None

    def _fire(
        self, schedule: ScheduleRecord, fires: Sequence[Fire], same: str | None, now: int
    ) -> Program[list[Occurrence]]:
        """Makes the chats, or sends. Returns each occurrence as it is then: fired, or skipped because refused."""
        answers: dict[str, Any] = {}
        new = []
        for fire in fires:
            occurrence = fire.occurrence
            message = _message(schedule, occurrence, now)
            for other_id, called_off in calling_off(fire, same):
                yield SendTo(other_id, called_off)  # what is over by now refuses, and that is well
            if same is None:
                new.append(new_chat(schedule, message, occurrence))
            else:
                answers[same] = yield SendTo(same, commands(fire, same, message))
        if new:
            answers = yield MakeChats(tuple(new))
        return [_ended_as(fire.occurrence, answers[str(fire.occurrence.chat_id)], same) for fire in fires]


def _reaches_other_chats(schedule: ScheduleRecord) -> bool:
    return schedule.chat == "same" or schedule.overlap == "cancel"


def _with_chat(fire: Fire, same: str | None) -> Fire:
    given = fire.occurrence
    occurrence = replace(given, chat_id=same or new_id("chat"), message_id=given.message_id or new_id("msg"))
    return replace(fire, occurrence=occurrence)


def _message(schedule: ScheduleRecord, occurrence: Occurrence, now: int) -> Message:
    return Message(
        id=str(occurrence.message_id),
        role=Role.USER,
        parts=(Text(text=message_at(schedule, occurrence.at)),),
        created_at=now,
        metadata=metadata_of(schedule, occurrence),
    )


def _ended_as(occurrence: Occurrence, answer: Answer | HoldfastError, same: str | None) -> Occurrence:
    if isinstance(answer, HoldfastError):
        words = str(answer)[:500].replace("\0", "\N{REPLACEMENT CHARACTER}")
        state = core.OCCURRENCES[core.OccurrenceMove.SKIP][occurrence.state]
        return replace(occurrence, state=state, reason="refused", detail=words, chat_id=same, fired_at=None)
    turn = answer.turn if answer.placed == "began" else None
    return replace(occurrence, turn=turn, seq=max(0, answer.seq - _LINES_BACK))


def _rows(schedule: ScheduleRecord) -> int:
    """Of its occurrences that were ever written, about."""
    return schedule.fired + schedule.skipped


def _members(schedule: ScheduleRecord, shared: Occurrence) -> list[int] | None:
    """The instants that a row of several tells of. None: it was another timing that had them."""
    found = list(
        islice(takewhile(lambda at: at <= shared.upto, instants(schedule.timing, shared.at - 1)), MEMBERS_MAX)
    )
    whole = len(found) == shared.count and found[0] == shared.at and found[-1] == shared.upto
    return found if whole else None


def _past_instants(schedule: ScheduleRecord, since: int, until: int) -> list[int]:
    found: list[int] = []
    for at in instants(schedule.timing, since - 1):
        if at > until or (schedule.next_at is not None and at >= schedule.next_at):
            break
        found.append(at)
        if len(found) > BACKFILL_MAX:
            raise InvalidInput("until", f"there are more than {BACKFILL_MAX:,} instants until then: backfill a part")
    return found
