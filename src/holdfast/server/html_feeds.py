"""The HTML of what a chat's model says, for all readers who want it (`render=html`): each block made once.

A chat that has such readers has one `HtmlFeed`. The first reader who brings a piece has the last block made again;
the others find it there. A reader is sent the blocks that changed since it was sent some: `{"attempt", "block",
"html"}`, the block's number counting from 0 in its attempt, and for a committed message the whole: `{"message_id",
"attempt", "html"}`. What is long is rendered in a thread, one at a time; a long block that grows is rendered again
when it has grown by a part, so that the whole stays linear.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.codec import decode_delta
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Message
from holdfast.errors import RecordError, StoreError
from holdfast.server.frames import Frame
from holdfast.server.rendering import TEXT_CHARS_MAX, blocks_of, rendered, rendered_block
from holdfast.store.contract import Store
from holdfast.store.cursor import parse
from holdfast.store.records import Item
from holdfast.store.update_reader import event_of
from holdfast.system.threads import Pool

INLINE_CHARS_MAX = 500  # what is shorter is rendered at once: in a few milliseconds, whatever it is
GROWTH = 16  # a block is rendered again when it has grown by this part of it
MESSAGES_KEPT = 16  # of a chat, rendered

_pool = Pool("render", 1)  # bounded work: whatever a chat says, it comes to its end

_Life = tuple[str, bytes]  # a chat, and which of those that had its id


class _Block(NamedTuple):
    version: int
    event: bytes


class _Streamed:
    """A response while it is streamed."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.next_k = 0
        self.blocks: list[_Block] = []  # the last is that of the tail, if that was rendered
        self.version = 0
        self._chars = 0
        self._tail = ""  # the text of the last block
        self._rendered_chars = 0  # of it; 0: it has no block yet

    def add(self, piece: str) -> None:
        self._chars += len(piece)
        if self._chars <= TEXT_CHARS_MAX:  # what comes behind is shown with the whole
            self._tail += piece

    @property
    def grown(self) -> bool:
        """By enough to be rendered again."""
        grown = len(self._tail) - self._rendered_chars
        return grown > 0 and grown >= self._rendered_chars // GROWTH

    async def render(self) -> None:
        """In a thread where it is long. What was not waited for to its end changed nothing."""
        if len(self._tail) <= INLINE_CHARS_MAX:
            found = _rendered_tail(self._tail)
        else:
            tail = self._tail
            found = await _pool.run(lambda _: _rendered_tail(tail))
        if not found:
            return
        if self._rendered_chars:
            self.blocks.pop()
        for _, html in found:
            self.version += 1
            told = event({"attempt": self.attempt, "block": len(self.blocks), "html": html})
            self.blocks.append(_Block(self.version, told))
        self._tail = found[-1][0]
        self._rendered_chars = len(self._tail)


def _rendered_tail(tail: str) -> list[tuple[str, str]]:
    return [(text, rendered_block(text)) for text in blocks_of(tail)]


class HtmlFeed:
    """One chat's."""

    def __init__(self, store: Store, chat_id: str) -> None:
        self._store = store
        self._chat_id = chat_id
        self._turn = asyncio.Lock()  # whose reader has something rendered
        self._messages: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self.streamed = _Streamed(0)
        self.readers = 0

    async def hear(self, item: Item) -> None:
        """A delta. Where the ones before it were not heard, they are read."""
        attempt, k = item.attempt or 0, item.k or 0
        if (attempt, k) < (self.streamed.attempt, self.streamed.next_k):
            return  # the first of its readers has brought it
        async with self._turn:
            if (attempt, k) < (self.streamed.attempt, self.streamed.next_k):
                return
            if attempt != self.streamed.attempt:
                self.streamed = _Streamed(attempt)
            bodies = [item.body]
            if k > self.streamed.next_k:
                rows = await self._store.read_deltas(self._chat_id, attempt)
                bodies = [row.body for row in rows if self.streamed.next_k <= row.k < k] + bodies
            self.streamed.next_k = k + 1
            for body in bodies:
                delta = decode_delta(body)
                if delta.part == "text":
                    self.streamed.add(delta.text)

    async def render(self) -> None:
        if self.streamed.grown:
            async with self._turn:
                if self.streamed.grown:
                    await self.streamed.render()

    async def message(self, item: Item) -> bytes:
        """The event that tells of a committed message; empty: it is none that a model wrote."""
        place = (item.seq or 0, item.at)  # a chat that was made anew under its id has other instants
        async with self._turn:
            if place not in self._messages:
                self._messages[place] = await self._rendered(item)
                while len(self._messages) > MESSAGES_KEPT:
                    self._messages.popitem(last=False)
            return self._messages[place]

    async def _rendered(self, item: Item) -> bytes:
        entry = event_of(item).body
        if not isinstance(entry, MessageAdded) or entry.attempt is None:
            return b""
        try:
            message: Message = entry.message
        except RecordError:  # newer code wrote it
            return b""
        html = await html_of(message.text)
        return event({"message_id": message.id, "attempt": entry.attempt, "html": html})


async def html_of(text: str) -> str:
    """The whole of what a model said, rendered: in a thread where it is long."""
    if len(text) <= INLINE_CHARS_MAX:
        return rendered(text)
    return await _pool.run(lambda _: rendered(text))


def event(told: dict[str, object]) -> bytes:
    return b"event: html\ndata: %s\n\n" % msgspec.json.encode(told)


class HtmlFeeds:
    """Those of one server, by chat and life of it, while they have readers. A chat that was made anew under its id,
    perhaps for another owner, has other words at the same numbers.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._feeds: dict[_Life, HtmlFeed] = {}

    def enter(self, chat_id: str, cursor: str) -> "HtmlReader":
        """`cursor`: of the reader, who was told something."""
        life = (chat_id, parse(cursor).chat)
        feed = self._feeds.get(life) or HtmlFeed(self._store, chat_id)
        self._feeds[life] = feed
        feed.readers += 1
        return HtmlReader(self, life, feed)

    def leave(self, life: _Life, feed: HtmlFeed) -> None:
        feed.readers -= 1
        if not feed.readers:
            del self._feeds[life]


class HtmlReader:
    """One reader's place in it."""

    def __init__(self, feeds: HtmlFeeds, life: _Life, feed: HtmlFeed) -> None:
        self._feeds = feeds
        self._life = life
        self._feed = feed
        self._attempt = 0
        self._version = 0

    async def events(self, frames: Sequence[Frame]) -> list[bytes]:
        """What is to be sent behind these frames. What this code cannot read has no HTML."""
        told: list[bytes] = []
        streams = False
        for frame in frames:
            item = frame.item
            if item is None:
                continue
            try:
                if item.seq is None:
                    await self._feed.hear(item)
                    streams = True
                elif item.body.startswith(b'{"kind":"message",'):
                    told.append(await self._feed.message(item))
            except (RecordError, StoreError):  # a store that is away: with the next piece, then
                continue
        if streams:
            await self._feed.render()
            told += self._changed()
        return [data for data in told if data]

    def _changed(self) -> list[bytes]:
        streamed = self._feed.streamed
        if streamed.attempt != self._attempt:
            self._attempt, self._version = streamed.attempt, 0
        told = [block.event for block in streamed.blocks if block.version > self._version]
        self._version = streamed.version
        return told

    def close(self) -> None:
        self._feeds.leave(self._life, self._feed)
