"""Figures of what tools keep in this process, for health: each module that keeps something says how it is read.

Nothing is here before its module is loaded, so looking costs no import. Reading waits for nothing.
"""

from collections.abc import Callable, Mapping

Figures = Mapping[str, int | str | None]

_sources: dict[str, Callable[[], Figures | None]] = {}


def show(name: str, read: Callable[[], Figures | None]) -> None:
    """From any thread; None while there is nothing to tell."""
    _sources[name] = read


def figures() -> dict[str, Figures]:
    found = {name: read() for name, read in sorted(_sources.items())}
    return {name: told for name, told in found.items() if told is not None}
