"""An MCP server as a program: its process, and its messages, a line each.

It is a child like any other (`system/processes.py`): in a session of its own, under the guard, with a minimal
environment. What it writes to standard error is kept in bounds, to tell why it died.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import anyio
import mcp_types
from mcp.shared.message import SessionMessage

from holdfast.mcp_servers import McpServer
from holdfast.system import processes
from holdfast.system.capture import PipeReader
from holdfast.system.cover import ProcessSpec
from holdfast.system.processes import Children
from holdfast.tools.mcp.answers import NotSent
from holdfast.tools.mcp.session_state import MESSAGE_BYTES_MAX, SessionEnded, SessionState

UNREAD_BYTES_MAX = 8 << 20  # of what we wrote to a program that does not read


@asynccontextmanager
async def program(
    wire: SessionState, server: McpServer, children: Children | None
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

    def __init__(self, wire: SessionState) -> None:
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

    def __init__(self, wire: SessionState) -> None:
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
