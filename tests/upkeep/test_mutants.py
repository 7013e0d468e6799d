"""`make mutants`: which changes it makes, and that the changed code is what runs."""

import ast
import importlib.util
from pathlib import Path

import pytest

from tests.mutation.__main__ import CORE, LEFT_OUT, files_of_the_core, put_in_place
from tests.mutation.mutants import find_mutants, mutated


def changes(expression: str) -> list[str]:
    return [mutant.after for mutant in find_mutants(f"def f(a, b, c):\n    return {expression}\n")]


@pytest.mark.parametrize(
    ("expression", "others"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a >= b", ["a > b", "a < b"]),
        ("a == b", ["a != b"]),
        ("a is not b", ["a is b"]),
        ("a not in b", ["a in b"]),
        ("a and b", ["a or b"]),
        ("a - b", ["a + b"]),
        ("a < b <= c", ["a <= b <= c", "a >= b <= c", "a < b < c", "a < b > c"]),
        ("a * b", []),
    ],
)
def test_every_comparison_and_or_plus_and_minus_is_changed(expression: str, others: list[str]) -> None:
    assert changes(expression) == others


def test_every_file_of_the_core_is_changed_the_cells_included() -> None:
    assert set(files_of_the_core([])) == set(CORE.glob("**/*.py")) - {CORE / name for name in LEFT_OUT}
    assert files_of_the_core(["cells/compaction.py"]) == [CORE / "cells" / "compaction.py"]


def test_what_runs_at_import_is_left_alone() -> None:
    assert list(find_mutants("LIMIT = 3 + 4\nassert LIMIT == 7\n")) == []


def test_a_mutant_is_the_module_with_that_one_change() -> None:
    source = "def f(a):\n    a += 1\n    return a < 3 or a - 1 > 7\n"
    mutants = {mutant.after: ast.unparse(mutated(source, mutant)) for mutant in find_mutants(source)}
    assert mutants["a -= 1"] == "def f(a):\n    a -= 1\n    return a < 3 or a - 1 > 7"
    assert mutants["a - 1 >= 7"] == "def f(a):\n    a += 1\n    return a < 3 or a - 1 >= 7"


def test_a_mutant_takes_the_place_of_the_original_wherever_that_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "limits.py"
    file.write_text("class Room:\n    def full(self, n):\n        return n >= 3\n\nTABLE = {'full': Room.full}\n")
    spec = importlib.util.spec_from_file_location("limits", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    room, kept = module.Room(), module.TABLE["full"]
    assert room.full(3)
    put_in_place(file, next(find_mutants(file.read_text())))
    assert (room.full(3), room.full(4), kept(room, 3)) == (False, True, False)
