"""Tools that run in a process of their own."""

import asyncio
import ctypes
import datetime
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pydantic

from holdfast.core.records import File
from holdfast.errors import OutcomeUnknown, ToolFailed
from holdfast.tools.base import ToolOutput, tool
from holdfast.tools.context import ToolContext, tool_context


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


@tool(isolation="process")
def where(note: str = "") -> list[object]:
    """In which process, which thread, and with what environment."""
    print("this is not an answer")  # noqa: T201
    return [os.getpid(), threading.current_thread() is threading.main_thread(), sorted(os.environ), note]


@tool(isolation="process")
def picture() -> ToolOutput:
    """Text and a file."""
    return ToolOutput(text="a chart", files=(File(media_type="image/png", uri="data:,é", name="c.png"),))


@tool(isolation="process")
def poster(size: int) -> ToolOutput:
    """As large a file as one may be, in one line of an answer."""
    return ToolOutput(text="a poster", files=(File(media_type="image/png", uri="data:," + "p" * size, name="p.png"),))


@tool(isolation="process")
async def move(to: Point, at: datetime.datetime, tags: list[str] | None = None) -> dict[str, object]:
    """Typed arguments, on an event loop."""
    await asyncio.sleep(0)
    return {"x": to.x, "type": type(to).__name__, "year": at.year, "tags": tags}


@tool(isolation="process")
def facts(context: ToolContext) -> dict[str, object]:
    """What the context says, progress, and what it spent."""
    context.progress("half way")
    context.spent(tokens=700, cost=0.5)
    context.spent(tokens=1)
    tool_context().progress("nearly there")
    return {
        "call_id": context.call_id,
        "key": context.key,
        "chat_id": context.chat_id,
        "owner": context.owner,
        "metadata": context.metadata,
    }


@tool(isolation="process")
async def keeper(context: ToolContext) -> list[object]:
    """Keeps two things at once, asks what is left, and is refused once."""
    found = dict(context.kept)
    await asyncio.gather(context.keep("session", "é\n1"), context.keep("place", "there"))
    left = await context.budget_left()
    try:
        await context.keep("no", "x" * 2_000)
    except ToolFailed as refused:
        return [found, dict(context.kept), left.tokens, left.cost, str(refused)]
    return []


@tool(isolation="process")
async def curious(context: ToolContext, how: str) -> str:
    """Asks more than it may, or what cannot be answered, or hears no answer."""
    if how == "flood":
        await asyncio.gather(*(context.keep(f"k{n}", "x") for n in range(10_000)))
    if how == "unknown":
        await context.ear.ask("money")  # type: ignore[attr-defined]
    if how == "impatient":
        for n in range(20):
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await context.keep(f"k{n}", "x")
        await context.keep("last", "word")
    return "done"


@tool(isolation="process", deadline_s=600)
def block(path: str) -> str:
    """Blocks for good, holding the GIL, with a child in a session of its own."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(path, "w") as file:  # noqa: PTH123
        file.write(f"{os.getpid()} {child.pid}\n")
    ctypes.PyDLL(None).sleep(1000)
    return "never"


@tool(isolation="process", deadline_s=1.5)
def late() -> str:
    """Takes too long."""
    time.sleep(1000)
    return "never"


@tool(isolation="process")
def fail(how: str) -> object:
    """Ends badly."""
    if how == "raise":
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    if how == "tool_failed":
        raise ToolFailed("in its own words")
    if how == "unknown":
        raise OutcomeUnknown("hung up")
    if how == "babble":  # into every pipe that it was given
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if str(link.readlink()).startswith("pipe:"):
                    os.write(int(link.name), b"babble\n")
        time.sleep(1000)
    if how == "exit":
        sys.exit(3)
    if how == "leave":
        print("last words", flush=True)  # noqa: T201
        os._exit(7)
    if how == "segv":
        ctypes.string_at(0)
    if how == "object":
        return object()
    return "\udce9 \x00"


@tool(isolation="process")
def shout(context: ToolContext) -> str:
    """More progress in one piece than a line may hold."""
    context.progress("x" * 20_000_000)
    return "done"


@tool(isolation="process")
def fork() -> str:
    """Two processes return from it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return "the body" if child else "its child"


@tool(isolation="process", output_bytes_max=1_000)
def much() -> str:
    """More than it may say."""
    return "a" * 5_000_000 + "z"


@tool(isolation="process")
def linger() -> str:
    """Answers, and leaves a thread that never ends."""
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return "answered"


@tool(isolation="process", environment=("HOLDFAST_TEST_PASSED_ON",))
def passed_on() -> str | None:
    """What it was allowed to know."""
    return os.environ.get("HOLDFAST_TEST_PASSED_ON")


@tool(isolation="process")
def stay(path: str) -> str:
    """Does not come back the first time."""
    if not Path(path).exists():
        Path(path).touch()
        time.sleep(1000)
    return "came back"


@tool(isolation="process")
def flood(printed: int, returned: int) -> str:
    """So many bytes, printed and returned."""
    for _ in range(printed >> 20):
        os.write(1, b"p" * (1 << 20))
    return "r" * returned
