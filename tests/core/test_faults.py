"""Crash points: nothing unless armed; then exactly what was asked, where and when it was asked."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast import faults

REACH = "from holdfast import faults; [faults.reach(name) for name in {names}]; print('survived')"


def counted() -> tuple[list[str], Callable[[], None]]:
    fired: list[str] = []
    return fired, lambda: fired.append("fired")


def run(names: list[str], order: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "HOLDFAST_CRASH_AT"}
    if order is not None:
        environment["HOLDFAST_CRASH_AT"] = order
    program = REACH.format(names=names)
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )


def test_points_have_names_of_their_own() -> None:
    assert len(set(faults.POINTS)) == len(faults.POINTS)


@pytest.mark.parametrize("name", faults.POINTS)
def test_a_point_that_is_not_armed_does_nothing(name: str) -> None:
    faults.reach(name)


def test_an_armed_point_fires_once() -> None:
    fired, action = counted()
    faults.arm("commit.before", action)
    faults.reach("commit.after")
    assert fired == []
    faults.reach("commit.before")
    faults.reach("commit.before")
    assert fired == ["fired"]


def test_a_point_can_be_armed_for_a_later_time() -> None:
    fired, action = counted()
    faults.arm("commit.before", action, at=3)
    for n in range(1, 5):
        faults.reach("commit.before")
        assert len(fired) == (n >= 3)


def test_several_points_can_be_armed_at_once() -> None:
    fired, action = counted()
    faults.arm("commit.before", action)
    faults.arm("commit.after", action)
    faults.reach("commit.after")
    faults.reach("commit.before")
    assert fired == ["fired", "fired"]


def test_what_a_point_does_may_be_an_error() -> None:
    def fail() -> None:
        raise OSError("disk full")

    faults.arm("commit.before", fail)
    with pytest.raises(OSError, match="disk full"):
        faults.reach("commit.before")


def test_a_disarmed_point_does_nothing() -> None:
    fired, action = counted()
    faults.arm("commit.before", action)
    faults.disarm()
    faults.reach("commit.before")
    assert fired == []


def test_arming_or_reaching_a_point_that_does_not_exist_is_a_bug_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"there is no crash point 'commit\.befor'"):
        faults.arm("commit.befor", lambda: None)
    faults.arm("commit.before", lambda: None)
    with pytest.raises(AssertionError, match=r"no\.such\.point"):
        faults.reach("no.such.point")


def test_the_environment_kills_the_process_at_a_point_as_a_power_button_would() -> None:
    done = run(["commit.before"], "commit.before")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_the_environment_can_name_a_later_time() -> None:
    assert run(["commit.before"] * 2, "commit.before:3").stdout == "survived\n"
    assert run(["commit.before"] * 3, "commit.before:3").returncode == -signal.SIGKILL


def test_without_the_environment_every_point_is_passed() -> None:
    assert run(list(faults.POINTS), None).stdout == "survived\n"


def test_an_environment_that_names_no_point_is_an_error_at_once() -> None:
    done = run([], "commit.befor")
    assert done.returncode == 1
    assert "there is no crash point 'commit.befor'" in done.stderr


def test_a_point_that_is_disarmed_while_a_thread_is_on_its_way_to_it_does_nothing() -> None:
    """A writer's thread would end by it, in the test after the one that armed the point."""
    fired, action = counted()
    faults.arm("commit.before", action)
    faults.disarm()
    faults._fire("commit.before")  # where the thread is that saw it armed
    assert fired == []
