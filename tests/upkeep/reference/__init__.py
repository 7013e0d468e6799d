"""The pages of docs/reference, made of the code: public names, commands, routes, journal entries and updates.

`make reference` writes them, and the table of settings in docs/configuration.md; `tests/upkeep/test_reference.py`
sees that they are written. Nothing here is a user's.
"""

from collections.abc import Callable
from pathlib import Path

from tests.upkeep.reference import command_pages, entry_pages, python_pages, route_pages, settings

DOCS = Path(__file__).resolve().parents[3] / "docs"
GENERATED = "<!-- Made by `make reference`: change the code, not this page. -->\n\n"

_PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python_pages.page,
    "reference/commands.md": command_pages.page,
    "reference/http.md": route_pages.page,
    "reference/events.md": entry_pages.events_page,
    "reference/updates.md": entry_pages.updates_page,
}


def names() -> list[str]:
    return [*_PAGES, "configuration.md"]


def made(name: str) -> str:
    """The page as the code has it now."""
    if name == "configuration.md":
        return settings.with_table((DOCS / name).read_text(encoding="utf-8"))
    return GENERATED + _PAGES[name]()
