"""An MCP server over HTTP: what befalls one request stays with it, and tokens go with each where there is a login.

The SDK would end the session, and with it every other chat's call, for a lost connection.
"""

import asyncio
import logging
import shlex
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import httpcore2
import httpx2
import msgspec
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from holdfast.errors import HoldfastError, McpError, McpNeedsLogin
from holdfast.mcp_servers import McpServer
from holdfast.tools.mcp.discovery import parameter
from holdfast.tools.mcp.error_codes import LOST, MARK, NEEDS_LOGIN, NOT_SENT, REFUSED, UNRENEWED
from holdfast.tools.mcp.logins import ServerLogin
from holdfast.tools.mcp.session_state import MESSAGE_BYTES_MAX, SessionState

NOTIFY_S = 2.0  # for a server to take a notification; they are sent one after the other, and calls behind them
SCOPE_CHARS_MAX = 500
CANCELLED = "notifications/cancelled"
ANSWERS_MAX = 16  # to what the server asks, on their way at the same time
STREAMS_MAX, STREAMS_S = 50, 5.0  # of what the server says by itself: how often one is opened in how long
GIVEN_UP = "its caller waits no longer"
# As many as there are calls under way, whose number the worker bounds: beside them a ping has to get through.
_CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
_REDIRECTING = ("location", "set-cookie")
_PACKED = ("gzip", "deflate", "br", "zstd")
T = TypeVar("T")

# These two tell, at `info`, session ids and whole URLs, which may hold keys.
for _name in ("httpx2", "mcp.client.streamable_http"):
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)


@cache
def tls() -> ssl.SSLContext:
    """Reads some hundred certificates: once, and not on the event loop."""
    return httpcore2.default_ssl_context()


@asynccontextmanager
async def over_http(
    wire: SessionState, server: McpServer, login: ServerLogin | None
) -> AsyncGenerator[tuple[Any, Any], None]:
    limits = httpx2.Timeout(server.connect_s, read=server.connect_s + server.call_s)
    inner: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=tls(), limits=_CONNECTIONS)
    if login is not None:
        inner = _Authorized(inner, server, login)
    transport = Contained(inner, server, wire)
    # A packed answer has no size that could be told beforehand.
    headers = {**server.all_headers(), "accept-encoding": "identity"}
    client = _Client(headers=headers, timeout=limits, transport=transport)
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX) as streams,
    ):
        yield streams


class _Client(httpx2.AsyncClient):
    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The client itself looks where an answer redirects to, and fails for what is no URL."""
        try:
            return await super().send(request, **options)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            if request.method != "POST":
                raise
            response = _instead(REFUSED, f"it redirects to what cannot be asked: {_words(error)}")
            response.request = request
            return response


class _Authorized(httpx2.AsyncBaseTransport):
    """Shows who we are, to this server's origin only. What it refuses, it did not do: it is asked again, once, with
    renewed tokens. Raises McpNeedsLogin, McpUnavailable.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, server: McpServer, login: ServerLogin) -> None:
        self._inner = inner
        self._origin = _origin(httpx2.URL(server.url))
        self._login = login

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _origin(request.url) != self._origin:
            return await self._inner.handle_async_request(request)
        used = await self._login.bearer()
        response = await self._shown(request, used)
        if response.status_code != 401:
            return response
        await response.aclose()
        response = await self._shown(request, await self._login.renewed(used))
        if response.status_code != 401:
            return response
        await response.aclose()
        raise self._login.needed("it does not take the tokens that it was given for this login")

    async def _shown(self, request: httpx2.Request, token: str | None) -> httpx2.Response:
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _Params(msgspec.Struct, rename="camel"):
    request_id: Any = None


class _Head(msgspec.Struct):
    id: Any = None
    method: str = ""
    params: _Params | None = None


class Contained(httpx2.AsyncBaseTransport):
    """Turns what would end the session into the answer of the one request that it befell."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, server: McpServer, wire: SessionState) -> None:
        self._inner = inner
        self._server = server
        self._wire = wire
        self._callers: WeakValueDictionary[Any, _Caller] = WeakValueDictionary()  # by the id of what they ask
        self._answers: set[asyncio.Task[None]] = set()  # on their way
        self._streamed: deque[float] = deque(maxlen=STREAMS_MAX)  # when the last ones were opened

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            try:
                return await self._bounded(await self._sent(request))
            except HoldfastError as error:
                raise httpx2.ConnectError(_words(error)) from error
        head = msgspec.json.decode(await request.aread(), type=_Head)
        if not head.method:
            return await self._answer(request, head)
        if head.id is None:
            try:
                return await self._contained(request, head)
            finally:
                if head.method == CANCELLED and head.params is not None:
                    self._give_up(head.params.request_id)
        caller = self._callers[head.id] = _Caller()
        try:
            response = await caller.hear(self._contained(request, head))
        except TimeoutError:
            return _instead(LOST, GIVEN_UP)
        response.stream = _Heard(response, caller)
        return response

    async def _answer(self, request: httpx2.Request, head: _Head) -> httpx2.Response:
        """To what the server asked. How long it takes to take that holds up nothing that comes behind."""
        if len(self._answers) >= ANSWERS_MAX:
            await asyncio.wait(self._answers, timeout=NOTIFY_S, return_when=asyncio.FIRST_COMPLETED)
        work = asyncio.get_running_loop().create_task(self._taken(request, head))
        self._answers.add(work)
        work.add_done_callback(self._answers.discard)
        return httpx2.Response(202)

    async def _taken(self, request: httpx2.Request, head: _Head) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._server.call_s):
                await (await self._contained(request, head)).aclose()

    def _give_up(self, id: Any) -> None:
        """The SDK would keep the connection for as long as the server does."""
        if (caller := self._callers.get(id)) is not None:
            caller.leave()

    async def _contained(self, request: httpx2.Request, head: _Head) -> httpx2.Response:
        try:
            told = head.id is None  # a notification
            response = await (self._told(request) if told else self._sent(request))
        except McpNeedsLogin as error:
            self._wire.want_login(error.words)
            return _instead(NEEDS_LOGIN, error.words)
        except HoldfastError as error:  # of the login alone
            return _instead(UNRENEWED, _words(error))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return _instead(NOT_SENT, f"no connection to {self._server.place}: {_words(error)}")
        except httpx2.TransportError as error:
            return _instead(LOST, f"the connection was lost: {_words(error)}")
        status = response.status_code
        if status == 404 and MCP_SESSION_ID in request.headers:
            await response.aclose()
            return _instead(NOT_SENT, "it does not know our session any more")
        if status == 400 and MCP_SESSION_ID in request.headers:
            # So say many servers of a session that they have forgotten. A ping tells it from a mistake in a request.
            if head.method == "ping":
                await response.aclose()
                return _instead(NOT_SENT, f"it takes nothing in our session: HTTP status {status}")
            self._wire.doubt()
        spoken = response.headers.get("content-type", "").lower().startswith("application/json")
        # 401 and 403 are of whoever guards it, who speaks OAuth at most.
        if status >= 400 and (status in (401, 403) or not spoken or _is_packed(response)):
            await response.aclose()
            words = f"it answered with HTTP status {status}{self._rights(response)}"
            return _instead(LOST if status >= 500 else REFUSED, words)
        return await self._bounded(response)

    async def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        """As far as it is read at once: of a stream, each event is. What redirects says all with its head."""
        if response.has_redirect_location:
            await response.aclose()
            kept = [(key, value) for key, value in response.headers.multi_items() if key in _REDIRECTING]
            return httpx2.Response(response.status_code, headers=kept)
        if _is_packed(response):
            await response.aclose()
            return _instead(LOST, "its answer is packed, which was not asked for")
        if not _is_stream(response):
            response.stream = _Bounded(response.stream)
        return response

    def _rights(self, response: httpx2.Response) -> str:
        """Which more are wanted, where it says so."""
        said = response.headers.get("www-authenticate", "")
        if response.status_code != 403 or parameter("error", said) != "insufficient_scope":
            return ""
        scope = (parameter("scope", said) or "")[:SCOPE_CHARS_MAX]
        again = f"holdfast mcp login {self._server.name} --scope {shlex.quote(scope)}" if scope else "log in again"
        return f": the login has not the rights for this. A person can give them: {again}"

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":  # the stream of what the server says by itself may be silent for ever
            request.extensions = {**request.extensions, "timeout": {**request.extensions["timeout"], "read": None}}
            await self._pace()
        return await self._inner.handle_async_request(request)

    async def _pace(self) -> None:
        """The server says how soon the SDK opens one again after its end, and may say at once, for ever."""
        now = time.monotonic()
        if len(self._streamed) == STREAMS_MAX and (early_s := self._streamed[0] + STREAMS_S - now) > 0:
            await asyncio.sleep(early_s)
        self._streamed.append(time.monotonic())

    async def _told(self, request: httpx2.Request) -> httpx2.Response:
        try:
            async with asyncio.timeout(NOTIFY_S):
                return await self._inner.handle_async_request(request)
        except TimeoutError:
            return httpx2.Response(202)  # no caller waits for it, and it must not hold up what comes behind

    async def aclose(self) -> None:
        for work in self._answers:
            work.cancel()
        await self._inner.aclose()


class _Caller:
    """Who waits for an answer."""

    def __init__(self) -> None:
        self._gone = False
        self._limit: asyncio.Timeout | None = None

    def leave(self) -> None:
        self._gone = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def hear(self, awaited: Awaitable[T]) -> T:
        """Raises TimeoutError once the caller has left."""
        try:
            async with asyncio.timeout(0 if self._gone else None) as self._limit:
                return await awaited
        finally:
            self._limit = None


class _Heard(httpx2.AsyncByteStream):
    """An answer, for as long as its caller waits for it."""

    def __init__(self, response: httpx2.Response, caller: _Caller) -> None:
        self._inner: Any = response.stream
        self._caller = caller
        self._given_up = httpx2.SSEError if _is_stream(response) else httpx2.StreamError  # as the SDK wants it

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        while True:
            try:
                piece = await self._caller.hear(anext(pieces))
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise self._given_up(GIVEN_UP) from None
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A JSON answer, up to the limit."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        try:
            async for chunk in self._inner:
                total += len(chunk)
                if total > MESSAGE_BYTES_MAX:
                    raise httpx2.StreamError(f"an answer of more than {MESSAGE_BYTES_MAX:,} bytes")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the connection was lost: {_words(error)}") from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _is_packed(response: httpx2.Response) -> bool:
    """Whether the client would unpack it, to whatever size."""
    said = response.headers.get("content-encoding", "").lower()
    return any(one.strip() in _PACKED for one in said.split(","))


def _words(error: Exception) -> str:
    return error.words if isinstance(error, McpError) else str(error) or type(error).__name__


def _instead(code: int, message: str) -> httpx2.Response:
    error = {"code": code, "message": message, "data": MARK}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})
