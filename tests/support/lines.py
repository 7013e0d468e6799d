"""Lines of JSON in a file that processes append to until they are killed, perhaps in the middle of a line.

A write of more than one page ends between two of them when its process is killed. So a line also begins with a line
break: what one process left unfinished is then not the beginning of another's line.
"""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def append_line(fd: int, line: object) -> None:
    os.write(fd, b"\n" + msgspec.json.encode(line) + b"\n")


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """Those that were written whole: the beginning of an object is no JSON, and tells of nothing that was done."""
    decode = msgspec.json.Decoder(kind).decode
    found: list[T] = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(decode(line))
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            continue
    return found
