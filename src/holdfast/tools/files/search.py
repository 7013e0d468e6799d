"""Listing and searching files below a folder: both walk it, and both stop at their limits and say so.

Fixed text is looked for here, in linear time; a pattern in a process of its own (`patterns.py`).
"""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from holdfast.core.records import Frozen
from holdfast.errors import ToolFailed
from holdfast.tools.context import ToolContext
from holdfast.tools.files.globs import Glob
from holdfast.tools.files.ignored import Ignored
from holdfast.tools.files.patterns import Matcher
from holdfast.tools.files.reading import go_on
from holdfast.tools.files.root import SCANNED_MAX, FolderEntry, LeftOut, Root, RootPlace, shown, walk
from holdfast.tools.floor import Floor

TEXT_CHARS_MAX = 2_000
LINES_AROUND_MAX = 10


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

    def list_files(
        self,
        context: ToolContext,
        pattern: str = "**",
        path: str = ".",
        hidden: bool = False,
        ignored: bool = False,
    ) -> str:
        """List files and folders below `path` whose path fits a glob: `*.py` (in `path` itself), `**/*.py` (at any
        depth), `src/**`. A folder ends with /, a symlink with @. Names that begin with a dot only if `hidden`,
        what .gitignore files leave out only if `ignored`."""
        go_on(context)
        fits = Glob(pattern)
        listed: list[str] = []
        bounds = _Bounds(self._limits, context)
        with self._root.place(path) as place, ExitStack() as held:
            for entry in bounds.over(self._walk(held, place, hidden, ignored, bounds, context)):
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
        ignored: bool = False,
        lines_around: int = 0,
    ) -> str:
        """Find lines with a text in files below `path` whose path fits the glob `files`. With `regex`, the text is a
        regular expression (Python's), matched line by line. `lines_around`: so many lines before and after each, up
        to 10. Binary and very large files are left out, and what .gitignore files leave out unless `ignored`."""
        go_on(context)
        if not text or len(text) > TEXT_CHARS_MAX or (not regex and "\n" in text):
            raise ToolFailed(f"text is one line of 1 to {TEXT_CHARS_MAX:,} characters")
        if not 0 <= lines_around <= LINES_AROUND_MAX:
            raise ToolFailed(f"lines_around is from 0 to {LINES_AROUND_MAX}")
        fits = Glob(files)
        bounds = _Bounds(self._limits, context)
        found: list[str] = []
        with self._root.place(path) as place, ExitStack() as held:
            lines_of = self._matcher(held, text, regex, ignore_case, bounds.until, context)
            for entry in bounds.over(self._walk(held, place, hidden, ignored, bounds, context)):
                if stat.S_ISREG(entry.mode) and fits(entry.path):
                    found += self._search(entry, place.protected, lines_of, lines_around, bounds)
                    if len(found) >= self._limits.lines_shown:
                        bounds.stopped = (
                            f"stopped after {self._limits.lines_shown:,} lines: search for something rarer"
                        )
                        break
        return "\n".join([*found[: self._limits.lines_shown], *bounds.note(searched=True)])

    def _walk(
        self,
        held: ExitStack,
        place: RootPlace,
        hidden: bool,
        ignored: bool,
        bounds: "_Bounds",
        context: ToolContext,
    ) -> Iterator[FolderEntry]:
        folder = held.enter_context(place.opened_folder())
        base = "" if place.real == "." else f"{place.real.removesuffix('/.')}/"
        left_out: LeftOut | None = None if ignored else Ignored.above(self._root, place)
        root = os.path.realpath(self._root.path)
        unnamed = context.rulebook.unnamed_below(f"{root}/{base}".rstrip("/"), root)
        if unnamed is not None:
            left_out = _Unnamed(left_out, lambda path: unnamed(f"{root}/{path}"))
        shows = hidden or self._hidden
        found = walk(folder, place.protected, hidden=shows, base=base, left_out=left_out, goes_on=bounds.time_is_left)
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
        self,
        entry: FolderEntry,
        protected: Floor,
        lines_of: Callable[[bytes], list[int]],
        around: int,
        bounds: "_Bounds",
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
        hits = list(self._shown(name, lines, numbers, around))
        if len(numbers) == self._limits.lines_per_file:
            hits.append(f"{name}: [no more than {len(numbers)} lines of one file are shown]")
        return hits

    def _shown(self, name: str, lines: list[bytes], numbers: list[int], around: int) -> Iterator[str]:
        """As grep shows them: a hit with colons, a line around it with hyphens, `--` where lines are left out."""
        wanted, done = set(numbers), 0
        for number in numbers:
            first = max(done + 1, number - around)
            if around and done and first > done + 1:
                yield "--"
            for each in range(first, min(number + around, len(lines)) + 1):
                if each > number and each in wanted:
                    break  # it has lines around it of its own
                mark = ":" if each in wanted else "-"
                yield f"{name}{mark}{each}{mark} {self._line(lines[each - 1])}"
                done = each

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


class _Unnamed:
    """What rules keep from being read, beside what is left out anyway."""

    def __init__(self, other: LeftOut | None, unnamed: Callable[[str], bool]) -> None:
        self._other = other
        self._unnamed = unnamed

    def enter(self, folder: int, path: str) -> None:
        if self._other is not None:
            self._other.enter(folder, path)

    def has(self, path: str, *, folder: bool) -> bool:
        return self._unnamed(path) or (self._other is not None and self._other.has(path, folder=folder))


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
            if number >= self._limits.entries_scanned:
                self.stopped = f"stopped after {number:,} names were looked at: use a narrower path"
                return
            yield entry

    def time_is_left(self) -> bool:
        """Raises ToolFailed in a call that is no longer wanted."""
        go_on(self._context)
        if time.monotonic() <= self.until:
            return True
        self.stopped = f"stopped after {self._limits.time_s:g} s: use a narrower path"
        return False

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
