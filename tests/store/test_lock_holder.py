"""Who holds a lock, as Linux lists it."""

import pytest

from holdfast.store.sqlite.holder import pid_in

HELD = "1: FLOCK  ADVISORY  WRITE 17 08:02:4711 0 EOF"
WAITS = "1: -> FLOCK  ADVISORY  WRITE 18 08:02:4711 0 EOF"


@pytest.mark.parametrize(
    ("lines", "pid"),
    [
        ([HELD, WAITS], 17),
        ([WAITS], None),
        (["1: POSIX  ADVISORY  WRITE 19 08:02:4711 0 EOF"], None),
        (["1: FLOCK  ADVISORY  WRITE 17 08:02:47110 0 EOF"], None),
        (["1: FLOCK  ADVISORY  WRITE 20 00:31:4711 0 EOF"], 20),
        (["1: FLOCK  ADVISORY  WRITE 20 00:31:4711 0 EOF", HELD], 17),
        (["1: FLOCK  ADVISORY  WRITE 0 08:02:4711 0 EOF"], None),
        (["", "nonsense"], None),
    ],
)
def test_the_holder_of_a_lock_is_found_among_those_who_hold_and_wait(lines: list[str], pid: int | None) -> None:
    assert pid_in(lines, "08:02:4711") == pid
