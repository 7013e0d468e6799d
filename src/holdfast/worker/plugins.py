"""Plugins: hooks from installed packages, found by entry point, used only where the configuration names them.

A package offers one as an entry point of the group `holdfast.plugins`: a Hook, several, or a function that returns
them. Nothing is imported that was not named.
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points

from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.hooks import Hook

GROUP = "holdfast.plugins"


def load_plugins(names: Sequence[str]) -> tuple[Hook, ...]:
    """Their hooks, in the order of the names. Raises ConfigError: a guard that is not there must be noticed."""
    found: list[Hook] = []
    for name in names:
        found += _load(_find(name))
    return tuple(found)


def _find(name: str) -> EntryPoint:
    points = entry_points(group=GROUP)
    for point in points:
        if point.name == name:
            return point
    known = ", ".join(sorted({point.name for point in points})) or "none"
    raise ConfigError(
        f"there is no plugin {name!r}; installed plugins: {known}. Install its package or remove its name"
    )


def _load(point: EntryPoint) -> list[Hook]:
    try:
        loaded = point.load()
        hooks = loaded() if callable(loaded) and not isinstance(loaded, Hook) else loaded
        hooks = [hooks] if isinstance(hooks, Hook) else list(hooks if isinstance(hooks, Iterable) else [hooks])
    except Exception as error:
        raise ConfigError(
            f"plugin {point.name!r} ({point.value}) could not be loaded: {type(error).__name__}: {error}. "
            "Mend it, or start without plugins"
        ) from error
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise ConfigError(f"plugin {point.name!r} ({point.value}) offers {hook!r}, which is not a Hook")
    return [replace(hook, name=f"{point.name}:{hook.label}") for hook in hooks]
