"""The tables of schedules: every pair decided; over simulated years each instant is fired once, or has a reason."""

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from holdfast.core import schedules as core
from holdfast.core.records import Cause, State
from holdfast.core.schedules import (
    FIRES_TOGETHER_MAX,
    HELD_MAX,
    OCCURRENCES,
    ON_TIME_MS,
    OVERLAPS,
    SCHEDULES,
    SKIPS_APART_MAX,
    Act,
    Attendance,
    Cron,
    Due,
    Every,
    Occurrence,
    OccurrenceMove,
    OccurrenceState,
    Overlap,
    ScheduleMove,
    ScheduleRecord,
    ScheduleState,
    Seen,
    Situation,
    attend,
    due_of,
    jitter_of,
    outcome_of,
)
from holdfast.timetable import due_now, instants, next_after

MINUTE = 60_000
DAY = 86_400_000
START = 1_767_225_600_000  # 2026


def schedule(**fields: object) -> ScheduleRecord:
    values: dict[str, object] = {
        "id": "sched_1",
        "name": "often",
        "agent": "echo",
        "timing": Every(ms=MINUTE),
        "message": "go",
        "created_at": START,
        "updated_at": START,
        "next_at": START + MINUTE,
        "due_at": START + MINUTE,
    }
    return ScheduleRecord(**(values | fields))  # type: ignore[arg-type]


def fired(at: int, **fields: object) -> Occurrence:
    values: dict[str, object] = {"schedule_id": "sched_1", "at": at, "upto": at, "state": OccurrenceState.FIRED}
    return Occurrence(**(values | {"decided_at": at, "chat_id": f"chat_{at}", "turn": 1} | fields))  # type: ignore[arg-type]


def held(at: int, **fields: object) -> Occurrence:
    return fired(at, **({"state": OccurrenceState.HELD, "chat_id": None, "turn": None} | fields))


def due(*instants: int, more: bool = False) -> Due:
    return Due(instants=instants, next_at=(instants[-1] if instants else START) + MINUTE, more=more)


def test_every_pair_of_the_tables_is_decided() -> None:
    assert set(SCHEDULES) == set(ScheduleMove)
    assert set(OCCURRENCES) == set(OccurrenceMove)
    assert set(OVERLAPS) == {"skip", "queue_one", "queue_all", "cancel", "allow"}
    for row in OVERLAPS.values():
        assert set(row) == set(Situation)
        assert row[Situation.FREE] is Act.FIRE
    refused = [(move, state) for move in ScheduleMove for state in ScheduleState if state not in SCHEDULES[move]]
    assert refused == [
        (ScheduleMove.PAUSE, ScheduleState.ENDED),
        (ScheduleMove.RESUME, ScheduleState.ENDED),
        (ScheduleMove.FAIL, ScheduleState.PAUSED),
        (ScheduleMove.FAIL, ScheduleState.ENDED),
        (ScheduleMove.UNDECLARE, ScheduleState.PAUSED),
        (ScheduleMove.UNDECLARE, ScheduleState.ENDED),
        (ScheduleMove.RUN_OUT, ScheduleState.PAUSED),
        (ScheduleMove.RUN_OUT, ScheduleState.ENDED),
    ]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("situation", Situation)
def test_an_instant_does_what_the_policy_says(overlap: Overlap, situation: Situation) -> None:
    seen = [Seen(occurrence=fired(START))] if situation is not Situation.FREE else []
    waiting = [held(START + 1)] if situation is Situation.WAITING else []
    at = START + MINUTE
    done = attend(schedule(overlap=overlap), seen, waiting, due(at), at)
    act = OVERLAPS[overlap][situation]
    at_once = [fire.occurrence.at for fire in done.fires if fire.occurrence.at == at]
    assert at_once == ([at] if act in (Act.FIRE, Act.CANCEL) else [])
    assert [one.at for one in done.held] == ([at] if act is Act.HOLD else [])
    assert [(one.at, one.reason) for one in done.skipped] == ([(at, "overlap")] if act is Act.SKIP else [])
    assert done.schedule.next_at == at + MINUTE
    if act is Act.CANCEL:
        assert [one.occurrence.at for one in done.fires[-1].cancels] == [START]


def test_what_is_found_behind_the_catch_up_window_is_skipped_as_late() -> None:
    at = START + MINUTE
    on_time = attend(schedule(catch_up_ms=15_000), [], [], due(at), at + 15_000)
    late = attend(schedule(catch_up_ms=15_000), [], [], due(at), at + 15_001)
    assert [fire.occurrence.at for fire in on_time.fires] == [at]
    assert [(one.at, one.reason) for one in late.skipped] == [(at, "late")]
    assert (late.schedule.fired, late.schedule.skipped) == (0, 1)


def test_without_a_catch_up_window_what_is_found_at_its_time_fires() -> None:
    at = START + MINUTE
    for found_at, count in ((at, 1), (at + ON_TIME_MS, 1), (at + ON_TIME_MS + 1, 0)):
        assert len(attend(schedule(catch_up_ms=0), [], [], due(at), found_at).fires) == count


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "cancel"])
def test_of_several_that_are_due_at_once_only_the_newest_fires(overlap: Overlap) -> None:
    found = [START + n * MINUTE for n in range(1, 4)]
    done = attend(schedule(overlap=overlap), [], [], due(*found), found[-1])
    assert [fire.occurrence.at for fire in done.fires] == found[-1:]
    assert [(one.at, one.reason) for one in done.skipped] == [(at, "superseded") for at in found[:-1]]
    unfinished = attend(schedule(overlap=overlap), [], [], due(*found, more=True), found[-1] + MINUTE)
    assert unfinished.fires == ()
    assert unfinished.more


def test_what_does_not_fit_into_one_transaction_stays_due() -> None:
    found = [START + n * MINUTE for n in range(1, FIRES_TOGETHER_MAX + 4)]
    done = attend(schedule(overlap="allow"), [], [], due(*found), found[-1])
    assert [fire.occurrence.at for fire in done.fires] == found[:FIRES_TOGETHER_MAX]
    assert (done.schedule.next_at, done.more) == (found[FIRES_TOGETHER_MAX], True)
    in_one_chat = attend(schedule(overlap="allow", chat="same"), [], [], due(*found), found[-1])
    assert len(in_one_chat.fires) == 1


def test_many_that_are_skipped_at_once_share_a_row_that_counts_them() -> None:
    found = [START + n * MINUTE for n in range(1, SKIPS_APART_MAX + 51)]
    done = attend(schedule(), [], [], due(*found), found[-1] + DAY)
    shared, *apart = done.skipped
    assert (shared.at, shared.upto, shared.count) == (found[0], found[49], 50)
    assert [one.at for one in apart] == found[50:]
    assert done.schedule.skipped == len(found)


def test_waiting_ones_go_when_nothing_is_open_the_oldest_first_and_one_at_a_time() -> None:
    waiting = [held(START), held(START + 1)]
    busy = attend(schedule(overlap="queue_all"), [Seen(occurrence=fired(START - 1))], waiting, due(), START)
    free = attend(
        schedule(overlap="queue_all"), [Seen(occurrence=fired(START - 1), outcome="done")], waiting, due(), START
    )
    assert busy.fires == ()
    assert [fire.occurrence.at for fire in free.fires] == [START]
    assert [one.outcome for one in free.ended] == ["done"]


def test_while_a_schedule_is_paused_only_what_a_person_asked_for_goes() -> None:
    waiting = [held(START), held(START + 1, kind="backfill")]
    done = attend(schedule(state=ScheduleState.PAUSED, next_at=None, due_at=None), [], waiting, Due(), START)
    assert [fire.occurrence.kind for fire in done.fires] == ["backfill"]


def test_no_more_than_so_many_wait() -> None:
    at = START + MINUTE
    seen = [Seen(occurrence=fired(START))]
    done = attend(schedule(overlap="queue_all"), seen, [held(START)], due(at), at, held_count=HELD_MAX)
    assert [one.reason for one in done.skipped] == ["queue_full"]


def test_a_chat_that_waits_for_a_person_is_not_answered_by_a_schedule() -> None:
    at = START + MINUTE
    for overlap in ("skip", "queue_one", "queue_all", "allow", "cancel"):
        done = attend(schedule(overlap=overlap, chat="same"), [], [], due(at), at, chat_asks=True)
        assert [one.at for one in done.held] == [at]
        assert done.fires == ()
    waits = attend(schedule(chat="same"), [], [held(START)], due(at), at, chat_asks=True)
    assert [one.reason for one in waits.skipped] == ["overlap"]


def test_failures_in_a_row_pause_a_schedule_and_a_success_begins_the_count_anew() -> None:
    def ended(*outcomes: str, failures: int = 0) -> Attendance:
        seen = [Seen(occurrence=fired(START + n), outcome=outcome) for n, outcome in enumerate(outcomes)]  # type: ignore[arg-type]
        return attend(schedule(pause_after=3, failures=failures), seen, [], due(START + MINUTE), START + MINUTE)

    assert ended("failed", "budget").schedule.failures == 2
    assert ended("failed", "done", "failed").schedule.failures == 1
    assert ended("stopped", failures=2).schedule.failures == 2
    third = ended("deadline", failures=2)
    assert (third.schedule.state, third.schedule.paused_by, third.paused) == (ScheduleState.PAUSED, "failures", True)
    assert "3 failures" in third.schedule.note
    assert (third.schedule.due_at, third.fires) == (None, ())


def test_how_a_turn_ended_is_told_by_its_state_and_its_cause() -> None:
    assert outcome_of(State.IDLE, None) == "done"
    assert outcome_of(State.FAILED, Cause.CRASH) == "failed"
    assert [outcome_of(State.IDLE, cause) for cause in Cause] == [
        *("stopped", "stopped", "superseded", "stopped", "stopped", "deadline", "failed", "budget")
    ]


def test_a_schedule_without_a_further_instant_has_ended() -> None:
    done = attend(schedule(), [], [], Due(instants=(START,), next_at=None), START)
    assert (done.schedule.state, done.schedule.due_at, len(done.fires)) == (ScheduleState.ENDED, None, 1)


def test_jitter_is_the_same_for_every_worker_and_lies_within_its_bound() -> None:
    found = [jitter_of("sched_1", START + n * MINUTE, 10_000) for n in range(1_000)]
    assert found == [jitter_of("sched_1", START + n * MINUTE, 10_000) for n in range(1_000)]
    assert min(found) >= 0
    assert max(found) < 10_000
    assert len(set(found)) > 900
    assert jitter_of("sched_1", START, 0) == 0
    assert jitter_of("sched_1", START, 10_000) != jitter_of("sched_2", START, 10_000)


# --- years ----------------------------------------------------------------------------------------------------------


class Life:
    """A schedule over years of simulated time: workers look when chance wants it, and turns take as long."""

    def __init__(self, timing: core.Timing, overlap: Overlap, seed: int, **fields: object) -> None:
        first = next_after(timing, START)
        assert first is not None
        self.dice = random.Random(seed)
        self.now = START
        made = schedule(timing=timing, overlap=overlap, next_at=first, **fields)
        self.schedule = replace(made, due_at=due_of(made, first))
        self.open: dict[int, int] = {}  # instant -> when its turn ends
        self.held: dict[int, Occurrence] = {}
        self.decided: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()

    def look(self) -> None:
        seen = [
            Seen(occurrence=fired(at), outcome="done" if ends <= self.now else None) for at, ends in self.open.items()
        ]
        waiting = [self.held[at] for at in sorted(self.held)][:FIRES_TOGETHER_MAX]
        found = due_now(self.schedule, self.now)
        done = attend(self.schedule, seen, waiting, found, self.now, held_count=len(self.held))
        for one in done.ended:
            del self.open[one.at]
        for one in done.skipped:
            covered = [at for at in found.instants if one.at <= at <= one.upto]
            assert len(covered) == one.count
            self.decided.update(covered)
            self.reasons[str(one.reason)] += one.count
        for one in done.held:
            self.decided[one.at] += 1
            self.held[one.at] = one
        for fire in done.fires:
            at = fire.occurrence.at
            if self.held.pop(at, None) is None:
                self.decided[at] += 1
            for cancelled in fire.cancels:
                self.open[cancelled.occurrence.at] = self.now
            assert at not in self.open
            self.open[at] = self.now + self.dice.randrange(1_000, 4 * 3_600_000)
            self.reasons["fired"] += 1
            if self.schedule.overlap in ("skip", "queue_one", "queue_all"):
                assert len(self.open) == 1
        assert (
            done.schedule.next_at is None
            or self.schedule.next_at is None
            or done.schedule.next_at >= self.schedule.next_at
        )
        self.schedule = done.schedule
        if done.more:
            self.look()

    def live(self, years: int) -> None:
        """A look every hour or so; now and then nobody looks for days; and the clock is set back, too."""
        end = START + years * 365 * DAY
        while self.now < end:
            self.look()
            chance = self.dice.random()
            step = (
                self.dice.randrange(3 * DAY, 9 * DAY) if chance < 0.01 else self.dice.randrange(MINUTE, 2 * 3_600_000)
            )
            self.now += -step if chance > 0.98 else step
        self.now = end
        self.look()


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize(
    ("timing", "jitter_ms"),
    [
        (Cron(expression="30 2 * * *", zone="Europe/Berlin"), 0),
        (Cron(expression="*/30 1-2 * * 0", zone="America/New_York"), 90 * MINUTE),
        (Every(ms=7 * 3_600_000), 3_600_000),
    ],
)
def test_over_years_each_instant_is_decided_exactly_once(
    overlap: Overlap, timing: core.Timing, jitter_ms: int
) -> None:
    life = Life(timing, overlap, seed=7, jitter_ms=jitter_ms, catch_up_ms=6 * 3_600_000)
    life.live(years=3)
    expected = []
    for at in instants(timing, START):
        if at >= (life.schedule.next_at or 0):
            break
        expected.append(at)
    assert sorted(life.decided) == expected
    assert set(life.decided.values()) == {1}
    assert life.reasons["fired"] > 50
    assert life.schedule.fired == life.reasons["fired"]
    assert life.reasons["late"] > 0
