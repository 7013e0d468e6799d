"""docs/how-to/observability.md is true: its commands and its programs run as they stand, in an empty folder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Desk
from tests.support.otlp import Receiver

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "observability.md").read_text(encoding="utf-8")
RUN = 'holdfast run "hello" --agent scripted'


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def commands(block: str) -> list[str]:
    return [line.partition("  #")[0].strip() for line in block.splitlines() if line]


def test_it_has_no_block_that_no_test_runs() -> None:
    assert (len(blocks("sh")), len(blocks("python"))) == (3, 2)
    assert PAGE.count("```") == 2 * 5


def test_why_and_show_tell_of_a_chat(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    run, listed, why, show = commands(blocks("sh")[0])
    assert desk.run(*shlex.split(run)[1:]).code == 0
    found = re.search(r"chat_\w+", desk.run(*shlex.split(listed)[1:]).out)
    assert found is not None
    for command in (why, show):
        done = desk.run(*shlex.split(command.replace("CHAT", found[0]))[1:])
        assert done.code == 0, done.err
        assert done.out.strip()


def test_the_log_is_json_where_it_is_asked_for(tmp_path: Path) -> None:
    (line,) = commands(blocks("sh")[1])
    setting, _, command = line.partition(" ")
    desk = Desk(tmp_path)
    desk.environ.update([setting.split("=")])  # type: ignore[list-item]
    done = desk.run(*shlex.split(command)[1:])
    assert done.code == 0, done.err


def test_its_traces_arrive(tmp_path: Path) -> None:
    install, export, traced = commands(blocks("sh")[2])
    extra = re.fullmatch(r'pip install "holdfast\[(\w+)\]"', install)
    assert extra is not None
    assert f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    setting, _, command = traced.partition(" ")
    assert command == RUN
    variable = export.removeprefix("export ").partition("=")[0]
    desk = Desk(tmp_path)
    with Receiver() as receiver:
        desk.environ.update({variable: receiver.url, setting.partition("=")[0]: setting.partition("=")[2]})
        done = desk.run(*shlex.split(command)[1:])
        assert done.code == 0, done.err
        names = {span.name for span in receiver.spans()}
    assert names >= {"invoke_agent scripted", "claim", "chat scripted"}


@pytest.mark.parametrize("n", [0, 1])
def test_its_programs_run(n: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(blocks("python")[n], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "You said: hello" in done.stdout
    if n == 0:
        assert re.search(r"INFO a turn is done chat_\w+", done.stderr), done.stderr
    else:
        assert '"name": "invoke_agent echo"' in done.stdout
        assert len(set(re.findall(r'"trace_id": "(\w+)"', done.stdout))) == 1, "the program's own span is in it"


def test_its_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(\.\./(\S+)\)", PAGE)
    assert pictures == ["dashboard.png", "traces.png"]
    for name in pictures:
        picture = (ROOT / "docs" / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 300_000
