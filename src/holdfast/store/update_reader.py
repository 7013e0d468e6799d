"""A chat's journal as events and as updates, for who holds a store: from any cursor on, on any process."""

from msgspec.structs import replace

from holdfast.core.codec import decode_delta, decode_entry
from holdfast.core.fold import Fold
from holdfast.core.journal import AnyEntry, Delta, Event, UnknownEntry
from holdfast.core.records import Frozen
from holdfast.core.update_cursor import Mark, parse_cursor
from holdfast.core.updates import Update
from holdfast.errors import RecordError, WrongCursor
from holdfast.store.chat_store import ChatStore
from holdfast.store.cursor import AfterCursor, Cursor, parse
from holdfast.store.records import Item, Page
from holdfast.store.turn_starts import find_turn_start, started_turn

TRIES_MAX = 3  # to find where the turn began, in a chat that is made anew meanwhile


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
    """What there was to tell. `quiet`: nothing comes until a person or a client acts; nothing was left unread."""

    found: tuple[Update, ...]
    quiet: bool


class UpdateReader:
    """One reader's way through a chat. Without a cursor it begins with the turn that goes on, or the last one; an
    empty one is the beginning of the chat.

    From an update's cursor it goes on as if it had told all up to there. To that end it reads the turn's entries once
    more, from its start. At an event's cursor it has shown nothing: a response that is being streamed is told from
    its beginning.
    """

    def __init__(self, store: ChatStore, chat_id: str, after: AfterCursor = None, *, settled: bool = False) -> None:
        self._store = store
        self._chat_id = chat_id
        self._after = after
        self._settled = settled
        self._fold = Fold(settled=settled)
        self._cursor: AfterCursor = None
        self._first: tuple[Item, ...] = ()  # what was read on the way to the first page
        self._begun = False
        self._more = False  # the last page was full

    async def next(self, deadline_s: float) -> Updates:
        """Waits so long, if there is nothing. Raises NotFound, WrongCursor, StoreError."""
        if not self._begun:
            self._fold = Fold(settled=self._settled)  # what a try that failed has read is read again
            await self._begin()
            self._begun = True
        # Behind a full page there may be nothing: one looks, and does not wait for it.
        wait_s = 0.0 if self._more or self._first else deadline_s
        page = await self._store.wait_journal(self._chat_id, self._cursor, wait_s)
        first, self._first = self._first, ()
        found = [update for item in (*first, *page.items) for update in self._fold.take(event_of(item))]
        self._cursor, self._more = page.cursor, page.more
        quiet = not page.more and (page.at_rest or self._fold.paused)
        return Updates(found=tuple(found), quiet=quiet)

    async def _begin(self) -> None:
        if self._after is None:
            page = (await _last_turn(self._store, self._chat_id))[1]
            self._first, self._cursor = page.items, page.cursor
            return
        start = await reader_start(self._store, self._chat_id, self._after)
        if start.again:
            await self._read_again(start.again, start.place.seq)
        self._fold.resume(start.mark or Mark(), start.text)
        self._cursor = start.place

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


class ReaderStart(Frozen):
    """Behind which place of the journal a reader goes on. `mark` says what it was shown beyond that; None: it was
    nowhere yet. `again` is the first line that it has to read again before, up to its place; 0: none.
    """

    place: Cursor
    mark: Mark | None = None
    text: str = ""  # the place, as the reader has it
    again: int = 0


async def reader_start(store: ChatStore, chat_id: str, after: AfterCursor) -> ReaderStart:
    """Raises NotFound, WrongCursor, StoreError."""
    if after is None:
        return ReaderStart(place=(await _last_turn(store, chat_id))[0])
    text, mark = ("", None) if isinstance(after, Cursor) else parse_cursor(after)
    place = after if isinstance(after, Cursor) else parse(text)
    await store.read_journal(chat_id, place, limit=1)  # refuses a cursor that is none
    if mark is None:
        chat = (await store.read_chat(chat_id)).chat
        mark = Mark(turn=await find_turn_start(store, chat, chat.turn) or 0)
    again = mark.turn if 0 < mark.turn <= place.seq else 0
    # What is streamed is read from its beginning. The line keeps its stamp: the chat may be another one by now.
    return ReaderStart(place=replace(place, attempt=0, k=-1, attempt_stamp=0), mark=mark, text=text, again=again)


async def _last_turn(store: ChatStore, chat_id: str) -> tuple[Cursor, Page]:
    """Where the turn begins that goes on, or the last one, and what comes first there; without any turn, what comes
    next. The chat may be deleted and made anew while we look: then where we looked no turn begins, or there is
    nothing, and we look again.
    """
    tries_left = TRIES_MAX
    while True:
        tries_left -= 1
        chat = (await store.read_chat(chat_id)).chat
        try:
            start = await find_turn_start(store, chat, chat.turn)
            place = Cursor(seq=chat.seq if start is None else start - 1)
            page = await store.read_journal(chat_id, place, limit=1)
        except WrongCursor:
            if tries_left <= 0:
                raise
            continue
        found = [started_turn(item) for item in page.items] == [chat.turn] if start is not None else chat.turn == 0
        if found or tries_left <= 0:
            return place, page
