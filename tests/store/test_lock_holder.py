"""Who holds a lock, as Linux lists it."""

import fcntl
import os
from pathlib import Path

import pytest

from holdfast import guard_process
from holdfast.guard_process import holders_in, lock_holders

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
