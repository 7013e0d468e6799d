"""A chat's journal as events and as updates, for who holds a store: from any cursor on, on any process."""

from msgspec.structs import replace

from holdfast.core.codec import decode_delta, decode_entry
from holdfast.core.fold import Fold
from holdfast.core.journal import AnyEntry, Delta, Event, UnknownEntry
from holdfast.core.records import Frozen
from holdfast.core.update_cursor import Mark, parse_cursor
from holdfast.core.updates import Update
from holdfast.errors import RecordError
from holdfast.store.contract import Store
from holdfast.store.cursor import AfterCursor, Cursor, parse
from holdfast.store.records import Item


def event_of(item: Item) -> Event:
    body: AnyEntry | Delta | UnknownEntry
    try:
        body = decode_delta(item.body) if item.seq is None else decode_entry(item.body)
    except RecordError as error:
        body = UnknownEntry(problem=str(error))
    return Event(
        cursor=item.cursor, at=item.at, body=body, raw=item.body, seq=item.seq, attempt=item.attempt, k=item.k
    )


def event_cursor(after: str | None) -> str | None:
    """The place in the journal that a cursor names, be it an event's or an update's. Raises WrongCursor."""
    return parse_cursor(after)[0] if after else None


class Updates(Frozen):
    """What there was to tell. `quiet`: nothing comes until somebody does something, a person who is asked or another;
    nothing was left unread.
    """

    found: tuple[Update, ...]
    quiet: bool


class UpdateReader:
    """One reader's way through a chat. Without a cursor it begins with the turn that goes on, or the last one; an
    empty one is the beginning of the chat.

    From an update's cursor it goes on as if it had told all up to there. To that end it reads the turn's entries once
    more, from its start. At an event's cursor it has shown nothing: a response that is being streamed is told from
    its beginning.
    """

    def __init__(self, store: Store, chat_id: str, after: AfterCursor = None, *, settled: bool = False) -> None:
        self._store = store
        self._chat_id = chat_id
        self._after = after
        self._fold = Fold(settled=settled)
        self._cursor: AfterCursor = None
        self._begun = False
        self._more = False  # the last page was full

    async def next(self, deadline_s: float) -> Updates:
        """Waits so long, if there is nothing. Raises NotFound, WrongCursor, StoreError."""
        if not self._begun:
            await self._begin()
            self._begun = True
        # Behind a full page there may be nothing: one looks, and does not wait for it.
        page = await self._store.wait_journal(self._chat_id, self._cursor, 0.0 if self._more else deadline_s)
        found = [update for item in page.items for update in self._fold.take(event_of(item))]
        self._cursor, self._more = page.cursor, page.more
        quiet = not page.more and (page.at_rest or self._fold.paused)
        return Updates(found=tuple(found), quiet=quiet)

    async def _begin(self) -> None:
        if self._after is None:
            self._cursor = Cursor(seq=await turn_start(self._store, self._chat_id) - 1)
            return
        text, mark = ("", None) if isinstance(self._after, Cursor) else parse_cursor(self._after)
        place = self._after if isinstance(self._after, Cursor) else parse(text)
        await self._store.read_journal(self._chat_id, place, limit=1)  # refuses a cursor that is none
        if mark is None:
            mark = Mark(turn=await turn_start(self._store, self._chat_id))
        if 0 < mark.turn <= place.seq:
            await self._read_again(mark.turn, place.seq)
        self._fold.resume(mark, text)
        # What is streamed is read from its beginning. The line keeps its stamp: the chat may be another one by now.
        self._cursor = replace(place, attempt=0, k=-1, attempt_stamp=0)

    async def _read_again(self, first: int, last: int) -> None:
        cursor: AfterCursor = Cursor(seq=first - 1)
        while True:
            page = await self._store.read_journal(self._chat_id, cursor)
            for item in page.items:
                if item.seq is None or item.seq > last:
                    return
                self._fold.take(event_of(item))
            if not page.more:
                return
            cursor = page.cursor


async def turn_start(store: Store, chat_id: str) -> int:
    """The journal number of the line with which the present turn began, or the last one. Where there is none, or an
    edit has cut its first message away: that of the line which comes next.
    """
    chat = (await store.read_chat(chat_id)).chat
    rows = await store.read_history(chat_id, start=chat.turn_from, limit=1) if chat.turn else []
    if rows and rows[0].pos == chat.turn_from:
        return rows[0].seq - 1  # the message that begins a turn comes right behind its line
    return chat.seq + 1
