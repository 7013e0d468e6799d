"""Bounds on what a client sends: how much, and how slowly; and on how slowly it takes what it asked for.

A body is read whole before a route sees it. uvicorn puts no limit on the time that a request's head may take, nor on
how long an answer waits for a client that reads nothing of it, so `BoundedProtocol` does.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from typing import Any

import h11
import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.core.codec import JSON_DEPTH_MAX, is_too_deep, too_deep
from holdfast.server.problems import CLOSE, problem

HEAD_BYTES_MAX = 32 << 10
BODY_BYTES_MAX = 16 << 20
BODY_S = 30.0
HEARD_OUT = 4  # times the limit: who is cut off while it still sends may not see the answer
HEAD_S = 10.0
LEAVE_S = 2.0
TAKE_S = 30.0  # more than a stream waits, which ends by itself, and counts it

_SO_NWRITE = 0x1024  # of macOS
_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def head_too_large() -> Response:
    return problem(431, "head_too_large", f"path and headers can have {HEAD_BYTES_MAX:,} bytes")


class BodyMiddleware:
    def __init__(self, app: ASGIApp, bytes_max: int = BODY_BYTES_MAX, deadline_s: float = BODY_S) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        if (encoding := Headers(scope=scope).get("content-encoding", "identity")) != "identity":
            words = f"the body is encoded as {encoding[:40]!r}; send it as it is"
            await problem(415, "unsupported_encoding", words, {**CLOSE, "Accept-Encoding": "identity"})(
                scope, receive, send
            )
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                body = await self._read(receive)
        except TimeoutError:
            slow = problem(408, "body_too_slow", f"the body did not arrive within {self._deadline_s:g} s", CLOSE)
            await slow(scope, receive, send)
            return
        if isinstance(body, Response):
            await body(scope, receive, send)
        elif (wrong := _not_json(scope, body)) is not None:
            await problem(400, "invalid_input", f"the body is not JSON: {wrong}")(scope, receive, send)
        elif body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | Response | None:
        """None: the client left before it had said everything."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            piece = message.get("body", b"")
            pieces.append(piece)
            size += len(piece)
            over = not message.get("more_body", False)
            if size > self._bytes_max:
                pieces.clear()
                if over or size > self._bytes_max * HEARD_OUT:
                    return problem(413, "body_too_large", f"a body can have {self._bytes_max:,} bytes", CLOSE)
            elif over:
                return b"".join(pieces)


# What a route takes as JSON lies some way down in its body.
BODY_DEPTH_MAX = JSON_DEPTH_MAX + 10


def _not_json(scope: Scope, body: bytes | None) -> str | None:
    """What is wrong with it. As JSON is defined: the reader behind the routes takes NaN for a number."""
    if not body or "json" not in Headers(scope=scope).get("content-type", ""):
        return None
    if is_too_deep(body, BODY_DEPTH_MAX):
        return f"it {too_deep(BODY_DEPTH_MAX)}"
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return str(error)
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    told = False

    async def replaying() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replaying


def in_kernel(connection: socket.socket) -> int:
    """Bytes that were sent and that the other side has not confirmed."""
    if sys.platform == "darwin":
        return connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
    (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(count)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 whose requests must have told their head within a deadline, on new and on kept connections, and whose
    answers must be taken: while some of one waits, the client has to take a piece of it every so often.
    """

    head_s = HEAD_S
    take_s = TAKE_S

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_deadline: asyncio.TimerHandle | None = None
        self._take_deadline: asyncio.TimerHandle | None = None
        self._untaken = 0  # bytes, at the last look
        self._leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self._leaving:
            super().data_received(data)
            self._watch()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as a request. Who is still sending is heard out for a moment: a connection that is
        closed over unread bytes is reset, and the answer lost.
        """
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # in the midst of an answer there is no place for another
            return
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431
        answer = head_too_large() if too_large else problem(400, "invalid_request", "this is no HTTP request")
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._leaving = True
        self.transport.write_eof()
        self.loop.call_later(LEAVE_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._stop_looking()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def _look_later(self) -> None:
        self._untaken = self._left()
        self._take_deadline = self.loop.call_later(self.take_s, self._look)

    def _look(self) -> None:
        """Closing it would wait for the client, too, with all that is left for it in memory."""
        if self._left() >= self._untaken:
            self.transport.abort()
        else:
            self._look_later()

    def _left(self) -> int:
        """With what the kernel has: it asks for more only once a third of its megabytes is gone, which takes a slow
        link, or a slow client, minutes.
        """
        return self.transport.get_write_buffer_size() + in_kernel(self.transport.get_extra_info("socket"))

    def _stop_looking(self) -> None:
        if self._take_deadline is not None:
            self._take_deadline.cancel()
            self._take_deadline = None

    def _watch(self) -> None:
        """While a head is incomplete its deadline runs; more bytes do not extend it."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._unwatch()
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(self.head_s, self._too_slow)

    def _unwatch(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _too_slow(self) -> None:
        self._head_deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()
