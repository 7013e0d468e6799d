"""Replacing exact text in a text: several edits in order, all or none. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ToolFailed
from holdfast.tools.files.nearest_text import nearest

EDITS_MAX = 100
MATCHES_SHOWN = 10


@dataclass(frozen=True)
class FileEdit:
    """`old` is in the file exactly as given, and only once unless `replace_all` is true."""

    old: str
    new: str
    replace_all: bool = False


def edited(text: str, edits: Sequence[FileEdit], name: str) -> tuple[str, int]:
    """The text after all of them, each applied to what those before it left, and how many places changed. Raises
    ToolFailed, which says of `name` that it was not changed.
    """
    if len(edits) > EDITS_MAX:
        raise ToolFailed(f"{len(edits):,} edits are too many for one call: give at most {EDITS_MAX}")
    places = 0
    for number, edit in enumerate(edits, 1):
        which = f"{name} was not changed: " + (f"edit {number} of {len(edits)}: " if len(edits) > 1 else "")
        if not edit.old or edit.old == edit.new:
            raise ToolFailed(
                f"{which}old must be some text of the file, and new another: to make a file, use write_file"
            )
        count = text.count(edit.old)
        if count == 0:
            after = " (after the edits before it)" if number > 1 else ""
            raise ToolFailed(f"{which}{nearest(text, edit.old)}{after}")
        if count > 1 and not edit.replace_all:
            raise ToolFailed(
                f"{which}it has {count:,} times what is to be replaced, in lines {_where(text, edit.old)}. "
                "Give more of the text around it, or set replace_all."
            )
        text = text.replace(edit.old, edit.new)
        places += count
    return text, places


def _where(text: str, old: str) -> str:
    """The lines that matches begin in. Each part of the text is counted once."""
    numbers: list[str] = []
    number, counted, at = 1, 0, text.find(old)
    while at >= 0 and len(numbers) < MATCHES_SHOWN:
        number += text.count("\n", counted, at)
        counted = at
        numbers.append(str(number))
        at = text.find(old, at + len(old))
    return ", ".join(numbers) + (", …" if at >= 0 else "")
