"""What no tool touches: holdfast's own files in the default layout, by name and by inode, with an app around them."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import App, Permissions
from holdfast.errors import ToolFailed
from holdfast.tools import floor
from holdfast.tools.base import Tool, call_tool
from holdfast.tools.context import ToolContext
from holdfast.tools.files.tools import file_tools
from holdfast.tools.permissions.acts import Whereabouts
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.shell.acts import acts_of
from holdfast.tools.shell.tool import shell_tool

TRUSTED = ".config/holdfast/trusted/" + "0" * 64  # where the root is somebody's home


@pytest.fixture
async def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """The default layout: the home in the current folder, which is the root of the tools, and an app at work."""
    monkeypatch.chdir(tmp_path)
    async with App(home="state"):
        (tmp_path / "state/token").write_text("the-token-of-the-server")
        yield tmp_path


def call(tools: list[Tool], name: str, **arguments: object) -> str:
    (made,) = [each for each in tools if each.name == name]
    return str(made(**made.validate(json.dumps(arguments))))


def judged(line: str, root: str, *rules: str) -> Decision:
    book = rulebook_of(Permissions(rules=["allow run(*)", *rules]), None, None)
    return book.judge(acts_of(line), Whereabouts(root=root))


@pytest.mark.parametrize(
    "path", ["state/holdfast.db", "state/token", "state/new", "holdfast.toml", ".git/hooks/x", TRUSTED]
)
async def test_a_file_tool_in_the_default_layout_does_not_write_to_what_is_holdfasts(
    project: Path, path: str
) -> None:
    before = (project / "state/holdfast.db").read_bytes()
    for name, arguments in (("write_file", {"content": ""}), ("edit_file", {"old": "a", "new": "b"})):
        with pytest.raises(ToolFailed, match=r"by tools|for tools|does not exist"):
            call(file_tools("."), name, path=path, **arguments)
    assert (project / "state/holdfast.db").read_bytes() == before
    assert not (project / "holdfast.toml").exists()
    assert not (project / ".git").exists()


async def test_a_hard_link_to_the_token_is_neither_read_nor_searched(project: Path) -> None:
    os.link(project / "state/token", project / "notes")
    with pytest.raises(ToolFailed, match="it holds keys"):
        call(file_tools("."), "read_file", path="notes")
    assert "the-token" not in call(file_tools(".", hidden=True), "search_files", text="the-token")


async def test_a_home_that_was_moved_away_is_known_by_its_inode(project: Path) -> None:
    (project / "state").rename(project / "elsewhere")
    for name in ("elsewhere/token", "elsewhere/holdfast.db"):
        with pytest.raises(ToolFailed, match="it holds keys"):
            call(file_tools("."), "read_file", path=name)
    (project / "elsewhere").rename(project / "state")


async def test_a_redirection_to_what_is_holdfasts_is_refused_whoever_approves(project: Path) -> None:
    os.link(project / "state/token", project / "notes")
    shell = shell_tool(root=".")
    for target in ("state/token", "notes", "state/holdfast.db-wal", "holdfast.toml", ".git/config"):
        arguments = json.dumps({"command": f"echo mine > {target}"})
        with pytest.raises(ToolFailed, match=r"Denied: `.*` is not"):
            await call_tool(shell, arguments, ToolContext(), lambda work: work())
        assert judged(f"echo mine > {target}", ".", "allow write(**)").by == "floor"
    assert (project / "state/token").read_text() == "the-token-of-the-server"


async def test_a_line_that_reads_the_token_is_denied_and_not_asked_about(project: Path) -> None:
    assert judged("cat state/token", ".", "allow read(**)").by == "floor"
    assert "holdfast's own files" in judged("grep -r x .", ".", "allow read(**)").why


async def test_a_root_inside_of_the_home_is_a_place_like_any_other(project: Path) -> None:
    (project / "state/work").mkdir()
    assert "Wrote" in call(file_tools("state/work"), "write_file", path="a", content="x")
    assert judged("cat a", "state/work").ruling == "allow"


async def test_an_app_that_is_closed_protects_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with App(home="state"):
        pass
    (tmp_path / "state/notes").write_text("x")
    assert call(file_tools("."), "read_file", path="state/notes").startswith("     1\tx")
    assert floor.floor().lies_below(str(tmp_path)) is False
