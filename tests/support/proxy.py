"""A TCP proxy that fails on command, for tests of what happens when the network does.

Owns a listening port on loopback, a thread, and the connections through it. It runs beside the test's event
loop, not in it, so it works on while that loop is blocked, and its methods may be called from any thread.
Each method returns once the new behaviour holds for all connections, old and new.

It knows one thing about PostgreSQL: where an answer ends (`ReadyForQuery`), because "the commit was done, but
its answer was lost" cannot be staged without it.
"""

import asyncio
import enum
import errno
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.ports import free_port

CHUNK_BYTES_MAX = 64 * 1024
COMMAND_TIMEOUT_S = 10.0
PORT_ATTEMPTS_MAX = 20

T = TypeVar("T")


class TcpProxy:
    """`with TcpProxy(host, port) as proxy:` listens on `proxy.port` and forwards to `host:port`.

    | method | existing connections | new connections |
    |---|---|---|
    | `forward()` | bytes pass (the state at the start) | bytes pass |
    | `delay(delay_ms)` | bytes pass, each chunk so much later, in both directions | the same |
    | `hold()` | silent; `forward()` delivers what was sent meanwhile | accepted, then the same |
    | `swallow()` | silent for good, also after `forward()`: their bytes are lost | accepted, then the same |
    | `cut()` | closed now | as before |
    | `refuse()` | closed now | refused |
    | `cut_before_next_answer()` | one is closed after its request was carried out | the same |
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._port = 0
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._state = _State()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)

    def start(self) -> None:
        """Listen on `port`."""
        self._thread.start()
        self._run(self._open())

    def close(self) -> None:
        """Close every connection and the port, and end the thread. Also twice."""
        if self._thread.is_alive():
            self._run(self._shut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(COMMAND_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What it does to the network

    def forward(self) -> None:
        """Let bytes pass without delay; deliver what `hold` kept; listen again after `refuse`."""
        self._run(self._switch(_Mode.FORWARD))

    def delay(self, delay_ms: float) -> None:
        """Let bytes pass, each chunk at least `delay_ms` later, in each direction."""
        self._run(self._switch(_Mode.FORWARD, delay_s=delay_ms / 1000))

    def hold(self) -> None:
        """Keep all bytes and deliver them at `forward`, in order, even if their sender has hung up by then.

        A partition that heals: the write of a client that gave up long ago still arrives.
        """
        self._run(self._switch(_Mode.HOLD))

    def swallow(self) -> None:
        """Accept bytes and connections, forward nothing, close nothing: a peer that vanished without a word.

        Neither side learns of the other's end, so the server keeps the sessions, with their transactions and
        locks, until `cut` or `close`.
        """
        self._run(self._switch(_Mode.SWALLOW))

    def cut(self) -> None:
        """Close all connections now, on both sides. New ones are treated as before."""
        self._run(self._cut())

    def refuse(self) -> None:
        """Close all connections and the port: `connect` fails at once, until another mode is set."""
        self._run(self._shut())

    def cut_before_next_answer(self, *, containing: bytes = b"", then_hold: bool = False) -> "AnswerTrap":
        """Lose the answer to the next request that leaves no transaction open: an unknown commit.

        The request reaches the server and is carried out. When its answer has arrived here in full, it is
        dropped and its connection closed on both sides. Answers that leave a transaction open (to BEGIN, and
        to what follows it) pass, so what is lost is the answer to COMMIT, or to a statement in autocommit.

        With `containing`, requests without these bytes pass, too. Parameters travel with the request, as text
        or binary, so an id that is written can be named here. Connections that are still logging in are left
        alone. Springs once, on whichever connection comes first, and stays armed until then. With `then_hold` the
        proxy holds from that moment on: nobody finds out what became of the request until `forward`.
        """
        trap = AnswerTrap(containing, then_hold=then_hold)
        self._run(self._arm(trap))
        return trap

    # What is there

    @property
    def host(self) -> str:
        """Where it listens."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """Where it listens; known after `start`, and then the same for the life of this object."""
        return self._port

    @property
    def connections(self) -> int:
        """How many connections are open, counting those with one end gone."""
        return self._run(self._count())

    # Inside: coroutines run in the proxy's own loop

    def _run(self, command: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(command, self._loop).result(COMMAND_TIMEOUT_S)

    async def _switch(self, mode: "_Mode", *, delay_s: float = 0.0) -> None:
        await self._open()
        self._state.mode, self._state.delay_s = mode, delay_s
        if mode is _Mode.HOLD:
            self._state.flowing.clear()
        else:
            self._state.flowing.set()
        if mode is _Mode.SWALLOW:
            for link in self._links:
                link.lost = True

    async def _arm(self, trap: "AnswerTrap") -> None:
        self._state.trap = trap

    async def _count(self) -> int:
        return len(self._links)

    async def _cut(self) -> None:
        tasks = list(self._links.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self) -> None:
        if self._listener is None:
            self._listener, self._port = _listen(self._port)
            self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _shut(self) -> None:
        if self._listener is not None and self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._listener.close()
            self._listener = self._accepting = None
        await self._cut()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            link = _Link(client, self._upstream, self._state)
            task = asyncio.create_task(link.run())
            self._links[link] = task
            task.add_done_callback(partial(self._forget, link))

    def _forget(self, link: "_Link", _: asyncio.Task[None]) -> None:
        del self._links[link]


class AnswerTrap:
    """Set by `TcpProxy.cut_before_next_answer`; tells whether an answer has been lost yet."""

    def __init__(self, containing: bytes, *, then_hold: bool = False) -> None:
        self._containing = containing
        self._then_hold = then_hold
        self._sprung = threading.Event()

    @property
    def sprung(self) -> bool:
        """Whether the server has carried out a request whose answer nobody will get."""
        return self._sprung.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until sprung, or for `timeout_s`; return `sprung`."""
        return self._sprung.wait(timeout_s)

    def _wants(self, request: bytes) -> bool:
        return self._containing in request

    def _spring(self, state: "_State") -> None:
        if self._then_hold:
            state.mode = _Mode.HOLD
            state.flowing.clear()
        self._sprung.set()


class _Mode(enum.Enum):
    FORWARD = enum.auto()
    HOLD = enum.auto()
    SWALLOW = enum.auto()


class _State:
    """What all links of a proxy look at, for each chunk."""

    def __init__(self) -> None:
        self.mode = _Mode.FORWARD
        self.delay_s = 0.0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.trap: AnswerTrap | None = None


class _Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, upstream: tuple[str, int], state: _State) -> None:
        self.lost = state.mode is _Mode.SWALLOW
        """Bytes of this connection were thrown away; what follows would make no sense to the receiver."""
        self._client = client
        self._upstream = upstream
        self._server = socket.socket()
        self._state = state
        self._logged_in = False
        self._trap: AnswerTrap | None = None
        self._held_answer = b""
        for end in (self._client, self._server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def run(self) -> None:
        try:
            await self._state.flowing.wait()
            if self.lost:
                await self._pump(self._client, self._server, self._send_request)
            else:
                await self._carry()
        except* (OSError, _TrapSprungError):
            pass  # the server cannot be reached, or the connection is to be closed: both end in `finally`
        finally:
            self._client.close()
            self._server.close()

    async def _carry(self) -> None:
        await asyncio.get_running_loop().sock_connect(self._server, self._upstream)
        # A group, not gather: when one direction ends in an error, the other must have ended, too, before the
        # sockets are closed.
        async with asyncio.TaskGroup() as both_ways:
            both_ways.create_task(self._pump(self._client, self._server, self._send_request))
            both_ways.create_task(self._pump(self._server, self._client, self._send_answer))

    async def _pump(
        self, source: socket.socket, target: socket.socket, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Carry bytes until `source` ends, then end `target`. A target that is gone does not stop it."""
        loop = asyncio.get_running_loop()
        chunk = b"-"
        while chunk:
            try:
                chunk = await loop.sock_recv(source, CHUNK_BYTES_MAX)
            except OSError as error:
                if error.errno not in {errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT}:
                    raise
                chunk = b""
            await asyncio.sleep(self._state.delay_s)
            await self._state.flowing.wait()
            if self.lost:
                continue
            with suppress(ConnectionError):
                if chunk:
                    await send(chunk)
        if not self.lost:
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    async def _send_request(self, chunk: bytes) -> None:
        trap = self._state.trap
        if trap is not None and self._logged_in and trap._wants(chunk):
            self._trap, self._state.trap = trap, None
        await asyncio.get_running_loop().sock_sendall(self._server, chunk)

    async def _send_answer(self, chunk: bytes) -> None:
        if self._trap is not None:
            self._held_answer += chunk
            match _transaction_state(self._held_answer):
                case None:
                    return  # more is to come
                case b"I":
                    self._trap._spring(self._state)
                    raise _TrapSprungError
                case _:
                    chunk, self._held_answer = self._held_answer, b""
        elif not self._logged_in:
            self._logged_in = chunk[-6:-1] == READY_FOR_QUERY
        await asyncio.get_running_loop().sock_sendall(self._client, chunk)


class _TrapSprungError(Exception):
    """This connection is to be closed now."""


READY_FOR_QUERY = b"Z\x00\x00\x00\x05"


def _transaction_state(answer: bytes) -> bytes | None:
    """What the last complete message says, if it is `ReadyForQuery`: I(dle), in T(ransaction), E(rror in it).

    A message is a type byte, four bytes of length that count themselves, and the rest.
    """
    state, start = None, 0
    while len(answer) >= start + 5:
        end = start + 1 + int.from_bytes(answer[start + 1 : start + 5], "big")
        if end > len(answer):
            return None
        state = answer[start + 5 : end] if answer[start : start + 5] == READY_FOR_QUERY else None
        start = end
    return state if start == len(answer) else None


def _listen(port: int) -> tuple[socket.socket, int]:
    """Listen on `port`, or if that is 0 on one that is free and will be free again after `refuse`."""
    for _ in range(PORT_ATTEMPTS_MAX):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port or free_port()))
            listener.listen(256)
        except OSError:
            listener.close()
            if port:
                raise
            continue
        listener.setblocking(False)
        return listener, listener.getsockname()[1]
    raise OSError(errno.EADDRINUSE, f"no free port in {PORT_ATTEMPTS_MAX} attempts")
