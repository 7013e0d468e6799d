"""A program that writes one file and meets with an accident, for tests of disk.py.

Usage: python -m tests.tools.disk_program ACCIDENT FOLDER NAME
"""

import os
import resource
import signal
import sys
from typing import Any, NoReturn

from holdfast.system import disk
from tests.store.unprivileged import heed_permissions

CONTENT = b"new " * 25_000


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def prepare(accident: str) -> None:
    match accident:
        case "killed_before_rename":
            os.rename = die
        case "killed_before_sync":
            os.fsync = die
        case "too_large":  # what a full disk is like: a write comes back short, the next one fails
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        case "no_permission":
            heed_permissions()
        case "hold":  # in the middle of a write, until standard input ends
            real = os.rename

            def wait(*args: Any, **kwargs: Any) -> None:
                print("written", flush=True)  # noqa: T201
                sys.stdin.read()
                real(*args, **kwargs)

            os.rename = wait


def main(accident: str, folder: str, name: str) -> None:
    prepare(accident)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.write(opened, name, CONTENT)
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
