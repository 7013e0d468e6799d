"""Time: two clocks, and one that a test can turn."""

import time

from holdfast.system.clock import FakeClock, SystemClock, boot_id


def test_the_system_clock_reads_the_wall_in_whole_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().wall_ms()
    assert before <= now <= time.time_ns() // 1_000_000
    assert isinstance(now, int)


def test_boot_time_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.boot_ms() for _ in range(1_000)]
    assert readings == sorted(readings)


def test_boot_time_counts_from_boot_and_is_at_least_the_monotonic_clock() -> None:
    """It goes on while the machine sleeps, which the monotonic clock of Linux does not."""
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
    assert SystemClock().boot_ms() >= before


def test_the_boot_id_names_this_boot() -> None:
    assert boot_id()
    assert boot_id() == boot_id()


def test_a_fake_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(wall_ms=5_000, boot_ms=70)
    assert (clock.wall_ms(), clock.boot_ms(), clock.wall_ms()) == (5_000, 70, 5_000)
    clock.advance(10)
    assert (clock.wall_ms(), clock.boot_ms()) == (5_010, 80)


def test_a_step_of_the_wall_clock_does_not_touch_boot_time() -> None:
    clock = FakeClock(wall_ms=5_000, boot_ms=70)
    clock.step_wall(-4_000)
    assert (clock.wall_ms(), clock.boot_ms()) == (1_000, 70)
