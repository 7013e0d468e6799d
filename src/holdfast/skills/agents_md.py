"""AGENTS.md: what a project tells every agent that works in it, as plain Markdown. The nearest file counts.

It is looked for from a folder upward, as far as the repository that the folder is in, and no further than the folder
itself where there is none. It is read at the start of a turn, and stays as it was read for that turn: so a request
begins as the one before it did, and a provider's cache holds.
"""

import asyncio
import os
import re
from pathlib import Path

from holdfast.core.codec import storable
from holdfast.errors import ConfigError, ToolFailed
from holdfast.log_context import logger
from holdfast.system import threads
from holdfast.tools.files.root import Root

log = logger("holdfast.skills")

NAME = "AGENTS.md"
BYTES_MAX = 64 << 10
CHARS_MAX = 32_000
PARENTS_MAX = 32
LOOK_S = 5.0

_pool = threads.Pool("agents-md", 1)
_TAG = re.compile(r"<\s*/?\s*project_instructions", re.IGNORECASE)


class AgentsMd:
    """Of the folder that an agent works in."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.root = root_of(self.folder)  # as it is when it is named: who makes a `.git` above it later adds nothing
        self._last = ""

    async def text(self) -> str:
        """What the model is told of it; empty: there is none. Where that cannot be told in time, as it was."""
        try:
            async with asyncio.timeout(LOOK_S):
                self._last = await _pool.run(lambda _: self.read())
        except (TimeoutError, OSError, RuntimeError) as error:
            extra = {"action": "agents_md.not_read", "error": f"{type(error).__name__}: {error}"}
            log.warning("AGENTS.md could not be read; it is used as it was", extra=extra)
        return self._last

    def read(self) -> str:
        """Blocks."""
        place = nearest(self.folder, self.root)
        content = _content(place, self.root) if place is not None else ""
        if not content:
            return ""
        content, shown = _TAG.sub("<project-instructions", content), re.sub('["<>\n]', "'", storable(str(place)))
        return (
            f'<project_instructions path="{shown}">\n{content}\n</project_instructions>\n'
            "Folders below may have an AGENTS.md of their own, which counts for the files there: read it before you"
            " change them."
        )


def nearest(folder: Path, root: Path | None = None) -> Path | None:
    """The file that counts in a folder of the project that begins at `root`; None: the repository that it is in."""
    root = root_of(folder) if root is None else root
    for place in (folder, *folder.parents[:PARENTS_MAX]):
        if (place / NAME).is_file():
            return place / NAME
        if place == root:
            break
    return None


def root_of(folder: Path) -> Path:
    """The repository that a folder is in; itself, if it is in none."""
    for place in (folder, *folder.parents[:PARENTS_MAX]):
        if os.path.lexists(place / ".git"):
            return place
    return folder


def _content(place: Path, root: Path) -> str:
    """Bounded. It may be a link to a CLAUDE.md beside it, but leads nowhere else than into the project, and not to
    what no tool may touch. Raises OSError.
    """
    try:
        with Root(root).place(str(place.relative_to(root))) as found, found.opened() as (file, _):
            data = os.read(file, BYTES_MAX + 1)
    except (ToolFailed, ConfigError) as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        words = f"{storable(str(place))} is left out: {error}"
        log.warning(words, extra={"action": "agents_md.left_out"})
        return ""
    text = data[:BYTES_MAX].decode("utf-8", "replace").replace("\x00", "").strip()
    if len(data) > BYTES_MAX or len(text) > CHARS_MAX:
        text = f"{text[:CHARS_MAX]}\n[… the rest of {NAME} is left out: it is too long …]"
    return text
