"""Who holds the write lock of a SQLite file, in words, for whoever waits for it.

Linux says who holds a `flock` in /proc/locks; of a process in another container it says nothing, and other systems
have no such list. How long a process has held it nobody notes: who waits says how long it has seen it held.
"""

import os


def holder_of(lock_path: str) -> str | None:
    """`pid 17 (holdfast worker), which is stopped`. None: nobody holds it, or it cannot be known here."""
    pid = _pid_of(lock_path)
    return f"pid {pid}{_described(pid)}" if pid is not None else None


def _pid_of(lock_path: str) -> int | None:
    try:
        found = os.stat(lock_path)
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            lines = locks.read().splitlines()
    except OSError:
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return pid_in(lines, place)


def pid_in(lines: list[str], place: str) -> int | None:
    """From the lines of /proc/locks: `1: FLOCK  ADVISORY  WRITE 17 08:02:4711 0 EOF`; one that waits has an arrow.

    On some file systems the device is another one than a file's own: then a file of that number has to do.
    """
    held = [line.split() for line in lines if "->" not in line]
    flocks = [words for words in held if len(words) >= 6 and words[1] == "FLOCK" and words[4].isdigit()]
    inode = place.rpartition(":")[2]
    exact = [words for words in flocks if words[5] == place]
    near = [words for words in flocks if words[5].rpartition(":")[2] == inode]
    for words in (*exact, *near):
        return int(words[4]) or None  # 0: of another namespace
    return None


def posix_holders(path: str) -> list[str]:
    """Who has a SQLite file open, as far as Linux tells: they hold its shared lock."""
    try:
        found = os.stat(path)
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            lines = [line.split() for line in locks.read().splitlines() if "->" not in line]
    except OSError:
        return []
    held = {
        int(words[4])
        for words in lines
        if len(words) >= 6
        and words[1] == "POSIX"
        and words[4].isdigit()
        and words[5].rpartition(":")[2] == str(found.st_ino)
    }
    return [f"pid {pid}{_described(pid)}" for pid in sorted(held - {0, os.getpid()})]


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
