"""A program that takes holdfast's write lock on a SQLite file, says so, and keeps it until it is told to go.

Usage: python -m tests.store.holder PATH [fork]

With `fork` it says the pid of a child instead, which it forked while it had the lock, and which lives on.
"""

import os
import signal
import sys

from holdfast.store.sqlite.connection import WriteLock


def main(path: str, *, forks: bool) -> None:
    with WriteLock(path):
        child = os.fork() if forks else None
        if child == 0:
            signal.pause()
        sys.stdout.write("held\n" if child is None else f"{child}\n")
        sys.stdout.flush()
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], forks=sys.argv[2:] == ["fork"])
