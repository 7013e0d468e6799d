"""`holdfast init`: a project that runs at once, with an agent, its tools, a test of both, and settings.

The files are those of `cli/project`, as they are: what a user reads there is what the tests of this repository run.
Nothing that is there is written over, and a project is made whole or not at all.
"""

import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from holdfast.cli.app_choice import UsageError
from holdfast.cli.trust import trust_now
from holdfast.errors import ConfigError
from holdfast.safe_text import safe
from holdfast.system.disk import create_path

# By the name that each has in the project. `agent.py` is what the others name, so it comes last.
FILES = {
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    "holdfast.toml": "holdfast.toml.txt",
    "rehearsal.py": "rehearsal.py.txt",
    "test_agent.py": "test_agent.py.txt",
    "agent.py": "agent.py.txt",
}
MAY_BE_THERE = frozenset({"README.md", ".gitignore"})  # then the user's own stays

WORDS = """\
{place} has an agent now, with two tools, a test of both, and settings.

{enter}  holdfast chat                  talk with it
  holdfast serve                 HTTP API, page and a worker
  python -m pytest               its tests (pip install pytest)

agent.py is where to go on. With ANTHROPIC_API_KEY, OPENAI_API_KEY or GOOGLE_API_KEY set, it uses its tools; without
one, a small model answers that is too small for them: holdfast run --app rehearsal:app "Remember the milk." shows
them.
"""


def init(folder: str | None) -> None:
    """Raises ConfigError, and then nothing was made."""
    place = Path(folder or ".")
    made_folder = _make_folder(place)
    there = [name for name in FILES if os.path.lexists(place / name) and name not in MAY_BE_THERE]
    if there:
        raise UsageError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already, and nothing was changed: "
            "`holdfast init FOLDER` makes the project in a folder of its own"
        )
    made: list[Path] = []
    try:
        for name, template in FILES.items():
            content = (files("holdfast.cli") / "project" / template).read_bytes()
            if create_path(place / name, content, 0o644):
                made.append(place / name)
            elif name not in MAY_BE_THERE:
                raise ConfigError(f"{place / name} was made by another program just now")
    except (OSError, ConfigError) as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if made_folder:
            with suppress(OSError):
                place.rmdir()
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"no project was made in {safe(str(place.absolute()))}: {why}") from error
    trust_now(place)
    enter = f"  cd {safe(folder)}\n" if folder else ""
    print(WORDS.format(place=safe(str(place.resolve())), enter=enter), end="")


def _make_folder(place: Path) -> bool:
    """Whether it was made."""
    try:
        if place.is_dir():
            return False
        place.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{safe(str(place))}: {error.strerror}") from error
    return True
