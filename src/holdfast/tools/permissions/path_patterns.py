"""Patterns of paths: `src/**`, `**/.env*`, `/etc/hosts`, `~/notes/*`. Linear in the path, whatever the pattern.

`*` and `?` stand for characters of one name, `**` for any number of folders, also none. One that does not begin with
`/` or `~` is below the root of the tool.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

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
        self._parts = tuple(part.replace("[", "[[]") if part != "**" else part for part in parts)
        self._plain = tuple(map(plain, self._parts))

    def covers(self, path: str, root: str | None) -> bool:
        """For certain: `path` is absolute and real, `root` is real, and letters count."""
        parts = _parts(path) if self.absolute else below(path, root)
        return parts is not None and _fits(self._parts, parts)

    def may_mean(self, path: str, root: str | None) -> bool:
        """As a file system that does not tell letters apart would see it. One that begins with `**` means files
        outside of the root, too."""
        candidates = [below(path, root)]
        if self.absolute:
            candidates = [_parts(path)]
        elif self._parts[:1] == ("**",):
            candidates.append(_parts(path))
        return any(found is not None and _fits(self._plain, [plain(part) for part in found]) for found in candidates)


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
