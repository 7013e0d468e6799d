"""The wake stream from PostgreSQL: LISTEN, on a connection of its own.

A ping is a NOTIFY to ourselves, sent on the listening connection and heard on it. An answer to a mere query would
prove that the connection lives, but not that anything is heard on it: behind a pooler, or after a stray
DISCARD ALL, `SELECT 1` is answered for ever by a session that listens to nothing. Pings go over a channel that only
this connection listens to, set up in the same command as the one that matters; so a fleet does not hear each other's.
"""

import asyncio
import math

import psycopg
from psycopg import pq
from psycopg.waiting import Wait

from holdfast.ids import new_id
from holdfast.store.notify.wake_stream import SourceStream, Wake
from holdfast.store.postgres.connection import Connector, ServerConnection, error_of
from holdfast.store.postgres.hints import channel_of, decode_hint


class PostgresWakes:
    """The source. What it raises is one of ours, with nothing secret in it."""

    def __init__(self, connector: Connector, name: str) -> None:
        self._connector = connector
        self._name = name

    async def connect(self) -> SourceStream:
        connection = await self._connector.connect_once()
        try:
            stream = PostgresWakeStream(self._connector, connection, self._name)
            await stream.listen()
        except BaseException:
            await connection.discard()
            raise
        return stream


class PostgresWakeStream:
    """Only `read` reads from the connection; `ping` writes to it and is told by the reader what came back."""

    def __init__(self, connector: Connector, connection: ServerConnection, name: str) -> None:
        self._connector = connector
        self._connection = connection
        self._channel = channel_of(connector.address)
        self._own_channel = new_id("holdfast_ping")
        self._name = name
        self._heard: asyncio.Future[None] | None = None

    async def listen(self) -> None:
        try:
            # Both names are safe: one was checked in `Address`, the other is ours.
            await self._connection.command(f'LISTEN "{self._channel}"; LISTEN "{self._own_channel}"')
        except psycopg.Error as error:
            raise self._connector.explain(error) from error
        self._connection.deadline = math.inf  # how long silence may last is for the pings to say

    async def read(self) -> Wake | None:
        try:
            while True:
                while (notice := self._connection.pgconn.notifies()) is not None:
                    if (wake := self._understand(notice)) is not None:
                        return wake
                await self._receive()
        except psycopg.Error as error:
            raise self._connector.explain(error) from error

    async def _receive(self) -> None:
        await self._connection.readiness(Wait.R)
        pgconn = self._connection.pgconn
        pgconn.consume_input()
        pgconn.flush()
        while not pgconn.is_busy() and (answer := pgconn.get_result()) is not None:
            if (error := error_of(answer)) is not None:
                raise error

    def _understand(self, notice: pq.PGnotify) -> Wake | None:
        if notice.relname.decode() == self._own_channel:
            if self._heard is not None and not self._heard.done():
                self._heard.set_result(None)
            return None
        hint = decode_hint(notice.extra)
        return Wake(topics=hint.topics) if hint.sender != self._name else None

    async def ping(self) -> None:
        self._heard = asyncio.get_running_loop().create_future()
        pgconn = self._connection.pgconn
        try:
            # One that is still on its way does as well: this ping waits for its return.
            if pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
                pgconn.send_query(f'NOTIFY "{self._own_channel}"'.encode())
                pgconn.flush()
        except psycopg.Error as error:
            raise self._connector.explain(error) from error
        await self._heard

    async def close(self) -> None:
        await self._connection.discard()
