"""Follows a response through its chat's journal: for a stream, or until it is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from starlette.requests import Request

from holdfast.core.codec import decode_entry
from holdfast.core.journal import ChatCreated, MessageAdded, TurnResumed
from holdfast.errors import InvalidInput, NotFound, StoreError, WrongCursor
from holdfast.server.feeds import FeedReader
from holdfast.server.openai.errors import error_body
from holdfast.server.openai.ids import ResponsePlace
from holdfast.server.openai.placement import cursor_before
from holdfast.server.openai.response_state import Happening, Telling
from holdfast.server.streams import HEARTBEAT, HEARTBEAT_S, Stream, Streams, disconnected
from holdfast.store.cursor import Cursor
from holdfast.store.records import Item
from holdfast.store.update_reader import event_of

WAIT_S = 600.0  # what the official client waits for an answer
Encode = Callable[[Telling, Sequence[Happening]], bytes]

GOING = error_body("this server is going; the turn goes on: ask for the rest of it", "server_error", "reconnect")
GONE = error_body("the chat was deleted", "invalid_request_error", "not_found")


def sse(value: object) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(value)


def client_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


class Following:
    """Where a reader is in a response."""

    def __init__(self, streams: Streams, place: ResponsePlace, after: int = -1) -> None:
        self.telling = Telling(place, after)
        self._reader = FeedReader(streams.store, streams.feeds, place.chat_id, cursor_before(place.start))

    async def next(self) -> list[Happening]:
        """Waits as long as nothing happens: give it a deadline. Raises NotFound."""
        told: list[Happening] = []
        for frame in await self._reader.next():
            if frame.item is not None:
                told += self.telling.take(event_of(frame.item))
        return told

    def close(self) -> None:
        self._reader.close()


class Told(Stream):
    """A response as a stream of server-sent events, `begin` first."""

    farewell = sse(GOING)

    def __init__(
        self,
        streams: Streams,
        place: ResponsePlace,
        encode: Encode,
        *,
        begin: bytes = b"",
        end: bytes = b"",
        after: int = -1,
    ) -> None:
        super().__init__(streams, [(b"x-holdfast-chat", place.chat_id.encode())])
        self._following = Following(streams, place, after)
        self._encode = encode
        self._begin = begin
        self._end = end

    def close(self) -> None:
        self._following.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        telling = self._following.telling
        if self._begin:
            yield self._begin
        while not telling.over:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    told = await self._following.next()
            except TimeoutError:
                yield HEARTBEAT
                continue
            except (NotFound, WrongCursor):
                yield sse(GONE)
                return
            except StoreError as error:
                yield sse(error_body(str(error), "server_error", error.code))
                return
            if data := self._encode(telling, told):
                yield data
        if self._end:
            yield self._end


async def read(streams: Streams, place: ResponsePlace) -> Telling:
    """As far as it is told now. Raises NotFound, also where no response begins."""
    telling = Telling(place)
    cursor: Cursor | str = cursor_before(place.start)
    while not telling.over:
        try:
            page = await streams.store.read_journal(place.chat_id, cursor)
        except InvalidInput as error:
            raise NotFound("response", place.response_id) from error  # its chat has not come so far
        if telling.began_at == 0 and not (page.items and page.items[0].seq == place.start and begins(page.items[0])):
            raise NotFound("response", place.response_id)
        for item in page.items:
            telling.take(event_of(item))
        cursor = page.cursor
        if not page.more:
            break
    return telling


def begins(item: Item) -> bool:
    """A chat, a turn that a user's message begins, or one that goes on with results."""
    entry = decode_entry(item.body)
    if isinstance(entry, MessageAdded):
        return entry.attempt is None and not entry.off_history
    return isinstance(entry, ChatCreated | TurnResumed)


async def within(streams: Streams, place: ResponsePlace, deadline_s: float) -> None:
    """Waits for its end, but not for long."""
    with contextlib.closing(Following(streams, place)) as following, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_s):
            await _all(following)


async def until_over(request: Request, streams: Streams, place: ResponsePlace) -> Telling:
    """Until the response is over, its client has left, the server goes or the time is up."""
    following = Following(streams, place)
    with streams.counted(client_of(request)), contextlib.closing(following):
        left = asyncio.ensure_future(disconnected(request.receive))
        told = asyncio.ensure_future(_all(following))
        try:
            ends = (left, told, streams.drained())
            await asyncio.wait(ends, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                told.result()
        finally:
            left.cancel()
            told.cancel()
            await asyncio.wait((left, told))
    return following.telling


async def _all(following: Following) -> None:
    while not following.telling.over:
        await following.next()
