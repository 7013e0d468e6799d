"""docs/reference says what the code says: public names, commands, routes, settings, kinds of entries and updates."""

import re
from typing import get_args

import pytest

import holdfast
from holdfast.core.updates import Update
from tests.upkeep.public_names import SUBMODULES, exported
from tests.upkeep.reference import DOCS, made, names, settings
from tests.upkeep.reference.command_pages import helps
from tests.upkeep.reference.entry_pages import kinds
from tests.upkeep.test_openapi import described


def written(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", names())
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    assert written(name) == made(name), f"docs/{name} is out of date: run `make reference`, and commit what it writes"


def test_every_public_name_is_in_the_reference() -> None:
    page = written("reference/python.md")
    public = {*holdfast.__all__, *(name for module in SUBMODULES for name in exported(module))} - {"__version__"}
    told = set(re.findall(r"^- `(?:async |class )?(\w+)", page, re.MULTILINE))
    assert public == told


def test_every_command_is_in_the_reference() -> None:
    told = re.findall(r"^## (holdfast.*)$", written("reference/commands.md"), re.MULTILINE)
    assert told == [name for name, _ in helps()]
    assert {"holdfast chats approve", "holdfast config show"} <= set(told), "groups have commands of their own"


def test_every_route_is_in_the_reference() -> None:
    told = set(re.findall(r"^## `(\w+) (\S+)`$", written("reference/http.md"), re.MULTILINE))
    assert told == {(method.upper(), path) for path, methods in described()["paths"].items() for method in methods}


def test_every_kind_of_entry_and_of_update_is_in_the_reference_with_an_example() -> None:
    for name, wanted in (
        ("reference/events.md", {*kinds(), "delta"}),
        ("reference/updates.md", {kind.__name__ for kind in get_args(Update)}),
    ):
        sections = re.split(r"^## `(.+?)`$", written(name), flags=re.MULTILINE)[1:]
        assert set(sections[::2]) == wanted
        assert all("```" in text for text in sections[1::2])


def test_a_setting_that_the_page_does_not_have_is_put_into_its_table() -> None:
    page = "Words.\n\n| setting | default | meaning |\n|---|---|---|\n| `old` | | gone |\n\nMore words.\n"
    filled = settings.with_table(page)
    assert filled.startswith("Words.\n\n| setting |")
    assert filled.endswith("|\n\nMore words.\n")
    assert "| `grace_s` | `25` |" in filled
    assert "`old`" not in filled
