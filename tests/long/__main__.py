"""Run what is long by nature, group by group, and end with one table: `make long`, or `python -m tests.long NAME …`.

Each file of this folder is a group. The other groups are tests that `make test` runs in a short form, and programs
that judge a long run. After a group that fails the next ones still run; the exit code tells of all of them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.support.selection import OF_ANY_STORE
from tests.support.tallies import FIGURE, TALLY

ROOT = Path(__file__).resolve().parents[2]
GROUP_TIMEOUT_S = 3600.0  # a run without an audience ends, whatever happens
TEST_TIMEOUT_S = 900
STORM_S = 60
SOAK_MINUTES = 2


# Whose tests do less in `make test`, or nothing: they ask `tests/support/scale.py` how much, or are marked `long`.
SCALED = [
    "tests/core/test_trees.py",
    "tests/crash/test_postgres_server.py",
    "tests/crash/test_restarted_text.py",
    "tests/fleet/test_claims.py",
    "tests/fleet/test_wal_bound.py",
    "tests/javascript/test_kills.py",
    "tests/models/test_decoders.py",
    "tests/models/test_local.py",
    "tests/page/test_access.py",
    "tests/page/test_keyboard.py",
    "tests/page/test_tabs.py",
    "tests/powercut/test_sqlite_store.py",
    "tests/promises/test_08_one_writer.py",
    "tests/promises/test_10_a_reader_never_loses_its_place.py",
    "tests/promises/test_12_a_schedules_occurrence_fires_once.py",
    "tests/server/test_described.py",
    "tests/store/test_bad_input.py",
    "tests/store/test_budget_attacks.py",
    "tests/store/test_migrations.py",
    "tests/store/test_side_by_side.py",
    "tests/store/test_wake_sources.py",
    "tests/tools/test_browse.py",
    "tests/tools/test_every_tool.py",
    "tests/tools/test_mcp.py",
    "tests/upkeep/test_make_run.py",
    "tests/worker/test_bills.py",
    "tests/worker/test_compacting.py",
    "tests/worker/test_long_chat.py",
    "tests/worker/test_random_kills.py",
    "tests/worker/test_random_turns.py",
]


@dataclass(frozen=True)
class Group:
    """`tests` is what pytest is told; a group without them is a module to run, `program`, with its arguments."""

    name: str
    tests: Sequence[str] = ()
    program: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    name: str
    summary: str
    seconds: float
    passed: bool
    shown: Sequence[str]
    """Rows of figures: what the tests told."""


def all_groups() -> list[Group]:
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    drawn = ["tests", "-m", "hypothesis", "--hypothesis-profile=explore", "-n2"]
    plot = str(Path(tempfile.gettempdir()) / "holdfast-soak.png")
    return [
        *(Group(file.stem.removeprefix("test_"), [str(file.relative_to(ROOT))]) for file in files),
        Group("clients", program=["tests.clients"]),
        Group("mutants", program=["tests.mutation"]),
        Group("explore", drawn, environment={"HOLDFAST_TEST_FULL": "1"}),
        Group("full-size", SCALED, environment={"HOLDFAST_TEST_FULL": "1"}),
        Group("on-postgresql", [*OF_ANY_STORE, "-k", "postgres", "-n2"], environment={"HOLDFAST_TEST_FULL": "1"}),
        Group("crash-matrix", ["tests/crash/test_kill9.py", "-n2"], environment={"HOLDFAST_CRASH_MATRIX": "full"}),
        Group("storm", ["tests/chaos/test_fleet.py"], environment={"HOLDFAST_SOAK_STORM_S": str(STORM_S)}),
        Group("soak", program=["bench.soak", str(SOAK_MINUTES), plot]),
    ]


def run(group: Group, folder: Path) -> Outcome:
    junit, bench = folder / f"{group.name}.xml", folder / f"{group.name}.json"
    pytest = [
        *("pytest", "-q", f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={junit}", "-o", "junit_family=xunit1"),
        *group.tests,
    ]
    print(f"\n=== {group.name}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", *(pytest if group.tests else group.program)],
        cwd=ROOT,
        env={**os.environ, **group.environment, "BENCH_OUT": str(bench)},
    )
    try:
        code = process.wait(GROUP_TIMEOUT_S)
        end = f"exit code {code}"
    except subprocess.TimeoutExpired:
        process.kill()
        code, end = process.wait(), f"not done after {GROUP_TIMEOUT_S:g} s"
    finally:
        process.kill()  # it outlives neither Ctrl-C nor an error here
    seconds = time.monotonic() - began
    summary, shown = (read_tests(junit) if group.tests else read_figures(bench)) or ("", [])
    told = "; ".join(filter(None, [summary, "" if code == 0 else end]))
    return Outcome(group.name, told, seconds, code == 0, shown)


def read_tests(junit: Path) -> tuple[str, list[str]] | None:
    """What pytest wrote: how many tests came to which end, and what they told."""
    if not junit.exists():
        return None
    counts: Counter[str] = Counter()
    shown: list[str] = []
    for case in ElementTree.parse(junit).iter("testcase"):
        ends = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
        counts[ends[0] if ends else "passed"] += 1
        if ends and ends[0] != "skipped":
            shown.append(f"{ends[0].upper()}: {case.get('name')}")
        told = [one.get("value") for one in case.iter("property") if one.get("name") in (TALLY, FIGURE)]
        shown += [f"{case.get('name')}: {text}" for text in told]
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no tests", shown


def read_figures(bench: Path) -> tuple[str, list[str]] | None:
    """What a program wrote where BENCH_OUT said, see `bench/figures.py`."""
    if not bench.exists():
        return None
    figures = json.loads(bench.read_text())["figures"]
    shown = [f"{one['name']}: {one['value']:.4g} {one['unit']} {one['aim']}".rstrip() for one in figures]
    return f"{sum(one['met'] for one in figures)} of {len(figures)} figures as they should be", shown


def table(outcomes: Sequence[Outcome]) -> str:
    rows = [("group", "what it showed", "seconds", "verdict")]
    for outcome in outcomes:
        verdict = "good" if outcome.passed else "BAD"
        rows.append((outcome.name, outcome.summary, f"{outcome.seconds:.0f}", verdict))
        rows += [("", line, "", "") for line in outcome.shown]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    rows.insert(1, ("-" * widths[0], "-" * widths[1], "-" * widths[2], "-" * widths[3]))
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


def main(names: Sequence[str]) -> bool:
    groups = {group.name: group for group in all_groups()}
    if unknown := [name for name in names if name not in groups]:
        sys.exit(f"There is no group {', '.join(unknown)}. There are: {', '.join(groups)}")
    chosen = list(names or groups)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in chosen:
                outcomes.append(run(groups[name], Path(folder)))
        except KeyboardInterrupt:  # what is there is shown all the same
            outcomes += [Outcome(name, "stopped or not begun", 0, False, []) for name in chosen[len(outcomes) :]]
    print(f"\n{table(outcomes)}")
    return all(outcome.passed for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
