"""What happens inside a transaction: reading snapshots, applying commands, writing differences, keeping receipts.

The same verbs as PostgreSQL's. Here a thread of the transactor begins and ends it: in a write the other writers wait
meanwhile, so there is nothing to lock; a read sees one moment.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import apsw

from holdfast.core.change import Change, Refused
from holdfast.core.codec import encode
from holdfast.core.commands import Command
from holdfast.core.records import Chat, Snapshot
from holdfast.core.transaction import CountFamily, ReadChat, ReadEntry, transact
from holdfast.errors import NotFound, RefusedError, StoreUnavailable
from holdfast.faults import reach
from holdfast.store.decisions import raise_refused
from holdfast.store.notify.bell import topics_of
from holdfast.store.receipts import answer_of, check_receipt, decode_answer
from holdfast.store.records import Answer, Key, StoreOptions
from holdfast.store.remnants import Remnant, Slice, remnant_of, rows_within
from holdfast.store.rows import CHAT_COLUMNS, ChatWrite, Row, snapshot_of
from holdfast.store.sqlite import sql, swaps
from holdfast.store.sqlite.connection import row, rows

T = TypeVar("T")

_BATCH = CHAT_COLUMNS.index("batch")


class Transaction:
    """What work gets."""

    def __init__(self, connection: apsw.Connection, options: StoreOptions) -> None:
        self.connection = connection
        self._limits = options.limits
        self.now = options.clock.wall_ms()
        self.topics: set[str] = set()  # rung once the transaction is committed

    def rows(self, statement: str, *values: Any) -> list[Row]:
        return rows(self.connection, statement, values)

    def named_rows(self, statement: str, **values: Any) -> list[Row]:
        return rows(self.connection, statement, values)

    def row(self, statement: str, *values: Any) -> Row | None:
        return row(self.connection, statement, values)

    def change(self, statement: str, *values: Any) -> int:
        """How many rows it inserted, changed or deleted."""
        self.connection.execute(statement, values)
        return self.connection.changes()

    def change_each(self, statement: str, values: Iterable[Row]) -> None:
        self.connection.executemany(statement, values)

    def pragma(self, name: str) -> Any:
        return self.connection.pragma(name)

    def ring(self, topics: Iterable[str]) -> None:
        self.topics.update(topics)

    def tell(self, changes: Sequence[Change]) -> None:
        self.ring(topics_of(changes))

    # --- chats --------------------------------------------------------------------------------------------------

    def load(self, chat_id: str) -> Snapshot | None:
        chat = self.row(sql.READ_CHAT, chat_id)
        if chat is None:
            return None
        calls = self.rows(sql.READ_CALLS, chat_id, chat[_BATCH]) if chat[_BATCH] is not None else ()
        return snapshot_of(chat, calls, self.rows(sql.READ_QUEUE, chat_id))

    def must_load(self, chat_id: str) -> Snapshot:
        snapshot = self.load(chat_id)
        if snapshot is None:
            raise NotFound("chat", chat_id)
        return snapshot

    def check_unused(self, chat_id: str, command: str) -> None:
        """Raises RefusedError where there is a chat."""
        found = self.row(sql.READ_STATE, chat_id)
        if found is not None:
            raise RefusedError(
                f"there is a chat {chat_id!r} already", reason="state", state=found[0], command=command
            )

    def read_remnant(self, chat_id: str) -> Remnant | None:
        """What stands under an id without a chat."""
        found = self.row(sql.READ_REMNANT, chat_id)
        return remnant_of(found) if found is not None else None

    def take_rows(self, chat_id: str, room: Slice) -> Slice | None:
        """Delete what stands under an id, as far as there is room. Returns the room that is left; None: rows are."""
        for heap in sql.HEAPS:
            found = self.rows(heap.sizes, chat_id, room.rows + 1)
            sizes = [(0, size or 0) for *_, size in found]
            count = rows_within(sizes, room) if room.rows > 0 and room.bytes > 0 else 0
            if count == len(found):
                if found:
                    self.change(heap.delete_all, chat_id)
            else:
                self.change_each(heap.delete_one, [(chat_id, *key) for *key, _ in found[:count]])
            reach("delete.rows")
            if count < len(found):
                return None
            room = Slice(rows=room.rows - count, bytes=room.bytes - sum(size for _, size in sizes))
        return room

    def line_stamp(self, known: Chat) -> int | None:
        """What the line that `known` ends with is stamped with now; None where it is gone."""
        found = self.row(sql.READ_LINE_STAMP, known.id, known.seq)
        return found[0] if found is not None else None

    def apply(self, snapshot: Snapshot, commands: Sequence[Command]) -> tuple[Change, ...]:
        """What the commands do to this chat and to others. Raises what refuses them."""
        steps = transact(snapshot, commands, self.now, self._limits)
        try:
            need = next(steps)
            while True:
                if isinstance(need, ReadChat):
                    need = steps.send(self.load(need.chat_id))
                elif isinstance(need, CountFamily):
                    need = steps.send(self.rows(sql.COUNT_FAMILY, need.root_id)[0][0])
                elif isinstance(need, ReadEntry):
                    entry = self.row(sql.READ_ENTRY, need.chat_id, need.seq)
                    need = steps.send(entry[0] if entry is not None else None)
                else:
                    children = self.rows(sql.READ_BUSY_CHILDREN, need.chat_id)
                    need = steps.send(tuple(child[0] for child in children))
        except StopIteration as stop:
            outcome: tuple[Change, ...] | Refused = stop.value
        if isinstance(outcome, Refused):
            raise_refused(outcome)
        return outcome

    def write(self, writes: Sequence[ChatWrite]) -> None:
        """Snapshots read in this transaction cannot have moved: a miss here is a fault, not a race."""
        for write in writes:
            if not self.swap(write):
                raise StoreUnavailable(f"chat {write.after.id} changed inside a transaction; nothing was written")

    def swap(self, write: ChatWrite) -> bool:
        """False: the chat is not what the change was decided on any more; nothing was written."""
        return swaps.swap(self.connection, write)

    # --- receipts -------------------------------------------------------------------------------------------------

    def read_receipt(self, key: Key, hash: str) -> Answer | None:
        receipt = self.row(sql.READ_RECEIPT, key.principal, key.key)
        if receipt is None:
            return None
        check_receipt(key, receipt[0], hash)
        return decode_answer(receipt[1])

    def keep_receipt(self, key: Key, hash: str, changes: Sequence[Change]) -> Answer:
        reach("write.receipt.before")
        answer = answer_of(changes)
        holds_text_of = answer.chat_id if answer.dropped else None
        body = encode(answer).decode()
        self.change(sql.PUT_RECEIPT, key.principal, key.key, hash, body, holds_text_of, self.now)
        reach("write.receipt.after")
        return answer


Work = Callable[[Transaction], T]
