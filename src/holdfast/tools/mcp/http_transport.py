"""An MCP server over HTTP: what befalls one request stays with it, and tokens go with each where there is a login.

The SDK would end the session, and with it every other chat's call, for a lost connection.
"""

import asyncio
import logging
import shlex
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import httpcore2
import httpx2
import msgspec
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from holdfast.errors import McpError, McpNeedsLogin
from holdfast.mcp_servers import McpServer
from holdfast.tools.mcp.discovery import parameter
from holdfast.tools.mcp.error_codes import LOST, MARK, NEEDS_LOGIN, NOT_SENT, REFUSED
from holdfast.tools.mcp.logins import ServerLogin
from holdfast.tools.mcp.session_state import MESSAGE_BYTES_MAX, SessionState

NOTIFY_S = 2.0  # for a server to take a notification; they are sent one after the other, and calls behind them
SCOPE_CHARS_MAX = 500

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
    inner: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=tls())
    if login is not None:
        inner = _Authorized(inner, server, login)
    transport = Contained(inner, server, wire)
    client = httpx2.AsyncClient(headers=server.all_headers(), timeout=limits, transport=transport)
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX) as streams,
    ):
        yield streams


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


class _Head(msgspec.Struct):
    id: Any = None
    method: str = ""


class Contained(httpx2.AsyncBaseTransport):
    """Turns what would end the session into the answer of the one request that it befell."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, server: McpServer, wire: SessionState) -> None:
        self._inner = inner
        self._server = server
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            try:
                return await self._sent(request)
            except McpError as error:
                raise httpx2.ConnectError(error.words) from error
        try:
            response = await self._sent(request)
        except McpNeedsLogin as error:
            self._wire.want_login(error.words)
            return _instead(NEEDS_LOGIN, error.words)
        except McpError as error:
            return _instead(NOT_SENT, error.words)
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
            if msgspec.json.decode(await request.aread(), type=_Head).method == "ping":
                await response.aclose()
                return _instead(NOT_SENT, f"it takes nothing in our session: HTTP status {status}")
            self._wire.doubt()
        is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        if is_json and status not in (401, 403):  # those are of whoever guards it, who speaks OAuth at most
            response.stream = _Bounded(response.stream)
        elif status >= 400:
            await response.aclose()
            words = f"it answered with HTTP status {status}{self._rights(response)}"
            return _instead(LOST if status >= 500 else REFUSED, words)
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
        if request.method != "POST" or msgspec.json.decode(await request.aread(), type=_Head).id is not None:
            return await self._inner.handle_async_request(request)
        try:
            async with asyncio.timeout(NOTIFY_S):
                return await self._inner.handle_async_request(request)
        except TimeoutError:
            return httpx2.Response(202)  # no caller waits for it, and it must not hold up what comes behind

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


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _instead(code: int, message: str) -> httpx2.Response:
    error = {"code": code, "message": message, "data": MARK}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})
