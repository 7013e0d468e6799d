"""Several edits in one call, and patches over several files: all of it or nothing."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.core.records import Cause
from holdfast.errors import OutcomeUnknown, ToolFailed
from holdfast.system import disk
from holdfast.system.threads import start
from holdfast.tools.context import ToolContext
from holdfast.tools.files import patch as patches
from tests.tools.filed import Files

CODE = "import os\n\n\ndef one():\n    return 1\n\n\ndef two():\n    return 1\n"


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_edits_are_applied_in_order_each_to_what_those_before_it_left(files: Files) -> None:
    (files.root / "f").write_text("a b c\n")
    edits = [{"old": "a", "new": "x"}, {"old": "x b", "new": "y"}, {"old": "c", "new": "c c"}]
    assert files("edit_file", path="f", edits=edits) == "Replaced 3 in f."
    assert (files.root / "f").read_text() == "y c c\n"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"old": "a b", "new": "z"}, "edit 2 of 2: it does not have"),  # the first edit changed it
        ({"old": "c", "new": "z"}, "edit 2 of 2: it has 2 times"),
        ({"old": "", "new": "z"}, "edit 2 of 2: old must be some text"),
        ({"old": "d", "new": "d"}, "edit 2 of 2: old must be some text"),
    ],
)
def test_one_edit_that_does_not_fit_leaves_all_of_them_out(files: Files, bad: dict[str, str], said: str) -> None:
    (files.root / "f").write_text("a b c d c\n")
    assert said in files.refused("edit_file", path="f", edits=[{"old": "a", "new": "x"}, bad])
    assert (files.root / "f").read_text() == "a b c d c\n"


def test_an_edit_has_one_form_and_a_bounded_number_of_places(files: Files) -> None:
    (files.root / "f").write_text("a\n")
    assert "not both" in files.refused("edit_file", path="f", old="a", new="b", edits=[{"old": "a", "new": "c"}])
    assert "too many" in files.refused("edit_file", path="f", edits=[{"old": "a", "new": "b"}] * 101)
    assert "old must be some text" in files.refused("edit_file", path="f")
    assert files("edit_file", path="f", edits=[{"old": "a", "new": "aa", "replace_all": True}]) == "Edited f."


def test_a_patch_changes_adds_moves_and_deletes_files(files: Files) -> None:
    for name in ("code.py", "old.py", "gone"):
        (files.root / name).write_text(CODE)
    said = files(
        "apply_patch",
        patch=patch(
            "*** Update File: code.py",
            "@@ def two():",
            "-    return 1",
            "+    return 2",
            "*** Add File: new/deep/note.txt",
            "+first",
            "+",
            "+last",
            "*** Update File: old.py",
            "*** Move to: kept/new.py",
            "-import os",
            "+import sys",
            "*** Delete File: gone",
        ),
    )
    assert said.split("\n")[1:] == [
        "changed code.py",
        "added new/deep/note.txt",
        "changed old.py, now kept/new.py",
        "deleted gone",
    ]
    assert tree(files.root) == {
        "code.py": CODE.removesuffix("1\n") + "2\n",
        "new/deep/note.txt": "first\n\nlast\n",
        "kept/new.py": CODE.replace("import os", "import sys"),
    }


@pytest.mark.parametrize(
    ("text", "chunk", "made"),
    [
        ("a\nb\n", ["+c"], "a\nb\nc\n"),  # without lines around it: at the end
        ("a\nb\na\n", ["-a", "+z", "*** End of File"], "a\nb\nz\n"),
        ("a\nb\n", ["@@ a", "+z"], "a\nz\nb\n"),
        ("a\nb", [" a", "-b", "+c"], "a\nc"),  # no newline at the end before, none after
        ("a\r\nb\r\n", [" a", "-b", "+c"], "a\r\nc\r\n"),
        ("a\n\nb\n", [" a", "", "-b"], "a\n\n"),  # an empty line whose space was left out
        ("a\nx\nb\nx\n", ["@@ b", " b", "-x", "+y"], "a\nx\nb\ny\n"),  # the @@ line again as context
        ("a\nx\nb\nx\n", [" a", "-x", "+y", "@@", " b", "-x", "+z"], "a\ny\nb\nz\n"),
        ("a\n", ["-a"], ""),
        ("", ["+a"], "a\n"),
    ],
)
def test_a_chunk_is_put_where_its_lines_are(files: Files, text: str, chunk: list[str], made: str) -> None:
    (files.root / "f").write_bytes(text.encode())
    files("apply_patch", patch=patch("*** Update File: f", *chunk))
    assert (files.root / "f").read_bytes() == made.encode()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["*** Update File: b", "-    return 1", "+    return 3"],
            "b was not changed: chunk 1 of 1: it fits at lines 5, 9",
        ),
        (["*** Update File: b", "-    return 4", "+    return 3"], "the nearest is:\n     5 |     return 1"),
        (["*** Update File: b", "@@ def three():", "+x"], "no line behind the chunk before it is 'def three():'"),
        (["*** Update File: b", "@@ def two():", "+x", "@@ def one():", "+x"], "chunk 2 of 2: no line"),
        (["*** Update File: b"], "at least one chunk"),
        (["*** Update File: b", "return 1"], "line 5 of the patch: a line of a chunk begins with"),
        (["*** Update File: missing", "+x"], "missing does not exist"),
        (["*** Update File: ../out", "+x"], "leads out of the folder"),
        (["*** Update File: binary", "+x"], "binary is a binary file"),
        (["*** Update File: a", "+x"], "names each file once"),
        (["*** Update File: b", "*** Move to: a"], "names each file once"),
        (["*** Update File: b", "*** Move to: c"], "c exists already"),
        (["*** Update File: b", "*** Move to: link/x"], "leads out of the folder"),
        (["*** Add File: c", "+x"], "c exists already"),
        (["*** Add File: d", "x"], "line 5 of the patch: every line of a new file begins with +"),
        (["*** Add File: .git/hooks/post-commit", "+x"], "is not written by tools"),
        (["*** Add File: new/x", "+x", "*** Add File: .ssh/x", "+x"], "is not for tools"),
        (["*** Delete File: link"], "leads out of the folder"),
        (["*** Delete File: b", "+x"], "nothing follows"),
        (["*** Delete File: folder"], "folder is a folder"),
        (["*** Rename File: b"], "line 4 of the patch: a line of a chunk begins"),
    ],
)
def test_a_patch_that_fits_in_part_changes_nothing(files: Files, lines: list[str], said: str) -> None:
    """The first file of each would fit."""
    outside = files.root.parent / "outside"
    outside.mkdir()
    for name in ("a", "b", "c"):
        (files.root / name).write_text(CODE)
    (files.root / "folder").mkdir()
    (files.root / "binary").write_bytes(b"\x7fELF\x00")
    (files.root / "link").symlink_to(outside)
    before = tree(files.root)
    text = patch("*** Update File: a", "+# end", *lines)
    assert said in files.refused("apply_patch", patch=text)
    assert tree(files.root) == before
    assert list(outside.iterdir()) == []
    assert not (files.root / "new").exists()


@pytest.mark.parametrize("text", ["", "*** Begin Patch", "--- a\n+++ b\n@@ -1 +1 @@", patch()])
def test_what_is_no_patch_is_said_to_be_none(files: Files, text: str) -> None:
    assert "patch" in files.refused("apply_patch", patch=text)


def test_a_write_that_fails_in_the_middle_of_a_patch_puts_the_others_back(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (files.root / name).write_text(CODE)
    before = tree(files.root)
    real, full = disk.write, {"b"}

    def write(folder: int, name: str, data: bytes) -> None:
        if name in full:
            raise OSError(28, "No space left on device")
        real(folder, name, data)

    monkeypatch.setattr(disk, "write", write)
    lines = [part for name in ("a", "b") for part in (f"*** Update File: {name}", "+# end")]
    text = patch("*** Add File: new", "+x", *lines)
    assert "b was not written, there is no room" in files.refused("apply_patch", patch=text)
    assert tree(files.root) == before

    def breaks(folder: int, name: str, data: bytes) -> None:
        write(folder, name, data)
        full.add(name)

    monkeypatch.setattr(disk, "write", breaks)
    with pytest.raises(OutcomeUnknown, match="could not be put back: look at a"):
        files("apply_patch", patch=text)


def test_a_patch_takes_folders_in_one_order_so_that_no_two_wait_for_each_other(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for the first, it has none of the others, whichever the patch names first."""
    folders = [files.root / name for name in ("x", "y")]
    for folder in folders:
        folder.mkdir()
        (folder / "f").write_text("0\n")
    first, second = sorted(folders, key=lambda folder: folder.stat().st_ino)
    waits = threading.Event()
    monkeypatch.setattr(time, "sleep", lambda _: waits.set())
    text = patch(*(part for folder in (second, first) for part in (f"*** Update File: {folder.name}/f", "+1")))
    problems: list[BaseException] = []

    def work() -> None:
        try:
            files("apply_patch", patch=text)
        except BaseException as error:  # noqa: BLE001  for the test to see
            problems.append(error)

    with locked(first):
        worker = start("test-patch", work)
        assert waits.wait(30)
        with locked(second):
            pass
    worker.join()
    assert problems == []
    assert {(folder / "f").read_text() for folder in folders} == {"0\n1\n"}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def test_a_hundred_calls_at_once_leave_nothing_open_and_nothing_behind(files: Files) -> None:
    (files.root / "f").write_text("".join(f"<{number}>\n" for number in range(100)))
    problems: list[BaseException] = []

    def work(number: int) -> None:
        calls: list[tuple[str, dict[str, object]]] = [
            ("edit_file", {"path": "f", "old": f"<{number}>", "new": f"({number})"}),
            ("apply_patch", {"patch": patch(f"*** Add File: d/{number}", "+x")}),
            ("search_files", {"text": "x", "lines_around": 1}),
            ("read_file", {"path": "f"}),
        ]
        try:
            for name, arguments in calls:
                files(name, **arguments)
        except BaseException as error:  # noqa: BLE001  for the test to see
            problems.append(error)

    before = psutil.Process().num_fds()
    workers = [start(f"test-{number}", lambda number=number: work(number)) for number in range(100)]  # type: ignore[misc]
    for worker in workers:
        worker.join()
    assert problems == []
    assert psutil.Process().num_fds() <= before
    assert (files.root / "f").read_text() == "".join(f"({number})\n" for number in range(100))
    assert sorted(path.name for path in files.root.iterdir()) == ["d", "f"]
    assert {path.name for path in (files.root / "d").iterdir()} == set(map(str, range(100)))


def test_a_patch_that_is_cancelled_while_it_waits_changes_nothing(files: Files) -> None:
    context = ToolContext()
    context.cancel(Cause.USER)
    with pytest.raises(ToolFailed, match="nothing was changed"):
        files.tools["apply_patch"](patch=patch("*** Add File: deep/new", "+x"), context=context)
    assert list(files.root.iterdir()) == []


def test_a_long_patch_of_a_long_file_finds_every_place(files: Files) -> None:
    lines = [str(number) for number in range(200_000)]
    chunks = [f"-{number}\n+x" for number in range(0, 200_000, 400)]
    (files.root / "f").write_text("\n".join(lines))
    [found] = patches.parsed(patch("*** Update File: f", *(f"@@\n{chunk}" for chunk in chunks)))
    assert patches.patched("\n".join(lines), found.chunks, "f").count("x") == 500
