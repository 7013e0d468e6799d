"""A file of ours that a comment, a docstring or a page names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "holdfast"
NAMED = re.compile(r"`(?P<name>(?:[\w-]+/)*\w+\.(?:py|sql|toml))`")
# Of a user's, or of another program.
OTHERS = {
    "holdfast.toml",
    "pyproject.toml",
    "support.py",
    "server.py",
    "mine.py",
    "models.py",
    "agents.py",
    "conftest.py",
}
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]


def texts() -> list[Path]:
    return sorted([*PAGES, *(ROOT / "docs").rglob("*.md"), *SRC.rglob("*.py"), *(ROOT / "bench").rglob("*.py")])


def is_there(name: str, text: Path) -> bool:
    """Named from the root, from the package, or from the folder of whoever names it."""
    return any((home / name).is_file() for home in (ROOT, SRC, text.parent))


@pytest.mark.parametrize("text", texts(), ids=lambda text: str(text.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(text: Path) -> None:
    names = {found["name"] for found in NAMED.finditer(text.read_text(encoding="utf-8"))} - OTHERS
    assert [name for name in sorted(names) if not is_there(name, text)] == []
