"""What a test has counted, shown at the end of the run whether it passed or not. `tests/conftest.py` names it."""

from collections.abc import Callable
from typing import Any

import pytest

Tell = Callable[[str], None]
_NAME = "tally"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """`tell("300 chats, …")`: a line for people. It travels with the report, also out of xdist's workers."""
    return lambda text: record_property(_NAME, text)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {text}"
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name == _NAME
    ]
    if lines:
        terminalreporter.section("tallies")
        for line in lines:
            terminalreporter.write_line(line)
