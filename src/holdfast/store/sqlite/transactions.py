"""What happens inside a write transaction: reading snapshots, comparing and swapping, writing differences."""

from typing import Any

import apsw

from holdfast.core.records import Chat, Snapshot
from holdfast.errors import NotFound, RefusedError, StoreUnavailable
from holdfast.faults import reach
from holdfast.store.receipts import check_receipt, decode_answer
from holdfast.store.records import Answer, Key
from holdfast.store.remnants import Occupied, Remnant, Slice, remnant_of, rows_within
from holdfast.store.rows import CHAT_COLUMNS, MOVING_COLUMNS, ChatWrite, call_row, chat_row, moving_row, snapshot_of
from holdfast.store.sqlite import sql

Values = tuple[Any, ...] | dict[str, Any]  # by place, or by name


def rows(connection: apsw.Connection, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
    return connection.execute(statement, values).fetchall()


def row(connection: apsw.Connection, statement: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    return connection.execute(statement, values).fetchone()


_BATCH = CHAT_COLUMNS.index("batch")
_WORKER, _WAKE_AT = (MOVING_COLUMNS.index(name) for name in sql.OWNERSHIP_COLUMNS)


def load(connection: apsw.Connection, chat_id: str) -> Snapshot | None:
    chat = row(connection, sql.READ_CHAT, (chat_id,))
    if chat is None:
        return None
    calls = rows(connection, sql.READ_CALLS, (chat_id, chat[_BATCH])) if chat[_BATCH] is not None else ()
    return snapshot_of(chat, calls, rows(connection, sql.READ_QUEUE, (chat_id,)))


def line_stamp(connection: apsw.Connection, known: Chat) -> int | None:
    """What the line that `known` ends with is stamped with now; None where it is gone."""
    found = row(connection, sql.READ_LINE_STAMP, (known.id, known.seq))
    return found[0] if found is not None else None


def must_load(connection: apsw.Connection, chat_id: str) -> Snapshot:
    snapshot = load(connection, chat_id)
    if snapshot is None:
        raise NotFound("chat", chat_id)
    return snapshot


def check_unused(connection: apsw.Connection, chat_id: str, event: str) -> None:
    found = row(connection, sql.READ_STATE, (chat_id,))
    if found is not None:
        raise RefusedError(f"there is a chat {chat_id!r} already", reason="state", state=found[0], event=event)


def read_remnant(connection: apsw.Connection, chat_id: str) -> Remnant | None:
    found = row(connection, sql.READ_REMNANT, (chat_id,))
    return remnant_of(found) if found is not None else None


def take_rows(connection: apsw.Connection, chat_id: str, room: Slice) -> Slice | None:
    """Delete what stands under an id, as far as there is room. Returns the room that is left; None: rows are left."""
    for heap in sql.HEAPS:
        found = rows(connection, heap.sizes, (chat_id, room.rows + 1))
        sizes = [(0, size or 0) for *_, size in found]
        count = rows_within(sizes, room) if room.rows > 0 and room.bytes > 0 else 0
        if count == len(found):
            if found:
                connection.execute(heap.delete_all, (chat_id,))
        else:
            connection.executemany(heap.delete_one, [(chat_id, *key) for *key, _ in found[:count]])
        reach("delete.rows")
        if count < len(found):
            return None
        room = Slice(rows=room.rows - count, bytes=room.bytes - sum(size for _, size in sizes))
    return room


def read_receipt(connection: apsw.Connection, key: Key, hash: str) -> Answer | None:
    receipt = row(connection, sql.READ_RECEIPT, (key.principal, key.key))
    if receipt is None:
        return None
    check_receipt(key, receipt[0], hash)
    return decode_answer(receipt[1])


def write_all(connection: apsw.Connection, writes: list[ChatWrite]) -> None:
    """Snapshots read in this transaction cannot have moved: a miss here is a fault, not a race."""
    for write in writes:
        if not swap(connection, write):
            raise StoreUnavailable(f"chat {write.after.id} changed inside a transaction; nothing was written")


def swap(connection: apsw.Connection, write: ChatWrite) -> bool:
    """Write one chat's difference, if it is still what the change was decided on. False: nothing was written."""
    reach("write.chat.before")
    before, after = write.before, write.after
    if before is None:
        if (left := read_remnant(connection, after.id)) is not None:
            raise Occupied(after.id, taken=left.source_id is not None)
        connection.execute(sql.INSERT_CHAT, chat_row(after))
    else:
        guard = (after.id, before.stamp, before.version)
        if before.worker == after.worker and before.wake_at == after.wake_at:
            values = moving_row(after)
            connection.execute(
                sql.UPDATE_CHAT_WORK,
                (*values[:_WORKER], *values[_WORKER + 1 : _WAKE_AT], *values[_WAKE_AT + 1 :], *guard),
            )
        else:
            connection.execute(sql.UPDATE_CHAT, moving_row(after) + guard)
        if connection.changes() != 1:
            return False
    reach("write.chat.after")
    _write_journal(connection, write)
    _write_calls(connection, write)
    _write_queue(connection, write)
    return True


def _write_journal(connection: apsw.Connection, write: ChatWrite) -> None:
    reach("write.journal.before")
    chat_id = write.after.id
    if write.cut_from is not None:
        connection.execute(sql.CUT_HISTORY, (chat_id, write.cut_from))
        connection.execute(sql.CUT_COMPACTIONS, (chat_id, write.cut_from))
    for line in write.journal:
        connection.execute(sql.INSERT_JOURNAL, (chat_id, *line))
    if write.compaction is not None:
        record = write.compaction
        connection.execute(sql.PUT_COMPACTION, (chat_id, record.upto, record.summary, record.created_at))
    if write.ended_attempt is not None:
        connection.execute(sql.DROP_DELTAS, (chat_id, write.ended_attempt))
    reach("write.journal.after")


def _write_calls(connection: apsw.Connection, write: ChatWrite) -> None:
    reach("write.calls.before")
    for call in write.calls:
        connection.execute(sql.PUT_CALL, (write.after.id, *call_row(call)))
    reach("write.calls.after")


def _write_queue(connection: apsw.Connection, write: ChatWrite) -> None:
    reach("write.queue.before")
    for message_id in write.queue_drop:
        connection.execute(sql.DROP_QUEUED, (write.after.id, message_id))
    for queued in write.queue_put:
        body = bytes(queued.body).decode()
        connection.execute(sql.PUT_QUEUED, (write.after.id, queued.id, queued.rank, queued.mode, body))
    reach("write.queue.after")
