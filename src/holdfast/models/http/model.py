"""A model behind HTTP: a wire (pure mapping) on the transport. A new provider is a new wire, and nothing here."""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

from holdfast import __version__
from holdfast.errors import LostResult, ProviderError
from holdfast.models.advice import Access, advice_on
from holdfast.models.base import Alive, Opened, Request, StreamPart
from holdfast.models.http.sse import SseEvent
from holdfast.models.http.transport import Endpoint, Exchange, Transport
from holdfast.models.wires.failures import provider_error, read_fields

_HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    "accept-encoding": "identity",  # a compressed stream comes in lumps
    "user-agent": f"holdfast/{__version__}",
}
_SHOWN_BYTES = 200


class Decoder(Protocol):
    """Reads one response, event by event."""

    @property
    def finished(self) -> bool:
        """The response is complete, though more may come, such as its token count."""

    @property
    def done(self) -> bool:
        """The provider has said that nothing more will come."""

    def feed(self, event: SseEvent) -> list[StreamPart]:
        """What an event holds; nothing if it is only a sign of life. Raises `ProviderError`."""

    def end(self) -> list[StreamPart]:
        """Called once, at the end: with `Finished` if the response is complete, nothing if it is not."""


class Wire(Protocol):
    """What differs between providers. Pure."""

    @property
    def path(self) -> str: ...

    @property
    def amendable(self) -> frozenset[str]:
        """Parameters that can be sent in another form, or left out."""

    def headers(self, key: str | None) -> Mapping[str, str]: ...
    def encode(self, request: Request) -> bytes: ...
    def decoder(self, who: str) -> Decoder: ...


def _joined(base_url: str, path: str) -> str:
    """Either may have a query."""
    head, _, query = base_url.partition("?")
    path, _, own = path.partition("?")
    queries = "&".join(part for part in (own, query) if part)
    return f"{head.rstrip('/')}{path}{'?' if queries else ''}{queries}"


class HttpModel:
    """A `Model`. The transport is asked for when it is first needed, inside the event loop."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        base_url: str,
        transport: Callable[[], Transport],
        *,
        provider: str,
        key: str | None = None,
        context_limit: int | None = None,
        headers: Mapping[str, str] | None = None,
        access: Access | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._endpoint = Endpoint(_joined(base_url, wire.path))
        self._name = name
        self._wire = wire
        self._transport = transport
        self._provider = provider
        self._key = key
        self._context_limit = context_limit
        self._headers = {**_HEADERS, **(headers or {})}
        self._access = access
        self._wall_s = wall_s
        self.quota = name  # what a provider's pause is for: this model, under this key

    @property
    def name(self) -> str:
        return self._name

    @property
    def provider(self) -> str:
        return self._provider

    @property
    def context_limit(self) -> int | None:
        return self._context_limit

    def __repr__(self) -> str:
        return f"<HttpModel {self._name}>"

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        body = self._wire.encode(request)
        headers = {**self._headers, **self._wire.headers(self._key)}
        keys = () if self._key is None else (self._key,)
        post = self._transport().post
        try:
            async with post(self._endpoint, headers, body, request.deadlines, keys=keys) as exchange:
                if exchange.status != 200:
                    raise await self._refusal(exchange)
                yield Opened(request_id=exchange.request_id, rate_limits=exchange.rate_limits)
                decoder = self._wire.decoder(self._name)
                if exchange.content_type == "text/event-stream":
                    while not decoder.done and (events := await exchange.next_events()) is not None:
                        silent = True
                        for event in events:
                            if parts := self._read(decoder, event, exchange):
                                silent = False
                                for part in parts:
                                    yield part
                                exchange.progressed()
                            if decoder.done:
                                break
                        if silent:
                            yield Alive()
                        if decoder.finished:
                            exchange.finished()
                    await exchange.drain()
                else:
                    for part in await self._whole(decoder, exchange):
                        yield part
                for part in decoder.end():
                    yield part
        except ProviderError as error:
            if self._access is not None:
                error.advice = advice_on(error, self._access)
            raise

    def _read(self, decoder: Decoder, event: SseEvent, exchange: Exchange) -> list[StreamPart]:
        complete = decoder.finished
        try:
            return decoder.feed(event)
        except ProviderError as error:
            if complete:
                return []  # the response was there already
            error.request_id = error.request_id or exchange.request_id
            raise

    async def _whole(self, decoder: Decoder, exchange: Exchange) -> list[StreamPart]:
        """A server that does not stream sends the whole response as one document."""
        body = await exchange.read_whole()
        if exchange.content_type.endswith("json"):
            return self._read(decoder, SseEvent(data=body), exchange)
        raise LostResult(
            f"{self._name} answered with {exchange.content_type or 'no content type'} instead of a stream of events; "
            f"check its URL. It begins: {body[:_SHOWN_BYTES].decode('utf-8', 'replace')}",
            request_id=exchange.request_id,
        )

    async def _refusal(self, exchange: Exchange) -> ProviderError:
        fields = read_fields(await exchange.read_error())
        if 300 <= exchange.status < 400:
            where = exchange.headers.get("location", "").partition("?")[0]
            return ProviderError(
                f"{self._name} sent us on to {where!r} ({exchange.status}), and redirects are not followed: "
                "put the right address into the model's URL",
                code="bad_request",
                status=exchange.status,
            )
        return provider_error(
            self._name,
            exchange.status,
            fields,
            headers=exchange.headers,
            now_s=self._wall_s(),
            request_id=exchange.request_id,
            amendable=self._wire.amendable,
        )
