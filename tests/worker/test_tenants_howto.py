"""The examples of docs/how-to/tenants.md, run as they stand, one after the other in one folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tenants.md"
_PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = _PROGRAM.findall(PAGE.read_text(encoding="utf-8"))


def test_every_program_of_the_page_says_what_it_prints() -> None:
    assert len(PROGRAMS) == PAGE.read_text(encoding="utf-8").count("```python\n")


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_a_program_of_the_page_prints_what_the_page_says(program: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "tenants.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "tenants.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
