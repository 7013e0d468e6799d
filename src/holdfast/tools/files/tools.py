"""Tools for the files below one folder: read, write, edit, patch, list, search.

Nothing outside of it is read or changed (`root.py`), every write is whole or not at all (`system/disk.py`), and
everything is bounded: bytes read, lines shown, entries looked at, time taken.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.tools.base import Tool, tool
from holdfast.tools.files.patch import parsed
from holdfast.tools.files.reading import Reader
from holdfast.tools.files.root import Root
from holdfast.tools.files.search import Finder, SearchLimits
from holdfast.tools.files.versions import TOOLS, Versions
from holdfast.tools.files.writing import Writer
from holdfast.tools.permissions.acts import Act, Read, Whereabouts, Write

READ_BYTES_MAX = 256 << 10
WRITE_BYTES_MAX = 8 << 20
DEADLINE_S = 60.0


def file_tools(
    root: str | os.PathLike[str],
    *,
    read_only: bool = False,
    hidden: bool = False,
    read_bytes_max: int = READ_BYTES_MAX,
    write_bytes_max: int = WRITE_BYTES_MAX,
    search_s: float = 20.0,
) -> list[Tool]:
    """`read_file`, `list_files`, `search_files`; unless `read_only` also `write_file`, `edit_file` and `apply_patch`.

    All are confined to `root`. `hidden`: names that begin with a dot are listed and searched without being asked for;
    they can be read and written by name in any case. What asks, and what is denied, is for `Permissions` to say.
    """
    if min(read_bytes_max, write_bytes_max, search_s) <= 0:
        raise ConfigError("the limits of file tools are above 0")
    confined = Root(root)
    versions = Versions()
    reader = Reader(confined, read_bytes_max, versions)
    finder = Finder(confined, hidden, SearchLimits(time_s=search_s))
    found = [
        tool(replay="pure", deadline_s=DEADLINE_S)(reader.read_file),
        tool(replay="pure", deadline_s=DEADLINE_S)(finder.list_files),
        tool(replay="pure", deadline_s=search_s + DEADLINE_S)(finder.search_files),
    ]
    if not read_only:
        writer = Writer(confined, write_bytes_max, versions)
        found += [
            # Doing it again gives the same file.
            tool(replay="idempotent", deadline_s=DEADLINE_S)(writer.write_file),
            # Doing it again need not: what was put in may contain what was looked for. The model is told to look.
            tool(replay="unsafe", deadline_s=DEADLINE_S)(writer.edit_file),
            tool(replay="unsafe", deadline_s=DEADLINE_S)(writer.apply_patch),
        ]
    where = Whereabouts(root=confined.path, confined=True)
    return [
        replace(made, recalls=made.name in TOOLS, acts=partial(_acts, made.name, hidden), whereabouts=where)
        for made in found
    ]


def _acts(tool: str, hidden: bool, arguments: dict[str, Any]) -> Sequence[Act]:
    match tool:
        case "search_files":
            return [Read(path=arguments["path"], extent="below", hidden=hidden or arguments["hidden"])]
        case "write_file" | "edit_file":  # where it does not fit, the model is shown what is there
            return [Read(path=arguments["path"]), Write(path=arguments["path"])]
        case "apply_patch":
            return list(_acts_of_patch(arguments["patch"]))
        case _:
            return [Read(path=arguments["path"])]


def _acts_of_patch(text: str) -> Iterator[Act]:
    """Raises ToolFailed for what is no patch, and would change nothing."""
    for change in parsed(text):
        for path in filter(None, (change.path, change.move_to)):
            yield Read(path=path)
            yield Write(path=path)
