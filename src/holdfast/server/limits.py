"""Bounds on what a client does with a connection: how many there are, how slowly it may speak and take its answer,
and when it has to go.

uvicorn puts no limit on the time that a request's head may take, on how long an answer waits for a client that reads
nothing of it, nor on what comes after an answer, so `BoundedProtocol` does. It also hands a request on in pieces: one
connection that sends its body in chunks of a byte would else hold the event loop for as long as it likes.
"""

import asyncio
import re
import sys
from typing import Any, cast

import h11
from starlette.responses import Response
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from holdfast.server.lingering import LingeringTransport
from holdfast.server.problems import problem

HEAD_BYTES_MAX = 32 << 10
HEAD_S = 10.0
TAKE_S = 30.0  # more than a stream waits, which ends by itself, and counts it
PIECE_BYTES = 4 << 10  # of a head
CHUNKED_BYTES_MIN = 256  # of a body in chunks, before others have their turn: 40 chunks of a byte, about 1 ms
SMALL_CHUNKS_PAUSE_S = 0.02  # between two pieces of small chunks
CHUNKED_BYTES_MAX = 64 << 10  # where chunks are of a reasonable size
FRAMING_BYTES_MAX = 16 << 10  # around chunks of a few bytes; no client has a reason to send more
THERE_S = 0.5  # between two looks whether a client that says nothing more is still there
FIRST_S = 1.0  # for the first request of a new connection, when the server goes

SAID_ALL = "holdfast.said_all"  # in the state of a scope: a future, done when its client will say nothing more
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


def head_too_large() -> Response:
    words = f"path and headers can have {HEAD_BYTES_MAX:,} bytes; in a browser, delete the cookies of this host"
    return problem(431, "head_too_large", words)


def _chunks_too_small() -> Response:
    return problem(400, "chunks_too_small", f"more than {FRAMING_BYTES_MAX:,} bytes around chunks; send larger ones")


class Room:
    """How many connections there may be. Where there is none left, the one that has waited longest without a request
    makes room; where all are busy, a new one gets a 503.
    """

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.connections = 0
        self.refused = 0
        self.closed_idle = 0
        self._idle: dict[BoundedProtocol, None] = {}  # longest first

    def figures(self) -> dict[str, int]:
        return {
            "connections": self.connections,
            "connections_max": self.connections_max,
            "connections_refused": self.refused,
            "connections_closed_idle": self.closed_idle,
        }

    def enter(self) -> bool:
        if self.connections >= self.connections_max:
            if not self._idle:
                self.refused += 1
                return False
            longest = next(iter(self._idle))
            del self._idle[longest]
            self.closed_idle += 1
            longest.make_room()
        self.connections += 1
        return True

    def leave(self, connection: "BoundedProtocol") -> None:
        self.connections -= 1
        self._idle.pop(connection, None)

    def note(self, connection: "BoundedProtocol", *, idle: bool) -> None:
        if idle:
            self._idle.setdefault(connection)
        else:
            self._idle.pop(connection, None)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 whose requests must have told their head within a deadline, on new and on kept connections, and whose
    answers must be taken: while some of one waits, the client has to take a piece of it every so often.
    """

    head_s = HEAD_S
    take_s = TAKE_S
    room: Room | None = None  # of the server

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_deadline: asyncio.TimerHandle | None = None
        self._take_deadline: asyncio.TimerHandle | None = None
        self._untaken = 0  # bytes, at the last look
        self._line: LingeringTransport
        self._entered = False
        self._said_all: asyncio.Future[None] = self.loop.create_future()
        self.app_state = {**self.app_state, SAID_ALL: self._said_all}
        self._backlog = bytearray()  # what is not handed on yet
        self._in_head = False  # a part of a request's head was handed on
        self._head_end = b""  # the last bytes of that part
        self._body_left: int | None = None  # of a body whose length is known
        self._framing = 0  # bytes around small chunks
        self._chunked_bytes = CHUNKED_BYTES_MIN
        self._feeding: asyncio.Handle | None = None
        self._looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._line = LingeringTransport(transport, self)
        if self.room is not None and not self.room.enter():
            transport.write(_FULL)
            transport.close()
            return
        self._entered = True
        super().connection_made(self._line)
        self._watch()

    # --- what comes in -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._line.is_closing():
            self._backlog += data
            self._feed()

    def has_more(self) -> bool:
        """Asked by the transport, before it reads on: what is here comes first."""
        if self._backlog and self._feeding is None:
            pause_s = SMALL_CHUNKS_PAUSE_S if self._framing else 0.0
            self._feeding = self.loop.call_later(pause_s, self._feed_later)
        return bool(self._backlog)

    def has_unheard(self) -> bool:
        return bool(self._backlog) or self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _feed_later(self) -> None:
        self._feeding = None
        if not self._line.is_closing():
            self._feed()

    def _feed(self) -> None:
        """Requests are handed on one at a time: the next one when the one before it is answered."""
        while self._backlog and not self.flow.read_paused:
            piece = self._next_piece()
            if not piece:
                break
            chunked = self.conn.their_state is h11.SEND_BODY and self._body_left is None
            before = len(self.cycle.body) if chunked else 0
            super().data_received(piece)
            if chunked and not self._line.is_closing():
                if not self._note_chunks(len(piece), len(self.cycle.body) - before):
                    self._refuse(_chunks_too_small())
                    return
                break
            self._note_body()
        self._watch()
        if self._backlog:
            self._line.pause_reading()
            if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused:
                self.has_more()
        elif not self.flow.read_paused and not self._line.is_closing():
            self._line.resume_reading()

    def _next_piece(self) -> bytes:
        if self.conn.their_state is h11.IDLE:
            return self._next_of_head()
        if self.conn.their_state is h11.SEND_BODY:
            size = self._chunked_bytes if self._body_left is None else self._body_left
        else:
            return b""
        piece = bytes(self._backlog[:size])
        del self._backlog[:size]
        if self._body_left is not None:
            self._body_left -= len(piece)
        return piece

    def _next_of_head(self) -> bytes:
        """Up to its end, which may have begun in the piece before: what comes behind is not the head's."""
        if not self._in_head:  # an empty line between two requests is legal
            del self._backlog[: len(self._backlog) - len(self._backlog.lstrip(b"\r\n"))]
            self._head_end = b""
        found = _END_OF_HEAD.search(self._head_end + self._backlog[:HEAD_BYTES_MAX])
        size = found.end() - len(self._head_end) if found is not None else PIECE_BYTES
        self._in_head = bool(self._backlog)
        piece = bytes(self._backlog[:size])
        del self._backlog[:size]
        self._head_end = (self._head_end + piece)[-3:]
        return piece

    def _note_chunks(self, size: int, gained: int) -> bool:
        """Of so many bytes so many were of the body. False: its client has sent enough of what is not."""
        nearly_all = gained * 10 > size * 9  # in chunks of a few bytes, a large piece would be thousands of them
        self._chunked_bytes = min(CHUNKED_BYTES_MAX, self._chunked_bytes * 4) if nearly_all else CHUNKED_BYTES_MIN
        if gained * 2 <= size:
            self._framing += size - gained
        return self._framing <= FRAMING_BYTES_MAX

    def _note_body(self) -> None:
        """After a piece of a head: whether a body begins, and of what length."""
        if self._in_head and self.conn.their_state is not h11.IDLE:
            self._in_head, self._framing, self._body_left = False, 0, None
            self._chunked_bytes = CHUNKED_BYTES_MIN
            lengths = [value for name, value in self.headers or () if name == b"content-length"]
            if lengths and self.conn.their_state is h11.SEND_BODY:
                self._body_left = max(0, int(lengths[0]) - len(self.cycle.body))

    # --- when it is over -----------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        unsaid = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if self._line.is_closing():
            return
        if unsaid:
            self._line.close()  # answered before it was all said: the rest is of no use
            return
        # What came behind chunks in one piece was handed on with them: the next request, or a part of its head.
        self._body_left = None
        handed_on = self.conn.trailing_data[0]
        self._in_head = self.conn.their_state is not h11.IDLE or bool(handed_on)
        self._head_end = handed_on[-3:]
        self._note_body()
        self._watch()
        self.has_more()

    def end(self) -> None:
        """It is of no use to anybody else: it makes room where that is scarce."""
        self._backlog.clear()
        self._unset_keepalive_if_required()
        self._watch()

    def make_room(self) -> None:
        """Called where connections are scarce, and this one has waited longest."""
        self._line.abort()

    def drain(self) -> None:
        """The server goes, or the client has said all: the answer that is being made is the last one, and says so."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is None or cycle.response_complete:
            return
        cycle.keep_alive = False
        if not cycle.response_started and CLOSE_HEADER not in cycle.default_headers:
            cycle.default_headers = [*cycle.default_headers, CLOSE_HEADER]

    def shutdown(self) -> None:
        """No more requests, but for one that has begun to arrive. On a new connection the first one is on its way."""
        self.drain()
        if cast(RequestResponseCycle | None, self.cycle) is None:
            self._looking = self.loop.call_later(FIRST_S, self._close_idle)
        else:
            self._close_idle()

    def _close_idle(self) -> None:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        answers = cycle is not None and not cycle.response_complete
        if not (answers or self._in_head or self._backlog or self._line.is_closing() or self._line.has_unread()):
            self.conn.send(h11.ConnectionClosed())
            self._line.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has said all, or has left: which of them, only what is sent to it can tell. False: it closes."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        waits = cycle is not None and not cycle.response_complete and self.conn.their_state is not h11.SEND_BODY
        if not waits or self._line.is_closing():
            return False
        if not self._said_all.done():
            self._said_all.set_result(None)
            self.drain()
            self._look_for_client_later()
        return True

    def _look_for_client_later(self, *, asked: bool = False) -> None:
        self._looking = self.loop.call_later(THERE_S, self._look_for_client, asked)

    def _look_for_client(self, asked: bool) -> None:
        """An interim answer asks one that waits for its answer: a client passes over it, one that left refuses it.
        What is sent of an answer does the same.
        """
        if self._line.is_closing() or self.cycle.response_complete:
            return
        if self._line.is_reset():
            self._line.abort()
            return
        if not asked and not self.cycle.response_started and self.scope["http_version"] == "1.1":
            self._line.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        self._look_for_client_later(asked=True)

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as a request. Who is still sending is heard out for a moment: a connection that is
        closed over unread bytes is reset, and the answer lost.
        """
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431
        self._refuse(head_too_large() if too_large else problem(400, "invalid_request", "this is no HTTP request"))

    def _refuse(self, answer: Response) -> None:
        """What the program that answers knows nothing of."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._line.close()  # in the midst of an answer there is no place for another
            return
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self._line.write(self.conn.send(event) or b"")
        self._line.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._stop_looking()
        for handle in (self._feeding, self._looking):
            if handle is not None:
                handle.cancel()
        if self._entered:
            if self.room is not None:
                self.room.leave(self)
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def _look_later(self) -> None:
        self._untaken = self._line.untaken()
        self._take_deadline = self.loop.call_later(self.take_s, self._look)

    def _look(self) -> None:
        """Closing it would wait for the client, too, with all that is left for it in memory."""
        if self._line.untaken() >= self._untaken:
            self._line.abort()
        else:
            self._look_later()

    def _stop_looking(self) -> None:
        if self._take_deadline is not None:
            self._take_deadline.cancel()
            self._take_deadline = None

    def _watch(self) -> None:
        """While a head is incomplete its deadline runs; more bytes do not extend it."""
        idle = self.conn.their_state is h11.IDLE
        if self.room is not None:
            self.room.note(self, idle=idle or self._line.is_closing())
        if not idle or self._line.is_closing():
            self._unwatch()
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(self.head_s, self._too_slow)

    def _unwatch(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _too_slow(self) -> None:
        self._head_deadline = None
        if self.conn.their_state is h11.IDLE and not self._line.is_closing():
            self._line.write(_TOO_SLOW)
            self._line.close()


def protocol_for(room: Room) -> type[BoundedProtocol]:
    """The protocol of one server: its connections share this room."""
    return cast(type[BoundedProtocol], type("ServedProtocol", (BoundedProtocol,), {"room": room}))
