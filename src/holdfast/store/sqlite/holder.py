"""Who holds the write lock of a SQLite file, in words, for the process that waits for it.

Linux says who holds a `flock` in /proc/locks; of a process in another container it says nothing, and other systems
have no such list. How long a process has held it is noted nowhere: the waiter says how long it has seen it held.
"""

import os

from holdfast.system.guard_process import lock_holders


def holder_of(*lock_paths: str) -> str | None:
    """`pid 17 (holdfast worker), which is stopped`: of the first that is held. None: no process holds one of them, or
    it cannot be known here.
    """
    pid = next((pid for path in lock_paths for pid in _pids(path, "FLOCK")), 0)
    return f"pid {pid}{_described(pid)}" if pid else None


def posix_holders(path: str) -> list[str]:
    """Who has a SQLite file open, as far as Linux tells: they hold its shared lock."""
    return [f"pid {pid}{_described(pid)}" for pid in sorted({*_pids(path, "POSIX")} - {0, os.getpid()})]


def _pids(path: str, kind: str) -> list[int]:
    try:
        return lock_holders(path, kind)
    except OSError:
        return []


def _described(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(400).decode("utf-8", "replace").split("\0")
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read(1000).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
    command = " ".join(word for word in words if word).strip()[:100]
    how = {"T": ", which is stopped", "t": ", which a debugger has stopped", "D": ", which waits for the disk"}
    return f" ({command})" * bool(command) + how.get(state, "")
