"""What has become of the turns of fired occurrences, as their chats tell it. Part of the programs of schedules."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.codec import decode_entry
from holdfast.core.journal import TurnEnded, TurnStarted
from holdfast.core.records import Cause, State
from holdfast.core.schedules import Occurrence, Outcome, Seen, outcome_of
from holdfast.store.schedule_statements import OCCURRENCE_COLUMNS, ScheduleStatements, occurrence_of
from holdfast.store.schedule_steps import FiredOf, Move, Program, Rows


def seen_of(sql: ScheduleStatements, schedule_id: str) -> Program[list[Seen]]:
    """The fired occurrences of a schedule, the oldest first."""
    found = yield FiredOf((schedule_id,))
    width = len(OCCURRENCE_COLUMNS)
    seen = []
    for row in found.get(schedule_id, ()):
        seen.append((yield from _seen_one(sql, occurrence_of(row[:width]), row[width:])))
    return sorted(seen, key=lambda one: one.occurrence.at)


def _seen_one(sql: ScheduleStatements, occurrence: Occurrence, chat: Sequence[Any]) -> Program[Seen]:
    chat_id, state, turn, turn_started_at, cause, over = chat
    if chat_id is None:
        return Seen(occurrence=occurrence, outcome="deleted")
    if not over:
        return Seen(occurrence=occurrence, queued=occurrence.turn is None)
    if occurrence.turn is None:
        number = yield from _turn_of(sql, occurrence)
        if number is None:
            return Seen(occurrence=occurrence, outcome="withdrawn")
        occurrence = replace(occurrence, turn=number)
        yield Move((occurrence,))
    if turn == occurrence.turn:
        if turn_started_at is not None:
            return Seen(occurrence=occurrence)
        return Seen(occurrence=occurrence, outcome=outcome_of(State(state), Cause(cause) if cause else None))
    outcome = yield from _outcome_of(sql, occurrence)
    return Seen(occurrence=occurrence, outcome=outcome)


def _turn_of(sql: ScheduleStatements, occurrence: Occurrence) -> Program[int | None]:
    """That took its message, which was queued. None: none ever will."""
    chat_id, message_id = occurrence.chat_id, occurrence.message_id
    found = yield Rows(sql.line_of, (chat_id, occurrence.seq, message_id))
    if not found:
        return None
    before = yield Rows(sql.entry_at, (chat_id, found[0][0] - 1))
    entry = decode_entry(before[0][0]) if before else None
    return entry.turn if isinstance(entry, TurnStarted) else None


def _outcome_of(sql: ScheduleStatements, occurrence: Occurrence) -> Program[Outcome]:
    """Of a turn behind which others have begun: its end is in the journal."""
    start = f'{{"kind":"turn.ended","turn":{occurrence.turn},%'
    found = yield Rows(sql.ends, (occurrence.chat_id, occurrence.seq, start))
    entry = decode_entry(found[0][0]) if found else None
    if not isinstance(entry, TurnEnded):
        return "superseded"
    return outcome_of(entry.state, entry.cause)
