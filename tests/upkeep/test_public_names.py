"""Whatever a signature, a how-to page or an `except` needs can be imported from `holdfast`."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import errors
from tests.upkeep import public_names as names

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
# What a page's program has from its surroundings: an app and a chat, as the pages before it made them.
GIVEN = frozenset({"app", "chat"})


def public() -> dict[str, Any]:
    found = dict(names.exported("holdfast"))
    for module in names.SUBMODULES:
        found |= {f"{module}:{name}": thing for name, thing in names.exported(module).items()}
    return found


def test_every_type_in_a_public_signature_or_field_has_a_public_name() -> None:
    assert names.unnamed_types(public()) == {}


def test_every_error_can_be_caught_by_a_public_name() -> None:
    tree = {name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)}
    assert tree - set(holdfast.__all__) == set()


def test_what_only_holdfast_makes_is_public_too() -> None:
    assert set(holdfast.__all__) >= names.ONLY_HELD


def test_what_a_hook_is_given_and_may_return_has_a_public_name() -> None:
    table = (holdfast.Hook.__doc__ or "").partition("may return:")[2]
    said = set(re.findall(r"\b[A-Z][A-Za-z]+\b", table)) - {"None"}
    assert said
    assert said - set(holdfast.__all__) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_programs_of_a_page_import_public_names_only_and_need_no_other(page: Path) -> None:
    said: set[str] = set()
    for program in names.programs_of(page):
        tree = names.parsed(program)
        for module, name in names.imports_of_ours(tree):
            assert module == "holdfast" or module in names.SUBMODULES, f"{module} is no public module"
            assert not name or name in names.exported(module), f"{name} is no public name of {module}"
        wanted = names.names_wanted(tree) - GIVEN - said
        assert wanted - set(holdfast.__all__) == set()
        said |= names.names_made(tree)


# Signatures name what the source names, defaults of other modules too.
WORDS = [page for page in PAGES if page != ROOT / "docs" / "reference" / "python.md"]


@pytest.mark.parametrize("page", WORDS, ids=lambda page: page.name)
def test_the_words_of_a_page_name_public_things_only(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    at_hand = set(holdfast.__all__).union(*(names.exported(module) for module in names.SUBMODULES))
    assert names.constructors_in_prose(text) - at_hand == set()
    for dotted in names.modules_in_prose(text) - set(names.SUBMODULES):
        module, _, name = dotted.rpartition(".")
        assert module in ("holdfast", *names.SUBMODULES), f"{dotted}: {module} is no public module"
        assert name in names.exported(module), f"{dotted}: there is no such public name"


def test_the_package_names_each_home_once_for_programs_and_once_for_type_checkers() -> None:
    tree = ast.parse(inspect.getsource(holdfast))
    (checked,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == holdfast._HOMES
    assert {*seen, "__version__"} == set(holdfast.__all__)


# --- the looks themselves --------------------------------------------------------------------------


class Hidden:
    __module__ = "holdfast.kelp"


class Shown:
    __module__ = "holdfast.kelp"

    def __init__(self, held: Hidden) -> None:
        self.held = held

    def find(self, by: dict[str, list["Hidden | None"]]) -> None: ...


Shown.__init__.__module__ = Shown.find.__module__ = __name__


def test_a_type_that_only_a_nested_hint_names_is_found() -> None:
    assert names.unnamed_types({"Shown": Shown}) == {
        "holdfast.kelp.Hidden": ["Shown.__init__(held)", "Shown.find(by)"]
    }
    assert names.unnamed_types({"Shown": Shown, "Hidden": Hidden}) == {}


def test_a_name_that_a_program_uses_without_making_it_is_found() -> None:
    program = (
        "from holdfast import Agent\nasync def main(city):\n    return Agent('a', settings=Knobs(city), n=len(…))"
    )
    tree = names.parsed(program)
    assert names.names_wanted(tree) == {"Knobs"}
    assert list(names.imports_of_ours(tree)) == [("holdfast", "Agent")]


def test_a_constructor_in_the_prose_is_found_and_a_class_of_another_module_is_none() -> None:
    assert names.constructors_in_prose("Write `Agent(prices={…: Price(…)})`, or `httpx.Client()`.") == {
        "Agent",
        "Price",
    }
    assert names.modules_in_prose("`raise holdfast.errors.Lost(…)`, not holdfast.toml") == {"holdfast.errors.Lost"}
