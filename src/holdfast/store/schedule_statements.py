"""Schedules and occurrences as rows, and the statements on them. Each store's module `sql` makes its own of these:
`{}` is where a value goes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from holdfast.core import schedules as core
from holdfast.core.codec import encode
from holdfast.core.schedules import (
    Occurrence,
    OccurrenceState,
    ScheduleRecord,
    ScheduleState,
    Timing,
)
from holdfast.store.rows import Row
from holdfast.store.statements import marked

SEEN_MAX = 200  # fired occurrences that one look settles or finds open
LOOKED_AT_MAX = 2_000  # open occurrences whose chats one look for work asks
DUE_MAX = 1_000  # schedules that one look for work finds
FORGOTTEN_TOGETHER = 50

SCHEDULE_COLUMNS: tuple[str, ...] = ScheduleRecord.__struct_fields__
OCCURRENCE_COLUMNS: tuple[str, ...] = Occurrence.__struct_fields__
_TIMING = SCHEDULE_COLUMNS.index("timing")

_decode_timing = msgspec.json.Decoder(Timing).decode


def schedule_row(schedule: ScheduleRecord) -> Row:
    values = list(astuple(schedule))
    values[_TIMING] = encode(schedule.timing).decode()
    return tuple(values)


def schedule_of(row: Sequence[Any]) -> ScheduleRecord:
    values = dict(zip(SCHEDULE_COLUMNS, row, strict=True))
    values["timing"] = _decode_timing(values["timing"])
    values["state"] = ScheduleState(values["state"])
    return ScheduleRecord(**values)


def occurrence_of(row: Sequence[Any]) -> Occurrence:
    values = dict(zip(OCCURRENCE_COLUMNS, row, strict=True))
    values["state"] = OccurrenceState(values["state"])
    return Occurrence(**values)


def key_of(occurrence: Occurrence) -> tuple[str, int, int]:
    return occurrence.schedule_id, occurrence.at, occurrence.upto


def moving_row(occurrence: Occurrence) -> Row:
    """For the statement `move`."""
    return (
        *(getattr(occurrence, name) for name in MOVING),
        *(getattr(occurrence, name) for name in KEY),
    )


def swap_values(before: ScheduleRecord, after: ScheduleRecord) -> Row:
    """As SWAPPED_COLUMNS has them."""
    return (after.id, before.stamp, *(getattr(after, name) for name in ATTENDED_COLUMNS))


def swap_row(before: ScheduleRecord, after: ScheduleRecord) -> Row:
    """For the statement `swap`."""
    id, stamp, *values = swap_values(before, after)
    return (*values, id, stamp)


# --- statements ---


def columns_of(names: Sequence[str], table: str = "") -> str:
    return ", ".join(f"{table}.{name}" if table else name for name in names)


_SCHEDULE = f"SELECT {columns_of(SCHEDULE_COLUMNS)} FROM schedules WHERE"
_OCCURRENCE = f"SELECT {columns_of(OCCURRENCE_COLUMNS)} FROM occurrences WHERE"
_MARKS = ", ".join(["{}"] * len(OCCURRENCE_COLUMNS))
KEY = ("schedule_id", "at", "upto")
KEY_LENGTH = len(KEY)
MOVING = tuple(name for name in OCCURRENCE_COLUMNS if name not in KEY)
# What a look at a schedule changes of it.
ATTENDED_COLUMNS = (
    *("updated_at", "state", "paused_by", "note", "failures", "next_at", "due_at", "chat_id", "fired", "skipped"),
    *("stamp", "forgotten_to", "decided_to"),
)
SWAPPED_COLUMNS = ("id", "was_stamp", *ATTENDED_COLUMNS)

# What has become of the turn of a fired occurrence is told by its chat alone. `over`: there is something to settle.
_OVER = """
(chats.id IS NULL
 OR (occurrences.turn IS NOT NULL AND (chats.turn_started_at IS NULL OR chats.turn <> occurrences.turn))
 OR (occurrences.turn IS NULL AND NOT EXISTS (
    SELECT 1 FROM queue WHERE queue.chat_id = occurrences.chat_id AND queue.id = occurrences.message_id)))
"""

SEEN = f"""
SELECT {columns_of(OCCURRENCE_COLUMNS, "occurrences")},
       chats.id, chats.state, chats.turn, chats.turn_started_at, chats.cause,
       CASE WHEN {_OVER} THEN 1 ELSE 0 END AS is_over
FROM occurrences LEFT JOIN chats ON chats.id = occurrences.chat_id
WHERE occurrences.schedule_id = {{}} AND occurrences.state = 'fired'
ORDER BY is_over DESC, occurrences.at LIMIT {SEEN_MAX}
"""

# What there is to do, in one statement: the schedules that are due, and the next one; those with an occurrence
# whose turn is over; those with one that waits for nothing any more. The last two go round.
_LOOK = f"""
SELECT 'due', id, due_at FROM (
    SELECT id, due_at FROM schedules WHERE due_at <= {{}} ORDER BY due_at LIMIT {DUE_MAX}
) AS due
UNION ALL
SELECT 'due', id, due_at FROM (
    SELECT id, due_at FROM schedules WHERE due_at > {{}} ORDER BY due_at LIMIT 1
) AS next
UNION ALL
SELECT DISTINCT 'over', occurrences.schedule_id, 0 FROM (
    SELECT schedule_id, at, chat_id, message_id, turn FROM occurrences
    WHERE state = 'fired' AND schedule_id > {{}} ORDER BY schedule_id, at LIMIT {LOOKED_AT_MAX}
) AS occurrences LEFT JOIN chats ON chats.id = occurrences.chat_id WHERE {_OVER}
UNION ALL
SELECT 'open', max(schedule_id), count(*) FROM (
    SELECT schedule_id FROM occurrences WHERE state = 'fired' AND schedule_id > {{}}
    ORDER BY schedule_id, at LIMIT {LOOKED_AT_MAX}
) AS seen
UNION ALL
SELECT DISTINCT 'held', waiting.schedule_id, 0 FROM (
    SELECT schedule_id, kind, overlap FROM occurrences WHERE state = 'held' AND schedule_id > {{}}
    ORDER BY schedule_id, at LIMIT {LOOKED_AT_MAX}
) AS waiting JOIN schedules ON schedules.id = waiting.schedule_id
WHERE (waiting.kind <> 'scheduled' OR schedules.state <> 'paused') AND (waiting.overlap = 'allow' OR NOT EXISTS (
    SELECT 1 FROM occurrences AS others WHERE others.schedule_id = waiting.schedule_id AND others.state = 'fired'
))
UNION ALL
SELECT 'waiting', max(schedule_id), count(*) FROM (
    SELECT schedule_id FROM occurrences WHERE state = 'held' AND schedule_id > {{}}
    ORDER BY schedule_id, at LIMIT {LOOKED_AT_MAX}
) AS seen
"""

_PAGE = (
    f"{_SCHEDULE} (CAST({{}} AS TEXT) IS NULL OR owner = {{}}) AND (CAST({{}} AS TEXT) IS NULL OR id < {{}}) "
    "ORDER BY id DESC LIMIT {}"
)

# Those that are over: what is open or waits stays, however old.
_TRIM = "DELETE FROM occurrences WHERE schedule_id = {} AND state IN ('ended', 'skipped') AND at < {}"

# The schedules first, by their locks; what one deletes of them, it notes with them.
_PRUNABLE = """
SELECT schedule_id, max(upto) FROM (
    SELECT schedule_id, upto FROM occurrences WHERE state IN ('ended', 'skipped') AND decided_at < {}
    ORDER BY decided_at LIMIT {}
) AS old GROUP BY schedule_id ORDER BY schedule_id
"""

_PRUNE = """
DELETE FROM occurrences WHERE schedule_id = {} AND upto <= {} AND state IN ('ended', 'skipped') AND decided_at < {}
RETURNING at
"""

# Skipped instants that share a row.
_SHARED = f"""
{_OCCURRENCE} schedule_id = {{}} AND at <= {{}} AND upto >= {{}} AND upto > at AND state = 'skipped' ORDER BY at
"""

# What a clock that was ahead said of instants that are still to come.
_TAKE_BACK = """
DELETE FROM occurrences WHERE schedule_id = {} AND at > {} AND state = 'skipped' AND kind = 'scheduled'
AND reason IN ('late', 'superseded') RETURNING count
"""

# All rows of an instant are on one page.
_HISTORY = f"""
{_OCCURRENCE} schedule_id = {{}} AND (CAST({{}} AS BIGINT) IS NULL OR at < {{}}) AND at >= coalesce((
    SELECT at FROM occurrences WHERE schedule_id = {{}} AND (CAST({{}} AS BIGINT) IS NULL OR at < {{}})
    ORDER BY at DESC LIMIT 1 OFFSET {{}}
), 0) ORDER BY at DESC, upto DESC
"""

_BACKFILL = f"""
INSERT INTO occurrences ({columns_of(OCCURRENCE_COLUMNS)}) VALUES ({_MARKS})
ON CONFLICT (schedule_id, at, upto) DO UPDATE SET
    state = excluded.state, kind = excluded.kind, reason = NULL, detail = '', overlap = excluded.overlap,
    decided_at = excluded.decided_at
WHERE occurrences.state = 'skipped' RETURNING at
"""


class ScheduleStatements(NamedTuple):
    """The statements on schedules, with one store's marks."""

    insert: str
    update: str
    read: str
    lock: str
    lock_some: str
    swap: str
    lock_named: str
    count_of: str
    page: str
    declared: str
    of_owner: str
    remove: str
    remove_occurrences: str
    look: str
    seen: str
    held: str
    held_count: str
    counts: str
    put: str
    move: str
    by_message: str
    history: str
    read_occurrence: str
    backfill: str
    trim: str
    oldest_kept: str
    prunable: str
    prune: str
    forgotten: str
    shared: str
    drop: str
    take_back: str
    ahead: str
    keyed: str
    chat_state: str
    line_of: str
    entry_at: str
    ends: str


def schedule_statements(mark: str, *, lock: str, listed: str, now: str | None = None) -> ScheduleStatements:
    """`lock`: what a SELECT ends with to keep a row for its transaction, where writers are not alone anyway.
    `listed`: selects the texts of a JSON list. `now`: the server's clock, in ms, where there is one."""
    skip = f"{lock} SKIP LOCKED" if lock else ""
    columns = ", ".join(f"{name} = {{}}" for name in SCHEDULE_COLUMNS[1:])
    found = {
        "insert": f"INSERT INTO schedules ({columns_of(SCHEDULE_COLUMNS)}) "
        f"VALUES ({', '.join(['{}'] * len(SCHEDULE_COLUMNS))}) ON CONFLICT (id) DO NOTHING RETURNING id",
        "update": f"UPDATE schedules SET {columns} WHERE id = {{}} AND stamp = {{}} RETURNING id",
        "read": f"{_SCHEDULE} id = {{}}",
        "lock": f"{_SCHEDULE} id = {{}}{lock}",
        "lock_some": f"{_SCHEDULE} id IN ({listed}) AND (CAST({{}} AS BIGINT) IS NULL OR due_at <= {{}}) "
        f"ORDER BY due_at, id LIMIT {{}}{skip}",
        "swap": f"UPDATE schedules SET {', '.join(f'{name} = {{}}' for name in ATTENDED_COLUMNS)} "
        "WHERE id = {} AND stamp = {} RETURNING id",
        "lock_named": f"{_SCHEDULE} owner = {{}} AND name = {{}}{lock}",
        "count_of": "SELECT count(*) FROM schedules WHERE owner = {}",
        "page": _PAGE,
        "declared": f"{_SCHEDULE} source = {{}} AND source <> 'made' AND id > {{}} ORDER BY id LIMIT 1000{lock}",
        "of_owner": f"SELECT id FROM schedules WHERE owner = {{}} ORDER BY id LIMIT {FORGOTTEN_TOGETHER}{lock}",
        "remove": f"DELETE FROM schedules WHERE id = {{}} RETURNING {columns_of(SCHEDULE_COLUMNS)}",
        "remove_occurrences": "DELETE FROM occurrences WHERE schedule_id = {}",
        "look": _LOOK if now is None else f"SELECT 'now', '', {now} UNION ALL {_LOOK}",
        "seen": SEEN,
        "held": f"{_OCCURRENCE} schedule_id = {{}} AND state = 'held' "
        f"AND (kind <> 'scheduled' OR CAST({{}} AS TEXT) <> 'paused') ORDER BY at LIMIT {core.FIRES_TOGETHER_MAX}",
        "held_count": "SELECT count(*) FROM occurrences WHERE schedule_id = {} AND state = 'held'",
        "counts": " UNION ALL ".join(
            f"SELECT schedule_id, state, count(*) FROM occurrences "
            f"WHERE schedule_id IN ({listed}) AND state = '{state}' GROUP BY schedule_id, state"
            for state in ("fired", "held")
        ),
        "put": f"INSERT INTO occurrences ({columns_of(OCCURRENCE_COLUMNS)}) VALUES ({_MARKS}) "
        "ON CONFLICT (schedule_id, at, upto) DO NOTHING RETURNING at",
        "move": f"UPDATE occurrences SET {', '.join(f'{name} = {{}}' for name in MOVING)} "
        "WHERE schedule_id = {} AND at = {} AND upto = {}",
        "by_message": f"{_OCCURRENCE} kind = 'triggered' AND message_id = {{}}",
        "history": _HISTORY,
        "read_occurrence": f"{_OCCURRENCE} schedule_id = {{}} AND at = {{}} AND upto = {{}}",
        "backfill": _BACKFILL,
        "trim": _TRIM,
        "oldest_kept": "SELECT at FROM occurrences WHERE schedule_id = {} ORDER BY at DESC LIMIT 1 OFFSET {}",
        "prunable": _PRUNABLE,
        "prune": _PRUNE,
        "forgotten": "UPDATE schedules SET forgotten_to = {} WHERE id = {} AND forgotten_to < {}",
        "shared": _SHARED,
        "drop": "DELETE FROM occurrences WHERE schedule_id = {} AND at = {} AND upto = {}",
        "take_back": _TAKE_BACK,
        "ahead": "SELECT id FROM schedules WHERE due_at > {} AND decided_to > {} ORDER BY id LIMIT 1000",
        "keyed": f"{_SCHEDULE} id >= {{}} AND id <= {{}} ORDER BY id LIMIT 1",
        "chat_state": "SELECT state FROM chats WHERE id = {}",
        "line_of": "SELECT seq FROM journal WHERE chat_id = {} AND seq > {} AND ref = {} ORDER BY seq LIMIT 1",
        "entry_at": "SELECT body FROM journal WHERE chat_id = {} AND seq = {}",
        "ends": "SELECT body FROM journal WHERE chat_id = {} AND seq > {} AND body LIKE {} ORDER BY seq LIMIT 1",
    }
    return ScheduleStatements(**{name: marked(text, mark) for name, text in found.items()})
