"""Hints between processes: "these chats changed", "there is work". Sent after the commit, received for the bell.

NOTIFY takes a lock of the whole database at commit, so it is never part of anybody's commit: what changed within a
few milliseconds goes out together, on a connection of its own. A hint that is lost costs its receiver one poll
interval; whoever waits looks for itself. So nothing here raises, and what fails is counted and tried again later.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import psycopg
from psycopg.waiting import Wait

from holdfast.errors import HoldfastError
from holdfast.ids import new_id
from holdfast.store.bell import Bell
from holdfast.store.postgres import sql
from holdfast.store.postgres.connection import Connection, Connector
from holdfast.store.postgres.errors import NoAnswer
from holdfast.store.postgres.pauses import pauses

COALESCE_S = 0.015
ASK_S = 5.0
CONNECT_S = 15.0
HEARTBEAT_S = 10.0
# PostgreSQL takes 7,999 bytes. What does not fit is said shorter: everything may have changed.
PAYLOAD_BYTES_MAX = 7_900


class Hint(msgspec.Struct, array_like=True):
    sender: str
    topics: tuple[str, ...] | None  # None: everything


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Hint).decode


class Hints:
    """Both directions, each with a connection and a task of its own."""

    def __init__(self, connector: Connector, bell: Bell, conninfo: str, *, listening: bool) -> None:
        schema = connector.address.schema
        self._channel = "holdfast" if schema is None else f"holdfast_{schema}"
        self._name = new_id("hint")
        self._sender = Sender(connector, conninfo, self._channel, self._name)
        self._listener = Listener(connector, conninfo, self._channel, self._name, bell) if listening else None

    def start(self) -> None:
        if self._listener is not None:
            self._listener.start()

    def add(self, topics: Iterable[str]) -> None:
        self._sender.add(topics)

    async def close(self) -> None:
        await self._sender.close()
        if self._listener is not None:
            await self._listener.close()

    def stats(self) -> dict[str, int | float | str | None]:
        listener = self._listener
        return {
            "hints_sent": self._sender.sent,
            "hints_failed": self._sender.failed,
            "hints_received": listener.received if listener else None,
            "listen": listener.state if listener else "off",
            "listen_connects": listener.connects if listener else None,
        }


class Sender:
    def __init__(self, connector: Connector, conninfo: str, channel: str, name: str) -> None:
        self._connector = connector
        self._conninfo = conninfo
        self._channel = channel
        self._name = name
        self._topics: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._closed = False
        self.sent = 0
        self.failed = 0

    def add(self, topics: Iterable[str]) -> None:
        self._topics.update(topics)
        if self._task is None and self._topics and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            while self._topics:
                await asyncio.sleep(COALESCE_S)
                topics, self._topics = self._topics, set()
                try:
                    await self._send(_encoded(self._name, topics))
                except (psycopg.Error, HoldfastError):
                    self.failed += 1
                    await self._disconnect()
        finally:
            self._task = None

    async def _send(self, payload: str) -> None:
        loop = asyncio.get_running_loop()
        if self._connection is None:
            # Half a second: what could not be said by then is found by polling, and more has gathered.
            self._connection = await self._connector.connect(loop.time() + 0.5, conninfo=self._conninfo)
            if not self._connector.address.pooled:
                # A hint need not survive a power cut, and must not wait for the disk, nor keep it from a commit.
                await self._connection.command("SET synchronous_commit = off")
        self._connection.deadline = loop.time() + ASK_S
        await self._connection.rows(sql.NOTIFY, self._channel, payload)
        self.sent += 1

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.discard()

    async def close(self) -> None:
        """The last hints go out, if the server is there to take them."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=1)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._disconnect()


def _encoded(name: str, topics: set[str]) -> str:
    payload = _encode(Hint(name, tuple(topics)))
    if len(payload) > PAYLOAD_BYTES_MAX:
        payload = _encode(Hint(name, None))
    return payload.decode()


class Listener:
    """`state` is what it is: `connecting`, `listening`, or `broken: …`. Heartbeats go over the same connection."""

    def __init__(self, connector: Connector, conninfo: str, channel: str, name: str, bell: Bell) -> None:
        self._connector = connector
        self._conninfo = conninfo
        self._channel = channel
        self._name = name
        self._bell = bell
        self._task: asyncio.Task[None] | None = None
        self.state = "connecting"
        self.connects = 0
        self.received = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _serve(self) -> None:
        pause = pauses()
        while True:
            try:
                connection = await self._connector.connect(
                    asyncio.get_running_loop().time() + CONNECT_S, conninfo=self._conninfo
                )
            except HoldfastError as error:  # a wrong address as well: it may be put right on the other side
                self.state = f"broken: {error}"
                await asyncio.sleep(next(pause))
                continue
            try:
                await self._listen(connection)
                self.state = "listening"
                pause = pauses()
                while True:
                    await self._hear(connection)
            except psycopg.Error as error:
                self.state = f"broken: {self._connector.address.scrub(str(error))}"
                await asyncio.sleep(next(pause))
            finally:
                await connection.discard()

    async def _listen(self, connection: Connection) -> None:
        connection.deadline = asyncio.get_running_loop().time() + ASK_S
        await connection.command(f'LISTEN "{self._channel}"')  # the name was checked in `Address`
        self.connects += 1
        # What was said while nobody listened is not said again.
        self._bell.ring_all()

    async def _hear(self, connection: Connection) -> None:
        """Until something is said, or a heartbeat is due: then the server has to answer."""
        loop = asyncio.get_running_loop()
        connection.deadline = loop.time() + HEARTBEAT_S
        try:
            await connection.readiness(Wait.R)
        except NoAnswer:
            connection.deadline = loop.time() + ASK_S
            await connection.command("SELECT 1")
        connection.pgconn.consume_input()
        while (notice := connection.pgconn.notifies()) is not None:
            self._ring(notice.extra)

    def _ring(self, payload: bytes) -> None:
        self.received += 1
        hint: Any = None
        with contextlib.suppress(msgspec.DecodeError):
            hint = _decode(payload)
        if hint is None or hint.topics is None:
            self._bell.ring_all()
        elif hint.sender != self._name:  # our own bell has rung already
            self._bell.ring(hint.topics)
