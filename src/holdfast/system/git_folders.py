"""Where git has what belongs to a repository, read from its files as git reads them. It judges nothing."""

import os

SETTINGS_BYTES_MAX = 1 << 20
_NAMED = "gitdir: "


def folders_of(found: str) -> tuple[str, str]:
    """Of a `.git`: where a worktree has what is its own, and where all of them have the rest. Raises OSError, and
    ValueError where git would take it for none.
    """
    own = _named_by(found) if os.path.isfile(found) else found
    shared = os.path.join(own, "commondir")
    return own, os.path.join(own, settings_text(shared).strip()) if os.path.lexists(shared) else own


def _named_by(file: str) -> str:
    """A worktree or submodule: `.git` is a file that names the place."""
    text = settings_text(file).strip()
    if not text.startswith(_NAMED):
        raise ValueError("its .git names no folder")
    return os.path.join(os.path.dirname(file), text.removeprefix(_NAMED))


def settings_text(path: str) -> str:
    """Raises OSError, and ValueError where it is too large or no text."""
    with open(path, "rb") as file:
        data = file.read(SETTINGS_BYTES_MAX + 1)
    if len(data) > SETTINGS_BYTES_MAX:
        raise ValueError("its settings are too large")
    return data.decode()
