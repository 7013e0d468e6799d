"""Bodies whose worker lives, and of which nobody knows what came of them. Each writes a line when it is entered."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Tool, ToolContext, tool
from holdfast.errors import OutcomeUnknown


def enter(path: str, key: str = "entered") -> None:
    with Path(path).open("a") as file:
        file.write(f"{key}\n")


def killed(path: str, context: ToolContext) -> str:
    """Its process is killed, as for want of memory."""
    enter(path, context.key)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def left(path: str) -> str:
    """Its process leaves without a word."""
    enter(path)
    os._exit(3)


def blocked(path: str) -> str:
    """Its thread cannot be ended, until what the test made is gone."""
    enter(path)
    while Path(path).exists():
        time.sleep(0.02)
    return "too late"


async def deaf(path: str) -> str:
    """It does not let itself be cancelled."""
    enter(path)
    while Path(path).exists():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.02)
    return "too late"


async def honest(path: str) -> str:
    """It says so itself."""
    enter(path)
    raise OutcomeUnknown("The bank took the order and hung up.")


LATE = "Timed out after 1 s, and could not be ended: it may still be running."
KILLED = "The tool's process was ended by a signal: killed (SIGKILL), perhaps by the system for want of memory"

# How, with which options, and what is told of it.
WAYS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "its process is killed": (killed, {"isolation": "process"}, KILLED),
    "its process leaves": (left, {"isolation": "process"}, "The tool's process ended with exit code 3"),
    "its thread blocks": (blocked, {"deadline_s": 1.0}, LATE),
    "it ignores its cancellation": (deaf, {"deadline_s": 1.0}, LATE),
    "it says so itself": (honest, {}, "The bank took the order and hung up."),
}


def vanishing(way: str, **options: Any) -> Tool:
    body, how, _ = WAYS[way]
    made: Tool = tool(**how, **options)(body)
    return made
