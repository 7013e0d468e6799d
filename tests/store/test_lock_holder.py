"""Who holds a lock, as Linux lists it."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.system import guard_process
from holdfast.system.guard_process import holders_in, lock_holders

HELD = "1: FLOCK  ADVISORY  WRITE 17 08:02:4711 0 EOF"
WAITS = "1: -> FLOCK  ADVISORY  WRITE 18 08:02:4711 0 EOF"
ELSEWHERE = "1: FLOCK  ADVISORY  WRITE 20 00:31:4711 0 EOF"


@pytest.mark.parametrize(
    ("lines", "pids"),
    [
        ([HELD, WAITS], [17]),
        ([WAITS], []),
        (["1: POSIX  ADVISORY  WRITE 19 08:02:4711 0 EOF"], []),
        (["1: FLOCK  ADVISORY  WRITE 17 08:02:47110 0 EOF"], []),
        ([ELSEWHERE], []),
        ([ELSEWHERE, HELD], [17]),
        (["1: FLOCK  ADVISORY  WRITE 0 08:02:4711 0 EOF"], [0]),
        (["", "nonsense"], []),
    ],
)
def test_the_holder_of_a_lock_is_found_among_those_who_hold_and_wait(lines: list[str], pids: list[int]) -> None:
    assert holders_in(lines, "FLOCK", {"08:02:4711", "00:2a:4711"}) == pids


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists locks")
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_a_lock_is_found_whatever_file_system_its_file_is_on(folder: str, tmp_path: Path) -> None:
    path = Path(folder) / f"holdfast-lock-{os.getpid()}"
    other = tmp_path / "other"
    other.touch()
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock_holders(str(path), "FLOCK") == [os.getpid()]
        assert guard_process.holds(os.getpid(), str(path))
        assert lock_holders(str(other), "FLOCK") == []
    path.unlink()


def test_a_lock_is_found_where_something_is_mounted_under_a_name_that_is_no_text(tmp_path: Path) -> None:
    alone = subprocess.run(["unshare", "-rm", "true"], capture_output=True) if shutil.which("unshare") else None
    if alone is None or alone.returncode != 0:
        pytest.skip("no name spaces of our own here: unshare -rm")
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    look = "import sys, holdfast.system.guard_process as guard; print(guard.lock_holders(sys.argv[1], 'FLOCK'))"
    script = 'mount -t tmpfs tmpfs "$1" && exec "$2" -c "$3" "$4"'
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = subprocess.run(
            ["unshare", "-rm", "/bin/sh", "-c", script, "sh", odd, sys.executable, look, str(path)],
            text=True, timeout=60, capture_output=True,
        )  # fmt: skip
    assert done.stdout == f"[{os.getpid()}]\n", done.stderr
