"""What a body in a process of its own asks of its worker, which alone can make a thing durable or knows it: to keep a
text, and what is left of its budget.

A question is a line of JSON among what the process says, with a number; the answer is a line on a pipe back to it.
They are answered one after the other. A process that asks without end, or does not listen, is told nothing more.
"""

import asyncio
import os
from collections import deque

import msgspec

from holdfast.errors import ToolFailed
from holdfast.tools.context import ToolContext

WAITING_MAX = 64
WAITING_CHARS_MAX = 16 << 20  # of all that wait
ERROR_CHARS_MAX = 500  # so that all answers to those that wait have room in a pipe


class _Question(msgspec.Struct, array_like=True):
    number: int
    verb: str
    values: list[str] = []


_decode = msgspec.json.Decoder(_Question).decode


class Questions:
    """Of one call. `close` when its process has ended."""

    def __init__(self, context: ToolContext, fd: int) -> None:
        """`fd` is the pipe's end to write on, which this closes."""
        self._context = context
        self._fd = fd
        self._waiting: deque[tuple[_Question, int]] = deque()  # and how long each is
        self._answering: asyncio.Task[None] | None = None
        os.set_blocking(fd, False)

    def ask(self, text: str) -> bool:
        """Takes a question. False: it is none, or one too many."""
        try:
            question = _decode(text)
        except msgspec.MsgspecError:
            return False
        if len(self._waiting) >= WAITING_MAX or sum(chars for _, chars in self._waiting) > WAITING_CHARS_MAX:
            return False
        self._waiting.append((question, len(text)))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.get_running_loop().create_task(self._answer_all())
        return True

    async def close(self) -> None:
        """What is being kept may be kept all the same: as with any body that is ended."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait([self._answering])
        os.close(self._fd)

    async def _answer_all(self) -> None:
        while self._waiting:
            question, _ = self._waiting.popleft()
            error, value = "", None
            try:
                value = await self._answer(question)
            except Exception as failed:  # noqa: BLE001  the body is told, whatever it was
                words = str(failed) if isinstance(failed, ToolFailed) else f"{type(failed).__name__}: {failed}"
                error = words[:ERROR_CHARS_MAX] or type(failed).__name__
            line = msgspec.json.encode([question.number, error, value]) + b"\n"
            try:
                os.write(self._fd, line)  # whole, or not at all: it is shorter than PIPE_BUF
            except OSError:
                return  # it does not listen, or is gone

    async def _answer(self, question: _Question) -> list[int | float | None] | None:
        match question:
            case _Question(verb="keep", values=[key, text]):
                await self._context.keep(key, text)
                return None
            case _Question(verb="budget_left", values=[]):
                left = await self._context.budget_left()
                return [left.tokens, left.cost]
        raise ToolFailed(f"a tool's process asks for nothing like {question.verb[:50]!r}")
