"""`make long` and what it collects: a folder that no other run touches, and a table that hides no failure."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.long import __main__ as long_run
from tests.long.__main__ import ROOT, SCALED, Group, Outcome, main, run, table

TESTS = """
def test_good(figures, tell):
    figures("takeover", 2.81234, "s")
    figures("chats", 3000)
    tell("all of them")

def test_bad(figures):
    figures("chats", 1)
    assert False
"""


def collected(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--rootdir", str(folder), *arguments]
    told = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    return [line for line in told.stdout.splitlines() if "::" in line]


def test_what_is_long_by_nature_is_collected_only_if_it_is_named(tmp_path: Path) -> None:
    for folder in ("long", "short"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text("def test_it(): pass")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    long, short = "tests/long/test_long.py::test_it", "tests/short/test_short.py::test_it"
    assert collected(tmp_path, "tests") == [short]
    assert collected(tmp_path, long) == [long]


def test_what_is_left_to_make_long_is_in_a_group_of_it() -> None:
    mine = Path(__file__).relative_to(ROOT).as_posix()
    less = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"pytest\.mark\.long\b|from tests\.support\.scale import", path.read_text(encoding="utf-8"))
    ]
    assert sorted({*less} - {*SCALED, mine}) == []


def test_in_rooms_of_any_store_some_run_on_postgresql_and_what_is_marked_long_runs_when_it_is_named(
    tmp_path: Path,
) -> None:
    both = "import pytest\n@pytest.mark.parametrize('store', ['sqlite', 'postgres'])\n"
    both += "@pytest.mark.parametrize('n', range(30))\n"
    for room in ("tools", "store"):
        (tmp_path / "tests" / room).mkdir(parents=True)
        (tmp_path / "tests" / room / f"test_{room}.py").write_text(f"{both}def test_it(n, store): pass")
    (tmp_path / "tests" / "store" / "test_long.py").write_text(
        "import pytest\n@pytest.mark.long\ndef test_it(): pass"
    )
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: it takes long\n")
    found = Counter((name.split("/")[1], "postgres" in name) for name in collected(tmp_path, "tests"))
    assert found["tools", False] == found["store", False] == found["store", True] == 30
    assert 0 < found["tools", True] < 20
    assert collected(tmp_path, "tests/store/test_long.py") == []
    assert len(collected(tmp_path, "tests/store/test_long.py::test_it")) == 1


def test_the_table_shows_what_every_group_showed_and_names_what_failed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("tests.support.tallies",)')
    (tmp_path / "test_some.py").write_text(TESTS)
    outcome = run(Group("some", [str(tmp_path), "--rootdir", str(tmp_path)]), tmp_path)
    assert (outcome.summary, outcome.passed) == ("1 passed, 1 failure; exit code 1", False)
    shown = table([outcome, Outcome("other", "9 passed", 61.7, True, [])]).splitlines()
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in shown if "---" not in line] == [
        ["group", "what it showed", "seconds", "verdict"],
        ["some", "1 passed, 1 failure; exit code 1", f"{outcome.seconds:.0f}", "BAD"],
        ["", "test_good: takeover: 2.812 s", "", ""],
        ["", "test_good: chats: 3,000", "", ""],
        ["", "test_good: all of them", "", ""],
        ["", "FAILURE: test_bad", "", ""],
        ["", "test_bad: chats: 1", "", ""],
        ["other", "9 passed", "62", "good"],
    ]


def test_a_program_that_ends_badly_is_a_bad_group_even_if_it_wrote_nothing(tmp_path: Path) -> None:
    outcome = run(Group("gone", program=["tests.no_such_program"]), tmp_path)
    assert (outcome.summary, outcome.passed) == ("exit code 1", False)


def test_a_run_that_is_stopped_shows_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_one(group: Group, folder: Path) -> Outcome:
        if group.name != "storm":
            raise KeyboardInterrupt
        return Outcome(group.name, "2 passed", 61.7, True, [])

    monkeypatch.setattr(long_run, "run", run_one)
    assert not main(["storm", "soak", "mutants"])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    assert rows[3:] == [
        ["storm", "2 passed", "62", "good"],
        ["soak", "stopped or not begun", "0", "BAD"],
        ["mutants", "stopped or not begun", "0", "BAD"],
    ]


def test_a_group_that_does_not_exist_is_refused_before_anything_runs() -> None:
    with pytest.raises(SystemExit, match="There is no group nosuch"):
        main(["soak", "nosuch"])
