"""A session with an MCP server, by the SDK, over streams of ours. Imported when first used: the SDK costs a second.

A program is a child like any other (`system/processes.py`): in a session of its own, under the guard, with a minimal
environment. What it writes to standard error is kept in bounds, to tell why it died. Over HTTP, what befalls one
request stays with it: the SDK would end the session, and with it every other chat's call, for a lost connection.

Nothing here waits for more than it must, and nothing retries: `tools/mcp/connection.py` owns the deadlines and the
connections.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import anyio
import httpcore2
import httpx2
import mcp_types
import msgspec
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from msgspec import Raw
from pydantic import ValidationError

from holdfast import __version__
from holdfast.core.codec import is_too_deep
from holdfast.core.records import Frozen
from holdfast.mcp_servers import McpServer
from holdfast.system import processes
from holdfast.system.capture import Kept, PipeReader
from holdfast.system.cover import ProcessSpec
from holdfast.system.processes import Children
from holdfast.tools.mcp.tools import (
    TOOLS_MAX,
    ErrorAnswer,
    Listed,
    Lost,
    NotSent,
    ServerAnswer,
    UnreadableAnswer,
    text_of,
)
from holdfast.tools.schemas import ANY_OBJECT, object_schema

# A server may say everything twice, as text and as structure. The SDK reads it on the event loop: 20 MB take it a
# tenth to a third of a second.
MESSAGE_BYTES_MAX = 32 << 20
UNREAD_BYTES_MAX = 8 << 20  # of what we wrote to a program that does not read
STDERR_BYTES = 16_384
EPITAPH_CHARS = 1_000
NOTIFY_S = 2.0  # for a server to take a notification; they are sent one after the other, and calls behind them
PAGES_MAX = 100
PROGRESS_CHARS_MAX = 2_000
KEY_META = "holdfast/key"  # in a call's _meta: the same in every try of this call

# As what befell a request over HTTP reaches who made it. The first is ours, from the range that is free to use.
NOT_SENT = -32099
LOST = mcp_types.CONNECTION_CLOSED
REFUSED = mcp_types.INTERNAL_ERROR

# These two tell, at `info`, session ids and whole URLs, which may hold keys.
for _name in ("httpx2", "mcp.client.streamable_http"):
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)

_INFO = mcp_types.Implementation(name="holdfast", version=__version__)


class SessionEnded(Frozen):
    """Why there will be no more messages."""

    reason: str


class McpWire:
    """A session. `stirred` is called when it ends, and when its list of tools has changed."""

    def __init__(self, server: McpServer, stirred: Callable[[], None]) -> None:
        self._server = server
        self._stirred = stirred
        self._session: ClientSession | None = None
        self.ended: SessionEnded | None = None
        self.closed = asyncio.Event()  # nothing of it is left
        self.stale = False  # its list of tools has changed
        self.garbage = 0  # lines on standard output that are no messages
        self.last_garbage = ""
        self.pid: int | None = None
        self.stderr = Kept(STDERR_BYTES)

    def end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = SessionEnded(reason=reason)
            self._stirred()

    def epitaph(self) -> str:
        """What is known of why it went wrong, beside the error itself."""
        said = self.stderr.text.strip()[-EPITAPH_CHARS:]
        found = [f"standard error ends with: {said}"] if said else []
        if self.garbage:
            found.insert(0, f"{self.garbage:,} lines of its output were no messages, the last: {self.last_garbage}")
        return "; ".join(found)

    # --- the session ------------------------------------------------------------------------------------

    async def shake_hands(self, session: ClientSession) -> None:
        self._session = session
        try:
            await session.initialize()
        except MCPError as error:
            if error.code not in (mcp_types.METHOD_NOT_FOUND, mcp_types.UNSUPPORTED_PROTOCOL_VERSION):
                raise _told(error) from error
            try:
                await session.discover()  # the protocol without a handshake, if that is all it speaks
            except MCPError:
                raise _told(error) from error

    async def heard(self, message: IncomingMessage) -> None:
        """What the SDK does not answer by itself."""
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self.stale = True
            self._stirred()
        elif isinstance(message, Exception):
            self.garbage += 1
            self.last_garbage = str(message)[:200]

    async def list(self) -> list[Listed]:
        """All its tools, page by page; one that cannot be described is left out."""
        found: list[Listed] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            params = mcp_types.PaginatedRequestParams(cursor=cursor)
            page = await self._ask(mcp_types.ListToolsRequest(params=params), mcp_types.ListToolsResult)
            found += map(_listed, page.tools)
            cursor = page.next_cursor
            if cursor is None or len(found) > TOOLS_MAX:
                break
        return found

    async def ping(self) -> None:
        await self._ask(mcp_types.PingRequest(), mcp_types.EmptyResult)

    async def call(self, name: str, arguments: dict[str, Any], key: str, say: Callable[[str], None]) -> ServerAnswer:
        """Raises NotSent, Lost or ErrorAnswer. Cancelled, it tells the server so."""

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            done = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            say((message or done)[:PROGRESS_CHARS_MAX])

        meta: Any = {KEY_META: key}
        params = mcp_types.CallToolRequestParams(name=name, arguments=arguments, _meta=meta)
        # Not session.call_tool: that would judge the answer by the server's own schema, on the event loop, with
        # whatever regular expressions it holds.
        result = await self._ask(mcp_types.CallToolRequest(params=params), mcp_types.CallToolResult, progress)
        blocks = [block.model_dump(by_alias=True, mode="json") for block in result.content]
        text = text_of(blocks, result.structured_content, self._server.output_bytes_max)
        return ServerAnswer(text=text, error=bool(result.is_error))

    async def _ask(self, request: Any, kind: Any, progress: Any = None) -> Any:
        assert self._session is not None
        try:
            return await self._session.send_request(request, kind, progress_callback=progress)
        except MCPError as error:
            raise _told(error) from error
        except ValidationError as error:
            raise UnreadableAnswer(f"its answer does not fit the protocol: {error.error_count()} errors") from error


def _told(error: MCPError) -> Exception:
    if error.code == NOT_SENT:
        return NotSent(error.message)
    if error.code in (LOST, mcp_types.PARSE_ERROR):  # of the second there was an answer, which cannot be read
        return Lost(error.message)
    return ErrorAnswer(f"{error.message} (code {error.code})")


def _listed(tool: mcp_types.Tool) -> Listed:
    hints = tool.annotations
    return Listed(
        name=tool.name,
        description=tool.description or tool.title or "",
        schema=_schema_of(tool),
        read_only=bool(hints is not None and hints.read_only_hint),
        idempotent=bool(hints is not None and hints.idempotent_hint),
    )


def _schema_of(tool: mcp_types.Tool) -> Raw:
    """Of one that is nested too deep only that it is an object: the server judges the arguments anyway."""
    try:
        encoded = msgspec.json.encode(object_schema(tool.input_schema), order="sorted")
    except RecursionError:
        return ANY_OBJECT
    return ANY_OBJECT if is_too_deep(encoded) else Raw(encoded)


@asynccontextmanager
async def connect(wire: McpWire, server: McpServer, children: Children | None) -> AsyncIterator[McpWire]:
    """A session, until the block ends. Enter and leave it in the same task; bounded by the caller."""
    opened = _program(wire, server, children) if server.command else _over_http(wire, server)
    async with opened as (read, write):
        session = ClientSession(read, write, message_handler=wire.heard, client_info=_INFO)
        async with session:
            await wire.shake_hands(session)
            yield wire


# --- a program ----------------------------------------------------------------------------------------


@asynccontextmanager
async def _program(
    wire: McpWire, server: McpServer, children: Children | None
) -> AsyncGenerator[tuple["_Lines", "_Mouth"], None]:
    env = processes.environment(server.variables())
    fds = [*os.pipe(), *os.pipe(), *os.pipe()]
    their_in, our_in, our_out, their_out, our_err, their_err = fds
    try:
        spec = ProcessSpec([server.command, *server.args], env, server.cwd, their_in, their_out, their_err)
        child = await _start(server, children, spec)
    except BaseException:
        for fd in (our_in, our_out, our_err):
            os.close(fd)
        raise
    finally:
        for fd in (their_in, their_out, their_err):
            os.close(fd)
    wire.pid = child.pid
    errors = PipeReader(our_err, wire.stderr)
    pipes = os.fdopen(our_out, "rb", buffering=0), os.fdopen(our_in, "wb", buffering=0)
    lines, mouth = _Lines(wire), _Mouth(wire)
    leader = asyncio.ensure_future(child.exited())
    leader.add_done_callback(lambda done: None if done.cancelled() else wire.end(_ENDED))
    try:
        await lines.open(pipes[0])
        await mouth.open(pipes[1])
        yield lines, mouth
    finally:
        try:
            mouth.close()
            if wire.ended is not None:
                await asyncio.wait((leader,), timeout=processes.LINGER_S)  # to tell how it ended by itself
        finally:
            by_itself = leader.done()
            leader.cancel()
            await child.end()
            lines.close()
            errors.close()
            for pipe in pipes:
                pipe.close()
        if (
            by_itself
            and child.returncode is not None
            and (wire.ended is None or wire.ended.reason in (_ENDED, _CLOSED))
        ):
            wire.ended = SessionEnded(reason=_how(child.returncode))


async def _start(server: McpServer, children: Children | None, spec: ProcessSpec) -> processes.Child:
    try:
        return await processes.start_covered(spec, children=children)
    except OSError as error:
        raise NotSent(_why_not_started(error, server, spec.env.get("PATH", ""))) from error


def _why_not_started(error: OSError, server: McpServer, path: str) -> str:
    """For the one who declared it: what to look at."""
    command = f"its command {server.command!r}"
    missing = isinstance(error, FileNotFoundError)
    if server.cwd is not None and error.filename == server.cwd:
        return f"its folder {server.cwd!r} (cwd) cannot be entered: {_reason(error)}"
    if missing and "/" not in server.command:
        return f"{command} was not found on the PATH {path!r}: install it, or declare it with its whole path"
    if missing and Path(server.cwd or ".", server.command).exists():
        return f"{command} is there, but not the interpreter that its first line names"
    if missing:
        return f"{command} does not exist: install it, or declare another"
    return f"{command} cannot be run: {_reason(error)}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# Reasons of which its exit code tells more. One that we ended for another reason dies of that.
_ENDED = "the program ended"
_CLOSED = "the program closed its standard output"


def _how(returncode: int) -> str:
    if returncode < 0:
        return f"the program was ended by {processes.cause_of(returncode)}"
    return f"the program ended with exit code {returncode}"


class _Stream:
    """What the SDK wants of a stream beside its one verb."""

    def close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Lines(_Stream):
    """Messages from a program's standard output, a line each."""

    def __init__(self, wire: McpWire) -> None:
        self._wire = wire
        self._reader = asyncio.StreamReader(limit=MESSAGE_BYTES_MAX)
        self._transport: asyncio.ReadTransport | None = None

    async def open(self, pipe: IO[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), pipe)

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    async def receive(self) -> SessionMessage | Exception:
        await asyncio.sleep(0)  # a flood of messages must not take the event loop from the chats
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                self._wire.end(_CLOSED)
                raise anyio.EndOfStream from None
            except asyncio.LimitOverrunError:
                self._wire.end(f"it sent a message of more than {MESSAGE_BYTES_MAX:,} bytes")
                raise anyio.EndOfStream from None
            if line.strip():
                return _message(line)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return ValueError(repr(line[:200]))


class _Mouth(_Stream):
    """Messages to a program's standard input. It never waits: a program that does not read holds up nothing."""

    def __init__(self, wire: McpWire) -> None:
        self._wire = wire
        self._transport: asyncio.WriteTransport | None = None

    async def open(self, pipe: IO[bytes]) -> None:
        self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, pipe)

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    async def send(self, item: SessionMessage) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            raise anyio.BrokenResourceError
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._wire.end(f"it left more than {UNREAD_BYTES_MAX:,} bytes of its standard input unread")
            raise anyio.BrokenResourceError
        self._transport.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")


# --- over HTTP ----------------------------------------------------------------------------------------


@cache
def tls() -> ssl.SSLContext:
    """Reads some hundred certificates: once, and not on the event loop."""
    return httpcore2.default_ssl_context()


@asynccontextmanager
async def _over_http(wire: McpWire, server: McpServer) -> AsyncGenerator[tuple[Any, Any], None]:
    limits = httpx2.Timeout(server.connect_s, read=server.connect_s + server.call_s)
    transport = _Contained(httpx2.AsyncHTTPTransport(verify=tls()), server)
    client = httpx2.AsyncClient(headers=server.all_headers(), timeout=limits, transport=transport)
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX) as streams,
    ):
        yield streams


class _Head(msgspec.Struct):
    id: Any = None


class _Contained(httpx2.AsyncBaseTransport):
    """Turns what would end the session into the answer of the one request that it befell."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, server: McpServer) -> None:
        self._inner = inner
        self._server = server

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return await self._sent(request)
        try:
            response = await self._sent(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return _instead(NOT_SENT, f"no connection to {self._server.place}: {_words(error)}")
        except httpx2.TransportError as error:
            return _instead(LOST, f"the connection was lost: {_words(error)}")
        status = response.status_code
        if status == 404 and MCP_SESSION_ID in request.headers:
            await response.aclose()
            return _instead(NOT_SENT, "it does not know our session any more")
        if response.headers.get("content-type", "").lower().startswith("application/json"):
            response.stream = _Bounded(response.stream)
        elif status >= 400:
            await response.aclose()
            return _instead(LOST if status >= 500 else REFUSED, f"it answered with HTTP status {status}")
        return response

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
    error = {"code": code, "message": message}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})
