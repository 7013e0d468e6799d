"""Records to rows and back: shared by both stores, which differ only in SQL."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from msgspec import Raw
from msgspec.structs import astuple

from holdfast.core.codec import decode_client_tools, decode_failure, decode_names, decode_purses, encode
from holdfast.core.records import (
    Call,
    CallState,
    Cause,
    ChatRecord,
    Compaction,
    External,
    Lease,
    LeaseEnd,
    Phase,
    Queued,
    Replay,
    Role,
    Snapshot,
    State,
)
from holdfast.core.spending import SpendingLine
from holdfast.errors import StoreCorrupt, UnknownRecord
from holdfast.store.records import ChatLine, DeltaRow, HistoryRow, Located, Violation

CHAT_COLUMNS: tuple[str, ...] = ChatRecord.__struct_fields__
# From `updated_at` on, columns move with every change; those before are set when the chat is created, and of them
# only the agent may be another one before the first turn: that is a statement of its own.
_METADATA = CHAT_COLUMNS.index("metadata")
_ACTIVE_TOOLS = CHAT_COLUMNS.index("active_tools")
_CLIENT_TOOLS = CHAT_COLUMNS.index("client_tools")
_PURSES = CHAT_COLUMNS.index("purses")
_ERROR = CHAT_COLUMNS.index("error")
_FIRST_MOVING = CHAT_COLUMNS.index("updated_at")
MOVING_COLUMNS = CHAT_COLUMNS[_FIRST_MOVING:]
# What a step of a running turn moves. Most commits move nothing else, and what is not sent need not be read; no index
# looks at any of them.
STEP_COLUMNS = (
    *("updated_at", "phase", "step", "turn_tokens", "turn_cost", "chat_tokens", "chat_cost", "turn_ms", "version"),
    *("commit_id", "seq", "length", "batch", "attempt_ended", "stamp", "line_stamp"),
)
CALL_COLUMNS: tuple[str, ...] = Call.__struct_fields__

Row = tuple[Any, ...]


SPENDING_COLUMNS = (*("owner", "account", "day", "id", "at", "chat_id", "agent", "model", "kind", "tokens", "cost"),)


def spending_rows(line: SpendingLine, chat: ChatRecord, id: str) -> list[Row]:
    """One for the owner and the day, and one more for each account of the chats above."""
    day = line.day or datetime.fromtimestamp(chat.updated_at / 1000, UTC).date().isoformat()
    about = (id, chat.updated_at, chat.id, chat.agent, line.model, str(line.kind), line.tokens, line.cost)
    return [(chat.owner, account, day, *about) for account in ("", *line.accounts)]


def chat_row(chat: ChatRecord) -> Row:
    values = list(astuple(chat))
    values[_METADATA] = bytes(chat.metadata).decode()
    if chat.active_tools is not None:
        values[_ACTIVE_TOOLS] = encode(chat.active_tools).decode()
    values[_CLIENT_TOOLS] = encode(chat.client_tools).decode() if chat.client_tools else None
    values[_PURSES] = encode(chat.purses).decode() if chat.purses else None
    if chat.error is not None:
        values[_ERROR] = encode(chat.error).decode()
    return tuple(values)


def moving_row(chat: ChatRecord) -> Row:
    """The values of MOVING_COLUMNS."""
    if chat.error is not None:
        return chat_row(chat)[_FIRST_MOVING:]
    return astuple(chat)[_FIRST_MOVING:]


# The values of STEP_COLUMNS, and those beside them, from a row of MOVING_COLUMNS.
step_of = itemgetter(*(MOVING_COLUMNS.index(name) for name in STEP_COLUMNS))
_beside_step = itemgetter(*(n for n, name in enumerate(MOVING_COLUMNS) if name not in STEP_COLUMNS))


def moves_only_a_step(before: Row, after: Row) -> bool:
    """Both of MOVING_COLUMNS."""
    return bool(_beside_step(before) == _beside_step(after))


def chat_of(row: Sequence[Any]) -> ChatRecord:
    values = dict(zip(CHAT_COLUMNS, row, strict=True))
    values["metadata"] = Raw(values["metadata"].encode())
    if values["active_tools"] is not None:
        values["active_tools"] = decode_names(values["active_tools"])
    values["client_tools"] = decode_client_tools(values["client_tools"]) if values["client_tools"] else ()
    values["purses"] = decode_purses(values["purses"]) if values["purses"] else ()
    try:
        values["state"] = State(values["state"])
        values["phase"] = Phase(values["phase"])
        if values["cause"] is not None:
            values["cause"] = Cause(values["cause"])
    except ValueError as error:
        raise UnknownRecord(f"chat {values['id']!r} was written by newer code: {error}") from error
    values["archived"] = bool(values["archived"])
    values["compact"] = bool(values["compact"])
    if values["error"] is not None:
        values["error"] = decode_failure(values["error"])
    return ChatRecord(**values)


def call_row(call: Call) -> Row:
    return astuple(call)


def call_of(row: Sequence[Any]) -> Call:
    values = dict(zip(CALL_COLUMNS, row, strict=True))
    try:
        values["state"] = CallState(values["state"])
        values["replay"] = Replay(values["replay"])
        if values["external"] is not None:
            values["external"] = External(values["external"])
    except ValueError as error:
        raise UnknownRecord(f"call {values['id']!r} was written by newer code: {error}") from error
    return Call(**values)


def lease_of(row: Sequence[Any]) -> Lease:
    """In the order of WORKER_COLUMNS."""
    worker, host, pid, lock_path, started_at, renewed_at, ttl_ms, renewal, ended, info = row
    if worker is None or info is None:  # the schema forbids it, so no code wrote that
        raise StoreCorrupt("the database is damaged (a lease without its worker): restore it from a backup")
    return Lease(
        worker=worker,
        host=host,
        pid=pid,
        lock_path=lock_path,
        started_at=started_at,
        renewed_at=renewed_at,
        ttl_ms=ttl_ms,
        renewal=renewal,
        ended=LeaseEnd(ended) if ended is not None else None,
        info=Raw(info.encode()),
    )


def queued_of(row: Sequence[Any]) -> Queued:
    id, rank, mode, body = row
    return Queued(id=id, rank=rank, mode=mode, body=Raw(body.encode()))


def snapshot_of(chat: Row, calls: Iterable[Row], queue: Iterable[Row]) -> Snapshot:
    return Snapshot(chat=chat_of(chat), calls=tuple(map(call_of, calls)), queue=tuple(map(queued_of, queue)))


def violation(row: Sequence[Any]) -> Violation:
    """A row of the liveness query."""
    chat_id, state, reason = row
    return Violation(chat_id=chat_id, state=State(state), reason=reason)


CHAT_LINE = (
    *("id", "agent", "owner", "title", "opening", "state", "archived", "queued"),
    *("created_at", "updated_at", "worker", "wake_at", "metadata"),
)


def chat_line(row: Sequence[Any]) -> ChatLine:
    """A row of a listing, in the order of CHAT_LINE."""
    values = dict(zip(CHAT_LINE, row, strict=True))
    values["state"] = State(values["state"])
    values["archived"] = bool(values["archived"])
    values["metadata"] = Raw(values["metadata"].encode())
    return ChatLine(**values)


def history_row(row: Sequence[Any]) -> HistoryRow:
    """A row of READ_HISTORY."""
    pos, seq, role, message_id, body = row
    return HistoryRow(pos=pos, seq=seq, role=Role(role), message_id=message_id, body=body.encode())


def compaction_of(row: Sequence[Any]) -> Compaction:
    """A row of READ_COMPACTION, or READ_COMPACTIONS."""
    upto, summary, created_at = row
    return Compaction(upto=upto, summary=summary, created_at=created_at)


def located_of(row: Sequence[Any]) -> Located:
    """A row of LOCATE_MESSAGE."""
    pos, role, epoch = row
    return Located(pos=pos, role=Role(role), epoch=epoch)


def delta_row(row: Sequence[Any]) -> DeltaRow:
    """A row of READ_DELTAS."""
    attempt, k, body = row
    return DeltaRow(attempt=attempt, k=k, body=body.encode())
