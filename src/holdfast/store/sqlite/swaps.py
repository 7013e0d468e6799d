"""Comparing and swapping: one chat's difference is written where the chat is still what the change was decided on."""

import apsw

from holdfast.faults import reach
from holdfast.store.remnants import Occupied, remnant_of
from holdfast.store.rows import MOVING_COLUMNS, ChatWrite, call_row, chat_row, moving_row
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.connection import row

_WORKER, _WAKE_AT = (MOVING_COLUMNS.index(name) for name in sql.OWNERSHIP_COLUMNS)


def swap(connection: apsw.Connection, write: ChatWrite) -> bool:
    """Write one chat's difference, if it is still what the change was decided on. False: nothing was written."""
    reach("write.chat.before")
    before, after = write.before, write.after
    if before is None:
        if (left := row(connection, sql.READ_REMNANT, (after.id,))) is not None:
            raise Occupied(after.id, taken=remnant_of(left).source_id is not None)
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
