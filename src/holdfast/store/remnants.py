"""Large chats come and go in slices: what is decided about rows that stand under an id without a chat.

A chat is there from the transaction that inserts its row in `chats` to the one that deletes it; every reader goes by
that row. The rest of it may be hundreds of megabytes, and on SQLite every writer waits for a transaction. So one
transaction takes or adds no more than a slice, bounded in rows and in bytes, and while rows stand under an id that
has no chat, a record in `remnants` says what they are:

- of a deleted chat (`source_id` None): they go, slice by slice;
- of a fork that is not whole (`source_id` names the chat it is copied from): they grow, slice by slice, until the
  transaction that adds the last of them inserts the chat and drops the record.

Each slice moves the record in its own transaction, so that any process goes on where another was killed. What can be
done in one slice never has a record.

A fork is of the moment of its last transaction. What it has copied by then is the beginning of the source's history,
which only a cut changes, and a cut changes the epoch: then the copy is given up and made anew. A record of a fork
that does not move while a process watches it is of a process that is gone: it becomes one of rows that go.

An id that has a record is not used: a verb that wants to makes the rows go first. What enforces it where transactions
run side by side: line 1 of the journal is written by a fork's first slice, and is the last row of a chat to go, with
the record in the same transaction. And a slice that goes on with a record fails where that was changed or dropped
since the slice began.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple

from holdfast.core.records import ChatRecord, Frozen, Snapshot
from holdfast.errors import StoreUnavailable
from holdfast.store.decisions import ChatWrite
from holdfast.store.rows import Row

ABANDONED_MS = 60_000  # without a slice, while a process looks
LARGE_DEADLINE_S = 300.0  # of a verb that goes on slice by slice; each slice has the store's own
SWEPT_S = 1.0  # of each sweep


class Slice(Frozen):
    """What one transaction may take or add. At least one row, however large."""

    rows: int
    bytes: int


class Remnant(Frozen):
    """A record. `pos` and `seq`: the position that is copied next, and the last journal line that there is."""

    chat_id: str
    source_id: str | None = None
    source_life: int = 0
    source_epoch: int = 0
    pos: int = 0
    seq: int = 0


def remnant_of(row: Sequence[Any]) -> Remnant:
    """In the order of its fields."""
    return Remnant(**dict(zip(Remnant.__struct_fields__, row, strict=True)))


def remnant_row(record: Remnant) -> Row:
    return astuple(record)


class Occupied(StoreUnavailable):
    """There are rows under an id that is to be used. `taken`: of a fork that another caller is making under it."""

    def __init__(self, chat_id: str, *, taken: bool) -> None:
        super().__init__(f"what was under the id {chat_id!r} before is still being removed; try again")
        self.taken = taken


class Copying(Frozen):
    """What a slice of a fork does: lines behind `seq`, of positions from `start` up to, but without, `upto`."""

    start: int
    seq: int
    upto: int
    whole: bool  # the chat is there after it


def copied_so_far(left: Remnant | None, chat_id: str, source: ChatRecord, end: int) -> Remnant | None:
    """What is copied already of a fork of `source` up to `end`. Raises Occupied where it is something else."""
    if left is None:
        return None
    if left.source_id != source.id:
        raise Occupied(chat_id, taken=left.source_id is not None)
    if (left.source_life, left.source_epoch) != (source.life, source.epoch):
        raise Occupied(chat_id, taken=False)  # a cut: what was copied is not its beginning any more
    if left.pos >= end:
        raise Occupied(chat_id, taken=True)
    return left


def next_copy(
    left: Remnant | None, source: Snapshot, end: int, sizes: Sequence[tuple[int, int]], bound: Slice
) -> Copying:
    """`sizes`: position and bytes of what is not copied yet, in order, as far as one row beyond the slice.

    The last slice has at least one line, so that the chat's last line has the stamp of the write that made the chat.
    No other goes beyond a call that is open: its result would come behind lines that are copied already.
    """
    start, seq = (left.pos, left.seq) if left is not None else (0, 1)
    fits = rows_within(sizes, bound)
    if fits == len(sizes):
        return Copying(start=start, seq=seq, upto=end, whole=True)
    first_open = min((call.pos for call in source.open_calls), default=end)
    upto = min(sizes[fits][0], first_open)
    if upto <= start:
        return Copying(start=start, seq=seq, upto=end, whole=True)  # the open group is copied as one
    return Copying(start=start, seq=seq, upto=upto, whole=False)


def rows_within(sizes: Sequence[tuple[int, int]], bound: Slice) -> int:
    """How many of these rows, by the bytes of each, a slice takes."""
    count = size = 0
    for _, row_bytes in sizes:
        if count and (count >= bound.rows or size + row_bytes > bound.bytes):
            break
        count += 1
        size += row_bytes
    return count


def record_of(chat_id: str, source: ChatRecord, copying: Copying, copied: int) -> Remnant:
    """After a slice that copied so many lines."""
    return Remnant(
        chat_id=chat_id,
        source_id=source.id,
        source_life=source.life,
        source_epoch=source.epoch,
        pos=copying.upto,
        seq=copying.seq + copied,
    )


def without_first_line(writes: Sequence[ChatWrite]) -> None:
    """An earlier slice of the fork has written it."""
    for write in writes:
        write.journal = [line for line in write.journal if line[0] != 1]


class RemnantWatch:
    """Finds forks that no process goes on with: those that do not move while this process looks again and again."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Remnant, int]] = {}

    def abandoned(self, records: Sequence[Remnant], boot_ms: int) -> list[Remnant]:
        seen: dict[str, tuple[Remnant, int]] = {}
        for record in records:
            if record.source_id is not None:
                known, since_ms = self._seen.get(record.chat_id, (record, boot_ms))
                seen[record.chat_id] = (record, since_ms if known == record else boot_ms)
        self._seen = seen
        return [record for record, since_ms in seen.values() if boot_ms - since_ms >= ABANDONED_MS]
