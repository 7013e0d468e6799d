"""Where the time comes from. Everything above asks a `Clock`, so a test can own the time.

Two readings, both in whole milliseconds: `wall_ms` is what people read and what timers are set by; `boot_ms`
counts from boot, goes on while the machine sleeps, and no one can step it. Leases live on the second.
"""

import asyncio
import ctypes
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

# Linux counts suspended time in CLOCK_BOOTTIME; on macOS CLOCK_MONOTONIC does.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# For waits that many processes must not end at the same moment. The system's: a program that seeds its own, or forks,
# would make them all alike.
dice = random.SystemRandom()


class Clock(Protocol):
    def wall_ms(self) -> int: ...
    def boot_ms(self) -> int: ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, boot_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def advance(self, ms: int) -> None:
        self._wall_ms += ms
        self._boot_ms += ms

    def step_wall(self, ms: int) -> None:
        """What an administrator or NTP does: the wall clock jumps, boot time does not."""
        self._wall_ms += ms


class Timing(msgspec.Struct, frozen=True):
    """Where time and chance come from. A test brings its own."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    jitter: Callable[[], float] = dice.random


class Countdown:
    """So many seconds from now on, counted by boot time."""

    def __init__(self, seconds: float) -> None:
        self._clock = SystemClock()
        self._end_ms = self._clock.boot_ms() + seconds * 1000

    def left_s(self) -> float:
        return (self._end_ms - self._clock.boot_ms()) / 1000


def boot_id() -> str:
    """Names this boot of this machine; `boot_ms` values compare only under one boot id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _boot_session()


def _boot_session() -> str:
    """macOS draws an id for each boot. The boot instant would not do: it moves when the wall clock is set."""
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(text))
    if libc.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"kern.bootsessionuuid: {os.strerror(number)}")
    return session_id(text.raw[: size.value])


def session_id(answer: bytes) -> str:
    """What sysctl answers is a C string, in capitals."""
    return answer.split(b"\0")[0].decode("ascii").strip().lower()
