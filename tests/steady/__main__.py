"""Run every test that a bound of wall time could turn, many times beside busy processes, and end with one table:
`make steady`, or `python -m tests.steady TIMES BUSY [what else pytest is told]`.

Which tests these are is found by `tests/support/bounds.py`. A test that fails once in twenty has a race: mend that,
in the product or in the test; a longer bound would hide it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from tests.long.__main__ import ROOT, Outcome, table

TEST_TIMEOUT_S = 600
ALL_S = 4 * 3600.0  # a run without an audience ends, whatever happens
WHICH_TIME = r"(?<=\[)time \d+-|-time \d+(?=[-\]])|\[time \d+\]$"
# It ends with who started it, also if that one is killed.
BUSY = "import os\nwhile os.getppid() == {parent}:\n    for _ in range(1_000_000):\n        pass"


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    program = BUSY.format(parent=os.getpid())
    processes = [subprocess.Popen([sys.executable, "-I", "-S", "-c", program]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_outcomes(junit: Path) -> list[Outcome]:
    """One of each test, over all its times."""
    cases: dict[str, list[ElementTree.Element]] = defaultdict(list)
    for case in ElementTree.parse(junit).iter("testcase"):
        cases[name_of(case)].append(case)
    return [_outcome(name, times) for name, times in sorted(cases.items())]


def name_of(case: ElementTree.Element) -> str:
    """`worker.test_lease test_it[sqlite]`, of which time it ever is."""
    home, name = case.get("classname", "").removeprefix("tests."), case.get("name", "")
    return f"{home} {re.sub(WHICH_TIME, '', name)}"


def _outcome(name: str, times: Sequence[ElementTree.Element]) -> Outcome:
    bad = [
        case.get("name", "") for case in times if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in times)
    seconds = [float(case.get("time", 0)) for case in times]
    counts = {"passed": len(times) - len(bad) - skipped, "failed": len(bad), "skipped": skipped}
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return Outcome(name, f"{told}; slowest {max(seconds):.1f} s", sum(seconds), not bad, bad)


def main(times: int, busy: int, more: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder, busy_processes(busy):
        junit = Path(folder) / "steady.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--timed", f"--times={times}", "-n2", "--dist=worksteal"),
            *(f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={junit}", "-o", "junit_family=xunit1", *more),
        ]
        done = subprocess.run(command, cwd=ROOT, timeout=ALL_S, check=False)
        outcomes = read_outcomes(junit) if junit.exists() else []
    print(f"\n{table(outcomes)}\n\n{len(outcomes)} tests, {times} times each, beside {busy} busy processes")
    return done.returncode == 0 and bool(outcomes)


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]) else 1)
