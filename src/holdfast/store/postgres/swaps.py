"""The writes of chats as statements: compare and swap, and everything that comes with it, in one round trip.

A statement in autocommit is a transaction of its own, so a runner's commit needs no BEGIN and no COMMIT: it locks the
chat's row if it is still the one that the change was decided on, updates it, and adds journal entries, calls and
queued messages. Rows that moved on, and rows that another transaction holds locked, are passed over (SKIP LOCKED):
what was swapped is answered, the rest is the caller's to look at again, and no commit waits for another's chat.

One chat goes as plain values, several as JSON arrays: for one chat values take the server half the time (110 µs
against 195), for a batch it is the other way round. Statements differ only in which parts they have, so a few dozen
texts are ever prepared.

Within one statement all parts see the same moment, so parts that would see each other's rows do not belong here:
history cuts and compactions are statements of their own, before and after.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import Struct
from psycopg import pq

from holdfast.core.records import Call, ChatRecord
from holdfast.store.decisions import ChatWrite
from holdfast.store.notices import FOR_EACH_HOOK, HEARS, INTO_DELIVERIES, NOTICE_COLUMNS
from holdfast.store.rows import (
    CALL_COLUMNS,
    CHAT_COLUMNS,
    MOVING_COLUMNS,
    SPENDING_COLUMNS,
    STEP_COLUMNS,
    call_row,
    chat_row,
    moves_only_a_step,
    moving_row,
    step_of,
)

# Beyond these, one chat goes as a batch of one.
LINES_MAX = 3
CALLS_MAX = 3
SPENDING_MAX = 3

LINE_COLUMNS = ("seq", "stamp", "at", "role", "pos", "ref", "body")
SETTLED_COLUMNS = ("chat_id", "reservation")
QUEUE_COLUMNS = ("chat_id", "id", "rank", "mode", "body")

_GUARD = ("id", "was_stamp", "was_version", "ended")
SWAP_COLUMNS = (*_GUARD, *MOVING_COLUMNS)
SWAP_STEP_COLUMNS = (*_GUARD, *STEP_COLUMNS)

_JSON_LINE = ("chat_id", *LINE_COLUMNS)
_JSON_CALL = ("chat_id", *CALL_COLUMNS)
_CALL_KEY = ("batch", "pos")
_CALL_VALUES = tuple(name for name in CALL_COLUMNS if name not in _CALL_KEY)


def _type(annotation: Any) -> str:
    kinds = get_args(annotation) or (annotation,)
    known = {bool: "boolean", int: "bigint", float: "double precision"}
    return next((known[kind] for kind in kinds if kind in known), "text")


_TYPES = {field.name: _type(field.type) for struct in (Call, ChatRecord) for field in msgspec.structs.fields(struct)}
_TYPES |= dict.fromkeys(("chat_id", "role", "ref", "body", "mode", "notice_id", "kind", "data"), "text")
_TYPES |= dict.fromkeys(("owner", "account", "day", "id", "agent", "model", "reservation"), "text")
_TYPES |= {"tokens": "bigint", "cost": "double precision"}
_TYPES |= dict.fromkeys(("at", "rank", "ended", "was_stamp", "was_version"), "bigint")


class Statement(Struct, frozen=True, gc=False):
    name: bytes  # what it is prepared under
    text: bytes
    counts: bool  # the answer is how many rows were written; else the ids of chats


class SwapQuestion(Struct, gc=False):
    statement: Statement
    values: list[bytes | None]
    ids: list[str]

    def written(self, answer: pq.abc.PGresult) -> set[str]:
        """The ids of the chats that were written."""
        if self.statement.counts:
            return set(self.ids) if answer.command_tuples else set()
        return {(answer.get_value(n, 0) or b"").decode() for n in range(answer.ntuples)}


def is_plain(write: ChatWrite) -> bool:
    """Whether one statement can do it."""
    return write.before is not None and write.cut_from is None and write.compaction is None and not write.kept


def swap(writes: Sequence[ChatWrite]) -> SwapQuestion:
    ids = [write.after.id for write in writes]
    if len(writes) == 1:
        write = writes[0]
        small = 1 <= len(write.journal) <= LINES_MAX and len(write.calls) <= CALLS_MAX
        small = small and len(write.spending) <= SPENDING_MAX and len(write.settled) <= 1
        if small and not write.queue_put and not write.queue_drop:
            return _one(write, ids)
    whole = not all(map(_is_step, writes))
    ended = any(write.ended_attempt is not None for write in writes)
    rows = (
        _json(SWAP_COLUMNS, map(_guarded, writes)) if whole else _json(SWAP_STEP_COLUMNS, map(_guarded_step, writes))
    )
    return _with_parts("swap" if whole else "step", ended, rows, writes, ids)


def insert(writes: Sequence[ChatWrite]) -> SwapQuestion:
    """New chats. Fails if there is one with such an id."""
    rows = _json(CHAT_COLUMNS, (chat_row(write.after) for write in writes))
    return _with_parts("insert", False, rows, writes, [write.after.id for write in writes])


def _is_step(write: ChatWrite) -> bool:
    assert write.before is not None
    return moves_only_a_step(moving_row(write.before), moving_row(write.after))


# --- one chat, as values --------------------------------------------------------------------------------------------


def _one(write: ChatWrite, ids: list[str]) -> SwapQuestion:
    before, after = write.before, write.after
    assert before is not None
    moved = moving_row(after)
    whole = not moves_only_a_step(moving_row(before), moved)
    values = [after.id, before.stamp, before.version, *(moved if whole else step_of(moved))]
    new_calls = old_calls = 0
    for call in write.calls:
        if call.batch != before.batch:
            values += call_row(call)
            new_calls += 1
    for call in write.calls:
        if call.batch == before.batch:
            values += call_row(call)
            old_calls += 1
    if write.ended_attempt is not None:
        values.append(write.ended_attempt)
    for notice in write.notices:
        values += notice
    for spent in write.spending:
        values += spent
    values += write.settled
    for line in write.journal:
        values += line
    counts = (new_calls, old_calls, len(write.notices), len(write.spending), len(write.journal))
    ended, settles = write.ended_attempt is not None, bool(write.settled)
    statement = _one_statement(whole, *counts, ended=ended, settles=settles)
    return SwapQuestion(statement, list(map(_text, values)), ids)


class _Marks:
    """Hands out $1, $2, … with their types."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, column: str) -> str:
        self._count += 1
        return f"${self._count}::{_TYPES[column]}"

    def rows(self, columns: Sequence[str], count: int) -> str:
        rows = ", ".join(f"({', '.join(map(self, columns))})" for _ in range(count))
        return f"(VALUES {rows}) AS given({', '.join(columns)})"


@cache
def _one_statement(
    whole: bool, new_calls: int, old_calls: int, notices: int, spent: int, lines: int, *, ended: bool, settles: bool
) -> Statement:
    """The journal comes last: how many entries it took says whether the chat was swapped."""
    mark = _Marks()
    # Older code beside us leaves the stamp as it was, but not the version.
    guard = f"id = {mark('id')} AND stamp = {mark('stamp')} AND version = {mark('version')}"
    columns = MOVING_COLUMNS if whole else STEP_COLUMNS
    text = (
        f"WITH swapped AS (UPDATE chats SET {', '.join(f'{name} = {mark(name)}' for name in columns)} "
        f"WHERE ctid = (SELECT ctid FROM chats WHERE {guard} FOR NO KEY UPDATE SKIP LOCKED) RETURNING id)"
    )
    if new_calls:
        given = f"swapped, {mark.rows(CALL_COLUMNS, new_calls)}"
        text += f", asked AS (INSERT INTO calls {_into_calls('$1', given)})"
    if old_calls:
        changed = ", ".join(f"{name} = given.{name}" for name in _CALL_VALUES)
        text += (
            f", moved AS (UPDATE calls SET {changed} FROM swapped, {mark.rows(CALL_COLUMNS, old_calls)} "
            "WHERE calls.chat_id = $1 AND calls.batch = given.batch AND calls.pos = given.pos)"
        )
    if ended:
        text += f", over AS (DELETE FROM deltas USING swapped WHERE chat_id = $1 AND attempt = {mark('ended')})"
    if notices:
        given = f"swapped CROSS JOIN {mark.rows(NOTICE_COLUMNS, notices)}"
        text += f", told AS ({INTO_DELIVERIES}{FOR_EACH_HOOK} FROM {given} JOIN webhooks AS hook ON {HEARS})"
    if spent:
        given = f"swapped, {mark.rows(SPENDING_COLUMNS, spent)}"
        text += f", spent AS (INSERT INTO spending {_into_spending(given)})"
    if settles:
        text += f", settled AS (DELETE FROM reservations USING swapped WHERE reservations.id = {mark('reservation')})"
    text += f" INSERT INTO journal {_into_journal('$1', f'swapped, {mark.rows(LINE_COLUMNS, lines)}')}"
    name = f"hf_one_{whole:d}{new_calls}{old_calls}{ended:d}{notices}{spent}{settles:d}{lines}"
    return Statement(name.encode(), text.encode(), counts=True)


def _into_journal(chat_id: str, source: str) -> str:
    given = ", ".join(f"given.{name}" for name in LINE_COLUMNS)
    return f"(chat_id, {', '.join(LINE_COLUMNS)}) SELECT {chat_id}, {given} FROM {source}"


def _into_spending(source: str) -> str:
    given = ", ".join(f"given.{name}" for name in SPENDING_COLUMNS)
    return f"({', '.join(SPENDING_COLUMNS)}) SELECT {given} FROM {source}"


def _into_calls(chat_id: str, source: str) -> str:
    given = ", ".join(f"given.{name}" for name in CALL_COLUMNS)
    return f"(chat_id, {', '.join(CALL_COLUMNS)}) SELECT {chat_id}, {given} FROM {source}"


def _text(value: Any) -> bytes | None:
    """PostgreSQL's text form. A NUL, which its text cannot hold, becomes the sign for "unreadable"."""
    if value is None:
        return None
    kind = value.__class__
    if kind is int:
        return b"%d" % value
    if kind is bool:
        return b"t" if value else b"f"
    if kind is float:
        return repr(value).encode()
    text: bytes = value.encode()
    return text.replace(b"\0", b"\xef\xbf\xbd") if b"\0" in text else text


# --- several chats, as JSON -----------------------------------------------------------------------------------------


def _guarded(write: ChatWrite) -> tuple[Any, ...]:
    return (*_guard(write), *moving_row(write.after))


def _guarded_step(write: ChatWrite) -> tuple[Any, ...]:
    return (*_guard(write), *step_of(moving_row(write.after)))


def _guard(write: ChatWrite) -> tuple[Any, ...]:
    before = write.before
    assert before is not None
    return (before.id, before.stamp, before.version, write.ended_attempt)


def _with_parts(verb: str, ended: bool, chats: bytes, writes: Sequence[ChatWrite], ids: list[str]) -> SwapQuestion:
    lines = [(write.after.id, *line) for write in writes for line in write.journal]
    calls = [(write.after.id, *call_row(call)) for write in writes for call in write.calls]
    put = [
        (write.after.id, queued.id, queued.rank, queued.mode, bytes(queued.body).decode())
        for write in writes
        for queued in write.queue_put
    ]
    # Within one statement a row cannot be dropped and put again: putting replaces it.
    kept = {(row[0], row[1]) for row in put}
    drop = [(write.after.id, id) for write in writes for id in write.queue_drop if (write.after.id, id) not in kept]
    notices = [notice for write in writes for notice in write.notices]
    spent = [row for write in writes for row in write.spending]
    settled = [(write.after.id, reservation) for write in writes for reservation in write.settled]
    parts = [bool(rows) for rows in (lines, calls, put, drop, notices, spent, settled)]
    statement = _several_statement(verb, ended, *parts)
    values: list[bytes | None] = [chats]
    if lines:
        values.append(_json(_JSON_LINE, lines))
    if calls:
        values.append(_json(_JSON_CALL, calls))
    if put:
        values.append(_json(QUEUE_COLUMNS, put))
    if drop:
        values.append(_json(QUEUE_COLUMNS[:2], drop))
    if notices:
        values.append(_json(NOTICE_COLUMNS, notices))
    if spent:
        values.append(_json(SPENDING_COLUMNS, spent))
    if settled:
        values.append(_json(SETTLED_COLUMNS, settled))
    return SwapQuestion(statement, values, ids)


@cache
def _several_statement(
    verb: str,
    ended: bool,
    lines: bool,
    calls: bool,
    put: bool,
    drop: bool,
    notices: bool,
    spent: bool,
    settled: bool,
) -> Statement:
    match verb:
        case "swap":
            text = f"WITH held AS MATERIALIZED ({_hold(SWAP_COLUMNS)}), {_swapped(MOVING_COLUMNS)}"
        case "step":
            text = f"WITH held AS MATERIALIZED ({_hold(SWAP_STEP_COLUMNS)}), {_swapped(STEP_COLUMNS)}"
        case _:
            text = f"WITH {_made()}"
    count = 1

    def given(columns: Sequence[str]) -> str:
        nonlocal count
        count += 1
        return f"{_recordset(count, columns)} JOIN swapped ON swapped.id = given.chat_id"

    if lines:
        source = given(_JSON_LINE)
        text += f", lines AS (INSERT INTO journal {_into_journal('given.chat_id', source)})"
    if calls:
        source = given(_JSON_CALL)
        changed = ", ".join(f"{name} = excluded.{name}" for name in _CALL_VALUES)
        text += (
            f", asked AS (INSERT INTO calls {_into_calls('given.chat_id', source)} "
            f"ON CONFLICT (chat_id, batch, pos) DO UPDATE SET {changed})"
        )
    if put:
        columns = ", ".join(QUEUE_COLUMNS)
        text += (
            f", queued AS (INSERT INTO queue ({columns}) "
            f"SELECT {', '.join(f'given.{name}' for name in QUEUE_COLUMNS)} FROM {given(QUEUE_COLUMNS)} "
            "ON CONFLICT (chat_id, id) "
            "DO UPDATE SET rank = excluded.rank, mode = excluded.mode, body = excluded.body)"
        )
    if drop:
        text += (
            f", taken AS (DELETE FROM queue USING {given(QUEUE_COLUMNS[:2])} "
            "WHERE queue.chat_id = given.chat_id AND queue.id = given.id)"
        )
    if notices:
        told = f"{given(NOTICE_COLUMNS)} JOIN webhooks AS hook ON {HEARS}"
        text += f", told AS ({INTO_DELIVERIES}{FOR_EACH_HOOK} FROM {told})"
    if spent:
        text += f", spent AS (INSERT INTO spending {_into_spending(given(SPENDING_COLUMNS))})"
    if settled:
        text += (
            f", settled AS (DELETE FROM reservations USING {given(SETTLED_COLUMNS)} "
            "WHERE reservations.id = given.reservation)"
        )
    if ended:
        text += (
            ", over AS (DELETE FROM deltas USING swapped "
            "WHERE deltas.chat_id = swapped.id AND deltas.attempt = swapped.ended)"
        )
    flags = "".join(f"{flag:d}" for flag in (ended, lines, calls, put, drop, notices, spent, settled))
    return Statement(f"hf_{verb}_{flags}".encode(), f"{text} SELECT id FROM swapped".encode(), counts=False)


def _hold(columns: Sequence[str]) -> str:
    """Row by row through the primary key, whatever the planner believes about the size of the table."""
    return (
        f"SELECT held.place, given.* FROM {_recordset(1, columns)} CROSS JOIN LATERAL ("
        "SELECT ctid AS place FROM chats WHERE id = given.id AND stamp = given.was_stamp "
        "AND version = given.was_version LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS held"
    )


def _swapped(columns: Sequence[str]) -> str:
    """By the row's place, not by its id: it is locked, so it does not move. A row that was updated since this
    statement began is held in its new place, where the statement cannot see it: it is held and not swapped. So all
    that comes with a chat joins what was swapped.
    """
    changed = ", ".join(f"{column} = held.{column}" for column in columns)
    return (
        f"swapped AS (UPDATE chats SET {changed} FROM held WHERE chats.ctid = held.place "
        "RETURNING chats.id, held.ended)"
    )


def _made() -> str:
    columns = ", ".join(CHAT_COLUMNS)
    given = ", ".join(f"given.{column}" for column in CHAT_COLUMNS)
    return (
        f"swapped AS (INSERT INTO chats ({columns}) SELECT {given} FROM {_recordset(1, CHAT_COLUMNS)} RETURNING id)"
    )


def _recordset(number: int, columns: Sequence[str]) -> str:
    typed = ", ".join(f"{column} {_TYPES[column]}" for column in columns)
    return f"json_to_recordset(${number}::json) AS given({typed})"


_encode = msgspec.json.Encoder().encode


@cache
def _record(columns: tuple[str, ...]) -> Any:
    """A struct is made and encoded in half the time of a dict."""
    return msgspec.defstruct("Row", columns, gc=False)


def _json(columns: tuple[str, ...], rows: Iterable[Sequence[Any]]) -> bytes:
    """A NUL, which PostgreSQL's text cannot hold, becomes the sign for "unreadable"."""
    record = _record(columns)
    records = [record(*row) for row in rows]
    text = _encode(records)
    if b"\\u0000" not in text:
        return text
    for row in records:
        for column in columns:
            value = getattr(row, column)
            if isinstance(value, str) and "\0" in value:
                setattr(row, column, value.replace("\0", "\N{REPLACEMENT CHARACTER}"))
    return _encode(records)
