"""What a call does, as acts: `run(argv)`, `read(path)`, `write(path)`, `reach(host:port)`, `call(server/tool)`.

An act says what is done, in words of the tool's arguments, and nothing is looked up for it. Where its paths lead, and
what may be done unasked, is for the rulebook (`tools/permissions/rulebook.py`).
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from holdfast.core.records import Frozen

# How much of a folder: its own entries; those of all folders below it; what git keeps of it; what git ever kept of
# it, which cannot be told; all below it; all below it with where symlinks lead, which cannot be told either.
Extent = Literal["itself", "folders", "tracked", "past", "below", "anywhere"]
SHOWN_CHARS_MAX = 200
LINES_KEPT = 32  # whose words are asked for again with each rule
_JOINTS = re.compile(r"[\s;&|()<>{}\"'`$\\]+")


class Run(Frozen):
    """A program is started. `unknown` says what the table does not know to be harmless about it; None if nothing."""

    argv: tuple[str, ...]  # empty: `run(?)`, a line whose programs cannot be told
    unknown: str | None = None
    line: str = ""  # of `run(?)`
    fed: bool = False  # the line gives it something to read
    unsaid: str | None = None  # what else decides over it and is not among its words

    def __str__(self) -> str:
        return f"run({_short(' '.join(self.argv) or '?')})"

    @property
    def words(self) -> tuple[str, ...]:
        """Of a line that cannot be read, what its words may be."""
        return self.argv or _words_of(self.line)


class Read(Frozen):
    """A file is read, or a folder is listed; `extent` says how much of what is in it is read as well."""

    path: str
    pattern: bool = False  # the shell puts names of files in its place
    moved: bool = False  # the working directory is another one by then, so where a relative path leads is unknown
    extent: Extent = "itself"
    hidden: bool = True  # of what is in it, also names that begin with a dot

    def __str__(self) -> str:
        return f"read({_short(self.path)})"


class Write(Frozen):
    path: str
    pattern: bool = False
    moved: bool = False

    def __str__(self) -> str:
        return f"write({_short(self.path)})"


class Reach(Frozen):
    address: str  # `host`, `host:port`, `[address]:port`

    def __str__(self) -> str:
        return f"reach({_short(self.address)})"


class CallTool(Frozen):
    """A tool does what only it knows: one of a tool server, or one of the program's own."""

    tool: str
    server: str = ""

    def __str__(self) -> str:
        return f"call({_short(f'{self.server}/{self.tool}' if self.server else self.tool)})"


Act = Run | Read | Write | Reach | CallTool
# Of the arguments of a call, validated. By raising ToolFailed it denies the call, in its words.
ActsOf = Callable[[dict[str, Any]], Sequence[Act]]


class Whereabouts(Frozen):
    """Where the acts of a tool take place."""

    root: str | None = "."  # that paths are relative to; None: in a container, where nothing can be looked at
    search_path: str | None = None  # where programs are found; None: where this process finds them
    confined: bool = False  # the tool itself goes nowhere else: not out of the root, not to internal addresses
    sandboxed: bool = False  # what runs can touch nothing but the root
    looks: bool = True  # False: judged by the words alone, as if all files were there and plain


@lru_cache(maxsize=LINES_KEPT)
def _words_of(line: str) -> tuple[str, ...]:
    return tuple(word for word in _JOINTS.split(line) if word)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"
