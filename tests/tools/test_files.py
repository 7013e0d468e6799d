"""The file tools: what they do, what they refuse, and that nothing gets out of their root."""

import os
import resource
import shutil
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.core.records import Cause, Replay
from holdfast.errors import ConfigError, ToolFailed
from holdfast.system.threads import start
from holdfast.tools.context import ToolContext
from holdfast.tools.files.tools import file_tools
from tests.tools.filed import Files
from tests.tools.hostile import FILES, SECRET, FileCase, table


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def answer(case: FileCase, folder: Path) -> tuple[str, bool]:
    """What a hostile input got, and whether the outside is as it was."""
    root, outside = folder / "root", folder / "outside"
    root.mkdir(parents=True)
    outside.mkdir()
    (root / "file").write_text("content of a file\n")
    (outside / "secret").write_text(SECRET)
    (folder / "root-other").mkdir()
    (folder / "root-other" / "secret").write_text(SECRET)
    case.prepare(root, outside)
    arguments = {
        key: value.replace("{root}", str(root)) if isinstance(value, str) else value
        for key, value in case.arguments.items()
    }
    try:
        got = Files(root, search_s=2.0 if case.endless else 60.0)(case.tool, **arguments)
    except ToolFailed as error:
        got = str(error)
    same = names(outside) == ["secret"] and (outside / "secret").read_text() == SECRET
    return got, same and SECRET not in got


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can make a device file")
def test_every_hostile_input_gets_what_the_table_says(tmp_path: Path) -> None:
    before = set(psutil.Process().children())  # what other tests' servers are, and what they left to die
    rows = []
    for number, case in enumerate(FILES):
        got, kept = answer(case, tmp_path / str(number))
        rows.append(("ok" if kept and case.got in got else "WRONG", case.what, case.got, got))
    assert all(verdict == "ok" for verdict, *_ in rows), "\n" + table(rows)
    assert set(psutil.Process().children()) <= before


def test_a_file_comes_back_as_it_was_written(files: Files) -> None:
    content = "one\r\ntwo\n\n  drei: ü\tlast without a newline"
    files("write_file", path="a/b/c.txt", content=content)
    assert (files.root / "a/b/c.txt").read_bytes() == content.encode()
    assert files.plain("a/b/c.txt") == content


def test_lines_are_read_by_number_and_the_answer_says_how_to_go_on(files: Files) -> None:
    (files.root / "f").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    got = files("read_file", path="f", start_line=3, line_count=2)
    assert got.startswith("     3\tline 3\n     4\tline 4\n\n[")
    assert "start_line=5" in got
    assert files("read_file", path="f", start_line=10).startswith("    10\tline 10\n")
    assert "has 10 lines" in files.refused("read_file", path="f", start_line=11)
    assert "begin at 1" in files.refused("read_file", path="f", start_line=0)


def test_a_long_file_is_cut_after_a_whole_line(files: Files) -> None:
    small = Files(files.root, read_bytes_max=100)
    (files.root / "f").write_text("x" * 60 + "\n" + "y" * 60 + "\n")
    assert small("read_file", path="f").startswith("     1\t" + "x" * 60 + "\n\n[lines 1 to 1")
    assert "start_line=2" in small("read_file", path="f")


def test_a_line_longer_than_the_limit_is_cut_and_said(files: Files) -> None:
    small = Files(files.root, read_bytes_max=100)
    (files.root / "f").write_text("ü" * 1000)
    assert small("read_file", path="f").startswith("     1\t" + "ü" * 50 + "\n[line 1 is cut")


def test_an_empty_file_is_empty(files: Files) -> None:
    (files.root / "f").touch()
    assert files.plain("f") == ""


@pytest.mark.parametrize(
    ("data", "said"), [(b"\x7fELF\x00\x01", "binary file (6 bytes)"), ("hé".encode("utf-16"), "UTF-16")]
)
def test_what_is_no_text_is_said_to_be_none(files: Files, data: bytes, said: str) -> None:
    (files.root / "f").write_bytes(data)
    assert said in files.refused("read_file", path="f")
    assert said in files.refused("edit_file", path="f", old="a", new="b")


def test_text_that_is_not_utf8_is_shown_with_a_note_and_not_edited(files: Files) -> None:
    (files.root / "f").write_bytes("café\n".encode("latin-1"))
    assert "1 bytes are not UTF-8" in files("read_file", path="f")
    assert "editing would damage it" in files.refused("edit_file", path="f", old="caf", new="CAF")
    assert (files.root / "f").read_bytes() == b"caf\xe9\n"


def test_an_edit_replaces_what_is_there_once_and_keeps_permissions(files: Files) -> None:
    (files.root / "run.sh").write_text("echo one\r\necho two\n")
    (files.root / "run.sh").chmod(0o750)
    assert files("edit_file", path="run.sh", old="one", new="1") == "Edited run.sh."
    assert (files.root / "run.sh").read_bytes() == b"echo 1\r\necho two\n"
    assert stat.S_IMODE((files.root / "run.sh").stat().st_mode) == 0o750


def test_an_edit_that_fits_several_places_names_them_and_changes_nothing(files: Files) -> None:
    (files.root / "f").write_text("a = 1\nb = 1\nc = 2\n")
    assert "2 times" in (said := files.refused("edit_file", path="f", old="= 1", new="= 3"))
    assert "lines 1, 2" in said
    assert (files.root / "f").read_text() == "a = 1\nb = 1\nc = 2\n"
    assert "2" in files("edit_file", path="f", old="= 1", new="= 3", replace_all=True)
    assert (files.root / "f").read_text() == "a = 3\nb = 3\nc = 2\n"


def test_an_edit_that_fits_nowhere_shows_the_nearest_lines_with_numbers(files: Files) -> None:
    text = "import os\n\ndef total(items):\n    return sum(items)\n\ndef mean(items):\n    return total(items) / 2\n"
    (files.root / "f.py").write_text(text)
    said = files.refused("edit_file", path="f.py", old="def totals(items):\n    return sum(item)", new="")
    assert "     3 | def total(items):\n     4 |     return sum(items)" in said
    said = files.refused("edit_file", path="f.py", old="def total(items):\n\treturn sum(items)", new="")
    assert "only white space differs" in said
    assert "nor anything like it" in files.refused("edit_file", path="f.py", old="zzz qqq", new="")
    (files.root / "dos").write_bytes(b"one\r\ntwo\r\n")
    assert "end in \\r\\n" in files.refused("edit_file", path="dos", old="one\ntwo", new="")
    assert (files.root / "f.py").read_text() == text


def test_edits_of_one_file_at_the_same_time_are_all_in_it(files: Files) -> None:
    (files.root / "f").write_text("".join(f"<{number}>\n" for number in range(12)))
    problems: list[BaseException] = []

    def edit(number: int) -> None:
        try:
            files("edit_file", path="f", old=f"<{number}>", new=f"({number})")
        except BaseException as error:  # noqa: BLE001  for the test to see
            problems.append(error)

    editors = [start(f"test-{number}", lambda number=number: edit(number)) for number in range(12)]  # type: ignore[misc]
    for editor in editors:
        editor.join()
    assert problems == []
    assert (files.root / "f").read_text() == "".join(f"({number})\n" for number in range(12))


def test_a_call_that_was_cancelled_while_it_waited_changes_nothing(files: Files) -> None:
    (files.root / "f").write_text("old")
    context = ToolContext()
    context.cancel(Cause.USER)
    for name, arguments in (
        ("write_file", {"path": "f", "content": "new"}),
        ("edit_file", {"path": "f", "old": "old", "new": "new"}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Delete File: f\n*** End Patch"}),
        ("read_file", {"path": "f"}),
        ("list_files", {}),
        ("search_files", {"text": "old"}),
    ):
        with pytest.raises(ToolFailed, match="nothing was changed"):
            files.tools[name](context=context, **arguments)
    assert (files.root / "f").read_text() == "old"


class _CancelledAtTheTenthLook(ToolContext):
    looks = 0

    @property
    def cancelled(self) -> bool:
        self.looks += 1
        return self.looks > 10


@pytest.mark.parametrize(("tool", "arguments"), [("list_files", {}), ("search_files", {"text": "x"})])
def test_a_walk_ends_also_among_names_that_it_passes_over(files: Files, tool: str, arguments: dict[str, str]) -> None:
    """A folder full of hidden files, or of those that .gitignore leaves out, is a long way without a name to show."""
    (files.root / ".gitignore").write_text("*.o\n")
    for number in range(20):
        (files.root / f".hidden{number}").touch()
        (files.root / f"{number}.o").touch()
    with pytest.raises(ToolFailed, match="cancelled"):
        files.tools[tool](context=_CancelledAtTheTenthLook(), **arguments)
    hurried = Files(files.root, search_s=1e-9)
    assert "stopped after 1e-09 s: use a narrower path" in hurried(tool, **arguments)


def test_reads_are_pure_a_whole_write_is_idempotent_and_an_edit_is_not(files: Files) -> None:
    """What an edit puts in may contain what it looks for: done again, it would be in twice."""
    assert {name: made.replay for name, made in files.tools.items()} == {
        "read_file": Replay.PURE,
        "list_files": Replay.PURE,
        "search_files": Replay.PURE,
        "write_file": Replay.IDEMPOTENT,
        "edit_file": Replay.UNSAFE,
        "apply_patch": Replay.UNSAFE,
    }


def test_read_only_has_no_tool_that_writes(files: Files) -> None:
    assert set(Files(files.root, read_only=True).tools) == {"read_file", "list_files", "search_files"}


def test_a_root_that_is_no_folder_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        file_tools(tmp_path / "missing")


def test_a_root_that_is_a_symlink_works_and_follows_a_deploy(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "f").write_text(version)
    (tmp_path / "current").symlink_to("v1")
    files = Files(tmp_path / "current")
    (tmp_path / "v1" / "absolute").symlink_to(tmp_path / "v1" / "f")
    assert files.plain("f") == "v1"
    assert files.plain("absolute") == "v1"
    assert files.plain(str(tmp_path / "current" / "f")) == "v1"
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").rename(tmp_path / "current")
    assert files.plain("f") == "v2"


def test_listing_goes_by_globs_and_leaves_hidden_names_out(files: Files) -> None:
    for name in ("a.py", "src/b.py", "src/deep/c.py", "src/deep/d.txt", ".git/config", ".env"):
        (files.root / name).parent.mkdir(parents=True, exist_ok=True)
        (files.root / name).touch()
    assert files("list_files").split("\n") == [
        *("a.py", "src/", "src/b.py", "src/deep/", "src/deep/c.py", "src/deep/d.txt")
    ]
    assert files("list_files", pattern="*.py") == "a.py"
    assert files("list_files", pattern="**/*.py").split("\n") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert files("list_files", pattern="src/**/c.py") == "src/deep/c.py"
    assert files("list_files", path="src/deep") == "c.py\nd.txt"
    assert ".env" in files("list_files", hidden=True)
    assert files("list_files", pattern="*.rs") == "Nothing fits."


def test_a_search_finds_fixed_text_and_patterns_and_says_what_it_left_out(files: Files) -> None:
    (files.root / "a.txt").write_text("alpha.beta\nALPHAxbeta\n")
    (files.root / "b.bin").write_bytes(b"alpha.beta\x00")
    (files.root / ".hidden").write_text("alpha.beta\n")
    assert files("search_files", text="alpha.beta").startswith("a.txt:1: alpha.beta\n[1 files searched; 1 binary")
    assert "a.txt:2: ALPHAxbeta" in files("search_files", text="alphaxBETA", ignore_case=True)
    assert "a.txt:2: ALPHAxbeta" in files("search_files", text="^alpha.beta$", regex=True, ignore_case=True)
    assert "a.txt" not in files("search_files", text="alpha", files="*.md")
    assert ".hidden:1" in files("search_files", text="alpha.beta", hidden=True)


class Guard:
    """Where child processes are registered in a run."""

    environment = {"HOLDFAST_TEST_MARK": "mine"}  # noqa: RUF012

    def __init__(self) -> None:
        self.groups: list[tuple[int, str]] = []

    def add(self, pgid: int) -> None:
        child = psutil.Process(pgid)
        assert os.getpgid(pgid) == pgid
        while not child.environ():  # between its exec and the environment that comes with it
            os.sched_yield()
        assert set(child.environ()) <= {"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", *self.environment}
        assert child.environ()["HOLDFAST_TEST_MARK"] == "mine"
        self.groups.append((pgid, "added"))

    def remove(self, pgid: int) -> None:
        assert not psutil.pid_exists(pgid)
        self.groups.append((pgid, "removed"))


def test_a_patterns_process_is_under_the_guard_and_gets_no_secrets(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    (files.root / "f").write_text("hit\n")
    guard = Guard()
    made = files.tools["search_files"]
    assert "f:1: hit" in made(text="h.t", regex=True, context=ToolContext(children=guard))
    assert [what for _, what in guard.groups] == ["added", "removed"]


def test_a_search_is_bounded_in_lines(files: Files) -> None:
    for number in range(10):
        (files.root / f"{number}.txt").write_text("hit\n" * 1000)
    got = files("search_files", text="hit")
    assert got.count("\n") == 200
    assert "stopped after 200 lines" in got


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_swapping_a_symlink_in_never_leads_outside(files: Files, tmp_path: Path, kind: str) -> None:
    """A race on rename: the name is the real thing or a symlink to the outside, from one moment to the next."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text(SECRET)
    inside = files.root / "d"
    inside.mkdir()
    (inside / "f").write_text("inside")
    swapped, target = (inside, outside) if kind == "folder" else (inside / "f", outside / "f")
    away = files.root / "away"
    over = False

    def swap() -> None:
        while not over:
            swapped.rename(away)
            with suppress(FileExistsError):  # a write that saw nothing there made a folder
                swapped.symlink_to(target)
                swapped.unlink()
            while away.exists():
                shutil.rmtree(swapped, ignore_errors=True)
                with suppress(OSError):
                    away.rename(swapped)

    swapper = start("test-swap", swap)
    seen = set()
    try:
        for number in range(400):
            for name, arguments in (
                ("read_file", {"path": "d/f"}),
                ("search_files", {"text": "s", "path": "."}),
                ("write_file", {"path": f"d/new{number % 3}", "content": "new"}),
                ("edit_file", {"path": "d/f", "old": "secret", "new": "public"}),
            ):
                try:
                    seen.add(files(name, **arguments))
                except ToolFailed as error:
                    seen.add(str(error))
    finally:
        over = True
        swapper.join()
    assert not any(SECRET in answer for answer in seen)
    assert any(text.startswith("     1\tinside") for text in seen)
    assert names(outside) == ["f"]
    assert (outside / "f").read_text() == SECRET


@pytest.mark.parametrize("swapped", ["d", "f"])
@pytest.mark.parametrize("name", ["read_file", "edit_file", "write_file"])
def test_a_symlink_that_is_swapped_in_at_the_last_moment_is_not_followed(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, swapped: str
) -> None:
    """The moment between looking at a name and opening it, hit every time."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text(SECRET)
    (files.root / "d").mkdir()
    (files.root / "d" / "f").write_text("the secret inside")
    real = os.open
    target, place = (outside, files.root / "d") if swapped == "d" else (outside / "f", files.root / "d" / "f")
    hits = 0

    def opening(path: Any, *args: Any, **kwargs: Any) -> int:
        nonlocal hits
        if path == swapped and not hits:
            hits += 1
            place.rename(tmp_path / "away")
            place.symlink_to(target)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", opening)
    more = {"edit_file": {"old": "secret", "new": "public"}, "write_file": {"content": "new"}}.get(name, {})
    assert SECRET not in files.refused(name, path="d/f", **more)
    assert hits == 1
    assert names(outside) == ["f"]
    assert (outside / "f").read_text() == SECRET


def test_a_full_disk_is_said_and_leaves_the_file_as_it_was(files: Files) -> None:
    """A file that may not grow is the nearest that every user has; the disk's own test has a full one."""
    (files.root / "f").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        said = files.refused("write_file", path="f", content="x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "no room" in said
    assert (files.root / "f").read_text() == "old"
    assert names(files.root) == ["f"]


def test_a_root_that_is_gone_is_said(files: Files) -> None:
    shutil.rmtree(files.root)
    assert "does not exist" in files.refused("read_file", path="f")


def test_no_descriptor_is_left_open(files: Files) -> None:
    (files.root / "a").mkdir()
    (files.root / "a" / "f").write_text("text")
    (files.root / "out").symlink_to("/etc")

    def use() -> None:
        files("read_file", path="a/f")
        files("write_file", path="a/b/c/g", content="text")
        files("edit_file", path="a/b/c/g", old="text", new="other")
        files("list_files")
        files("search_files", text="t", regex=True)
        files.refused("read_file", path="out/passwd")
        files.refused("read_file", path="a")

    use()
    before = psutil.Process().num_fds()
    for _ in range(3):
        use()
    assert psutil.Process().num_fds() <= before
