"""Where in a chat's journal a turn began, found without reading the journal from its beginning."""

from holdfast.core.codec import decode_entry
from holdfast.core.journal import TurnStarted
from holdfast.core.records import ChatRecord
from holdfast.errors import RecordError
from holdfast.store.chat_store import ChatStore
from holdfast.store.cursor import Cursor
from holdfast.store.records import PAGE_ROWS, Item

_PROBE_ROWS = 32  # most turns are shorter


async def find_turn_start(store: ChatStore, chat: ChatRecord, number: int) -> int | None:
    """The number of the line with which it began; None: there is none. Raises NotFound.

    History tells of the present turn, or the last one, unless an edit has cut away the message that began it. Any
    other is looked for by halves: the turns of a journal are in order. That reads a few pages, and a long turn once
    or twice, however long the chat is.
    """
    if not 0 < number <= chat.turn:
        return None
    if number == chat.turn:
        rows = await store.read_history(chat.id, start=chat.turn_from, limit=1)
        if rows and rows[0].pos == chat.turn_from:
            return rows[0].seq - 1  # the message that begins a turn comes right behind its line
    low, high = 0, chat.seq  # it is behind the first, up to the second
    while low < high:
        middle = (low + high) // 2
        seq, turn = await _next_start(store, chat.id, middle, high)
        if turn == number:
            return seq
        if turn is None or turn > number:
            high = middle
        else:
            low = seq
    return None


async def _next_start(store: ChatStore, chat_id: str, after: int, upto: int) -> tuple[int, int | None]:
    """The first start of a turn between these lines, and which turn; None: there is none up to there."""
    cursor: Cursor | str = Cursor(seq=after)
    rows = _PROBE_ROWS
    while True:
        page = await store.read_journal(chat_id, cursor, min(rows, upto - after))
        for item in page.items:
            if item.seq is None or item.seq > upto:
                return upto, None
            if (turn := started_turn(item)) is not None:
                return item.seq, turn
            after = item.seq
        if not page.more or after == upto:
            return upto, None
        cursor, rows = page.cursor, min(rows * 4, PAGE_ROWS)


def started_turn(item: Item) -> int | None:
    """Which turn begins with this line; None: none does."""
    if item.seq is None:
        return None
    try:
        entry = decode_entry(item.body)
    except RecordError:  # newer code wrote it
        return None
    return entry.turn if isinstance(entry, TurnStarted) else None
