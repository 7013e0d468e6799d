"""The counts that docs/guarantees.md gives of the tests behind each promise."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from holdfast import faults

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
KILLS = "tests/crash/test_kill9.py"
COLLECT_S_MAX = 110.0


def collected(*paths: str) -> Counter[str]:
    """Cases by file, as pytest finds them in a run of its own: what this run leaves out counts, too."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *paths]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COLLECT_S_MAX, check=True)
    return Counter(line.partition("::")[0] for line in told.stdout.splitlines() if "::" in line)


def test_a_promise_has_at_least_the_cases_that_its_row_counts() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## How much stands behind them")[2]
    rows = {int(number): int(cases) for number, cases in re.findall(r"^\| (\d+) \| (\d+) \|", page, re.MULTILINE)}
    found = collected("tests/promises", KILLS)
    cases = {int(name.partition("test_")[2][:2]): count for name, count in found.items() if "/promises/" in name}
    assert rows.keys() == cases.keys()
    assert {number: count for number, count in rows.items() if cases[number] < count} == {}
    kills = re.search(r"(\d+) cases of kills", page)
    assert kills is not None
    assert found[KILLS] >= int(kills[1])
    points = re.search(r"(\d+) points;", page)
    assert points is not None
    assert int(points[1]) == len(faults.POINTS)
