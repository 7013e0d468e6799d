"""The corpus of hostile lines and paths (`tests/tools/corpus`), as the user that runs the tests and as nobody."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.hostile_program import entries

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def test_the_corpus_is_as_large_as_it_is_said_to_be() -> None:
    lines, paths = entries("lines.txt"), entries("paths.txt")
    assert len(set(lines)) == len(lines) >= 500
    assert len(set(paths)) == len(paths) >= 80


@pytest.mark.parametrize("as_user", [(), NOBODY], ids=["as we are", "as nobody"])
def test_no_line_and_no_path_of_the_corpus_writes_runs_or_tells_anything_unasked(as_user: tuple[str, ...]) -> None:
    if as_user and (os.getuid() != 0 or shutil.which(as_user[0]) is None):
        pytest.skip("only root can become another user, with setpriv of util-linux")
    command = [*as_user, sys.executable, "-P", "-m", "tests.tools.hostile_program"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, timeout=110, env=environment)
    if as_user and b"Permission denied" in done.stderr:
        pytest.skip("nobody cannot read this checkout, or its interpreter")
    assert done.stdout, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["judged"] >= 4 * 500
