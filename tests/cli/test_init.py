"""`holdfast init`: a project that runs at once, and never at the cost of what was there."""

import shlex
import subprocess
import sys

import pytest

from holdfast.cli.commands.init import FILES
from tests.cli.conftest import Desk, Done


@pytest.fixture
def desk(desk: Desk) -> Desk:
    del desk.environ["HOLDFAST_TRUSTED"]
    return desk


def names(desk: Desk, folder: str = ".") -> set[str]:
    return {path.name for path in (desk.folder / folder).iterdir()} - {"config of mine"}


def own_tests(desk: Desk, *arguments: str) -> Done:
    """By the project's own command."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments],
        cwd=desk.folder, env=desk.environ, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.bare_database  # its folder is empty
@pytest.mark.timeout(400)
def test_a_new_project_passes_its_own_tests_and_answers(desk: Desk, store_url: str) -> None:
    done = desk.run("init")
    assert (done.code, done.err) == (0, "")
    assert names(desk) == set(FILES)
    desk.environ["HOLDFAST_DATABASE"] = store_url
    some = (
        ("-k", "takes_the_note") if store_url.startswith("postgres") else ()
    )  # the drill has tests of its own there
    found = own_tests(desk, *some)
    assert found.code == 0, found.out
    answered = desk.run("run", "--app", "rehearsal:app", "Remember the milk.")
    assert (answered.code, answered.out) == (0, "I noted the milk.\n"), answered.err
    assert (desk.folder / "notes.txt").read_text() == "milk\n"


def test_its_settings_are_trusted_and_name_its_app(desk: Desk) -> None:
    assert desk.run("init", "kelp").code == 0
    assert names(desk) == {"kelp"}
    desk.folder /= "kelp"
    assert desk.run("run", "hello", "--model", "scripted").out == "You said: hello\n"


def test_nothing_that_is_there_is_written_over(desk: Desk) -> None:
    (desk.folder / "agent.py").write_text("mine")
    done = desk.run("init")
    assert done.code == 2
    assert "agent.py is there already, and nothing was changed" in done.err
    assert names(desk) == {"agent.py"}
    (desk.folder / "agent.py").unlink()
    (desk.folder / "README.md").write_text("mine")
    assert desk.run("init").code == 0
    assert (desk.folder / "README.md").read_text() == "mine"
    assert names(desk) == set(FILES)


def test_a_project_that_cannot_be_made_whole_is_not_made(desk: Desk) -> None:
    """A file that is larger than 1,024 bytes cannot be written, and some of the project's are."""
    command = shlex.join(desk.command("init", "kelp"))
    done = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -f 1; exec {command}"],
        cwd=desk.folder, env=desk.environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no project was made in" in done.stderr
    assert names(desk) == set()
    (desk.folder / "file").touch()
    assert "Not a directory" in desk.run("init", "file/kelp").err
