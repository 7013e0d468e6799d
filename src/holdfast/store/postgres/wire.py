"""A connection for one kind of question, asked one at a time, its answer delivered by callback.

For the committer, whose every microsecond is in every step of every chat: no task, no future, no registration of the
socket per question. As the socket is always watched, a connection that the server closed is noticed at once, not with
the next commit.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import psycopg
from psycopg import pq

from holdfast.store.postgres.connection import ServerConnection, error_of
from holdfast.store.postgres.swaps import SwapQuestion


class Asker(Protocol):
    def on_answer(self, answer: pq.abc.PGresult) -> None: ...

    def on_error(self, error: psycopg.Error) -> None:
        """The server refused, or the connection is gone; `Wire.lost` says which."""


class ServerWire:
    """Errors of the connection come to `on_error`, also between questions. Call `close` when done, in any case."""

    def __init__(self, connection: ServerConnection, asker: Asker) -> None:
        self.connection = connection
        self.lost = False
        self._asker = asker
        self._loop = asyncio.get_running_loop()
        self._pg = connection.pgconn
        self._socket = self._pg.socket
        self._answers: list[pq.abc.PGresult] = []
        self._asking: SwapQuestion | None = None
        self._preparing = False
        self._writing = False
        self._loop.add_reader(self._socket, self._readable)

    def ask(self, question: SwapQuestion) -> None:
        self._asking = question
        self._do(self._send)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._asking = None
        self.lost = True

    def _send(self) -> None:
        assert self._asking is not None
        statement, values = self._asking.statement, self._asking.values
        if not self.connection.may_prepare:
            self._pg.send_query_params(statement.text, values)
        elif statement.name in self.connection.prepared:
            self._pg.send_query_prepared(statement.name, values)
        else:
            self._preparing = True
            self._pg.send_prepare(statement.name, statement.text)
        self._flush()

    def _flush(self) -> None:
        if self._pg.flush():
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._socket, self._do, self._flush)
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        self._do(self._receive)

    def _receive(self) -> None:
        pg = self._pg
        pg.consume_input()
        if self._writing:
            self._flush()  # a server that answers before it has read all must be read from first
        if self._asking is None:
            return  # a notice, or the end of the connection, which the call above has raised
        while not pg.is_busy():
            answer = pg.get_result()
            if answer is None:
                self._answered()
                return
            self._answers.append(answer)

    def _answered(self) -> None:
        answers, self._answers = self._answers, []
        question, preparing = self._asking, self._preparing
        assert question is not None
        self._preparing = False
        error = next((error for answer in answers if (error := error_of(answer)) is not None), None)
        if error is None and preparing:
            self.connection.prepared.add(question.statement.name)
            self._send()
            return
        self._asking = None
        if error is not None:
            self._asker.on_error(error)
        else:
            self._asker.on_answer(answers[-1])

    def _do(self, step: Callable[[], None]) -> None:
        try:
            step()
        except psycopg.Error as error:
            # libpq may have closed the socket by now. It must be forgotten before its number is given to another.
            self.close()
            self._asker.on_error(error)
