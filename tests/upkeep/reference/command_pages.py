"""docs/reference/commands.md: every command with its help, as `holdfast COMMAND --help` prints it."""

from collections.abc import Iterator
from typing import Any

import typer.main

from holdfast.cli.main import cli

_HEAD = """# Commands

What `holdfast COMMAND --help` prints, for every command. [The terminal](../how-to/terminal.md) shows how they are
used.
"""
_WIDTH = 100


def page() -> str:
    sections = [_HEAD]
    for name, text in helps():
        sections.append(f"## {name}\n\n<!-- shown: made by make reference -->\n```text\n{text}\n```\n")
    return "\n".join(sections)


def helps() -> Iterator[tuple[str, str]]:
    """Each command with its help, the groups before what is in them."""
    yield from _below(typer.main.get_command(cli), "holdfast", None)


def _below(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(
        command, info_name=name, parent=parent, terminal_width=_WIDTH, max_content_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    yield context.command_path, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    for below, found in getattr(command, "commands", {}).items():
        if not found.hidden:
            yield from _below(found, below, context)
