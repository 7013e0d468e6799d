"""A server that speaks as well or as badly as it is told to. Raw sockets, on loopback.

The words of Chat Completions are here, those of the other wires in `speakers`. What it does is plain data: each
request gets the next `Reply`, the last one over and over. It runs in the test's own event loop, keeps what it was
asked, and notices when a client hangs up.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

SOON_S = 30.0


# --- what it can do --------------------------------------------------------------------------------


class Data(Struct, frozen=True):
    """One event: a JSON value, or the text after `data:`; with a name, if the wire gives it one."""

    value: Any
    name: str = ""


class Bytes(Struct, frozen=True):
    """Exactly these bytes of the body."""

    raw: bytes


class Ping(Struct, frozen=True):
    """Comments, one every `every_s`, until the client goes away."""

    every_s: float = 0.01


class Stall(Struct, frozen=True):
    """Nothing more, until the client goes away."""


class Wait(Struct, frozen=True):
    """Nothing, until the test says `server.go()`."""


class Beat(Struct, frozen=True):
    """Nothing, until the test says `server.beat()`, which lets one of them go on."""


class Cut(Struct, frozen=True):
    """Close the connection in the middle of the body."""


class Reset(Struct, frozen=True):
    """Close it with a TCP reset."""


Step = Data | Bytes | Ping | Stall | Wait | Beat | Cut | Reset


class Reply(Struct, frozen=True):
    """`status` 0: not even a head. `chunked` False: the end of the connection is the end of the body."""

    steps: tuple[Step, ...] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream; charset=utf-8"),)
    chunked: bool = True


class Asked(Struct, frozen=True):
    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes


DONE = Data("[DONE]")


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> Data:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return Data(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": choices,
            **more,
        }
    )


def usage(input_tokens: int = 7, output_tokens: int = 3, cached: int = 2, reasoning: int = 1) -> Data:
    return chunk(
        usage={
            "prompt_tokens": input_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
    )


def started_call(index: int, id: str | None, name: str, arguments: str = "") -> Data:
    call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return chunk({"tool_calls": [call]})


def more_of_call(index: int, arguments: str) -> Data:
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})


def saying(*words: str, finish: str = "stop") -> Reply:
    """A good answer."""
    return Reply(
        steps=(
            chunk({"role": "assistant", "content": ""}),
            *(chunk({"content": word}) for word in words),
            chunk({}, finish),
            usage(),
            DONE,
        )
    )


def refusing(status: int, error: Any = None, **headers: str) -> Reply:
    """An error instead of a stream; headers like `retry_after="2"`."""
    if isinstance(error, str):
        error = {"error": {"message": error, "type": "error", "param": None, "code": None}}
    raw = (
        error if isinstance(error, bytes) else json.dumps(error or {"error": {"message": f"no ({status})"}}).encode()
    )
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Reply(steps=(Bytes(raw),), status=status, headers=(("content-type", "application/json"), *named))


# --- the server ------------------------------------------------------------------------------------


class ChatServer:
    """`async with ChatServer(reply, …) as server:` listens on `server.url`."""

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None) -> None:
        self.replies = replies or (saying("Hello", "."),)
        self._tls = tls
        self.asked: list[Asked] = []
        self.connections = 0
        self.connections_made = 0
        self.streaming = 0  # responses that have begun and not ended
        self.streaming_most = 0
        self._go = asyncio.Event()
        self._beats = asyncio.Semaphore(0)
        self._reached = asyncio.Event()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def root(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 24, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def go(self) -> None:
        """Let every `Wait` go on."""
        self._go.set()

    def beat(self) -> None:
        """Let one `Beat` go on, or the next one that comes."""
        self._beats.release()

    async def reached_wait(self) -> None:
        """Returns when a response has come to a step that waits: everything before it is sent."""
        async with asyncio.timeout(SOON_S):
            await self._reached.wait()

    async def until_connections(self, count: int) -> None:
        async with asyncio.timeout(SOON_S):
            while self.connections != count:
                self._changed.clear()
                await self._changed.wait()

    async def until_streaming(self, count: int) -> None:
        async with asyncio.timeout(SOON_S):
            while self.streaming != count:
                self._changed.clear()
                await self._changed.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.connections_made += 1
        self._changed.set()
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._serve(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            self.connections -= 1
            self._changed.set()
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply. True: the connection can take another."""
        asked = await _read_request(reader)
        reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
        self.asked.append(asked)
        self.streaming += 1
        self.streaming_most = max(self.streaming_most, self.streaming)
        self._changed.set()
        try:
            return await _Sending(self, reader, writer).send(reply)
        finally:
            self.streaming -= 1
            self._changed.set()


class _Sending:
    def __init__(self, server: ChatServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._chunked = True

    async def send(self, reply: Reply) -> bool:
        self._chunked = reply.chunked
        if reply.status:
            lines = [f"HTTP/1.1 {reply.status} Whatever", *(f"{name}: {value}" for name, value in reply.headers)]
            lines.append("transfer-encoding: chunked" if reply.chunked else "connection: close")
            self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        for step in reply.steps:
            if not await self._step(step):
                return False
        if reply.chunked:
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return reply.chunked and reply.status != 0

    async def _step(self, step: Step) -> bool:
        match step:
            case Data():
                self._body(_event(step))
            case Bytes(raw):
                self._body(raw)
            case Ping(every_s):
                self._server._reached.set()
                while not self._reader.at_eof() and not self._writer.is_closing():
                    self._body(b": ping\n\n")
                    await self._writer.drain()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(every_s):
                            await self._reader.read(1)
                return False
            case Stall():
                self._server._reached.set()
                await self._reader.read(1)  # a client that sends nothing more is heard when it hangs up
                return False
            case Wait():
                self._server._reached.set()
                await self._server._go.wait()
            case Beat():
                await self._server._beats.acquire()
            case Cut():
                await self._writer.drain()
                self._writer.close()
                return False
            case Reset():
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, no time: close() resets
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self._writer.transport.abort()
                return False
        return True

    def _body(self, raw: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(raw), raw) if self._chunked else raw)


async def _read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(path=first.split(" ")[1], headers=headers, body=json.loads(raw or b"null"), raw=raw)


def body_of(reply: Reply) -> bytes:
    """The body of a reply that has nothing but data in it: a recorded stream."""
    pieces: Iterable[bytes] = (step.raw if isinstance(step, Bytes) else _event(step) for step in reply.steps)
    return b"".join(pieces)


def _event(step: Step) -> bytes:
    assert isinstance(step, Data)
    text = step.value if isinstance(step.value, str) else json.dumps(step.value)
    name = f"event: {step.name}\n" if step.name else ""
    return f"{name}data: {text}\n\n".encode()
