"""Globs over whole paths, in time linear in the path: what a model or a file gives cannot hold us up."""

import fnmatch
import re
from collections.abc import Callable
from functools import lru_cache

from holdfast.errors import ToolFailed

GLOB_CHARS_MAX = 500
GLOB_PARTS_MAX = 32


class Glob:
    """A glob over whole paths. `**` is any number of folders, none included; as the last part, everything below."""

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if len(pattern) > GLOB_CHARS_MAX or len(parts) > GLOB_PARTS_MAX or not parts or ".." in parts:
            raise ToolFailed(f"a glob has 1 to {GLOB_CHARS_MAX} characters, {GLOB_PARTS_MAX} parts and no '..'")
        if parts[-1] == "**":
            parts.append("*")
        self._parts = parts
        self._tests = [None if part == "**" else name_test(part) for part in parts]

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
def name_test(pattern: str) -> Callable[[str], bool]:
    if re.search(r"\*[^*]*\*[^*]*\*[^*]*\*[^*]*\*", pattern):
        raise ToolFailed("one part of a glob has at most four *")
    return lambda name: fnmatch.fnmatchcase(name, pattern)
