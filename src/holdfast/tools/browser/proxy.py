"""The only way from a browser into the network: a proxy on loopback, inside of the worker.

The browser looks no name up and connects to nothing by itself (`chromium.py`). Each connection that it wants, for a
page, a redirect, a part of a page, a socket or a worker of it, is judged here like one of `fetch`: the name is looked
up once, every address must be one that may be reached, the connection goes to one of those very addresses, and the
rules of the chat count for each host. Bytes are counted, and bounded for each call; between two calls nothing moves.

A plain request has a connection of its own, to and fro: none is sent where another was meant to go.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable
from contextlib import suppress
from typing import cast

from holdfast.errors import ToolFailed
from holdfast.tools.browser.peers import is_own
from holdfast.tools.permissions.host_patterns import address_text
from holdfast.tools.permissions.rulebook import NO_RULES, Rulebook
from holdfast.tools.web.addresses import Address
from holdfast.tools.web.client import CONNECT_S, Bounds, Resolver, Target, checked_addresses, look_up

CONNECTIONS_MAX = 64
HEAD_BYTES_MAX = 64 << 10
HEAD_S = 30.0
REACH_S = 30.0  # to look a name up and to connect, however many addresses it has
CHUNK_BYTES = 64 << 10
REFUSALS_KEPT = 32
APPROVED_MAX = 64
REFUSED = "Refused: "  # how the page begins that stands for one that was not reached
_END = b"\r\n\r\n"
_HOP = (b"connection:", b"keep-alive:", b"proxy-", b"upgrade:", b"te:")


class Refused(Exception):
    """In words, for the model."""


class _Connection:
    """One of the browser's, and where it leads once that is known."""

    def __init__(self) -> None:
        self.target: Target | None = None
        self.address: Address | None = None


class BrowserProxy:
    """Of one browser. Belongs to one event loop."""

    def __init__(self, *, bytes_max: int, resolve: Resolver | None) -> None:
        self._resolve = resolve or look_up
        self._bytes_max = bytes_max
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._rulebook: Rulebook = NO_RULES
        self._approved: OrderedDict[tuple[str, int], Target] = OrderedDict()  # that calls named: judged with them
        self._open = asyncio.Event()  # a call is under way
        self.port = 0
        self.bytes = 0  # of the call that is under way, or was last
        self.refused: OrderedDict[str, str] = OrderedDict()  # hosts, and why, of that call
        self.moved_at = 0.0  # when a byte last came or went
        self.flooded = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self.port = cast("int", self._server.sockets[0].getsockname()[1])

    def begin(self, rulebook: Rulebook, opened: Target | None) -> None:
        """A call begins, under its rules: a connection that they are against ends. `opened`: what it names was judged
        with the call, and perhaps approved.
        """
        self._rulebook = rulebook
        self.bytes, self.flooded = 0, False
        self.refused.clear()
        if opened is not None:
            where = (opened.host, opened.port)
            self._approved[where] = opened
            self._approved.move_to_end(where)
            while len(self._approved) > APPROVED_MAX:
                self._approved.popitem(last=False)
        for task, connection in list(self._connections.items()):
            if not self._may_stay(connection):
                task.cancel()
        self._open.set()

    def pause(self) -> None:
        """No call is under way: what a page sends or expects now has to wait."""
        self._open.clear()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        left = list(self._connections)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    @property
    def connections(self) -> int:
        return len(self._connections)

    # --- one connection -----------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        if len(self._connections) >= CONNECTIONS_MAX or peer is None or not is_own(peer, own):
            writer.transport.abort()
            return
        connection = _Connection()
        task = asyncio.get_running_loop().create_task(self._serve(connection, reader, writer))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    async def _serve(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(_END)
            await self._open.wait()
            method, target = _asked(head)
            connection.target = target
            other_reader, other_writer = await self._connect(connection, target)
            try:
                if method == b"CONNECT":
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    down = self._copy(other_reader, writer)
                else:
                    other_writer.write(_request(head, target))
                    down = self._answer(other_reader, writer)
                await self._carry(self._copy(reader, other_writer), down)
                await writer.drain()
                writer.close()
            finally:
                other_writer.transport.abort()
        except Refused as refusal:
            self._note(connection.target, str(refusal))
            writer.write(_said(403, str(refusal)))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.drain()
            writer.close()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            pass  # the browser sees a connection that ended, as it would without us
        finally:
            writer.transport.abort() if not writer.is_closing() else None

    async def _connect(
        self, connection: _Connection, target: Target
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where, failures = address_text(target.host, target.port), []
        try:
            async with asyncio.timeout(REACH_S):
                for address in await self._checked(target):
                    try:
                        async with asyncio.timeout(CONNECT_S):
                            opened = await _connected(address, target.port)
                    except (OSError, TimeoutError) as error:
                        failures.append(str(error) or "no answer")
                    else:
                        connection.address = address
                        return opened
        except TimeoutError:
            failures.append(f"no answer within {REACH_S:g} s")
        raise Refused(f"cannot connect to {where}: {'; '.join(dict.fromkeys(failures))}")

    async def _checked(self, target: Target) -> list[Address]:
        bounds = Bounds(self._rulebook)
        try:
            bounds.check(target, self._approved_for(target))
            return await checked_addresses(target, bounds, self._resolve)
        except ToolFailed as error:
            raise Refused(str(error)) from None
        except Exception as error:  # of a resolver that the program brought
            raise Refused(f"{target.host} cannot be found: {type(error).__name__}") from error

    def _approved_for(self, target: Target) -> Target | None:
        """What a call named: this very host and port, or the one in the open that leads on to https."""
        return self._approved.get((target.host, target.port)) or self._approved.get((target.host, 80))

    def _may_stay(self, connection: _Connection) -> bool:
        target, address = connection.target, connection.address
        if target is None or address is None:
            return True  # it is judged when it gets there
        bounds = Bounds(self._rulebook)
        try:
            bounds.check(target, self._approved_for(target))
        except ToolFailed:
            return False
        return bounds.problem(target.host, target.port, [address]) is None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A plain response. Nothing else comes on this connection, and its head says so."""
        while True:
            head = await reader.readuntil(_END)
            self._count(len(head))
            if not head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):
                break
            writer.write(head)
        writer.write(_closing(head))
        await self._copy(reader, writer)

    async def _carry(self, from_browser: Awaitable[None], from_server: Awaitable[None]) -> None:
        """Both ways, until the server has no more to say or the browser is gone."""
        up, down = asyncio.ensure_future(from_browser), asyncio.ensure_future(from_server)
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if not down.done() and (self.flooded or up.exception() is None):
                return
            await down  # a server that takes no more may still answer
        finally:
            for each in (up, down):
                each.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._open.wait()
            self._count(len(data))
            writer.write(data)
            await writer.drain()

    def _count(self, size: int) -> None:
        self.bytes += size
        self.moved_at = asyncio.get_running_loop().time()
        if self.bytes > self._bytes_max:
            self.flooded = True
            raise ConnectionAbortedError

    def _note(self, target: Target | None, why: str) -> None:
        if target is not None and len(self.refused) < REFUSALS_KEPT:
            self.refused.setdefault(target.host, why)


def _asked(head: bytes) -> tuple[bytes, Target]:
    """Raises Refused, and ValueError."""
    method, where, _ = head.split(b"\r\n", 1)[0].split(b" ")
    text = where.decode("ascii")
    try:
        target = Target(f"https://{text}/" if method == b"CONNECT" else text)
    except ToolFailed as error:
        raise Refused(str(error)) from None
    if method != b"CONNECT" and target.scheme != "http":
        raise Refused("only http is asked for in the open")
    return method, target


def _request(head: bytes, target: Target) -> bytes:
    """As a server expects it, instead of a proxy."""
    first, *rest = head[: -len(_END)].split(b"\r\n")
    method, _, version = first.split(b" ")
    kept = [line for line in rest if not line.lower().startswith((*_HOP, b"host:"))]
    host = b"Host: " + target.url.netloc
    return b"\r\n".join([b" ".join((method, target.url.raw_path, version)), host, *kept, b"Connection: close"]) + _END


def _closing(head: bytes) -> bytes:
    first, *rest = head[: -len(_END)].split(b"\r\n")
    kept = [line for line in rest if not line.lower().startswith(_HOP)]
    return b"\r\n".join([first, *kept, b"Connection: close"]) + _END


def _said(status: int, text: str) -> bytes:
    body = f"{REFUSED}{text}\n".encode("utf-8", "replace")
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


async def _connected(address: Address, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return await asyncio.open_connection(
        str(address), port, family=family, flags=socket.AI_NUMERICHOST, limit=HEAD_BYTES_MAX
    )
