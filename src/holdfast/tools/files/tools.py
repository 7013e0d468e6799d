"""Tools for the files below one folder: read, write, edit, patch, list, search.

Nothing outside of it is read or changed (`root.py`), every write is whole or not at all (`system/disk.py`), and
everything is bounded: bytes read, lines shown, entries looked at, time taken.
"""

import os

from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.tools.base import Tool, tool
from holdfast.tools.files.reading import Reader
from holdfast.tools.files.root import Root
from holdfast.tools.files.search import Finder, SearchLimits
from holdfast.tools.files.versions import TOOLS, Versions
from holdfast.tools.files.writing import Writer

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
    needs_approval: bool = False,
) -> list[Tool]:
    """`read_file`, `list_files`, `search_files`; unless `read_only` also `write_file`, `edit_file` and `apply_patch`.

    All are confined to `root`. `hidden`: names that begin with a dot are listed and searched without being asked for;
    they can be read and written by name in any case. `needs_approval` is for the three that write.
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
            tool(replay="idempotent", deadline_s=DEADLINE_S, needs_approval=needs_approval)(writer.write_file),
            # Doing it again need not: what was put in may contain what was looked for. The model is told to look.
            tool(replay="unsafe", deadline_s=DEADLINE_S, needs_approval=needs_approval)(writer.edit_file),
            tool(replay="unsafe", deadline_s=DEADLINE_S, needs_approval=needs_approval)(writer.apply_patch),
        ]
    return [replace(made, recalls=made.name in TOOLS) for made in found]
