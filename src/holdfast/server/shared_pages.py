"""Pages of journals that readers who catch up have in hand: read once and encoded once for all at the same place.

What is in hand is bounded, because clients decide for how long they hold it. Where the bound is reached, a reader
whose next page is large waits until another has taken its own; small pages pass.
"""

import asyncio

from msgspec.structs import replace

from holdfast.server.frames import frames_of
from holdfast.store.contract import Store
from holdfast.store.cursor import AfterCursor
from holdfast.store.records import PAGE_BYTES, Page

IN_HAND_BYTES_MAX = 128 << 20
SMALL_BYTES = 64 << 10  # pages up to here are not counted: a reader of ordinary messages never waits for another

_Place = tuple[str, AfterCursor]


class SharedPage:
    """Held by each of its readers until its last byte is on the way."""

    __slots__ = ("bytes", "cursor", "frames", "full", "holders")

    def __init__(self, page: Page) -> None:
        # Behind the end of a journal there may be more a moment later, and what is streamed is not there for long.
        self.full = page.more and page.items[-1].seq is not None if page.items else False
        # A full page may end where the journal does: whether the chat still rests, the next look says.
        self.frames = frames_of(replace(page, at_rest=page.at_rest and not self.full))
        self.cursor = page.cursor
        self.bytes = sum(frame.bytes for frame in self.frames)
        self.holders = 0

    @property
    def counted_bytes(self) -> int:
        return self.bytes if self.bytes > SMALL_BYTES else 0


class SharedPages:
    """Of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._full: dict[_Place, SharedPage] = {}
        self._places: dict[SharedPage, _Place] = {}
        self._reading: dict[_Place, asyncio.Future[None]] = {}
        self._in_hand_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._waiting = 0

    def figures(self) -> dict[str, int]:
        return {
            "pages_in_hand_bytes": self._in_hand_bytes,
            "pages_in_hand_bytes_max": IN_HAND_BYTES_MAX,
            "pages_waited_for": self._waiting,
        }

    async def take(self, chat_id: str, after: AfterCursor) -> SharedPage:
        """What comes after this place, to be let go of. Raises as the store's `read_journal` does; may wait long for
        room: give it a deadline.
        """
        place = (chat_id, after)
        if (reading := self._reading.get(place)) is not None:
            await asyncio.wait((reading,))
        page = self._full.get(place) or await self._read(place)
        page.holders += 1
        if page.holders == 1:
            self._count(page.counted_bytes)
        return page

    def let_go(self, page: SharedPage) -> None:
        page.holders -= 1
        if page.holders == 0:
            self._count(-page.counted_bytes)
            place = self._places.pop(page, None)
            if place is not None:
                del self._full[place]

    async def _read(self, place: _Place) -> SharedPage:
        while True:
            bytes_max = PAGE_BYTES if self._room.is_set() else SMALL_BYTES // 4
            page = await self._read_once(place, bytes_max)
            if self._room.is_set() or not page.counted_bytes:
                return page
            del page  # it is read again when there is room for it
            self._waiting += 1
            try:
                await self._room.wait()
            finally:
                self._waiting -= 1

    async def _read_once(self, place: _Place, bytes_max: int) -> SharedPage:
        over = asyncio.get_running_loop().create_future()
        first = self._reading.setdefault(place, over) is over
        try:
            found = SharedPage(await self._store.read_journal(*place, bytes_max=bytes_max))
        finally:
            over.set_result(None)
            if first:
                del self._reading[place]
        if (known := self._full.get(place)) is not None:
            return known
        if found.full and found.counted_bytes and self._room.is_set():
            self._full[place], self._places[found] = found, place
        return found

    def _count(self, bytes: int) -> None:
        self._in_hand_bytes += bytes
        if self._in_hand_bytes < IN_HAND_BYTES_MAX:
            self._room.set()
        else:
            self._room.clear()
