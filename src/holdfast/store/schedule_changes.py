"""Programs of schedules: what people and declarations do to them. See `schedule_steps.py`."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import schedules as core
from holdfast.core.schedules import Occurrence, ScheduleMove, ScheduleRecord, ScheduleState, Source, due_of
from holdfast.errors import ConfigError, InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.ids import new_id, new_stamp
from holdfast.store.schedule_messages import notices_of
from holdfast.store.schedule_records import Declared, NewSchedule
from holdfast.store.schedule_statements import key_of, schedule_of, schedule_row
from holdfast.store.schedule_steps import SCHEDULES, Now, Program, Programs, Put, Ring, Rows, Tell
from holdfast.timetable import LEFT_OUT_MAX, due_now, next_after

_ASKED = tuple(name for name in NewSchedule.__struct_fields__ if name not in ("name", "owner"))


class Changes(Programs):
    def create(
        self, schedule_id: str, new: NewSchedule, source: Source, by: str, asked_as: str
    ) -> Program[ScheduleRecord]:
        """Ids that begin with `asked_as` are of the same request, or of another one under its key: that is returned
        then, and the caller finds another id.
        """
        now = yield Now()
        if found := (yield Rows(self._sql.keyed, (asked_as, f"{asked_as}~"))):
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

    def change(self, schedule_id: str, new: NewSchedule) -> Program[ScheduleRecord]:
        now = yield Now()
        before = yield from self._locked(schedule_id)
        _check_made(before)
        if new.name != before.name and (yield Rows(self._sql.lock_named, (before.owner, new.name))):
            raise InvalidInput("name", f"there is a schedule {new.name!r} already: give this one another name")
        after = changed(replace(before, name=new.name), new, now)
        if after.state is ScheduleState.ENDED:
            raise InvalidInput("at", "is in the past: give an instant that is still to come")
        written = yield from self._write_change(before, after, now)
        yield Ring((SCHEDULES,))
        return written

    def pause(self, schedule_id: str, note: str) -> Program[ScheduleRecord]:
        now = yield Now()
        before = yield from self._locked(schedule_id)
        return (yield from self._write_change(before, paused(before, "person", note), now))

    def _write_change(self, before: ScheduleRecord, after: ScheduleRecord, now: int) -> Program[ScheduleRecord]:
        """What was due, and that nobody decides any more, is skipped with the reason."""
        skipped: tuple[Occurrence, ...] = ()
        if before.state is ScheduleState.ACTIVE and after.next_at != before.next_at:
            reason: core.SkipReason = "paused" if after.state is ScheduleState.PAUSED else "changed"
            decided = core.together(_left_out(before, now, reason))
            written = (yield Put(decided)) if decided else set()
            skipped = tuple(one for one in decided if key_of(one) in written)
            count = sum(one.count for one in skipped)
            last = max((one.upto for one in decided), default=0)
            after = replace(after, skipped=after.skipped + count, decided_to=max(after.decided_to, last))
        schedule = yield from self._write(before, after, now)
        if skipped:
            yield Tell(notices_of(schedule, skipped, now, paused=False))
        return schedule

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

    def remove(self, schedule_id: str, before: list[ScheduleRecord]) -> Program[ScheduleRecord]:
        """Its chats stay. `before`: what earlier tries of this call found, whose end is unknown."""
        found = yield Rows(self._sql.lock, (schedule_id,))
        if not found and before:
            return before[-1]
        if not found:
            raise NotFound("schedule", schedule_id)
        removed = schedule_of(found[0])
        before.append(removed)
        yield Rows(self._sql.remove_occurrences, (schedule_id,))
        yield Rows(self._sql.remove, (schedule_id,))
        return removed

    def forget(self, owner: str) -> Program[int]:
        found = yield Rows(self._sql.of_owner, (owner,))
        for (schedule_id,) in found:
            yield Rows(self._sql.remove_occurrences, (schedule_id,))
            yield Rows(self._sql.remove, (schedule_id,))
        return len(found)

    def declare(self, source: Source, agents: frozenset[str], wanted: Sequence[NewSchedule]) -> Program[Declared]:
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
                yield from self._write_change(before, after, now)
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
                    left = paused(before, "undeclared", f"no longer declared in {where}")
                    yield from self._write_change(before, left, now)
                    gone.append(before.name)
        return tuple(gone)


def started(schedule: ScheduleRecord, now: int) -> ScheduleRecord:
    """Active from now on: what lies behind is not made up for. Without an instant to come it has ended."""
    next_at = next_after(schedule.timing, max(now, schedule.forgotten_to))
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


def _left_out(before: ScheduleRecord, now: int, reason: core.SkipReason) -> list[Occurrence]:
    due = due_now(before, now, LEFT_OUT_MAX)
    found = core.left_out(before, due, now, reason)
    if due.more and due.next_at is not None:  # after a very long time without a worker: one row for the rest
        rest = replace(found[-1], at=due.next_at, upto=now, detail="and all until then")
        found.append(rest)
    return found


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
