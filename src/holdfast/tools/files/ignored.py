"""What `.gitignore` files leave out, as Git reads them: nested ones, negations, anchors, folders alone.

The files are part of what is searched, so their authors may mean harm: each pattern is matched by name, part for part
(`globs.py`), never as one regular expression over a path, as libraries for it do. Not read: `.git/info/exclude` and
what a user's own settings of Git name.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.errors import ToolFailed
from holdfast.tools.files.globs import Glob, name_test
from holdfast.tools.files.root import Root, RootPlace
from holdfast.tools.floor import Floor

NAME = ".gitignore"
FILE_BYTES_MAX = 64 << 10
RULES_MAX = 2_000  # of all files of one walk

_ESCAPED = re.compile(r"\\(.)")
_UNMARKED_END = re.compile(r"(?<!\\) +\Z")


class _Rule(NamedTuple):
    fits: Callable[[str, str], bool]  # the path below the folder of the rule, and its last name
    negated: bool
    folders_only: bool


class Ignored:
    """Of one walk. Paths are those below the root."""

    def __init__(self, protected: Floor) -> None:
        self._protected = protected
        self._rules: dict[str, list[_Rule]] = {}  # by the folder, which ends with /, or is empty
        self._left = RULES_MAX

    @classmethod
    def above(cls, root: Root, place: RootPlace) -> "Ignored":
        """With the rules of the folders that lead to a place; its own are read by who walks into it."""
        made = cls(place.protected)
        parts = [part for part in place.real.split("/") if part not in ("", ".")]
        for end in range(len(parts)):
            try:
                with root.place("/".join([*parts[:end], NAME])) as file:
                    made.enter(file.folder, "".join(f"{part}/" for part in parts[:end]))
            except ToolFailed:  # none there, or not for tools
                continue
        return made

    def enter(self, folder: int, path: str) -> None:
        """Read the rules of an open folder, if it has some."""
        try:
            with (
                RootPlace(folder, NAME, NAME, self._protected).opened() as (file, _),
                open(file, "rb", closefd=False) as stream,
            ):
                text = stream.read(FILE_BYTES_MAX).decode("utf-8", "replace")
        except (OSError, ToolFailed):
            return
        rules = []
        for rule in _rules(text):
            if self._left == 0:
                break
            rules.append(rule)
            self._left -= 1
        if rules:
            self._rules[path] = rules

    def has(self, path: str, *, folder: bool) -> bool:
        """The last rule that fits decides, of the nearest folder that has one."""
        name = path[path.rfind("/") + 1 :]
        end = len(path) - len(name)
        while True:
            if (rules := self._rules.get(path[:end])) is not None:
                below = path[end:]
                for fits, negated, folders_only in reversed(rules):
                    if (folder or not folders_only) and fits(below, name):
                        return not negated
            if end == 0:
                return False
            end = path.rfind("/", 0, end - 1) + 1


def _rules(text: str) -> Iterator[_Rule]:
    for line in text.removeprefix("\ufeff").split("\n"):
        pattern = _UNMARKED_END.sub("", line.removesuffix("\r"))
        if not pattern or pattern.startswith("#"):
            continue
        negated = pattern.startswith("!")
        pattern = pattern[negated:]
        folders_only = pattern.endswith("/")
        pattern = pattern.rstrip("/") if folders_only else pattern
        anchored = "/" in pattern
        pattern = _ESCAPED.sub(_literal, pattern.removeprefix("/"))
        try:
            yield _Rule(_test(pattern, anchored), negated, folders_only)
        except ToolFailed:  # none that Git would know, or longer than any that people write
            continue


def _literal(found: "re.Match[str]") -> str:
    return f"[{found[1]}]" if found[1] in "*?[" else found[1]


def _test(pattern: str, anchored: bool) -> Callable[[str, str], bool]:
    if not anchored:
        by_name = name_test(pattern)
        return lambda _, name: by_name(name)
    whole = Glob(pattern)
    return lambda path, _: whole(path)
