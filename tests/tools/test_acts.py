"""A line as its acts, the table of what is harmless, and what git finds in a folder."""

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.config import Permissions
from holdfast.tools.permissions.acts import Read, Run, Whereabouts
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.shell.acts import acts_of
from holdfast.tools.shell.harmless import PROGRAMS, runs_folder
from holdfast.tools.shell.repository import objection_to_git


@pytest.mark.parametrize(
    ("line", "acts"),
    [
        ("git status && ls", "run(git status) read(.) run(ls) read(.)"),
        ("sort < names > sorted", "run(sort) read(names) write(sorted)"),
        ("cat a b | grep -n x", "run(cat a b) read(a) read(b) run(grep -n x)"),
        ("grep -rn x src", "run(grep -rn x src) read(src)"),
        ("echo x >> log 2>&1", "run(echo x) write(log)"),
        ("ls > /dev/tcp/10.0.0.1/80", "run(ls) read(.) reach(10.0.0.1:80)"),
        ("curl https://u:p@example.org:8443/x", "run(curl https://u:p@example.org:8443/x) reach(example.org:8443)"),
        ("sed -n 10,20p a", "run(sed -n 10,20p a) read(a)"),
        ("find src -name '*.py' -type f", "run(find src -name *.py -type f) read(src)"),
        ("head -20 a", "run(head -20 a) read(a)"),
        ("ls $(id)", "run(?)"),
        ("ls 'x", "run(?)"),
        ("X=1 ls", "run(?)"),
    ],
)
def test_a_line_is_its_acts(line: str, acts: str) -> None:
    assert " ".join(str(act) for act in acts_of(line)) == acts


def test_the_acts_of_a_line_say_what_the_table_does_not_know() -> None:
    (known, _), (unknown,) = acts_of("git diff"), acts_of("git diff --output=x")
    assert isinstance(known, Run)
    assert known.unknown is None
    assert isinstance(unknown, Run)
    assert unknown.unknown == "`git diff --output=x` is not known to be harmless"


def test_a_path_behind_a_change_of_folder_leads_nobody_knows_where() -> None:
    moves, there, after, absolute = [act for act in acts_of("cd a; cat b /c") if isinstance(act, Read)] + [None]
    assert moves == Read(path="a")
    assert there == Read(path="b", moved=True)
    assert after == Read(path="/c")
    assert absolute is None


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_option_of_the_table_is_written_as_one(name: str) -> None:
    for option in PROGRAMS[name].options.split():
        assert option.startswith("-")
        assert option.rstrip("=").count("=") == 0


def test_what_runs_the_folder_is_marked_as_such() -> None:
    assert runs_folder("pytest")
    assert runs_folder("make")
    assert not runs_folder("git")


def test_a_program_that_lies_in_the_root_is_not_run_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ls").write_text("#!/bin/sh\n")
    (folder / "ls").chmod(0o755)
    book = rulebook_of(Permissions(rules=["allow run(ls *)"]), None, None)
    here = Whereabouts(root=str(tmp_path), search_path="/usr/bin:/bin")
    assert book.judge(acts_of("ls"), here).ruling == "allow"
    decision = book.judge(acts_of("ls"), replace(here, search_path=f"{folder}:/usr/bin:/bin"))
    assert decision.ruling == "ask"
    assert "the one in the root" in decision.why


# --- what git would believe ------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def test_git_runs_unasked_in_a_repository_as_it_is_made(repository: Path) -> None:
    book = rulebook_of(Permissions(rules=["allow run(git status *)"]), None, None)
    assert book.judge(acts_of("git status -sb"), Whereabouts(root=str(repository))).ruling == "allow"


@pytest.mark.parametrize(
    "setting",
    [
        "[core]\n\tfsmonitor = ./canary",
        "[CORE] FSMonitor = ./canary",
        "[core]\n\thooksPath = hooks",
        "[core]\n\tpager = ./canary",
        "[core]\n\tworktree = /",
        '[diff "x"]\n\ttextconv = ./canary',
        "[diff]\n\texternal = ./canary",
        '[filter "x"]\n\tclean = ./canary',
        "[alias]\n\tx = !./canary",
        "[include]\n\tpath = ../settings",
        '[includeIf "gitdir:/"]\n\tpath = ../settings',
        "[gpg]\n\tprogram = ./canary",
        '[remote "x"]\n\tpromisor = true',
        "[user]\n\tname = a \\\n[core]\n\tfsmonitor = ./canary",
        "nonsense",
        "[core",
    ],
)
def test_git_is_not_run_unasked_where_its_settings_may_start_a_program(repository: Path, setting: str) -> None:
    with (repository / ".git/config").open("a") as file:
        file.write(f"\n{setting}\n")
    assert "settings of the repository" in (objection_to_git(str(repository)) or "")


def test_git_is_not_run_unasked_in_a_folder_that_passes_for_a_repository(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    root.mkdir()
    assert "not the top of a repository" in (objection_to_git(str(root)) or "")
    for name in ("HEAD", "objects", "refs"):
        (root / name).write_text("x")
    assert "not the top of a repository" in (objection_to_git(str(root)) or "")


def test_the_settings_of_a_worktree_are_those_of_its_repository(repository: Path, tmp_path: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "-q", "--allow-empty", "-m", "x"], cwd=repository, check=True)
    subprocess.run(["git", "worktree", "add", "-q", str(tmp_path / "other")], cwd=repository, check=True)
    assert objection_to_git(str(tmp_path / "other")) is None
    with (repository / ".git/config").open("a") as file:
        file.write("[core]\n\tfsmonitor = ./canary\n")
    assert "core.fsmonitor" in (objection_to_git(str(tmp_path / "other")) or "")


@pytest.mark.parametrize("broken", ["", "HEAD"])
def test_git_is_not_run_unasked_where_it_would_pass_over_a_broken_repository(tmp_path: Path, broken: str) -> None:
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    (root / ".git/config").write_text("")
    if broken:
        (root / ".git" / broken).write_text("nothing that git knows")
    for name in ("objects", "refs"):
        (root / name).mkdir()
    (root / "HEAD").write_text("ref: refs/heads/main\n")
    (root / "config").write_text("[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = ./canary\n")
    assert "not the top of a repository" in (objection_to_git(str(root)) or "")


def test_git_is_not_run_unasked_in_a_folder_that_shares_the_rest_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "commondir").write_text("store\n")
    for name in ("objects", "refs"):
        (tmp_path / "store" / name).mkdir(parents=True)
    assert "not the top of a repository" in (objection_to_git(str(tmp_path)) or "")


def test_git_is_not_run_unasked_below_the_top_of_a_repository_where_it_would_show_the_rest(repository: Path) -> None:
    (repository / "part").mkdir()
    assert "not the top of a repository" in (objection_to_git(str(repository / "part")) or "")


def test_git_is_not_run_unasked_where_a_line_of_its_settings_goes_on_as_windows_writes_it(repository: Path) -> None:
    settings = b"[core]\r\n\tlongpaths = x\\\r\n[advice]\r\n\tfsmonitor = ./canary\r\n"
    (repository / ".git/config").write_bytes(settings)
    assert "a line that goes on" in (objection_to_git(str(repository)) or "")


def test_git_is_not_run_unasked_where_reading_runs_a_hook(repository: Path) -> None:
    hook = repository / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    assert "the hook" in (objection_to_git(str(repository)) or "")


@pytest.mark.parametrize("version", ["2", "4"])
def test_git_is_not_run_unasked_where_it_would_believe_the_settings_of_submodules(
    repository: Path, version: str
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True)

    (repository / "large.bin").write_bytes(bytes(57_344))  # a size that looks like a submodule in the index
    (repository / ("z" * 200)).write_text("")
    git("add", ".")
    git("update-index", "--index-version", version)
    assert objection_to_git(str(repository)) is None
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},part")
    assert "submodules" in (objection_to_git(str(repository)) or "")


@pytest.mark.parametrize(
    "line", ["git log --format=%+GG", "git log '--format=% G?'", "git for-each-ref --format='%(signature)'"]
)
def test_git_starts_no_program_to_check_signatures(line: str) -> None:
    (run,) = acts_of(line)
    assert isinstance(run, Run)
    assert "check signatures" in (run.unknown or "")
