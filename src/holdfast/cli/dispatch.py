"""Carrying out a command; what that takes loads when there is one to carry out."""

from collections.abc import Coroutine
from importlib import import_module
from typing import Any


def carry_out(command: Coroutine[Any, Any, int | None], *, quiet: bool = False) -> None:
    """Runs it to its end; what it returns is the exit code. `quiet`: a person reads a screen, not a log."""
    import_module("holdfast.cli.command_loop").carry_out(command, quiet=quiet)
