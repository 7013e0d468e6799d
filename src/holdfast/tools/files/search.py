"""Listing and searching files below a folder: both walk it, and both stop at their limits and say so.

Fixed text is looked for here, in linear time; a pattern in a process of its own (`patterns.py`).
"""

import fnmatch
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache

from holdfast.core.records import Frozen
from holdfast.errors import ToolFailed
from holdfast.tools.context import ToolContext
from holdfast.tools.files.patterns import Matcher
from holdfast.tools.files.reading import go_on
from holdfast.tools.files.root import SCANNED_MAX, FolderEntry, Root, RootPlace, shown, walk
from holdfast.tools.floor import Floor

GLOB_CHARS_MAX = 500
GLOB_PARTS_MAX = 32
TEXT_CHARS_MAX = 2_000


class SearchLimits(Frozen):
    time_s: float
    entries_listed: int = 1_000
    entries_scanned: int = SCANNED_MAX
    file_bytes: int = 2 << 20  # a larger file is not searched
    lines_shown: int = 200
    lines_per_file: int = 50
    line_chars: int = 300


class Finder:
    def __init__(self, root: Root, hidden: bool, limits: SearchLimits) -> None:
        self._root = root
        self._hidden = hidden
        self._limits = limits

    def list_files(self, context: ToolContext, pattern: str = "**", path: str = ".", hidden: bool = False) -> str:
        """List files and folders below `path` whose path fits a glob: `*.py` (in `path` itself), `**/*.py` (at any
        depth), `src/**`. A folder ends with /, a symlink with @. Names that begin with a dot only if `hidden`."""
        go_on(context)
        fits = _Glob(pattern)
        listed: list[str] = []
        bounds = _Bounds(self._limits, context)
        with self._root.place(path) as place, ExitStack() as held:
            for entry in bounds.over(self._walk(held, place, hidden)):
                if fits(entry.path):
                    listed.append(shown(entry.path) + _mark(entry.mode))
                    if len(listed) == self._limits.entries_listed:
                        bounds.stopped = f"stopped after {len(listed):,} names: use a narrower pattern or path"
                        break
        return "\n".join([*listed, *bounds.note()]) or "Nothing fits."

    def search_files(
        self,
        text: str,
        context: ToolContext,
        files: str = "**",
        path: str = ".",
        regex: bool = False,
        ignore_case: bool = False,
        hidden: bool = False,
    ) -> str:
        """Find lines with a text in files below `path` whose path fits the glob `files`. With `regex`, the text is a
        regular expression (Python's), matched line by line. Binary and very large files are left out."""
        go_on(context)
        if not text or len(text) > TEXT_CHARS_MAX or (not regex and "\n" in text):
            raise ToolFailed(f"text is one line of 1 to {TEXT_CHARS_MAX:,} characters")
        fits = _Glob(files)
        bounds = _Bounds(self._limits, context)
        found: list[str] = []
        with self._root.place(path) as place, ExitStack() as held:
            lines_of = self._matcher(held, text, regex, ignore_case, bounds.until, context)
            for entry in bounds.over(self._walk(held, place, hidden)):
                if stat.S_ISREG(entry.mode) and fits(entry.path):
                    found += self._search(entry, place.protected, lines_of, bounds)
                    if len(found) >= self._limits.lines_shown:
                        bounds.stopped = (
                            f"stopped after {self._limits.lines_shown:,} lines: search for something rarer"
                        )
                        break
        return "\n".join([*found[: self._limits.lines_shown], *bounds.note(searched=True)])

    def _walk(self, held: ExitStack, place: RootPlace, hidden: bool) -> Iterator[FolderEntry]:
        folder = held.enter_context(place.opened_folder())
        found = walk(folder, "", place.protected, hidden=hidden or self._hidden)
        held.callback(found.close)  # type: ignore[attr-defined]
        return found

    def _matcher(
        self, held: ExitStack, text: str, regex: bool, ignore_case: bool, until: float, context: ToolContext
    ) -> Callable[[bytes], list[int]]:
        most = self._limits.lines_per_file
        if not regex:
            return _fixed(text, ignore_case, most)
        matcher = Matcher(text, ignore_case=ignore_case, lines_max=most, until=until, context=context)
        return held.enter_context(matcher).lines

    def _search(
        self, entry: FolderEntry, protected: Floor, lines_of: Callable[[bytes], list[int]], bounds: "_Bounds"
    ) -> list[str]:
        try:
            with RootPlace(entry.folder, entry.name, entry.path, protected).opened() as (file, found):
                if found.st_size > self._limits.file_bytes:
                    bounds.large += 1
                    return []
                with open(file, "rb", closefd=False) as stream:
                    data = stream.read(self._limits.file_bytes)
        except (OSError, ToolFailed):  # gone, swapped for something else, or not for us
            bounds.unread += 1
            return []
        if b"\x00" in data[: 8 << 10]:
            bounds.binary += 1
            return []
        bounds.searched += 1
        numbers = lines_of(data)
        lines = data.split(b"\n") if numbers else []
        name = shown(entry.path)
        hits = [f"{name}:{number}: {self._line(lines[number - 1])}" for number in numbers]
        if len(numbers) == self._limits.lines_per_file:
            hits.append(f"{name}: [no more than {len(numbers)} lines of one file are shown]")
        return hits

    def _line(self, line: bytes) -> str:
        most = self._limits.line_chars
        text = line[: most * 4 + 4].decode("utf-8", "replace").rstrip("\r")
        return text if len(text) <= most else text[:most] + "…"


def _fixed(text: str, ignore_case: bool, lines_max: int) -> Callable[[bytes], list[int]]:
    wanted = text.lower() if ignore_case else text

    def lines_of(data: bytes) -> list[int]:
        found = data.decode("utf-8", "replace")
        if ignore_case:
            found = found.lower()
        if wanted not in found:
            return []
        numbers = (number for number, line in enumerate(found.split("\n"), 1) if wanted in line)
        return [number for number, _ in zip(numbers, range(lines_max), strict=False)]

    return lines_of


class _Bounds:
    """How far a walk may go, and what it has to say in the end."""

    def __init__(self, limits: SearchLimits, context: ToolContext) -> None:
        self.until = time.monotonic() + limits.time_s
        self._limits = limits
        self._context = context
        self.stopped = ""
        self.searched = self.binary = self.large = self.unread = 0

    def over(self, entries: Iterator[FolderEntry]) -> Iterator[FolderEntry]:
        for number, entry in enumerate(entries):
            go_on(self._context)
            if number >= self._limits.entries_scanned:
                self.stopped = f"stopped after {number:,} names were looked at: use a narrower path"
                return
            if time.monotonic() > self.until:
                self.stopped = f"stopped after {self._limits.time_s:g} s: use a narrower path"
                return
            yield entry

    def note(self, *, searched: bool = False) -> list[str]:
        parts = [f"{self.searched:,} files searched"] if searched else []
        parts += [
            f"{count:,} {what}"
            for count, what in (
                (self.binary, "binary ones left out"),
                (self.large, f"of more than {self._limits.file_bytes:,} bytes left out"),
                (self.unread, "could not be read"),
            )
            if count
        ]
        parts += [self.stopped] if self.stopped else []
        return [f"[{'; '.join(parts)}]"] if parts else []


def _mark(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "/"
    if stat.S_ISLNK(mode):
        return "@"
    return "" if stat.S_ISREG(mode) else " (no file)"


class _Glob:
    """A glob over whole paths. `**` is any number of folders, none included; as the last part, everything below."""

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if len(pattern) > GLOB_CHARS_MAX or len(parts) > GLOB_PARTS_MAX or not parts or ".." in parts:
            raise ToolFailed(f"a glob has 1 to {GLOB_CHARS_MAX} characters, {GLOB_PARTS_MAX} parts and no '..'")
        if parts[-1] == "**":
            parts.append("*")
        self._parts = parts
        self._tests = [None if part == "**" else _name_test(part) for part in parts]

    def __call__(self, path: str) -> bool:
        """Which beginnings of the pattern fit the beginning of the path so far: one pass, no backtracking."""
        reached = self._open({0})
        for name in path.split("/"):
            stepped = set()
            for at in reached:
                if at == len(self._tests):
                    continue
                test = self._tests[at]
                if test is None:
                    stepped.add(at)
                elif test(name):
                    stepped.add(at + 1)
            reached = self._open(stepped)
        return len(self._tests) in reached

    def _open(self, reached: set[int]) -> set[int]:
        """`**` may also be nothing."""
        opened = set(reached)
        for at in sorted(reached):
            while at < len(self._tests) and self._tests[at] is None:
                at += 1
                opened.add(at)
        return opened


@lru_cache(maxsize=256)
def _name_test(pattern: str) -> Callable[[str], bool]:
    if re.search(r"\*[^*]*\*[^*]*\*[^*]*\*[^*]*\*", pattern):
        raise ToolFailed("one part of a glob has at most four *")
    return lambda name: fnmatch.fnmatchcase(name, pattern)
