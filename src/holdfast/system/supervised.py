"""This process as one of several under a supervisor: what it was handed, and what it says and is asked over its line.

The line is a pair of sockets, and a message on it one line of JSON. The process asks for the socket to listen on,
says that it is ready, and tells how it is when it is asked; to a question of its own it gets what all of them told.
The supervisor's side is `cli/supervisor/`.

A thread waits for the end of a pipe whose other end only the supervisor has: when that is gone, whatever ended it,
this process drains as after SIGTERM, and exits if that takes longer than it may.
"""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigError
from holdfast.system import threads
from holdfast.system.siblings import LoadTable, Siblings

VARIABLE = "HOLDFAST_SUPERVISED"
LINE_BYTES_MAX = 16 << 20
UNSENT_MAX = 4 << 20  # bytes that a supervisor that hangs has not taken
HANDSHAKE_S = 30.0
KEEP_S = 0.2
ASK_S = 2.0  # for an answer of the supervisor, which waits for a silent process half as long
LEAVE_S = 30.0  # beyond the grace, for a process whose supervisor is gone

Told = dict[str, Any]
Tell = Callable[[bool], Told]
"""How this process is; in detail, or only the verdict."""


class Handed(NamedTuple):
    """What a supervisor hands to a process that it starts: numbers, most of them of descriptors."""

    slot: int
    slots: int
    first: bool  # it speaks for all: it was started before the others
    line: int
    life: int
    table: int
    ear: int
    mouths: list[int]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.line, self.life, self.table, self.ear, *self.mouths)

    def encoded(self) -> str:
        return json.dumps(self)


def supervised() -> "Supervised | None":
    """This process's place under a supervisor, taken out of its environment; None if it has none."""
    value = os.environ.pop(VARIABLE, "")
    try:
        handed = Handed(*json.loads(value)) if value else None
    except (ValueError, TypeError):  # another program's variable of that name
        return None
    return Supervised(handed) if handed is not None else None


class Supervised:
    def __init__(self, handed: Handed) -> None:
        for fd in handed.descriptors:
            os.set_inheritable(fd, False)
        self.number = handed.slot + 1
        self.first = handed.first
        self.grace_s = 0.0
        self._line = socket.socket(fileno=handed.line)
        self._life = handed.life
        mouths = [socket.socket(fileno=fd) for fd in handed.mouths]
        table = LoadTable(handed.table, handed.slots)
        self.siblings = Siblings(handed.slot, os.getpid(), table, socket.socket(fileno=handed.ear), mouths)
        self._writer: asyncio.StreamWriter | None = None
        self._serving: asyncio.Task[None] | None = None
        self._asked: dict[bool, asyncio.Future[Told | None]] = {}  # what is under way, by whether in detail
        self._questions: dict[int, asyncio.Future[Told | None]] = {}
        self._kept: tuple[float, Told | None] = (0.0, None)  # the last verdicts, which anyone may ask for
        self._next = 0
        threads.start("supervisor", self._outlive)

    # --- before there is a loop -------------------------------------------------------------------------------------

    def listener(self, host: str, port: int, *, reuse_port: bool) -> socket.socket:
        """The one that all processes share. Raises ConfigError, with what the supervisor says of it."""
        self._line.settimeout(HANDSHAKE_S)
        try:
            self._line.sendall(_encoded({"listen": [host, port, reuse_port]}))
            data, fds, _, _ = socket.recv_fds(self._line, 64 << 10, 1)
        except OSError as error:
            raise ConfigError(f"the supervisor of this process gave it no socket to listen on: {error}") from error
        answer = msgspec.json.decode(data) if data else {"error": "the supervisor is gone"}
        if "error" in answer or not fds:
            raise ConfigError(answer.get("error", "the supervisor gave no socket to listen on"))
        os.set_inheritable(fds[0], False)  # one that came in a message is
        plain = socket.socket(fileno=fds[0])
        listener = SharedListener(plain.family, plain.type, socket.IPPROTO_TCP, fileno=plain.detach())
        listener.setblocking(False)
        return listener

    # --- in the event loop ------------------------------------------------------------------------------------------

    async def serve(self, tell: Tell, nudged: Callable[[], None]) -> None:
        """Until `close`: `tell` is asked how this process is, `nudged` called when there may be work."""
        self._line.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=self._line, limit=LINE_BYTES_MAX)
        asyncio.get_running_loop().add_reader(self.siblings.ear.fileno(), self._on_nudge, nudged)
        self._serving = asyncio.create_task(self._read(reader, tell))

    def _on_nudge(self, nudged: Callable[[], None]) -> None:
        self.siblings.hear()
        nudged()

    async def _read(self, reader: asyncio.StreamReader, tell: Tell) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                message = msgspec.json.decode(line)
                if "tell" in message:
                    self._say({"told": message["tell"], "figures": tell(message["detailed"])})
                else:
                    self._answer(message.get("all", 0), message)
        for number in list(self._questions):
            self._answer(number, None)

    def _answer(self, number: int, told: Told | None) -> None:
        question = self._questions.pop(number, None)
        if question is not None and not question.done():
            question.set_result(told)

    def ready(self) -> None:
        self._say({"ready": True, "grace_s": self.grace_s})

    async def all(self, *, detailed: bool) -> Told | None:
        """How all processes are, as each told it, with what the supervisor knows of them. However many ask at once,
        one question is under way; a verdict is not asked for again at once. None where the supervisor does not answer
        in time.
        """
        kept_s, kept = self._kept
        if not detailed and kept is not None and time.monotonic() - kept_s < KEEP_S:
            return kept
        asked = self._asked.get(detailed)
        if asked is None:
            asked = self._asked[detailed] = asyncio.ensure_future(self._ask(detailed))
            asked.add_done_callback(lambda _: self._asked.pop(detailed, None))
        return await asyncio.shield(asked)

    async def _ask(self, detailed: bool) -> Told | None:
        self._next += 1
        number, answer = self._next, asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            if self._serving is None or self._serving.done():
                return None
            self._say({"ask": number, "detailed": detailed})
            async with asyncio.timeout(ASK_S):
                told: Told | None = await answer
            if not detailed:
                self._kept = (time.monotonic(), told)
            return told
        except TimeoutError:
            return None
        finally:
            self._questions.pop(number, None)

    def _say(self, message: Told) -> None:
        writer = self._writer
        if writer is not None and not writer.is_closing() and writer.transport.get_write_buffer_size() < UNSENT_MAX:
            writer.write(_encoded(message))

    def close(self) -> None:
        self.siblings.close()
        with suppress(ValueError, OSError):
            asyncio.get_running_loop().remove_reader(self.siblings.ear.fileno())
        if self._serving is not None:
            self._serving.cancel()

    # --- in a thread ------------------------------------------------------------------------------------------------

    def _outlive(self) -> None:
        with suppress(OSError):
            os.read(self._life, 1)  # nothing is ever written
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self.grace_s + LEAVE_S)
        os._exit(1)


class SharedListener(socket.socket):
    """asyncio accepts as many connections as wait, one after the other: the process that is told first would have all
    of a burst. Here it has one, and the others their turn.
    """

    _took = False

    def accept(self) -> tuple[socket.socket, Any]:
        self._took = not self._took
        if not self._took:
            raise BlockingIOError
        try:
            return super().accept()
        except BaseException:
            self._took = False
            raise


def _encoded(message: Told) -> bytes:
    return msgspec.json.encode(message, enc_hook=str) + b"\n"
