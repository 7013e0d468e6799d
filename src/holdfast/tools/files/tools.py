"""Tools for the files below one folder: read, write, edit, list, search.

Nothing outside of it is read or changed (`root.py`), every write is whole or not at all (`system/disk.py`), and
everything is bounded: bytes read, lines shown, entries looked at, time taken.

Writing and editing in one folder take turns, across processes: two edits of one file that a model asks for at once
are both in it afterwards.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from holdfast.errors import ConfigError, ToolFailed
from holdfast.redaction import marks_added
from holdfast.system import disk
from holdfast.tools.base import Tool, tool
from holdfast.tools.context import ToolContext
from holdfast.tools.files.nearest_text import nearest
from holdfast.tools.files.root import Root, RootPlace
from holdfast.tools.files.search import Finder, SearchLimits

READ_BYTES_MAX = 256 << 10
WRITE_BYTES_MAX = 8 << 20
SCAN_BYTES_MAX = 64 << 20  # what is passed over to get to a line
TURN_WAIT_S = 30.0
TURN_LOOK_S = 0.01
DEADLINE_S = 60.0
BINARY_LOOK_BYTES = 8 << 10
MATCHES_SHOWN = 10


def file_tools(
    root: str | os.PathLike[str],
    *,
    read_only: bool = False,
    hidden: bool = False,
    read_bytes_max: int = READ_BYTES_MAX,
    write_bytes_max: int = WRITE_BYTES_MAX,
    search_s: float = 20.0,
    needs_approval: bool = False,
) -> list[Tool]:
    """`read_file`, `list_files`, `search_files`, and unless `read_only` also `write_file` and `edit_file`.

    All are confined to `root`. `hidden`: names that begin with a dot are listed and searched without being asked for;
    they can be read and written by name in any case. `needs_approval` is for the two that write.
    """
    if min(read_bytes_max, write_bytes_max, search_s) <= 0:
        raise ConfigError("the limits of file tools are above 0")
    confined = Root(root)
    reader = _Reader(confined, read_bytes_max)
    finder = Finder(confined, hidden, SearchLimits(time_s=search_s))
    found = [
        tool(replay="pure", deadline_s=DEADLINE_S)(reader.read_file),
        tool(replay="pure", deadline_s=DEADLINE_S)(finder.list_files),
        tool(replay="pure", deadline_s=search_s + DEADLINE_S)(finder.search_files),
    ]
    if not read_only:
        writer = _Writer(confined, write_bytes_max)
        found += [
            # Doing it again gives the same file.
            tool(replay="idempotent", deadline_s=DEADLINE_S, needs_approval=needs_approval)(writer.write_file),
            # Doing it again need not: what was put in may contain what was looked for. The model is told to look.
            tool(replay="unsafe", deadline_s=DEADLINE_S, needs_approval=needs_approval)(writer.edit_file),
        ]
    return found


class _Reader:
    def __init__(self, root: Root, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max

    def read_file(self, path: str, start_line: int = 1, line_count: int | None = None) -> str:
        """Read a text file, or some of its lines (the first is 1). A long file ends with a note on how to go on."""
        if start_line < 1 or (line_count is not None and line_count < 1):
            raise ToolFailed("start_line and line_count begin at 1")
        with self._root.place(path) as place, place.opened() as (file, found):
            _refuse_binary(file, place, found.st_size)
            lines = _read_lines(file, start_line, line_count, self._bytes_max)
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
        return f"{text}\n[{'; '.join(notes)}]" if notes else text


class _Lines(NamedTuple):
    data: bytes
    last: int  # the number of the last line in it
    more: bool = False  # lines follow that were not asked for, or that there was no room for
    cut: bool = False  # in the middle of the last line
    first_missing: int | None = None  # the file ended before the first line that was asked for


def _read_lines(file: int, start: int, count: int | None, bytes_max: int) -> _Lines:
    end = None if count is None else start + count
    number, begins, scanned = 1, True, 0
    taken = bytearray()
    with open(file, "rb", closefd=False) as stream:
        while piece := stream.readline(64 << 10):
            scanned += len(piece)
            if scanned > SCAN_BYTES_MAX:
                raise ToolFailed(f"line {start:,} lies beyond the first {SCAN_BYTES_MAX:,} bytes, which is the limit")
            if number == end:
                return _Lines(bytes(taken), number - 1, more=True)
            if number >= start:
                if len(taken) + len(piece) > bytes_max:
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


def _refuse_binary(file: int, place: RootPlace, size: int) -> None:
    head = os.pread(file, BINARY_LOOK_BYTES, 0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ToolFailed(f"{place.shown} is text in UTF-16 ({size:,} bytes): only UTF-8 is read")
    if b"\x00" in head:
        raise ToolFailed(f"{place.shown} is a binary file ({size:,} bytes): it is not shown as text")


class _Writer:
    def __init__(self, root: Root, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max

    def write_file(self, path: str, content: str, context: ToolContext) -> str:
        """Make a file, or replace all that is in it. Missing folders are made."""
        data = self._encoded(content)
        with self._root.place(path, writes=True, make_folders=True) as place:
            _refuse_folder(place)
            with _turn(place.folder, context):
                if marks_added("", content):
                    _refuse_marks(self._before(place), content, place)
                disk.write(place.folder, place.name, data)
        return f"Wrote {len(data):,} bytes to {place.shown}."

    def edit_file(self, path: str, old: str, new: str, context: ToolContext, replace_all: bool = False) -> str:
        """Replace `old` by `new` in a text file. `old` must be in it exactly as given, and only once, unless
        `replace_all` is true: give enough lines around it."""
        if not old or old == new:
            raise ToolFailed("old must be some text of the file, and new another: to make a file, use write_file")
        with self._root.place(path, writes=True) as place, _turn(place.folder, context):
            text, before = self._read(place)
            count = text.count(old)
            if count == 0:
                raise ToolFailed(f"{place.shown} was not changed: {nearest(text, old)}")
            if count > 1 and not replace_all:
                raise ToolFailed(
                    f"{place.shown} was not changed: it has {count:,} times what is to be replaced, "
                    f"in lines {_where(text, old)}. Give more of the text around it, or set replace_all."
                )
            changed = text.replace(old, new)
            _refuse_marks(text, changed, place)
            data = self._encoded(changed)
            now = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            if (now.st_ino, now.st_mtime_ns, now.st_size) != (before.st_ino, before.st_mtime_ns, before.st_size):
                raise ToolFailed(
                    f"{place.shown} was not changed: another program changed it this moment; read it again"
                )
            disk.write(place.folder, place.name, data)
        return f"Replaced {count:,} in {place.shown}." if count > 1 else f"Edited {place.shown}."

    def _read(self, place: RootPlace) -> tuple[str, os.stat_result]:
        with place.opened() as (file, found):
            if found.st_size > self._bytes_max:
                raise ToolFailed(
                    f"{place.shown} has {found.st_size:,} bytes, more than {self._bytes_max:,} are not edited"
                )
            _refuse_binary(file, place, found.st_size)
            with open(file, "rb", closefd=False) as stream:
                data = stream.read(self._bytes_max + 1)
        try:
            return data.decode(), found
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{place.shown} is not UTF-8 (byte {error.start:,}): editing would damage it") from None

    def _before(self, place: RootPlace) -> str:
        """As far as it is text that we would edit."""
        try:
            return self._read(place)[0]
        except (OSError, ToolFailed):
            return ""

    def _encoded(self, content: str) -> bytes:
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise ToolFailed("the content has a lone surrogate, which is no text") from None
        if len(data) > self._bytes_max:
            raise ToolFailed(f"the file would have {len(data):,} bytes, the limit is {self._bytes_max:,}")
        return data


def _refuse_marks(before: str, after: str, place: RootPlace) -> None:
    """What was read without its secrets is not to be written back without them."""
    if marks := marks_added(before, after):
        raise ToolFailed(
            f"{place.shown} was not changed: {', '.join(marks)} stands for a secret that is not shown here, and "
            "would take its place in the file. Leave the lines that hold it as they are, and edit around them."
        )


def _refuse_folder(place: RootPlace) -> None:
    if place.name == ".":
        raise ToolFailed(f"{place.shown} is a folder, not a file")


def _where(text: str, old: str) -> str:
    """The lines that matches begin in. Each part of the text is counted once."""
    numbers: list[str] = []
    number, counted, at = 1, 0, text.find(old)
    while at >= 0 and len(numbers) < MATCHES_SHOWN:
        number += text.count("\n", counted, at)
        counted = at
        numbers.append(str(number))
        at = text.find(old, at + len(old))
    return ", ".join(numbers) + (", …" if at >= 0 else "")


@contextmanager
def _turn(folder: int, context: ToolContext) -> Iterator[None]:
    """One writer at a time in a folder, by a lock that every process sees and that ends with its holder.

    A call that was cancelled does not write after it waited.
    """
    until = time.monotonic() + TURN_WAIT_S
    with ExitStack() as held:
        while True:
            if context.cancelled:
                raise ToolFailed("cancelled; nothing was changed")
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.callback(fcntl.flock, folder, fcntl.LOCK_UN)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ToolFailed(
                        f"another process has the folder locked for more than {TURN_WAIT_S:g} s; nothing was changed"
                    ) from None
                time.sleep(TURN_LOOK_S)
        yield
