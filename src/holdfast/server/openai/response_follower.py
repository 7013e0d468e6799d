"""Follows a response through its chat's journal: for a stream, or until it is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request

from holdfast.core.journal import ChatCreated, DescendantAnswered, MessageAdded, TurnResumed
from holdfast.errors import InvalidInput, NotFound, StoreError, WrongCursor
from holdfast.server.feeds import FeedReader
from holdfast.server.openai.errors import TURN_WAITS
from holdfast.server.openai.ids import ResponsePlace
from holdfast.server.openai.placement import cursor_before
from holdfast.server.openai.response_state import Happening, Telling
from holdfast.server.owned_app import OwnedApp
from holdfast.server.streams import ENDED_WORDS, HEARTBEAT, HEARTBEAT_S, Stream, disconnected
from holdfast.store.cursor import Cursor
from holdfast.store.open_calls import OpenCallRecord
from holdfast.store.records import Item
from holdfast.store.update_reader import event_of

WAIT_S = 600.0  # what the official client waits for an answer
SHOWN_CHARS = 200  # of a call's arguments, in words for people
GOING = "this stream ends here; the turn goes on: ask for the rest of it", "server_error", "reconnect"
DISMISSED = ENDED_WORDS, "authentication_error", "invalid_api_key"
GONE = "the chat was deleted", "invalid_request_error", "not_found"


class Encoder(Protocol):
    """What happens, as a client of one of the protocols is told of it."""

    def __call__(self, telling: Telling, happenings: Sequence[Happening], /) -> bytes: ...

    def error(self, message: str, kind: str, code: str | None) -> bytes: ...


def sse(value: object) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(value)


class Following:
    """Where a reader is in a response."""

    def __init__(self, app: OwnedApp, telling: Telling) -> None:
        self.telling = telling
        self._store = app.store
        self._reader = FeedReader(
            app.store, app.streams.feeds, telling.place.chat_id, cursor_before(telling.place.start)
        )

    async def next(self) -> list[Happening]:
        """Waits as long as nothing happens: give it a deadline. Raises NotFound."""
        told: list[Happening] = []
        for frame in await self._reader.next():
            if frame.item is not None:
                told += self.telling.take(event_of(frame.item))
        return told

    async def open_calls(self) -> list[OpenCallRecord]:
        """What people have to approve first, where the response does not end with it. The journal may lead further
        than to the place where it was asked.
        """
        waits = self.telling.asked and not self.telling.over
        return await self._store.open_calls(self.telling.place.chat_id) if waits else []

    def close(self) -> None:
        self._reader.close()


class Told(Stream):
    """A response as a stream of server-sent events, `begin` first."""

    def __init__(self, app: OwnedApp, telling: Telling, encoder: Encoder, *, begin: bytes = b"") -> None:
        super().__init__(app, [(b"x-holdfast-chat", telling.place.chat_id.encode())])
        self._following = Following(app, telling)
        self._encoder = encoder
        self._begin = begin
        self.farewell = encoder.error(*GOING)
        self.dismissal = encoder.error(*DISMISSED)

    def close(self) -> None:
        self._following.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        telling, encoder = self._following.telling, self._encoder
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
                yield encoder.error(*GONE)
                return
            except StoreError as error:
                yield encoder.error(str(error), "server_error", error.code)
                return
            if data := encoder(telling, told):
                self.farewell = encoder.error(*GOING)
                yield data
            if asked := await self._following.open_calls():
                yield encoder.error(waits_for(telling.place, asked), "invalid_request_error", TURN_WAITS)
                return


def waits_for(place: ResponsePlace, asked: Sequence[OpenCallRecord]) -> str:
    """For people: what has to be done, and where."""
    calls = [f"{call.kind} of {call.name}({call.arguments[:SHOWN_CHARS]}), {call.call_id}" for call in asked]
    where = [f" in {call.chat_id}" if call.chat_id != place.chat_id else "" for call in asked]
    words = "; ".join(call + place for call, place in zip(calls, where, strict=True))
    return f"the turn in chat {place.chat_id} waits: {words}"


async def read(app: OwnedApp, place: ResponsePlace) -> Telling:
    """As far as it is told now. Raises NotFound, also where no response begins."""
    telling = Telling(place)
    cursor: Cursor | str = cursor_before(place.start)
    while not telling.over or telling.waits:
        try:
            page = await app.store.read_journal(place.chat_id, cursor)
        except InvalidInput as error:
            raise NotFound("response", place.response_id) from error  # its chat has not come so far
        except NotFound as error:
            raise NotFound("response", place.response_id) from error
        if telling.began_at == 0 and not (page.items and page.items[0].seq == place.start and begins(page.items[0])):
            raise NotFound("response", place.response_id)
        for item in page.items:
            telling.take(event_of(item))
        cursor = page.cursor
        if not page.more:
            break
    return telling


def begins(item: Item) -> bool:
    """A chat, a turn that a user's message begins, or one that goes on with what others answered."""
    entry = event_of(item).body
    if isinstance(entry, MessageAdded):
        return entry.attempt is None and not entry.off_history
    return isinstance(entry, ChatCreated | TurnResumed | DescendantAnswered)


async def within(app: OwnedApp, place: ResponsePlace, deadline_s: float) -> None:
    """Waits for its end, but not for long."""
    with contextlib.closing(Following(app, Telling(place))) as following, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_s):
            await _all(following)


async def until_over(request: Request, app: OwnedApp, telling: Telling) -> list[OpenCallRecord]:
    """Until the response is over, a person has to act first, its client has left, the server goes or the time is up.
    What it gives is what people have to do, where the telling leads through approvals. Raises Unauthorized.
    """
    following = Following(app, telling)
    with app.streams.shares.counted(app.client), contextlib.closing(following):
        left = asyncio.ensure_future(disconnected(request.receive))
        told = asyncio.ensure_future(_all(following))
        try:
            await app.streams.wait_for((left, told), app.grant, WAIT_S)
            return told.result() if told.done() else []
        finally:
            left.cancel()
            told.cancel()
            await asyncio.wait((left, told))


async def _all(following: Following) -> list[OpenCallRecord]:
    while not following.telling.over:
        await following.next()
        if asked := await following.open_calls():
            return asked
    return []
