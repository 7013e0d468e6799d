"""A file of ours that a comment, a docstring or a page names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "holdfast"
NAMED = re.compile(r"`(?P<name>(?:[\w-]+/)*\w+\.(?:py|sql|toml))`")
OTHERS = {"holdfast.toml", "pyproject.toml"}
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]


def texts() -> list[Path]:
    return sorted([*PAGES, *(ROOT / "docs").rglob("*.md"), *SRC.rglob("*.py"), *(ROOT / "bench").rglob("*.py")])


def names_in(text: Path) -> list[str]:
    """In a page for users a name without a folder is one of their own files."""
    names = {found["name"] for found in NAMED.finditer(text.read_text(encoding="utf-8"))} - OTHERS
    is_for_users = text.name == "README.md" or ROOT / "docs" in text.parents
    return sorted(name for name in names if "/" in name or not is_for_users)


def is_there(name: str, text: Path) -> bool:
    """Named from the root, from the package, or from the folder of whoever names it."""
    return any((home / name).is_file() for home in (ROOT, SRC, text.parent))


@pytest.mark.parametrize("text", texts(), ids=lambda text: str(text.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(text: Path) -> None:
    assert [name for name in names_in(text) if not is_there(name, text)] == []
