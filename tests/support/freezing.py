"""Stopping a worker process as a suspended machine would, but not while it holds what others need."""

import fcntl
import os
import signal
import time
from pathlib import Path

from tests.support import behind


def freeze(pid: int, store_url: str) -> None:
    """SIGSTOP, at a moment when the process does not write to a SQLite file: a process that is frozen with the write
    lock holds up everybody, which is tested elsewhere and would only disturb here.
    """
    give_up_at = time.monotonic() + 30.0
    while True:
        os.kill(pid, signal.SIGSTOP)
        _until_stopped(pid)
        if not store_url.startswith("sqlite") or _nobody_writes(store_url.removeprefix("sqlite:///")):
            return
        os.kill(pid, signal.SIGCONT)
        assert time.monotonic() < give_up_at, "it never let go of the write lock"
        time.sleep(0.01)


def end_lease(pid: int, store_url: str) -> None:
    """Others saw a frozen worker be silent for its TTL. Without this that would have to be short, and on a machine
    that stands still for a moment it would end before the worker is where the test wants it.
    """
    behind.sql(store_url, "UPDATE workers SET ended = 'silent' WHERE pid = ? AND ended IS NULL", (pid,))


def _until_stopped(pid: int) -> None:
    """The signal is delivered to a process when it next runs."""
    while (
        Path(f"/proc/{pid}/stat").exists()
        and Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "tTZ"
    ):
        time.sleep(0.001)


def _nobody_writes(database: str) -> bool:
    for side in (f"{database}.gate", f"{database}.lock"):
        fd = os.open(side, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
    return True
