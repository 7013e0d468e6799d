"""A program that takes holdfast's write lock on a SQLite file, says so, and keeps it until it is told to go.

Usage: python -m tests.store.holder PATH
"""

import sys

from holdfast.store.sqlite.connection import WriteLock


def main(path: str) -> None:
    with WriteLock(path):
        sys.stdout.write("held\n")
        sys.stdout.flush()
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
