"""A command's event loop, logging and end."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any

import typer

from holdfast.cli.logs import set_up_logging
from holdfast.config import sound_config
from holdfast.safe_text import safe

LEAVE_S = 1.0


def carry_out(command: Coroutine[Any, Any, int | None], *, quiet: bool = False) -> None:
    """Runs it to its end; what it returns is the exit code. `quiet`: a person reads a screen, not a log."""
    try:
        config, _ = sound_config()  # what is wrong with it, the command itself will say
        set_up_logging("error" if quiet and config.log_level == "info" else config.log_level, config.log_format)
        code = asyncio.run(_bounded(command))
    except BrokenPipeError:  # who read our output has left, and that is their right
        raise typer.Exit(0) from None
    finally:
        command.close()
    raise typer.Exit(code or 0)


async def _bounded(command: Coroutine[Any, Any, int | None]) -> int | None:
    """A body that ignored its cancellation was abandoned by the worker; here it would hold up the end for ever."""
    code: int | None = 1
    try:
        code = await command
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left and (await asyncio.wait(left, timeout=LEAVE_S))[1]:
            if (error := sys.exception()) is not None:
                print(f"holdfast: {safe(str(error))}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code or 0)
    return code
