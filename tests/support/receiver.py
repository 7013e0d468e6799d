"""A receiver of webhooks: a real HTTP server on loopback that answers as a test says, and remembers what it got."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

import standardwebhooks

REACH = ("127.0.0.1:*",)  # what tests allow


class Reply(NamedTuple):
    """`hangs`: nothing is said until the connection is cut; with `raw`, nothing behind these bytes. `floods`: they
    are said again and again, until it is.
    """

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    hangs: bool = False
    body: bytes = b""
    raw: bytes = b""
    floods: bytes = b""


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def is_signed_with(self, secret: str) -> bool:
        """As the reference library signs it, for the instant that it says."""
        at = datetime.fromtimestamp(int(self.headers["webhook-timestamp"]), tz=UTC)
        signed = standardwebhooks.Webhook(secret).sign(self.id, at, self.body.decode())
        return signed in self.headers["webhook-signature"].split(" ")


class Receiver:
    """`async with Receiver() as receiver:`; `replies` are given one after the other, then `usual`."""

    def __init__(self, usual: Reply | None = None) -> None:
        self.usual = usual or Reply()
        self.replies: deque[Reply] = deque()
        self.got: list[Received] = []
        self.open = 0
        self.open_most = 0
        self._arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [received.id for received in self.got]

    async def start(self) -> None:
        """On the port that it had before, if it had one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """From now on connections are refused."""
        assert self._server is not None
        self._server.close()
        for handler in list(self._handlers):
            handler.cancel()
        if self._handlers:
            await asyncio.wait(self._handlers)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await self.stop()

    async def until(self, there: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Looked at whenever something has arrived."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(there)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._handlers.discard(task)
            with suppress(ConnectionError):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        reply = self.replies.popleft() if self.replies else self.usual
        async with self._arrived:
            self.got.append(Received(head[0].split(" ")[1], headers, body))
            self._arrived.notify_all()
        writer.write(reply.raw)
        while reply.floods:
            writer.write(reply.floods)
            await writer.drain()
        if reply.hangs:
            await reader.read()
        if reply.hangs or reply.raw:
            return
        said = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
        length = "" if reply.status == 204 else f"content-length: {len(reply.body)}\r\n"
        writer.write(f"HTTP/1.1 {reply.status} so\r\n{said}{length}connection: close\r\n\r\n".encode() + reply.body)
        await writer.drain()
