"""What schedules are judged by, from outside: each instant was decided once, and each that fired has its one chat."""

import json
from collections import Counter
from collections.abc import Sequence

from holdfast import App, Occurrence, ScheduleRecord


async def whole_history(app: App, schedule_id: str) -> list[Occurrence]:
    """Oldest first."""
    found: list[Occurrence] = []
    before: int | None = None
    while page := await app.schedules.history(schedule_id, before=before, limit=1_000):
        found += page
        before = page[-1].at
    return found[::-1]


async def messages_sent(app: App, schedule_id: str) -> Counter[str]:
    """The instants that messages in chats name: how many messages there are for each, queued ones included."""
    found: Counter[str] = Counter()
    before: str | None = None
    while page := await app.chats(before=before, limit=500):
        for line in page:
            if json.loads(bytes(line.metadata)).get("schedule") == schedule_id:
                snapshot = await app.chat(line.id).snapshot()
                bodies = [json.loads(bytes(queued.body)) for queued in snapshot.queue]
                told = [
                    json.loads(bytes(one.metadata))
                    for one in await app.chat(line.id).messages()
                    if one.role == "user"
                ]
                told += [body.get("metadata") or {} for body in bodies]
                found.update(one["occurrence_at"] for one in told if one.get("schedule") == schedule_id)
        before = page[-1].id
    return found


async def judge(app: App, schedule: ScheduleRecord, every_ms: int) -> Counter[str]:
    """Of a schedule that every so many ms is due, and is paused now. Returns how its instants ended."""
    rows = await whole_history(app, schedule.id)
    covered: list[int] = []
    for row in rows:
        some = list(range(row.at, row.upto + 1, every_ms))
        assert len(some) == row.count, f"a row says {row.count} of {len(some)} instants"
        assert row.state != "skipped" or row.reason is not None
        assert row.count == 1 or row.state == "skipped"
        covered += some
    assert covered, "nothing was ever due"
    expected = list(range(covered[0], covered[-1] + 1, every_ms))
    assert covered == expected, f"instants that are missing, or there twice: {_differences(covered, expected)}"
    sent = await messages_sent(app, schedule.id)
    assert set(sent.values()) <= {1}, f"fired twice: {[at for at, count in sent.items() if count > 1]}"
    fired = [row for row in rows if row.fired_at is not None]
    assert len(sent) == len(fired), f"{len(fired)} occurrences fired, and {len(sent)} messages are there"
    assert schedule.fired == len(fired)
    return Counter(row.reason or row.outcome or str(row.state) for row in rows for _ in range(row.count))


def _differences(covered: Sequence[int], expected: Sequence[int]) -> list[int]:
    counted = Counter(covered)
    return [at for at in expected if counted[at] != 1][:10] + [at for at in covered if counted[at] > 1][:10]
