"""What happens in a chat, for any number of readers: read once, encoded once, kept only as far as the ring goes.

A feed follows one chat for all of its readers in this process and keeps the last frames. A reader that comes late,
falls behind the ring or comes with a place of its own reads from the store until its place is one that the ring
knows; so a slow reader costs itself reads and the others nothing, and no reader has a buffer of its own. Readers who
catch up at the same place share what they read (`shared_pages.py`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from holdfast.core.wake import WakeState
from holdfast.errors import StoreClosed, StoreCorrupt, StoreError, StoreGone
from holdfast.server.frames import Batch, Frame, frames_of
from holdfast.server.shared_pages import SharedPage, SharedPages
from holdfast.store.chat_store import ChatStore
from holdfast.store.contract import Store
from holdfast.store.cursor import AfterCursor
from holdfast.store.records import Page
from holdfast.system.clock import dice

log = logging.getLogger("holdfast.feeds")

RING_FRAMES = 1_000
RING_BYTES = 2 << 20
POLL_S = 10.0  # where others tell us what happens; polling is then only the truth behind the hints
RETRY_S = 1.0  # after a store that failed
FINAL = (StoreGone, StoreCorrupt, StoreClosed)  # what does not come back by waiting: readers are told


async def _bide() -> None:
    """The store failed. Readers keep their place and see heartbeats; they go on when the store does."""
    await asyncio.sleep(RETRY_S * dice.uniform(0.5, 1.5))


class Feed:
    """One chat, followed for all its readers here. Runs while it has readers."""

    def __init__(self, store: Store, chat_id: str, after: str) -> None:
        self._store = store
        self._chat_id = chat_id
        self._cursor = after
        self.frames: deque[Frame] = deque()
        self.first = 0  # number of the frame that is at the left end of the ring
        self._bytes = 0
        self._places = {after: 0}  # cursor -> number of the frame that comes after it
        self._last: tuple[int, int, Batch] | None = None  # from, to: what nearly all readers are given
        self._waiting: set[asyncio.Future[None]] = set()  # one for each reader that has read all
        self.error: Exception | None = None  # why it ended: the chat, or the whole store, is gone
        self.readers = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def end(self) -> int:
        """The number that the next frame will have."""
        return self.first + len(self.frames)

    @property
    def bytes(self) -> int:
        return self._bytes

    def place_of(self, cursor: str) -> int | None:
        return self._places.get(cursor)

    def since(self, number: int) -> Batch:
        if self._last is None or self._last[:2] != (number, self.end):
            found = Batch(self.frames[at] for at in range(number - self.first, len(self.frames)))
            self._last = (number, self.end, found)
        return self._last[2]

    async def wait(self) -> None:
        """Until there are more frames, or none will come. The caller has a deadline."""
        more = asyncio.get_running_loop().create_future()
        self._waiting.add(more)
        try:
            await more
        finally:
            self._waiting.discard(more)

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        try:
            while True:
                page = await self._next_page()
                if frames := frames_of(page):
                    self._add(frames, page.cursor)
        except Exception as error:  # noqa: BLE001  whatever it is, its readers must hear of it
            self.error = error
            self._tell()

    async def _next_page(self) -> Page:
        while True:
            try:
                return await self._store.wait_journal(self._chat_id, self._cursor, 60.0, self._poll_s())
            except FINAL:
                raise
            except StoreError as error:
                log.warning("feed of %s waits: %s", self._chat_id, error, extra={"action": "feed.waits"})
                await _bide()

    def _poll_s(self) -> float | None:
        wakes = self._store.wakes
        told = wakes is not None and wakes.state is WakeState.STREAMING
        return POLL_S * dice.uniform(0.8, 1.2) if told else None

    def _add(self, frames: Sequence[Frame], cursor: str) -> None:
        if len(frames) == 1 and frames[0].item is None and self.frames and self.frames[-1].rest:
            return  # still at rest, as all readers were told
        self._cursor = cursor
        for frame in frames:
            self.frames.append(frame)
            self._bytes += frame.bytes
            self._places[frame.cursor] = self.end
        while len(self.frames) > RING_FRAMES or self._bytes > RING_BYTES:
            self._drop()
        self._tell()

    def _drop(self) -> None:
        frame = self.frames.popleft()
        self._bytes -= frame.bytes
        self.first += 1
        if self._last is not None and self._last[0] < self.first:
            self._last = None
        for cursor in [cursor for cursor, number in self._oldest_places() if number < self.first]:
            del self._places[cursor]

    def _oldest_places(self) -> list[tuple[str, int]]:
        """Places are in order of their numbers; only the first few can be too old."""
        found = []
        for place in self._places.items():
            found.append(place)
            if place[1] >= self.first:
                break
        return found

    def _tell(self) -> None:
        for more in self._waiting:
            if not more.done():  # nor cancelled, with a reader that leaves
                more.set_result(None)


class Feeds:
    """The feeds of one process, by chat."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._feeds: dict[str, Feed] = {}
        self.pages = SharedPages(store)

    def figures(self) -> dict[str, int]:
        feeds = list(self._feeds.values())
        return {
            "feeds": len(feeds),
            "feed_readers": sum(feed.readers for feed in feeds),
            "feed_bytes": sum(feed.bytes for feed in feeds),
            "feed_bytes_max": RING_BYTES * len(feeds),
            **self.pages.figures(),
        }

    def enter(self, chat_id: str, after: str) -> Feed:
        feed = self._feeds.get(chat_id)
        if feed is None or feed.error is not None:
            feed = self._feeds[chat_id] = Feed(self._store, chat_id, after)
        feed.readers += 1
        return feed

    def leave(self, chat_id: str, feed: Feed) -> None:
        feed.readers -= 1
        if feed.readers == 0:
            feed.close()
            if self._feeds.get(chat_id) is feed:
                del self._feeds[chat_id]


class FeedReader:
    """One reader's way through a chat. `next` gives what comes after its place, in order, each once."""

    def __init__(self, store: ChatStore, feeds: Feeds, chat_id: str, after: AfterCursor) -> None:
        """`store` is the reader's own, and was asked for the chat before: feeds are shared by all who may see it."""
        self._store = store
        self._feeds = feeds
        self._chat_id = chat_id
        self.cursor = after
        self._feed: Feed | None = None
        self._told_rest = False
        self._number: int | None = None  # of the next frame, where its place is in the feed's ring
        self._page: SharedPage | None = None  # whose frames were given last

    async def next(self) -> Batch:
        """Raises NotFound once the chat is gone, and StoreError once the store is, for good. Waits as long as nothing
        happens, or the store is away: give it a deadline. What it gave before is let go of.
        """
        while True:
            self._let_go()
            frames = await self._catch_up() if self._number is None else await self._hear(self._number)
            if frames:
                self.cursor = frames[-1].cursor
                self._told_rest = frames[-1].rest
                return frames

    async def _catch_up(self) -> Batch:
        try:
            return await self._read()
        except FINAL:
            raise
        except StoreError:  # a feed's log tells of it, once for all
            await _bide()
            return Batch()

    async def _read(self) -> Batch:
        """From the store, until its place is one that the feed knows."""
        if not isinstance(
            self.cursor, str
        ):  # where it stands in this life of the chat: what is shared is of one life
            self.cursor = (await self._store.read_journal(self._chat_id, self.cursor, limit=0)).cursor
        page = self._page = await self._feeds.pages.take(self._chat_id, self.cursor)
        if page.frames and (page.frames[-1].item is not None or not self._told_rest):
            return page.frames
        self.cursor = page.cursor
        if self._feed is None:
            self._feed = self._feeds.enter(self._chat_id, page.cursor)
        self._number = self._feed.place_of(page.cursor)
        if self._number is None:
            return frames_of(await self._store.wait_journal(self._chat_id, self.cursor, 60.0))
        return Batch()

    async def _hear(self, number: int) -> Batch:
        feed = self._feed
        assert feed is not None
        if feed.error is not None:
            raise feed.error
        if number < feed.first:
            self._number = None  # too slow for the ring: from the store, then
            return Batch()
        if number == feed.end:
            await feed.wait()
            return Batch()
        frames = feed.since(number)
        self._number = feed.end
        return frames

    def _let_go(self) -> None:
        if self._page is not None:
            self._feeds.pages.let_go(self._page)
            self._page = None

    def close(self) -> None:
        self._let_go()
        if self._feed is not None:
            self._feeds.leave(self._chat_id, self._feed)
            self._feed = None
