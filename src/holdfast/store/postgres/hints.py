"""Hints between processes: "these chats changed", "there is work". Sent after the commit; `wakes.py` receives them.

NOTIFY takes a lock of the whole database at commit, so it is never part of a commit: what changed within a
few milliseconds goes out together, on a connection of its own. A hint that is lost costs its receiver one poll
interval; a waiter looks for itself. So nothing here raises, and what fails is counted and tried again later.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from holdfast.store.postgres import sql
from holdfast.store.postgres.address import DatabaseAddress
from holdfast.store.postgres.connection import Connector, ServerConnection

COALESCE_S = 0.015
ASK_S = 5.0
# PostgreSQL takes 7,999 bytes. What does not fit is said shorter: everything may have changed.
PAYLOAD_BYTES_MAX = 7_900


class Hint(msgspec.Struct, array_like=True):
    sender: str
    topics: tuple[str, ...] | None  # None: everything


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Hint).decode


def decode_hint(payload: bytes) -> Hint:
    """A hint of any process. What cannot be read, newer code's perhaps, says that anything may have changed."""
    try:
        return _decode(payload)
    except msgspec.DecodeError:
        return Hint("", None)


def channel_of(address: DatabaseAddress) -> str:
    return "holdfast" if address.schema is None else f"holdfast_{address.schema}"


class Sender:
    """`name` is on every hint, so that its own process knows it: there the bell has rung already."""

    def __init__(self, connector: Connector, name: str) -> None:
        self._connector = connector
        self._channel = channel_of(connector.address)
        self._name = name
        self._topics: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._connection: ServerConnection | None = None
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
                except Exception:  # noqa: BLE001  whatever it is: another connection may do better
                    self.failed += 1
                    await self._disconnect()
        finally:
            self._task = None

    async def _send(self, payload: str) -> None:
        loop = asyncio.get_running_loop()
        if self._connection is None:
            # Half a second: what could not be said by then is found by polling, and more has gathered.
            self._connection = await self._connector.connect(loop.time() + 0.5)
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
