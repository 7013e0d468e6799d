"""Searching and listing pass over what `.gitignore` files leave out, as Git does, and show lines around a hit."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.core.records import Cause
from holdfast.errors import ToolFailed
from holdfast.tools.context import ToolContext
from tests.tools.filed import Files

TREE = (
    "a.py", "a.pyc", "build/x", "src/build/x", "src/a.log", "src/keep.log", "src/deep/b.log", "src/deep/keep.log",
    "docs/a.txt", "docs/b/a.txt", "docs/b/c/a.txt", "node_modules/m/index.js", "sub/node_modules/m/index.js", "only",
    "sub/only/x", "top", "sub/top", "#hash", "!bang", "star*", "starry", "end ", "x1", "x2", "xa", "one/two/three/f",
    "one/f", "q/r/s", "temp/a", "temp/b", "sub/inner/file", "sub/inner/other", "spaced",
)  # fmt: skip
RULES = {
    "": (
        "", "# a comment", "*.pyc", "/build/", "*.log", "!keep.log", "docs/**/a.txt", "node_modules/", "only/",
        "/top", r"\#hash", r"\!bang", r"star\*", "end\\ ", "x[0-9]", "one/**/f", "q/**", "temp/*", "!temp/b",
        "spaced   ",
    ),
    "sub/": ("/inner/*", "!/inner/file", "!*.log"),
    "src/deep/": ("!b.log",),
}  # fmt: skip


def plant(root: Path) -> None:
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("hit\n")
    for folder, rules in RULES.items():
        (root / folder / ".gitignore").write_text("\n".join(rules))


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git to compare with")
def test_what_git_ignores_is_neither_listed_nor_searched(files: Files) -> None:
    plant(files.root)
    git = ("git", "-c", "core.excludesFile=/dev/null", "-C", str(files.root))
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run([*git, "init", "-q"], check=True, env=environment)
    wanted = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"], check=True, capture_output=True, env=environment
    )
    expected = sorted(name for name in wanted.stdout.decode().split("\0") if name and ".gitignore" not in name)
    listed = [name for name in files("list_files").split("\n") if not name.endswith("/")]
    assert sorted(listed) == expected
    hits = files("search_files", text="hit").split("\n")[:-1]
    assert sorted(hit.removesuffix(":1: hit") for hit in hits) == expected
    assert len(files("search_files", text="hit", ignored=True).split("\n")) == len(TREE) + 1


def test_the_rules_above_a_folder_count_in_it_and_an_ignored_one_is_searched_when_named(files: Files) -> None:
    plant(files.root)
    assert files("list_files", path="src/deep").split("\n") == ["b.log", "keep.log"]
    assert files("list_files", path="sub/inner") == "file"
    assert "index.js" in files("search_files", text="hit", path="node_modules")
    assert "a.log" not in files("list_files", path="src")


def test_a_hostile_gitignore_costs_nothing_and_leads_nowhere(files: Files) -> None:
    outside = files.root.parent / "outside"
    outside.write_text("*\n")
    (files.root / "d").mkdir()
    (files.root / ("a" * 250)).write_text("hit\n")
    (files.root / "d/f").write_text("hit\n")
    (files.root / "d/.gitignore").symlink_to(outside)
    evil = ["*a" * 100 + "b", "a*" * 4 + "b", "**/" * 40 + "x", "[" * 1_000, "\\", "../f", "!", "/", "x" * 100_000]
    (files.root / ".gitignore").write_text("\n".join(evil * 20))
    listed = files("list_files").split("\n")
    assert listed == ["a" * 250, "d/", "d/f"]


def test_lines_around_a_hit_are_shown_once_and_bounded(files: Files) -> None:
    (files.root / "f").write_text(
        "".join(f"{'hit' if number in (3, 5, 12) else 'line'} {number}\n" for number in range(1, 15))
    )
    assert files("search_files", text="hit", lines_around=1).split("\n")[:-1] == [
        "f-2- line 2", "f:3: hit 3", "f-4- line 4", "f:5: hit 5", "f-6- line 6",
        "--",
        "f-11- line 11", "f:12: hit 12", "f-13- line 13",
    ]  # fmt: skip
    assert "f:3: hit 3\nf:5: hit 5\n" in files("search_files", text="hit")
    for wrong in (-1, 11):
        assert "0 to 10" in files.refused("search_files", text="hit", lines_around=wrong)
    (files.root / "g").write_text("hit\n" * 5_000)
    assert len(files("search_files", text="hit", lines_around=10).split("\n")) <= 201


def test_a_search_that_is_cancelled_in_the_middle_ends(files: Files) -> None:
    class Leaving(ToolContext):
        looks = 0

        @property
        def cancelled(self) -> bool:
            self.looks += 1
            if self.looks == 20:
                self.cancel(Cause.USER)
            return super().cancelled

    for number in range(1_000):
        (files.root / f"f{number}").write_text("hit\n")
    context = Leaving()
    with pytest.raises(ToolFailed, match="cancelled"):
        files.tools["search_files"](text="hit", context=context)
    assert context.looks < 30
