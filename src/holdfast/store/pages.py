"""Pages of a journal: rows into items, each with the cursor that stands behind it."""

from collections.abc import Sequence

from holdfast.store.cursor import Cursor
from holdfast.store.records import Item, Page

JournalRow = tuple[int, int, int, str]  # of a journal: seq, stamp, at, body
StreamedRow = tuple[int, int, int, int, str]  # of what is streamed: attempt, k, stamp, at, body


def page_of(
    after: Cursor,
    journal: Sequence[JournalRow],
    deltas: Sequence[StreamedRow],
    *,
    last_seq: int,
    state: str,
    limit: int,
    bytes_max: int,
) -> Page:
    """Journal rows, then, once a reader is at the journal's end, the open attempt's deltas up to the
    first gap: what lies behind one would be read as if it followed.
    """
    items: list[Item] = []
    cursor = after
    for seq, stamp, at, body in journal:
        cursor = Cursor(seq, cursor.attempt, cursor.k, cursor.chat, stamp, cursor.attempt_stamp)
        items.append(Item(cursor=str(cursor), at=at, body=body.encode(), seq=seq))
    at_end = not journal or journal[-1][0] == last_seq
    for attempt, k, stamp, at, body in deltas:
        if k != (cursor.k + 1 if attempt == cursor.attempt else 0):
            continue
        cursor = Cursor(cursor.seq, attempt, k, cursor.chat, cursor.stamp, stamp)
        items.append(Item(cursor=str(cursor), at=at, body=body.encode(), attempt=attempt, k=k))
    return Page(
        items=tuple(items),
        cursor=str(cursor),
        at_rest=at_end and state in ("idle", "failed"),
        more=not at_end or len(items) >= limit or sum(len(item.body) for item in items) >= bytes_max,
    )
