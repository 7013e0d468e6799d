"""Where tests keep their files: in memory where that is possible, else where the system keeps temporary files.

Most of what tests write is a database that lives for one test, with every commit synced as it is for users. On a disk
these syncs and the writes behind them were a third of the whole run. In memory the same calls are made, and what they
are made for is untouched: a killed process leaves its files behind as it does on a disk, a power cut is simulated
(`powercut.py`) and a full disk is a file system of its own.

Who names a place with TMPDIR gets it: `TMPDIR=/tmp make test` runs on the disk.
"""

import os
import tempfile
from pathlib import Path

import psutil  # type: ignore[import-untyped]

MEMORY = Path("/dev/shm")  # Linux; in containers often 64 MB, and then of no use here
NEEDED_BYTES = 6 * 1024**3
"""Some times what a run with two workers takes: it shall never be the tests that use up a machine's memory."""


def scratch_folder(memory: Path = MEMORY, needed_bytes: int = NEEDED_BYTES) -> Path:
    """The folder in which to make folders of one's own."""
    usual = Path(tempfile.gettempdir())
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK | os.X_OK):
        return usual
    disk = os.statvfs(memory)
    roomy = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available) >= needed_bytes
    runs_programs = not disk.f_flag & getattr(os, "ST_NOEXEC", 0)  # some tests write programs; macOS has no such flag
    return memory if roomy and runs_programs else usual
