"""Patterns of paths: `src/**`, `**/.env*`, `/etc/hosts`, `~/notes/*`. Linear in the path, whatever the pattern.

`*` and `?` stand for characters of one name, `**` for any number of folders, also none. One that does not begin with
`/` or `~` is below the root of the tool.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase, translate
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Self

from holdfast.errors import ConfigError
from holdfast.tools.floor import plain


class PathPattern:
    def __init__(self, text: str) -> None:
        """Raises ConfigError."""
        if text.startswith("~/"):
            text = str(Path(text).expanduser())
        self.absolute = text.startswith("/")
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if not text or ".." in parts or "\x00" in text or text.startswith("~"):
            raise ConfigError("a path is below the root (src/**), or begins with / or ~/, and has no '..'")
        parts = [part for at, part in enumerate(parts) if part != "**" or parts[at + 1 : at + 2] != ["**"]]
        self._parts = tuple(part.replace("[", "[[]") if part != "**" else part for part in parts)
        self._plain = tuple(map(plain, self._parts))
        self._last = _name_test(self._plain[-1]) if self._plain and self._plain[-1] != "**" else None
        self._literal = frozenset(part for part in map(plain, parts) if not set(part) & set("*?"))
        known = list(takewhile(lambda part: not set(part) & set("*?"), parts))
        self.anchor = "/" + "/".join(known) if self.absolute else None  # all that it is about is this, or below it

    def covers(self, path: str, root: str | None) -> bool:
        """For certain: `path` is absolute and real, `root` is real, and letters count."""
        parts = _parts(path) if self.absolute else below(path, root)
        return parts is not None and _fits(self._parts, parts)

    def may_mean(self, meant: "MeantPath") -> bool:
        """As a file system that does not tell letters apart would see it. One that begins with `**` means files
        outside of the root, too.
        """
        names = meant.whole if self.absolute or self._parts[:1] == ("**",) else meant.inside
        if names is None or (self._last is not None and (not names or not self._last(names[-1]))):
            return False
        return self._literal.issubset(names) and _fits(self._plain, names)


class MeantPath(NamedTuple):
    """A path as rules that deny and ask are matched with it: by plain names, taken apart once for all of them."""

    path: str
    whole: tuple[str, ...]
    inside: tuple[str, ...] | None  # from the root on; None: it lies elsewhere

    @classmethod
    def of(cls, path: str, root: str | None) -> Self:
        whole, inside = _parts(path), below(path, root)
        names = tuple(map(plain, whole))
        return cls(path, names, None if inside is None else names[len(whole) - len(inside) :])


def _name_test(pattern: str) -> Callable[[str], object]:
    return re.compile(translate(pattern)).match


def below(path: str, root: str | None) -> list[str] | None:
    """The names that lead from the root to a path; None if it lies elsewhere."""
    if root is None:
        return None if path.startswith("/") else _parts(path)
    base = root.rstrip("/")
    if path != root and path != base and not path.startswith(f"{base}/"):
        return None
    return _parts(path[len(base) :])


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """By the set of places in the pattern that can be reached: no backtracking."""
    places = _skipping(pattern, {0})
    for part in parts:
        places = _skipping(
            pattern,
            {
                at if pattern[at] == "**" else at + 1
                for at in places
                if at < len(pattern) and (pattern[at] == "**" or fnmatchcase(part, pattern[at]))
            },
        )
        if not places:
            return False
    return len(pattern) in places


def _skipping(pattern: Sequence[str], places: set[int]) -> set[int]:
    found = set(places)
    for at in sorted(places):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            found.add(at)
    return found
