"""The way of a message through the code: how many files it passes, and how often it goes from one to another.

A count, not a time: what a reader has to follow. Two ways: a message from `send` until it is acknowledged, in a chat
that no worker drives, and a whole turn with one tool. A switch is a call or a return that leads from one file of
holdfast into another; each thread is followed by itself.
"""

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from bench.figures import Figures
from holdfast import Agent, App, tool
from holdfast.testing import Call, ScriptedModel

HOME = str(Path(holdfast.__file__).parent) + "/"


class Walk:
    """Which files of holdfast were passed, in every thread that began after it did."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.switches = 0
        self._last: dict[int, str] = {}
        self._counts = False
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.files, self.switches, self._last, self._counts = set(), 0, {}, True
        try:
            yield
        finally:
            self._counts = False

    def _look(self, frame: FrameType, what: str, _: Any) -> None:
        if not self._counts or what not in ("call", "return"):
            return
        at: FrameType | None = frame if what == "call" else frame.f_back
        if at is None or not at.f_code.co_filename.startswith(HOME):
            return
        file, thread = at.f_code.co_filename.removeprefix(HOME), threading.get_ident()
        self.files.add(file)
        self.switches += self._last.get(thread, file) != file
        self._last[thread] = file


@tool(replay="pure")
async def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


async def way(figures: Figures) -> None:
    walk = Walk()
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = ScriptedModel(*([Call(name="add", arguments={"a": 1, "b": 2})], "It is 3.") * 2)
            app = App(f"sqlite:///{folder}/bench.db", agents=[Agent("adder", model, tools=[add])])
            async with app:
                chat = await app.create("adder")
                with walk.counted():
                    await chat.send("first")
                _tell(figures, walk, "a message, from send to acknowledged")
                async with app.worker():
                    await chat.wait()
                    with walk.counted():
                        await chat.send("What is 1 + 2?")
                        await chat.wait()
                    _tell(figures, walk, "a turn with one tool")
    finally:
        walk.end()


def _tell(figures: Figures, walk: Walk, what: str) -> None:
    figures.add(f"{what}: files", len(walk.files), "")
    figures.add(f"{what}: switches between files", walk.switches, "")
