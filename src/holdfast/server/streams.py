"""Server-sent events: a chat's journal as it happens, resumable at any place, on any server process."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.core.records import State
from holdfast.errors import HoldfastError, NotFound, StoreError, TooManyStreams, WrongCursor
from holdfast.server import problems
from holdfast.server.feeds import FeedReader, Feeds, Frame
from holdfast.store.contract import Store

HEARTBEAT_S = 10.0
SEND_S = 20.0  # a client that takes nothing for so long is cut off; it can come back with its cursor
BATCH_BYTES = 64 << 10
STREAMS_MAX = 10_000
STREAMS_PER_CLIENT_MAX = 500

HEARTBEAT = b": \n\n"
RECONNECT = b"event: reconnect\nretry: 500\ndata: {}\n\n"

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Streams:
    """All streams of one server: counted, limited, and told when the server goes."""

    def __init__(
        self, store: Store, *, streams_max: int = STREAMS_MAX, per_client_max: int = STREAMS_PER_CLIENT_MAX
    ) -> None:
        self.store = store
        self.feeds = Feeds(store)
        self._streams_max = streams_max
        self._per_client_max = per_client_max
        self._open: Counter[str] = Counter()
        self.count = 0
        self.cut_off = 0
        self._drained: asyncio.Future[None] | None = None  # one for all streams

    def figures(self) -> dict[str, int]:
        return {
            "streams": self.count,
            "streams_max": self._streams_max,
            "streams_per_client_max": self._per_client_max,
            "streams_cut_off": self.cut_off,
            **self.feeds.figures(),
        }

    def check(self, client: str) -> None:
        """Raises TooManyStreams: for who would begin something before it streams."""
        if self.count >= self._streams_max:
            raise TooManyStreams("streams of this server", self.count, self._streams_max, "come back later")
        if self._open[client] >= self._per_client_max:
            held = self._open[client]
            raise TooManyStreams("streams of one client", held, self._per_client_max, "close some of them")

    @contextlib.contextmanager
    def counted(self, client: str) -> Iterator[None]:
        self.check(client)
        self.count += 1
        self._open[client] += 1
        try:
            yield
        finally:
            self.count -= 1
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def drain(self) -> None:
        """Every stream ends with an event that tells its client to come back, to whichever server is there then."""
        if not self.drained().done():
            self.drained().set_result(None)

    def drained(self) -> "asyncio.Future[None]":
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        return self._drained


class Stream(Response):
    """The answer to a client that stays: chunks as they come, signs of life between, a word when the server goes."""

    farewell = RECONNECT

    def __init__(self, streams: Streams, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__()
        self._streams = streams
        self._extra = headers

    def chunks(self) -> AsyncIterator[bytes]:
        """Ends when all was told."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, however it ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope["client"][0] if scope.get("client") else ""
        with self._streams.counted(client):
            headers = [*HEADERS, *self._extra]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            left = asyncio.ensure_future(disconnected(receive))
            told = asyncio.ensure_future(self._tell(send))
            try:
                ends = (left, told, self._streams.drained())
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not told.done() and not left.done():
                    told.cancel()
                    await asyncio.wait((told,))
                    await self._send(send, self.farewell, more=False)
                elif told.done():
                    told.result()
            finally:
                left.cancel()
                told.cancel()
                await asyncio.wait((left, told))
                self.close()

    async def _tell(self, send: Send) -> None:
        await self._send(send, HEARTBEAT)  # so that a client knows at once that it is connected
        async for data in self.chunks():
            if not await self._send(send, data):
                return
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> bool:
        try:
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            self._streams.cut_off += 1
            return False
        return True


class EventStream(Stream):
    """The answer to a reader. `follow`: it stays when the chat rests; else it ends there."""

    def __init__(self, streams: Streams, chat_id: str, after: str | None, *, follow: bool) -> None:
        super().__init__(streams)
        self._chat_id = chat_id
        self._follow = follow
        self._reader = FeedReader(streams.store, streams.feeds, chat_id, after)

    async def begin(self) -> "EventStream":
        """The first look, before the status is sent: a chat that is not there is an error, not an empty stream."""
        await self._streams.store.read_journal(self._chat_id, self._reader.cursor, limit=1)
        return self

    def close(self) -> None:
        self._reader.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    frames = await self._reader.next()
            except TimeoutError:
                yield HEARTBEAT
                continue
            except (NotFound, WrongCursor):  # deleted, and perhaps its id is another chat's by now
                yield b"event: gone\ndata: {}\n\n"
                return
            except StoreError as error:
                yield b"event: problem\ndata: %s\n\n" % problems.of_error(error).body
                return
            for data in _joined(frames):
                yield data
            if frames[-1].rest and not self._follow:
                yield await self._end()
                return

    async def _end(self) -> bytes:
        try:
            state: State | None = (await self._streams.store.read_chat(self._chat_id)).chat.state
        except HoldfastError:
            state = None
        return b"event: end\ndata: %s\n\n" % msgspec.json.encode({"state": state})


def _joined(frames: Sequence[Frame]) -> Iterator[bytes]:
    """Few large writes instead of many small ones."""
    batch: list[bytes] = []
    size = 0
    for frame in frames:
        if not frame.data:
            continue
        batch.append(frame.data)
        size += len(frame.data)
        if size >= BATCH_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    if batch:
        yield b"".join(batch)


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
