"""What really happened, written down outside of the store: what models were asked and heard to say, which bodies ran.

A line is in the kernel's hands and on the disk before the thing it tells of goes on, so it outlives a `kill -9`. The
order of the lines is the order of events, across all processes that write to the file.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.history import problems
from holdfast.core.retry import Kind
from holdfast.errors import ProviderError
from holdfast.models.base import CallStarted, ReasoningDelta, Request, ResponseFinished, StreamPart, TextDelta, Usage
from holdfast.models.scripted import ScriptedModel
from tests.support.lines import append_line, read_lines

What = Literal["asked", "said", "finished", "failed", "entered"]


class Line(msgspec.Struct, omit_defaults=True):
    what: What
    life: str  # of which worker
    n: str = ""  # of which request: its text carries this number, so a message tells what it answers
    ids: list[str] = []  # asked: the messages of the request
    summary: str = ""  # asked: what stood for earlier messages; two chats may have nothing else in a request
    wrong: list[str] = []  # asked: why a provider would refuse it
    text: str = ""  # said: another piece that the worker has taken
    call_id: str = ""  # entered: the body of this call
    chat_id: str = ""
    key: str = ""
    tool: str = ""


class Evidence:
    def __init__(self, path: Path, life: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.life = life
        self.numbers = count(1)

    def write(self, line: Line) -> None:
        append_line(self._fd, line)
        if line.what == "entered":
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def read_evidence(path: Path) -> list[Line]:
    return read_lines(path, Line)


def mark(n: str) -> str:
    return f"<{n}>"


class WatchedModel:
    """A scripted model that writes down what it is asked, and begins every answer with the request's number."""

    def __init__(self, model: ScriptedModel, evidence: Evidence, holds: int | None = None) -> None:
        self.model = model
        self.holds = holds  # messages; a request with more is too long
        self.name, self.provider, self.context_limit = model.name, model.provider, model.context_limit
        self._evidence = evidence

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        write, life = self._evidence.write, self._evidence.life
        n = f"{life}.{next(self._evidence.numbers)}"
        ids = [message.id for message in request.messages]
        summary = "".join(m.text for m in request.messages[:1] if m.id.startswith("summary."))
        write(Line(what="asked", life=life, n=n, ids=ids, summary=summary, wrong=problems(request.messages)))
        if self.holds is not None and len(request.messages) > self.holds:
            write(Line(what="failed", life=life, n=n))
            raise ProviderError(f"at most {self.holds} messages", code=Kind.CONTEXT_TOO_LONG)
        marked = False
        finished = False
        try:
            async with aclosing(self.model.stream(request)) as parts:
                async for part in parts:
                    if not marked and isinstance(part, TextDelta | ReasoningDelta | CallStarted):
                        marked = True
                        yield TextDelta(text=mark(n))
                        write(Line(what="said", life=life, n=n, text=mark(n)))
                    if isinstance(part, ResponseFinished):
                        finished = True
                        write(Line(what="finished", life=life, n=n))
                    # Scripted models count messages, not tokens: without a figure, ours are estimated.
                    yield replace(part, input_tokens=0) if isinstance(part, Usage) else part
                    if isinstance(part, TextDelta):
                        write(Line(what="said", life=life, n=n, text=part.text))
        except ProviderError:
            write(Line(what="failed", life=life, n=n))
            raise
        if not finished:
            write(Line(what="failed", life=life, n=n))
