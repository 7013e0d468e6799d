"""One HTTP transport for all providers: deadlines, connection limits, a bounded stream of events, nothing hidden.

It never retries, follows no redirect, keeps no cookie, and has no other timers than the request's deadlines. Ending
an exchange, in whatever way, closes its socket at once unless the response was read to its end. Keys are known to it
only as bytes to leave out: they appear in no error, no repr and no event.
"""

import asyncio
import ipaddress
import re
import ssl
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qsl, urlsplit

import httpcore2

from holdfast.core.deadlines import ModelDeadlines
from holdfast.errors import ConfigError, ConnectionFailed, LostResult
from holdfast.models.deadline_watch import Watch
from holdfast.models.http.network import Connection, Network
from holdfast.models.http.sse import EventReader, SseEvent
from holdfast.redaction import can_be_hidden

CONNECTIONS_MAX = 256
IDLE_CONNECTIONS_MAX = 32
IDLE_S = 30.0
ERROR_BODY_BYTES_MAX = 64 << 10
ERROR_BODY_S = 10.0
WHOLE_BODY_BYTES_MAX = 8 << 20
DRAIN_S = 0.1  # after the last event: the end of the body, without which the connection cannot serve again

REDACTED = b"[key]"
_SECRET = re.compile(r"key|token|secret|passw|^sig", re.IGNORECASE)  # a parameter in a query
REQUEST_ID_HEADERS = ("x-request-id", "request-id", "x-amzn-requestid", "cf-ray")


class Endpoint:
    """Where requests go. `shown` is safe to print: it has no query."""

    __slots__ = ("host", "port", "scheme", "shown", "target")

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError("a model's URL looks like https://host/v1, with http or https")
        if parts.username is not None or parts.password is not None:
            raise ConfigError("a model's URL must not hold a user name or password: keys come from the environment")
        if any(_SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
            raise ConfigError(
                "a model's URL must not hold a key: it is shown with the model's name; use the environment"
            )
        if not (host + parts.path + parts.query).isascii() or " " in parts.path + parts.query:
            raise ConfigError("a model's URL is ASCII: write the host in its xn-- form, and the rest percent-encoded")
        self.scheme = parts.scheme
        self.host = host
        self.port = port
        self.target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self.shown = f"{self.scheme}://{self.authority}{parts.path}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost" or self.host.endswith(".localhost")

    def __repr__(self) -> str:
        return f"<Endpoint {self.shown}>"


class Transport:
    """Belongs to one event loop and to its maker, who closes it in the end.

    `ssl_context` None: the system's certificates. `proxies` None: those of the environment (`HTTPS_PROXY`, …).
    """

    def __init__(
        self,
        *,
        connections_max: int = CONNECTIONS_MAX,
        ssl_context: ssl.SSLContext | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> None:
        self._connections_max = connections_max
        self._ssl_context = ssl_context
        self._proxies = urllib.request.getproxies_environment() if proxies is None else dict(proxies)
        self._network = Network()
        self._pools: dict[str | None, httpcore2.AsyncConnectionPool] = {}
        self._closed = False

    def post(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes,
        deadlines: ModelDeadlines,
        *,
        keys: tuple[str, ...] = (),
    ) -> "Exchange":
        """`async with transport.post(…) as exchange:` sends, and enters when the response's head is there."""
        return self._exchange(endpoint, {"content-length": str(len(body)), **headers}, body, deadlines, keys)

    def get(self, endpoint: Endpoint, headers: Mapping[str, str], deadlines: ModelDeadlines) -> "Exchange":
        """As `post`, for a document that is there."""
        return self._exchange(endpoint, headers, None, deadlines, ())

    def _exchange(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes | None,
        deadlines: ModelDeadlines,
        keys: tuple[str, ...],
    ) -> "Exchange":
        if self._closed:
            raise ConnectionFailed("the transport is closed: its app has ended")
        request = httpcore2.Request(
            "GET" if body is None else "POST",
            httpcore2.URL(scheme=endpoint.scheme, host=endpoint.host, port=endpoint.port, target=endpoint.target),
            headers=[("host", endpoint.authority), *headers.items()],
            content=body,
        )
        return Exchange(self._pool_for(endpoint), request, endpoint, deadlines, keys)

    def _pool_for(self, endpoint: Endpoint) -> httpcore2.AsyncConnectionPool:
        proxy = self._proxy_for(endpoint)
        pool = self._pools.get(proxy)
        if pool is None:
            if self._ssl_context is None:
                self._ssl_context = httpcore2.default_ssl_context()  # reads some hundred certificates: once
            pool = self._pools[proxy] = httpcore2.AsyncConnectionPool(
                ssl_context=self._ssl_context,
                proxy=None if proxy is None else _proxy(proxy),
                max_connections=self._connections_max,
                max_keepalive_connections=IDLE_CONNECTIONS_MAX,
                keepalive_expiry=IDLE_S,
                retries=0,
                network_backend=self._network,
            )
        return pool

    def _proxy_for(self, endpoint: Endpoint) -> str | None:
        if endpoint.loopback or not self._proxies:
            return None
        if urllib.request.proxy_bypass_environment(endpoint.authority, self._proxies):  # type: ignore[attr-defined]
            return None
        return self._proxies.get(endpoint.scheme) or self._proxies.get("all")

    def figures(self) -> dict[str, int]:
        """For /health: what there is, beside its limit."""
        connections = [connection for pool in self._pools.values() for connection in pool.connections]
        return {
            "connections": len(connections),
            "connections_idle": sum(connection.is_idle() for connection in connections),
            "connections_max": self._connections_max,
            "lookup_threads": self._network.thread_count,
        }

    async def aclose(self) -> None:
        """Close every connection. What still streams fails."""
        self._closed = True
        for pool in self._pools.values():
            await pool.aclose()
        self._network.close()


def _proxy(url: str) -> httpcore2.Proxy:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    auth = (parts.username, parts.password or "") if parts.username is not None else None
    return httpcore2.Proxy(bare, auth=auth)


class Exchange:
    """One request and its response. The deadlines run only while the caller waits here for the provider."""

    def __init__(
        self,
        pool: httpcore2.AsyncConnectionPool,
        request: httpcore2.Request,
        endpoint: Endpoint,
        deadlines: ModelDeadlines,
        keys: tuple[str, ...],
    ) -> None:
        self._pool = pool
        self._request = request
        self._endpoint = endpoint
        self._deadlines = deadlines
        self._keys = tuple(key.encode() for key in keys if can_be_hidden(key))
        self._loop = asyncio.get_running_loop()
        self._response: httpcore2.Response | None = None
        self._body: AsyncGenerator[bytes, None] | None = None
        self._connection: Connection | None = None
        self._reader = EventReader()
        self._watch = Watch(deadlines, endpoint.shown, self._loop.time)
        self._progressed = False  # since the last read
        self._alive = False  # something came since the last wait
        self._enough_at: float | None = None  # set once there is nothing left to fail: reading on is a courtesy
        self.status = 0
        self.headers: dict[str, str] = {}

    # opening and closing

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout_at(self._watch.due_at) as limit:

                async def trace(name: str, info: Mapping[str, Any]) -> None:
                    """Connected: from here on it is the provider who takes its time."""
                    if name == "http11.send_request_headers.started" and info["request"].method != b"CONNECT":
                        self._watch.sent()
                        limit.reschedule(self._watch.due_at)

                self._request.extensions = {"trace": trace}
                self._response = await self._pool.handle_async_request(self._request)
        except TimeoutError as error:
            raise self._watch.late() from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError) as error:
            raise self._broken(error) from error
        finally:
            self._request.extensions = {}  # it has served, and it refers back to us
        self._connection = self._response.extensions["network_stream"]
        self.status = self._response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._response.headers
        }
        stream = cast("AsyncIterable[bytes]", self._response.stream)
        self._body = cast("AsyncGenerator[bytes, None]", stream.__aiter__())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._body is not None:
            await self._body.aclose()
        if self._response is not None:
            await self._response.aclose()
        if self._connection is not None:
            self._connection.due_at = None  # the next exchange on it has a time of its own

    @property
    def request_id(self) -> str | None:
        return next((self.headers[name] for name in REQUEST_ID_HEADERS if name in self.headers), None)

    @property
    def rate_limits(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if "ratelimit-" in name}

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    # reading

    async def next_events(self) -> list[SseEvent] | None:
        """The next events, perhaps none yet: what came was a sign of life. None: the end. Raises the deadline's
        error, or `ConnectionFailed`.
        """
        if (chunk := await self._read()) is None:
            return None
        events = self._reader.feed(chunk)
        return [self._redact(event) for event in events] if self._keys else events

    def progressed(self) -> None:
        """Called when events have turned out to be part of the response, and the reader wants more."""
        self._progressed = True  # the clock is read when there is something to wait for

    def finished(self) -> None:
        """The response is complete. What may still come gets a moment, and no error any more."""
        if self._enough_at is None:
            self._enough_at = self._loop.time() + self._deadlines.after_finish_s

    async def drain(self) -> None:
        """Read what little is left, so that the connection can be used again. Best effort."""
        self._enough_at = self._loop.time() + DRAIN_S
        while await self._read() is not None:
            pass

    async def read_error(self) -> bytes:
        """The body of an error, as far as it comes in time, and not more than is worth reading."""
        self._enough_at = self._loop.time() + ERROR_BODY_S  # the head alone is an error
        return self._without_keys(await self._collect(ERROR_BODY_BYTES_MAX))

    async def read_whole(self, bytes_max: int = WHOLE_BODY_BYTES_MAX) -> bytes:
        """The body of a provider that does not stream."""
        body = await self._collect(bytes_max + 1)
        if len(body) > bytes_max:
            raise LostResult(f"the response has more than {bytes_max:,} bytes, which is the limit")
        return self._without_keys(body)

    async def _collect(self, bytes_max: int) -> bytes:
        pieces: list[bytes] = []
        room = bytes_max
        while room > 0 and (chunk := await self._read()) is not None:
            pieces.append(chunk[:room])
            room -= len(chunk)
        return b"".join(pieces)

    async def _read(self) -> bytes | None:
        assert self._body is not None
        assert self._connection is not None
        if self._progressed:
            self._progressed = False
            self._watch.progressed()
        elif self._alive:
            self._watch.alive()
        self._alive = True  # if this read brings something
        self._connection.due_at = self._watch.due_at if self._enough_at is None else self._enough_at
        try:
            return await anext(self._body)
        except StopAsyncIteration:
            return None
        except httpcore2.ReadTimeout as error:
            if self._enough_at is not None:
                return None
            raise self._watch.late(self.request_id) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            if self._enough_at is not None:
                return None
            raise self._broken(error) from error

    def _redact(self, event: SseEvent) -> SseEvent:
        for key in self._keys:
            if key in event.data:
                event = SseEvent(data=event.data.replace(key, REDACTED), name=event.name)
        return event

    def _without_keys(self, data: bytes) -> bytes:
        for key in self._keys:
            data = data.replace(key, REDACTED)
        return data

    # errors

    def _broken(self, error: Exception) -> ConnectionFailed:
        text = self._without_keys(str(error).encode("utf-8", "replace")).decode("utf-8", "replace")
        where = f"the connection to {self._endpoint.shown} failed"
        return ConnectionFailed(f"{where}: {text}" if text else where, request_id=self.request_id)
