"""What a test has counted and measured, shown at the end of the run whether it passed or not. `tests/conftest.py`
names this module; `make long` puts the same lines into its table.
"""

from collections.abc import Callable
from typing import Any, Protocol

import pytest

Tell = Callable[[str], None]
TALLY = "tally"
FIGURE = "figure"


class Figures(Protocol):
    def __call__(self, what: str, value: float | str, unit: str = "") -> None: ...


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """`tell("300 chats, …")`: a line for people. It travels with the report, also out of xdist's workers."""
    return lambda text: record_property(TALLY, text)


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Figures:
    """`figures("chats moved to the standby", 300)`, `figures("takeover", 2.81, "s")`: a row of figures."""

    def add(what: str, value: float | str, unit: str = "") -> None:
        record_property(FIGURE, f"{what}: {_shown(value)} {unit}".rstrip())

    return add


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {text}"
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name in (TALLY, FIGURE)
    ]
    if lines:
        terminalreporter.section("tallies")
        for line in lines:
            terminalreporter.write_line(line)
