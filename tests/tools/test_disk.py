"""The one function that writes files: whole or untouched, whatever happens, and nothing left beside."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.system import disk
from holdfast.system.threads import start
from tests.tools.disk_program import CONTENT

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


def command(accident: str, folder: Path, name: str) -> list[str]:
    return [sys.executable, "-m", "tests.tools.disk_program", accident, str(folder), name]


def run(accident: str, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(accident, folder, name), cwd=ROOT, capture_output=True, text=True, timeout=60)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_the_content_and_the_permissions_of_the_umask(tmp_path: Path, folder: int) -> None:
    before = os.umask(0o027)
    try:
        disk.write(folder, "new", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o666, 0o640])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, folder: int, mode: int) -> None:
    target = tmp_path / "script"
    target.write_bytes(b"old")
    target.chmod(mode)
    disk.write(folder, "script", b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_replaced_file_keeps_its_owner_where_that_is_allowed(tmp_path: Path, folder: int) -> None:
    target = tmp_path / "theirs"
    target.write_bytes(b"old")
    os.chown(target, 4321, 1234)
    disk.write(folder, "theirs", b"new")
    assert (target.stat().st_uid, target.stat().st_gid) == (4321, 1234)


def test_write_path_takes_a_path(tmp_path: Path) -> None:
    disk.write_path(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a"])
def test_a_name_that_leads_elsewhere_is_refused(folder: int, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a file"):
        disk.write(folder, name, b"")


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, folder: int, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "symlink":
        target.symlink_to("elsewhere")
    elif kind == "fifo":
        os.mkfifo(target)
    else:
        target.mkdir()
    before = target.lstat()
    with pytest.raises(OSError, match="not a regular file"):
        disk.write(folder, "target", b"new")
    assert os.path.samestat(before, target.lstat())
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize(
    ("accident", "said"), [("too_large", "File too large"), ("no_permission", "PermissionError")]
)
def test_a_failed_write_leaves_the_target_untouched_and_no_litter(tmp_path: Path, accident: str, said: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    target.chmod(0o444)
    done = run(accident, tmp_path, "target")
    assert done.returncode == 1
    assert said in done.stderr
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["target"]


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can mount a small disk")
def test_a_full_disk_leaves_the_target_untouched_and_no_litter(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (small / "target").write_bytes(b"old")
        opened = os.open(small, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with pytest.raises(OSError, match="No space left"):
                disk.write(opened, "target", b"x" * 200_000)
        finally:
            os.close(opened)
        assert (small / "target").read_bytes() == b"old"
        assert names(small) == ["target"]
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("accident", ["killed_before_sync", "killed_before_rename"])
def test_a_killed_write_leaves_the_target_untouched_and_the_next_write_tidies_up(
    tmp_path: Path, folder: int, accident: str
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    assert run(accident, tmp_path, "target").returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    litter = [name for name in names(tmp_path) if name != "target"]
    assert len(litter) == 1
    assert disk.is_temporary(litter[0])
    disk.write(folder, "other", b"")
    assert names(tmp_path) == ["other", "target"]


def test_the_file_of_a_living_writer_is_not_tidied_up(tmp_path: Path, folder: int) -> None:
    writing = subprocess.Popen(
        command("hold", tmp_path, "target"), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with writing:
        assert writing.stdout is not None
        assert writing.stdout.readline() == "written\n"
        disk.remove_litter(folder)
        assert len(names(tmp_path)) == 1
        writing.communicate(timeout=60)
    assert writing.returncode == 0
    assert names(tmp_path) == ["target"]
    assert (tmp_path / "target").read_bytes() == CONTENT


def test_a_fifo_that_is_named_like_litter_blocks_nobody_and_stays(tmp_path: Path, folder: int) -> None:
    name = f".holdfast-{'0' * 32}.tmp"
    os.mkfifo(tmp_path / name)
    disk.write(folder, "file", b"")
    assert names(tmp_path) == [name, "file"]


def test_readers_and_many_writers_only_ever_see_whole_files(tmp_path: Path) -> None:
    """With everybody tidying up after everybody else."""
    contents = [bytes([65 + number]) * 50_000 for number in range(4)]
    disk.write_path(tmp_path / "target", contents[0])
    problems: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(25):
                disk.write_path(tmp_path / "target", content)
        except BaseException as error:  # noqa: BLE001  for the test to see
            problems.append(error)

    writers = [start(f"test-writer-{content[:1]!r}", lambda content=content: write(content)) for content in contents]  # type: ignore[misc]
    while any(writer.is_alive() for writer in writers):
        assert (tmp_path / "target").read_bytes() in contents
    for writer in writers:
        writer.join()
    assert problems == []
    assert names(tmp_path) == ["target"]


def test_a_file_that_is_tidied_away_before_it_is_locked_gets_another_name(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making and locking it looks like a dead writer's: whoever tidies up that instant removes it."""
    lock = fcntl.flock
    removed: list[str] = []

    def flock(file: int, operation: int) -> None:
        if not removed:
            removed.extend(names(tmp_path))
            disk.remove_litter(folder)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    disk.write(folder, "target", b"content")
    assert len(removed) == 1
    assert names(tmp_path) == ["target"]
    assert (tmp_path / "target").read_bytes() == b"content"
