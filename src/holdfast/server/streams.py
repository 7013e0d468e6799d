"""Server-sent events: a chat's journal as it happens, resumable at any place, on any server process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.records import State
from holdfast.errors import HoldfastError, NotFound, StoreError, Unauthorized, WrongCursor
from holdfast.server import problems
from holdfast.server.feeds import FeedReader, Feeds
from holdfast.server.frames import BATCH_BYTES, Frame, joined
from holdfast.server.grants import Grant, GrantEnd, Grants
from holdfast.server.html_feeds import HtmlFeeds, HtmlReader
from holdfast.server.limits import SAID_ALL, Room
from holdfast.server.shares import RequestShares, StreamShares
from holdfast.server.traffic import Traffic
from holdfast.server.uploads import Uploads
from holdfast.store.contract import Store
from holdfast.store.cursor import Cursor, parse
from holdfast.store.update_reader import event_cursor, reader_start
from holdfast.system.supervised import Supervised
from holdfast.system.timeouts import Timeouts

if TYPE_CHECKING:
    from holdfast.server.owned_app import OwnedApp

HEARTBEAT_S = 10.0
SEND_S = 20.0  # a client that takes nothing for so long is cut off; it can come back with its cursor
RATE_BYTES_S = 32 << 10  # and one that takes a large piece more slowly than that
FAREWELL_S = 2.0  # for the rest of the piece that is being sent when the server goes

HEARTBEAT = b": \n\n"
GREETING = b"retry: 1000\n: \n\n"  # when an EventSource comes back that lost its connection
ENDED = ".end"  # behind the cursor in the id of `end`: an EventSource that comes back with it has all there is
PLACE = b"event: place\ndata: {}\n\n"
LIVE = b"event: live\ndata: {}\n\n"
ENDED_WORDS = "the token was revoked, or has expired"
UNAUTHORIZED = b"event: unauthorized\ndata: %s\n\n" % msgspec.json.encode({"reason": ENDED_WORDS})
RECONNECT = b"event: reconnect\nretry: 500\ndata: {}\n\n"

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Streams:
    """All streams of one server: counted, limited, and told when the server goes."""

    def __init__(
        self, store: Store, grants: Grants, shares: StreamShares, requests: RequestShares, uploads: Uploads
    ) -> None:
        self.grants = grants
        self.shares = shares
        self.requests = requests
        self.feeds = Feeds(store)  # of chats that their readers were let see
        self.html = HtmlFeeds(store)
        self.cut_off = 0
        self._drained: asyncio.Future[None] | None = None  # one for all streams
        self.going = False  # the server was told to stop
        self.connections: Room | None = None  # of the server, where it is ours
        self.place: Supervised | None = None  # of this process, where it is one of several
        self.traffic = Traffic()
        self.uploads = uploads

    def figures(self) -> dict[str, Any]:
        return {
            **self.shares.figures(),
            "streams_cut_off": self.cut_off,
            **self.requests.figures(),
            **self.feeds.figures(),
            **self.uploads.figures(),
            **(self.connections.figures() if self.connections is not None else {}),
            "http": self.traffic.figures(),
        }

    def drain(self) -> None:
        """Every stream ends with an event that tells its client to come back, to whichever server is there then."""
        if not self.drained().done():
            self.drained().set_result(None)

    async def wait_for(
        self, waiting: "Sequence[asyncio.Future[Any]]", grant: Grant, timeout_s: float | None = None
    ) -> None:
        """Until one is done, the time is up, the server goes or the grant is due. Raises Unauthorized once the grant
        is not valid any more.
        """
        with self.grants.watching(grant) as ended:
            ends = (*waiting, ended, self.drained())
            done, _ = await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if done == {ended} and _is_invalid(ended):
                raise Unauthorized(ENDED_WORDS)

    def drained(self) -> "asyncio.Future[None]":
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        return self._drained


class GoingMiddleware:
    """What is still unanswered when the server's time is up is to be sent again: its request is not at fault."""

    def __init__(self, app: ASGIApp, streams: Streams) -> None:
        self._app = app
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if started or not self._streams.going:
                raise
            await problems.of_going()(scope, receive, send)


class Stream(Response):
    """The answer to a client that stays: chunks as they come, signs of life between, a word when the server goes."""

    greeting = HEARTBEAT  # so that a client knows at once that it is connected
    farewell = RECONNECT
    dismissal = UNAUTHORIZED  # where what it was let in with is not valid any more

    sign = HEARTBEAT  # of life, for a client that may have left
    media = HEADERS
    unfinished = False  # while it is, its answer is left without an end, so that no client takes it for a whole one

    def __init__(self, app: "OwnedApp", headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__()
        self._app = app
        self._streams = app.streams
        self._extra = headers
        self._piece = asyncio.Lock()  # held while a piece is being sent, which is whole events
        self._told_all = False
        self._timeouts: Timeouts  # of the task that tells

    def chunks(self) -> AsyncIterator[bytes]:
        """Ends when all was told."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, however it ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.shares.counted(self._app.client), self._streams.grants.watching(self._app.grant) as ended:
            headers = [*self.media, *self._extra]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            left = asyncio.ensure_future(disconnected(receive))
            told = asyncio.ensure_future(self._tell(send))
            try:
                await self._until((left, told, ended, self._streams.drained()), scope, send)
                if not told.done() and not left.done():
                    await self._leave(told, send, self.dismissal if _is_invalid(ended) else self.farewell)
                elif told.done():
                    told.result()
            finally:
                left.cancel()
                told.cancel()
                await asyncio.wait((left, told))
                self.close()

    async def _tell(self, send: Send) -> None:
        self._timeouts = Timeouts()
        try:
            await self._send(send, self.greeting)
            async for data in self.chunks():
                if not await self._tell_piece(send, data):
                    return
                del data  # it would be held while there is nothing to tell
            if not self.unfinished:
                await self._send(send, b"", more=False)
        finally:
            self._timeouts.close()

    async def _until(self, ends: "Sequence[asyncio.Future[Any]]", scope: Scope, send: Send) -> None:
        """One of these. A client that will say nothing more may have left: something is sent to it, which tells."""
        said_all: asyncio.Future[None] | None = scope.get("state", {}).get(SAID_ALL)
        if said_all is not None:
            await asyncio.wait((*ends, said_all), return_when=asyncio.FIRST_COMPLETED)
        sign = (
            asyncio.ensure_future(self._send(send, self.sign)) if said_all is not None and said_all.done() else None
        )
        try:
            if sign is not None:  # which a client that takes nothing keeps waiting: not so what ends the stream
                either: tuple[asyncio.Future[Any], ...] = (*ends, sign)
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if sign.done():
                    sign.result()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if sign is not None:
                sign.cancel()
                await asyncio.wait((sign,))

    async def _leave(self, told: "asyncio.Future[None]", send: Send, words: bytes) -> None:
        """A farewell in the midst of an event would be read as a part of it. Who is there is cut off instead, and
        comes back with its cursor just the same.
        """
        whole = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S), self._piece:
                whole = told.cancel()
        told.cancel()
        await asyncio.wait((told,))
        if whole:
            await self._send(send, words, more=self.unfinished)

    async def _tell_piece(self, send: Send, data: bytes) -> bool:
        """Nearly all of them are one slice, and there is no one to wait for."""
        if len(data) > BATCH_BYTES or self._piece.locked():
            return await self._send(send, data)
        async with self._piece:
            if self._told_all:
                return False
            try:
                with self._timeouts.within(SEND_S):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except TimeoutError:
                self._streams.cut_off += 1
                return False
        return True

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> bool:
        """Slice by slice: each client has a small part of a large piece in its buffer, and the piece is shared."""
        try:
            async with asyncio.timeout(SEND_S + len(data) / RATE_BYTES_S), self._piece:
                if self._told_all:
                    return False
                self._told_all = not more
                for at in range(0, len(data) or 1, BATCH_BYTES):
                    last = at + BATCH_BYTES >= len(data)
                    slice = data if last and at == 0 else data[at : at + BATCH_BYTES]
                    async with asyncio.timeout(SEND_S):
                        await send({"type": "http.response.body", "body": slice, "more_body": more or not last})
                    if not last:
                        await asyncio.sleep(0)  # a hundred readers that take it at once would hold the loop together
        except TimeoutError:
            self._streams.cut_off += 1
            return False
        return True


class EventStream(Stream):
    """The answer to a reader. `follow`: it stays when the chat rests; else it ends there. For readers that fold what
    they read, `whole_turn` begins with the first line of the turn that their cursor is in, and says `place` behind
    what they were told before; `live` says so once all was told that there was when the stream began. With `render`,
    the HTML of what the model says comes behind it.
    """

    greeting = GREETING

    def __init__(
        self,
        app: "OwnedApp",
        chat_id: str,
        after: str | None,
        *,
        follow: bool,
        whole_turn: bool = False,
        live: bool = False,
        render: bool = False,
    ) -> None:
        super().__init__(app)
        self._store = app.store  # which lets nobody see a chat of another owner
        self._html: HtmlReader | None = None
        self._render = render
        self._chat_id = chat_id
        self._follow = follow
        self._whole_turn = whole_turn
        self._live = live
        self._saw_end = after is not None and after.endswith(ENDED)
        self._after = after.removesuffix(ENDED) if after is not None else None
        self._signs: list[tuple[int, bytes]] = []  # to be given behind a line, in their order
        place = None if whole_turn else event_cursor(self._after)
        self._reader = FeedReader(app.store, app.streams.feeds, chat_id, place)

    async def begin(self) -> Response:
        """The first look, before the status is sent: a chat that is not there is an error, not an empty stream. An
        EventSource comes back after every end; 204 is the word that ends it.
        """
        if self._whole_turn:
            await self._begin_turn()
        if self._live:
            self._signs.append(((await self._store.read_chat(self._chat_id)).chat.seq, LIVE))
        # A line is read only where it counts: it may be a large one.
        page = await self._store.read_journal(self._chat_id, self._reader.cursor, limit=int(self._saw_end))
        if self._saw_end and not self._follow and page.at_rest and not page.items:
            return Response(status_code=204)
        if not self._saw_end:
            self._reader.cursor = page.cursor  # the same place, by which readers share what they read
        return self

    async def _begin_turn(self) -> None:
        start = await reader_start(self._store, self._chat_id, self._after)
        self._reader.cursor = Cursor(seq=start.again - 1) if start.again else start.place
        if start.mark is not None:
            self._signs.append((start.place.seq, PLACE))

    def _passed(self, seq: int) -> Iterator[bytes]:
        while self._signs and self._signs[0][0] <= seq:
            yield self._signs.pop(0)[1]

    def _told(self, frames: Sequence[Frame]) -> Iterator[bytes]:
        """As it goes over the wire, with signs where they belong. What is streamed comes behind all lines."""
        for frame in frames:
            yield frame.data
            if self._signs and frame.item is not None and frame.item.seq is not None:
                yield from self._passed(frame.item.seq)

    def close(self) -> None:
        self._reader.close()
        if self._html is not None:
            self._html.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        for sign in self._passed(parse(self._reader.cursor).seq):
            yield sign
        while True:
            data = b""
            try:
                with self._timeouts.within(HEARTBEAT_S):
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
            for data in joined(self._told(frames)) if self._signs else frames.pieces():
                yield data
            if self._render:
                self._html = self._html or self._streams.html.enter(self._chat_id, frames[-1].cursor)
                for data in joined(await self._html.events(frames)):
                    yield data
            if frames[-1].rest and not self._follow:
                yield await self._end()
                return
            del frames, data  # a reader that waits holds nothing of what it was told

    async def _end(self) -> bytes:
        try:
            state: State | None = (await self._store.read_chat(self._chat_id)).chat.state
        except HoldfastError:
            state = None
        told = f"{self._reader.cursor or ''}{ENDED}".encode()
        return b"id: %s\nevent: end\ndata: %s\n\n" % (told, msgspec.json.encode({"state": state}))


def _is_invalid(ended: "asyncio.Future[GrantEnd]") -> bool:
    return ended.done() and ended.result() == "invalid"


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
