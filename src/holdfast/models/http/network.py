"""Sockets for the HTTP transport: addresses, connections, TLS.

Connecting is bounded by its caller; reading by `Connection.due_at`, which costs a timer only when there is
something to wait for.

httpcore2 brings a network layer of its own, on anyio. This one is plain asyncio, because
- a chunk of a stream costs a third less event-loop time here (measured: 115 against 180 µs when it comes alone;
  anyio switches the socket's polling on and off for every read);
- names are looked up in our own threads: asyncio's would hold up the exit of the process for as long as a
  resolver hangs;
- closing means closing: the socket is gone when `aclose` returns, whatever TLS would still like to say.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2

from holdfast.models.http.chunks import Joiner
from holdfast.system.threads import Pool

LOOKUPS_MAX = 4  # at once; one that hangs does not count
LOOKUP_SLOW_S = 1.0  # one that takes longer may hang: others go past it
NEXT_ADDRESS_S = 0.25  # RFC 8305: how long an address may keep the next one waiting
UNREAD_BYTES_MAX = 256 << 10

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


class Network(httpcore2.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._lookups = Pool("dns", LOOKUPS_MAX)

    @property
    def thread_count(self) -> int:
        return self._lookups.thread_count

    def close(self) -> None:
        """Ends the threads; one that hangs in a lookup is left behind."""
        self._lookups.stop()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore2's signature; the transport's deadline covers it
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> "Connection":
        try:
            ready = await _connect_any(await self._addresses(host, port))
            _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=ready)
        except OSError as error:
            raise httpcore2.ConnectError(f"cannot connect to {host}:{port}: {_reason(error)}") from error
        return connection

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("Unix sockets are not supported")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            pass
        else:
            return [(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))]

        def look_up(_: object) -> list[Address]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return [(family, address) for family, _, _, _, address in found]

        return _alternating(await self._lookups.run(look_up, slow_s=LOOKUP_SLOW_S))


def _alternating(addresses: list[Address]) -> list[Address]:
    """The families in turns, the preferred one first: one that leads nowhere delays the other only once."""
    if not addresses:
        raise OSError("the name has no address")
    first = [address for address in addresses if address[0] == addresses[0][0]]
    others = [address for address in addresses if address[0] != addresses[0][0]]
    mixed = [address for pair in zip(first, others, strict=False) for address in pair]
    shorter = min(len(first), len(others))
    return mixed + first[shorter:] + others[shorter:]


async def _connect_any(addresses: list[Address]) -> socket.socket:
    """The first connection that comes about; each address gets a small start on the next."""
    if len(addresses) == 1:
        return await _connect_one(addresses[0])
    waiting = list(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    errors: list[OSError] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.create_task(_connect_one(waiting.pop(0))))
            timeout_s = NEXT_ADDRESS_S if waiting else None
            done, running = await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            connected: socket.socket | None = None
            for task in done:
                error = task.exception()
                if isinstance(error, OSError):
                    errors.append(error)
                elif error is not None:
                    raise error
                elif connected is None:
                    connected = task.result()
                else:
                    task.result().close()
            if connected is not None:
                return connected
    finally:
        for task in running:
            task.add_done_callback(_close_late)
            task.cancel()
    raise OSError("; ".join(dict.fromkeys(map(_reason, errors))))


def _reason(error: OSError) -> str:
    """asyncio says "connect call failed" whatever it was; a failed lookup has a negative number and its own words."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)


def _close_late(task: "asyncio.Task[socket.socket]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect_one(address: Address) -> socket.socket:
    family, where = address
    opened = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # named: else asyncio lets small writes wait
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, where)
    except BaseException:
        opened.close()
        raise
    return opened


class Connection(httpcore2.AsyncNetworkStream, asyncio.Protocol):
    """One socket. What arrives waits here, up to a limit; beyond it the peer has to wait."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._unsent: list[bytes] = []
        self._joiner = Joiner()
        self.due_at: float | None = None  # by the loop's clock: until then the next read has to have something

    # what asyncio tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > UNREAD_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake(self._reader)

    def eof_received(self) -> None:
        self._ended = True
        self._wake(self._reader)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._error = error
        self._wake(self._reader)
        self._wake(self._writer)

    def pause_writing(self) -> None:
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._wake(self._writer)
        self._writer = None

    @staticmethod
    def _wake(future: "asyncio.Future[None] | None") -> None:
        if future is not None and not future.done():
            future.set_result(None)

    # what httpcore2 asks for

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._unsent:
            await self._send()
        while True:
            if not self._unread and not self._ended:
                await self._wait()
            if not self._unread and self._error is not None:
                raise httpcore2.ReadError(f"the connection broke: {self._error}") from self._error
            if not self._unread:
                return b""
            if data := self._joiner.feed(self._take(max_bytes)):
                return data

    def _take(self, max_bytes: int) -> bytes:
        if len(self._unread) <= max_bytes:
            data, self._unread = bytes(self._unread), bytearray()
        else:
            data = bytes(self._unread[:max_bytes])
            del self._unread[:max_bytes]
        if self._paused and len(self._unread) <= UNREAD_BYTES_MAX // 2 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        timer = None if self.due_at is None else loop.call_at(self.due_at, self._expire, self._reader)
        try:
            await self._reader
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()

    @staticmethod
    def _expire(reader: "asyncio.Future[None]") -> None:
        if not reader.done():
            reader.set_exception(httpcore2.ReadTimeout("nothing came in time"))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if self._transport is None or self._transport.is_closing():
            raise httpcore2.WriteError(f"the connection is closed: {self._error or 'by the other side'}")
        # Head and body come in two writes. They leave together, when the answer is waited for: sending costs more
        # than all the rest of a small request.
        self._unsent.append(buffer)

    async def _send(self) -> None:
        assert self._transport is not None
        self._joiner.restart()
        data, self._unsent = b"".join(self._unsent), []
        if not self._transport.is_closing():  # else reading says why
            self._transport.write(data)
        if self._writer is not None:
            await self._writer

    async def aclose(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> "Connection":
        plain = self._transport
        assert plain is not None
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain, self, ssl_context, server_hostname=server_hostname
            )
        except OSError as error:  # ssl.SSLError is one
            plain.abort()
            raise httpcore2.ConnectError(f"no TLS with {server_hostname}: {error}") from error
        except BaseException:
            plain.abort()
            raise
        if secured is None:
            raise httpcore2.ConnectError(f"no TLS with {server_hostname}: the connection was closed")
        self._transport = secured
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # of an idle connection: its end, or bytes that no request asked for
            return self._ended or bool(self._unread)
        if self._transport is None:
            return None
        names = {"client_addr": "sockname", "server_addr": "peername"}
        return self._transport.get_extra_info(names.get(info, info))
