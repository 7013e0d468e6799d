"""Reading files: text by lines, with their numbers, within a limit of bytes; images and PDFs for the model to see.

The number of a line stands before it, behind it a tab: how models know it, and no text of a file begins so by chance.
What is written back with these numbers in it is refused (`has_numbers`).
"""

import io
import os
import re
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from holdfast.errors import ToolFailed
from holdfast.tools.base import ToolOutput
from holdfast.tools.context import ToolContext
from holdfast.tools.files import pictures
from holdfast.tools.files.root import Root, RootPlace
from holdfast.tools.files.versions import Versions, tagged, version_of, whole

SCAN_BYTES_MAX = 64 << 20  # what is passed over to get to a line
BINARY_LOOK_BYTES = 8 << 10
NUMBERS_LOOK_LINES = 1_000
NUMBER_BYTES = 7  # of what is put before a line


def go_on(context: ToolContext) -> None:
    """Raises ToolFailed in a call that is no longer wanted, before it touches anything more."""
    if context.cancelled:
        raise ToolFailed("cancelled; nothing was changed")


class Reader:
    def __init__(self, root: Root, bytes_max: int, versions: Versions) -> None:
        self._root = root
        self._versions = versions
        self._bytes_max = bytes_max

    def read_file(
        self, path: str, context: ToolContext, start_line: int = 1, line_count: int | None = None
    ) -> ToolOutput:
        """Read a text file, or some of its lines (the first is 1), or see an image (PNG, JPEG, GIF, WebP) or a PDF.
        Each line comes with its number and a tab before it, which are not in the file: leave them out of what you
        write. A long file ends with a note on how to go on."""
        go_on(context)
        if start_line < 1 or (line_count is not None and line_count < 1):
            raise ToolFailed("start_line and line_count begin at 1")
        with self._root.place(path) as place, place.opened() as (file, found):
            if (kind := pictures.media_type(os.pread(file, 16, 0))) is not None:
                shown = pictures.shown_file(file, found.st_size, kind, place.shown)
                seen = self._seen(place, whole(file, found), found, context)
                return ToolOutput(text=f"[{place.shown}: {kind}, {found.st_size:,} bytes; {seen}]", files=(shown,))
            refuse_binary(file, place, found.st_size)
            data = whole(file, found)
            with open(file, "rb", closefd=False) if data is None else io.BytesIO(data) as stream:
                stream.seek(0)
                lines = _read_lines(stream, start_line, line_count, self._bytes_max, context)
        if lines.first_missing is not None:
            raise ToolFailed(f"{place.shown} has {lines.first_missing - 1:,} lines: there is no line {start_line:,}")
        text, garbled = _decoded(lines)
        notes = [f"{garbled:,} bytes are not UTF-8 and shown as \ufffd"] if garbled else []
        if lines.cut:
            notes.append(f"line {lines.last:,} is cut here, it is longer than {self._bytes_max:,} bytes")
        elif lines.more:
            notes.append(
                f"lines {start_line:,} to {lines.last:,} of a file of {found.st_size:,} bytes; "
                f"go on with start_line={lines.last + 1}"
            )
        notes.append(self._seen(place, data, found, context))
        return ToolOutput(text=f"{_numbered(text, start_line)}\n[{'; '.join(notes)}]")

    def _seen(self, place: RootPlace, data: bytes | None, found: os.stat_result, context: ToolContext) -> str:
        version = version_of(place, data, found)
        self._versions.remember(place, version, context)
        return tagged([version])


class _Lines(NamedTuple):
    data: bytes
    last: int  # the number of the last line in it
    more: bool = False  # lines follow that were not asked for, or that there was no room for
    cut: bool = False  # in the middle of the last line
    first_missing: int | None = None  # the file ended before the first line that was asked for


def _read_lines(stream: BinaryIO, start: int, count: int | None, bytes_max: int, context: ToolContext) -> _Lines:
    end = None if count is None else start + count
    number, begins, scanned, numbers = 1, True, 0, 0
    taken = bytearray()
    while piece := stream.readline(64 << 10):
        scanned += len(piece)
        go_on(context)
        if scanned > SCAN_BYTES_MAX:
            raise ToolFailed(f"line {start:,} lies beyond the first {SCAN_BYTES_MAX:,} bytes, which is the limit")
        if number == end:
            return _Lines(bytes(taken), number - 1, more=True)
        if number >= start:
            numbers += begins
            if len(taken) + len(piece) + numbers * NUMBER_BYTES > bytes_max + NUMBER_BYTES:
                return _full(taken, piece, number, begins, bytes_max)
            taken += piece
        begins = piece.endswith(b"\n")
        number += begins
    lines = number - begins
    return _Lines(bytes(taken), lines, first_missing=lines + 1 if start > max(lines, 1) else None)


def _full(taken: bytearray, piece: bytes, number: int, begins: bool, bytes_max: int) -> _Lines:
    """No room for the rest: ends after the last whole line, or within the first if that is too long by itself."""
    whole = taken if begins else taken[: taken.rfind(b"\n") + 1]
    if whole:
        return _Lines(bytes(whole), number - 1, more=True)
    return _Lines(bytes((taken + piece)[:bytes_max]), number, cut=True)


def _decoded(lines: _Lines) -> tuple[str, int]:
    text = lines.data.decode("utf-8", "replace")
    if lines.cut and text.endswith("\ufffd"):  # perhaps a character that was cut in two
        text = text[:-1]
    return text, text.count("\ufffd") - lines.data.count("\ufffd".encode())


_NUMBERED = re.compile(r"(?=.{6}\t) +([0-9]+)\t")  # with the spaces before it: a table's first column has none


def _numbered(text: str, start: int) -> str:
    lines = text.removesuffix("\n").split("\n") if text else []
    last = "\n" if text.endswith("\n") else ""
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, start)) + last


def has_numbers(text: str) -> bool:
    """Whether every line has a number before it, each one more than the last, as `read_file` puts them."""
    lines = text.removesuffix("\n").split("\n")
    found = [_NUMBERED.match(line) for line in lines[:NUMBERS_LOOK_LINES]]
    if not all(found):
        return False
    numbers = [int(each[1]) for each in found if each is not None]
    return all(later == earlier + 1 for earlier, later in pairwise(numbers))


def refuse_binary(file: int, place: RootPlace, size: int) -> None:
    head = os.pread(file, BINARY_LOOK_BYTES, 0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ToolFailed(f"{place.shown} is text in UTF-16 ({size:,} bytes): only UTF-8 is read")
    if b"\x00" in head:
        raise ToolFailed(f"{place.shown} is a binary file ({size:,} bytes): it is not shown as text")
