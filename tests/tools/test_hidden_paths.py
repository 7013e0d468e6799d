"""Rules that deny paths: what git kept of them, their other names, listings that would name what is below them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import Permissions
from holdfast.tools.context import ToolContext
from holdfast.tools.files.tools import file_tools
from holdfast.tools.permissions.acts import Act, Read, Whereabouts, Write
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.path_patterns import MeantPath, PathPattern
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.shell.acts import acts_of

DENIES = "deny read(secret/**)"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository that kept `secret/key` once."""
    root = tmp_path / "root"
    (root / "secret/deep").mkdir(parents=True)
    (root / "src").mkdir()
    (root / "secret/key").write_text("k")
    (root / "notes").write_text("n")
    for line in ("init -q", "add -A", "commit -qm first", "rm -q -r --cached secret", "commit -qm second"):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *line.split()], cwd=root, check=True, capture_output=True)
    return root


def judged(acts: str | Act, root: Path, *rules: str) -> Decision:
    book = rulebook_of(Permissions(rules=["allow run(*)", *rules]), None, None)
    return book.judge(acts_of(acts) if isinstance(acts, str) else [acts], Whereabouts(root=str(root)))


@pytest.mark.parametrize(
    "line",
    [
        "git show",
        "git show HEAD~1",
        "git show ':!notes'",
        "git show 'HEAD^{/a:b}'",
        "git cat-file -p 1234abc",
        "git log -p",
        "git log -u -5",
        "git log -S k",
        "git log -c",
        "git log --word-diff",
        "git diff HEAD~1",
        "git diff HEAD~1 HEAD -- notes",
        "git diff --cached",
        "git grep k HEAD~1",
        "git grep -e k HEAD~1",
    ],
)
def test_what_may_show_the_past_is_not_harmless_where_a_path_is_denied(line: str, root: Path) -> None:
    decision = judged(line, root, DENIES)
    assert (decision.ruling, decision.by) == ("ask", "mode ask")
    assert "read(.)" in decision.acts
    assert judged(line, root).ruling == "allow"


@pytest.mark.parametrize(
    "line", ["git show HEAD~1:secret/key", "git log -L1,1:secret/key", "git log -L :f:secret/key"]
)
def test_a_path_in_the_past_that_is_named_is_denied(line: str, root: Path) -> None:
    assert judged(line, root, DENIES).by == f"rule {DENIES}"


def test_what_shows_the_present_or_one_named_file_is_harmless(root: Path) -> None:
    for line in (
        "git status",
        "git diff",
        "git diff -- notes",
        "git grep k",
        "git grep k -- notes",
        "git blame notes",
    ):
        assert judged(line, root, DENIES).ruling == "allow", line
    for line in (
        "git log",
        "git log --oneline -5",
        "git log --stat main",
        "git show HEAD:notes",
        "git show :0:notes",
    ):
        assert judged(line, root, DENIES).ruling == "allow", line


# --- other names of a file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/cwd/secret/key",
        "/proc/thread-self/cwd/secret/key",
        "/proc/self/task/../cwd/secret/key",
        "//proc/./self/cwd/secret/key",
        "/proc/self/root{root}/secret/key",
        "src/../me/secret/key",
        "me/secret/key",
    ],
)
def test_a_way_through_proc_is_a_spelling_of_the_path(path: str, root: Path) -> None:
    (root / "me").symlink_to("/proc/self/cwd")
    meant = path.format(root=root)
    assert judged(f"cat {meant}", root, DENIES).by == f"rule {DENIES}"
    assert judged(f"tool {meant}", root, DENIES).by == f"rule {DENIES}"


def test_what_is_the_folder_of_another_process_is_not_read_unasked(root: Path) -> None:
    assert judged(Read(path="/proc/self/cwd/notes"), root, DENIES).ruling == "ask"
    assert judged(Read(path=f"/proc/{os.getppid()}/cwd/secret/key"), root, DENIES).by == f"rule {DENIES}"


@pytest.mark.skipif(os.access("/proc/1/cwd", os.R_OK), reason="who may look there, may")
def test_where_nobody_can_look_no_tool_does(root: Path) -> None:
    for act in (Read(path="/proc/1/cwd/secret/key"), Write(path="/proc/1/cwd/x")):
        assert judged(act, root, "allow read(/**)", "allow write(/**)").by == "floor"


def test_the_floor_is_beneath_a_way_through_proc(root: Path) -> None:
    allows = ("allow write(**)", "allow write(/**)")
    assert judged(Write(path="/proc/self/cwd/.git/config"), root, *allows).by == "floor"


def test_what_a_process_has_open_is_asked_about_and_offered_to_nobody(root: Path) -> None:
    decision = judged("cat /dev/fd/0", root, DENIES)
    assert (decision.ruling, decision.offer) == ("ask", ())


def test_a_hard_link_in_a_folder_that_is_read_whole_is_the_file(root: Path) -> None:
    os.link(root / "secret/key", root / "src/harmless")
    assert judged("grep -r x src", root, DENIES).by == f"rule {DENIES}"
    assert judged("cat src/harmless", root, DENIES).by == f"rule {DENIES}"
    assert judged("ls src", root, DENIES).ruling == "allow"


def test_a_hard_link_to_a_file_elsewhere_that_is_denied_by_its_path_is_the_file(root: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/one").write_text("k")
    os.link(tmp_path / "keys/one", root / "src/harmless")
    for pattern in (f"{tmp_path}/keys/one", f"{tmp_path}/keys/**", f"{tmp_path}/ke*/one"):
        rule = f"deny read({pattern})"
        assert judged("cat src/harmless", root, rule).by == f"rule {rule}", rule
        assert judged("cat notes", root, rule).ruling == "allow"
    assert judged("cat src/harmless", root, f"deny read({tmp_path}/others/**)").ruling == "allow"


# --- names below it -----------------------------------------------------------------------------------------


def test_a_program_that_lists_whole_folders_lists_none_that_is_denied(root: Path) -> None:
    for line in ("ls -R", "ls -lR .", "find .", "find . -name '*.py'", "du -a", "rg --files"):
        assert judged(line, root, DENIES).by == f"rule {DENIES}", line
    for line in ("ls", "ls -l .", "ls -R src", "find src -type f", "du src"):
        assert judged(line, root, DENIES).ruling == "allow", line
    (root / ".env").write_text("k")
    assert judged("find .", root, "deny read(**/.env*)").ruling == "allow", "a name in a folder that may be listed"


@pytest.fixture
def listed(root: Path) -> Callable[..., list[str]]:
    def listed(*rules: str, tool: str = "list_files", **arguments: str) -> list[str]:
        book = rulebook_of(Permissions(rules=rules), None, None)
        made = {each.name: each for each in file_tools(root)}[tool]
        return str(made(**arguments, context=ToolContext(rulebook=book))).splitlines()

    return listed


def test_a_listing_names_nothing_below_a_path_that_is_denied(listed: Callable[..., list[str]]) -> None:
    everything = ["notes", "secret/", "secret/deep/", "secret/key", "src/"]
    assert listed() == everything
    assert listed("deny read(other/**)") == everything
    assert listed(DENIES) == ["notes", "src/"]
    assert listed("deny read(SECRET/**)") == ["notes", "src/"]
    assert listed("deny read(secret/k*)") == ["notes", "secret/", "secret/deep/", "src/"]
    assert listed("deny read(**/key)", path="secret") == ["deep/"]


def test_a_listing_that_a_person_was_asked_about_is_whole(listed: Callable[..., list[str]]) -> None:
    assert listed("ask read(secret/**)") == ["notes", "src/"]
    assert listed("ask read(secret/**)", path="secret") == ["deep/", "key"]


def test_a_search_passes_over_what_is_denied(listed: Callable[..., list[str]]) -> None:
    assert listed(tool="search_files", text="k")[0] == "secret/key:1: k"
    assert listed(DENIES, tool="search_files", text="k") == ["[1 files searched]"]


# --- patterns -----------------------------------------------------------------------------------------------


def test_a_pattern_of_many_stars_is_matched_with_a_long_path() -> None:
    """Each of these would take longer than the universe, if it were tried in every way."""
    for pattern, path in (
        ("*a" * 200 + "*b", "a" * 4000),
        ("?*" * 200 + "b", "a" * 4000),
        ("**/" * 150 + "*/b", "a/" * 2000),
        ("**/a/" * 40 + "**/b*/c", "a/" * 500 + "b/d/c"),
    ):
        made = PathPattern(pattern)
        assert not made.may_mean(MeantPath.of(f"/r/{path}", "/r"))
        assert not made.covers(f"/r/{path}", "/r")
    assert PathPattern("**/" * 150 + "b").may_mean(MeantPath.of("/r/a/b", "/r"))
