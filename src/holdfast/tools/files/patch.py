"""Patches in the form that coding models write, `*** Begin Patch`: parsed, and applied to a text. Pure.

    *** Begin Patch
    *** Update File: src/app.py
    *** Move to: src/main.py
    @@ def run():
     an unchanged line
    -a line that goes
    +a line that comes
    *** Add File: notes.txt
    +its first line
    *** Delete File: old.txt
    *** End Patch

This form and not a unified diff: its places are found by the lines around them, not by line numbers, which models get
wrong, and one patch adds, moves and deletes files as well. A chunk without an `@@` line must fit one place behind the
chunk before it; one with such a line is looked for behind that line.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from holdfast.core.records import Frozen
from holdfast.errors import ToolFailed
from holdfast.tools.files.nearest_text import nearest

BEGIN, END = "*** Begin Patch", "*** End Patch"
FILES_MAX = 100
CHUNKS_MAX = 1_000  # of one file
PLACES_SHOWN = 10

_ADD, _DELETE, _UPDATE, _MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
_LAST = "*** End of File"


class Chunk(Frozen):
    """Lines that stand for other lines. `behind`: the text of the `@@` line, the place is after that line."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    behind: str = ""
    at_end: bool = False


class FilePatch(Frozen):
    """What becomes of one file. `content`: of a new one; None with no chunks: it is deleted."""

    path: str
    content: str | None = None
    chunks: tuple[Chunk, ...] = ()
    move_to: str | None = None

    @property
    def adds(self) -> bool:
        return self.content is not None

    @property
    def deletes(self) -> bool:
        return self.content is None and not self.chunks and self.move_to is None


def parsed(text: str) -> list[FilePatch]:
    """Raises ToolFailed with what is wrong, and in which line."""
    lines = text.strip("\n").split("\n")
    if lines[0].strip() != BEGIN or lines[-1].strip() != END:
        raise ToolFailed(f"a patch begins with the line {BEGIN!r} and ends with the line {END!r}")
    found: list[FilePatch] = []
    at, last = 1, len(lines) - 1
    while at < last:
        end = next((number for number in range(at + 1, last) if _begins_file(lines[number])), last)
        found.append(_file(lines[at:end], at + 1))
        at = end
    paths = [path for each in found for path in (each.path, each.move_to) if path is not None]
    if not found or len(found) > FILES_MAX:
        raise ToolFailed(f"a patch names 1 to {FILES_MAX} files; this one names {len(found):,}")
    if len(set(paths)) < len(paths):
        raise ToolFailed("a patch names each file once: put all chunks of one file under one line")
    return found


def _begins_file(line: str) -> bool:
    return line.startswith((_ADD, _DELETE, _UPDATE))


def _file(lines: Sequence[str], number: int) -> FilePatch:
    head, body = lines[0], lines[1:]
    if head.startswith(_ADD):
        for at, line in enumerate(body, number + 1):
            if not line.startswith("+"):
                raise ToolFailed(f"line {at} of the patch: every line of a new file begins with +")
        return FilePatch(path=head[len(_ADD) :].strip(), content="".join(f"{line[1:]}\n" for line in body))
    if head.startswith(_DELETE):
        if any(line.strip() for line in body):
            raise ToolFailed(f"line {number + 1} of the patch: nothing follows the line that deletes a file")
        return FilePatch(path=head[len(_DELETE) :].strip())
    if not head.startswith(_UPDATE):
        raise ToolFailed(
            f"line {number} of the patch: {head[:100]!r} is not {_ADD!r}, {_UPDATE!r} or {_DELETE!r} with a path"
        )
    moves = bool(body) and body[0].startswith(_MOVE)
    chunks = tuple(_chunks(body[moves:], number + 1 + moves))
    if not chunks and not moves:
        raise ToolFailed(f"line {number} of the patch: an update has at least one chunk with - or + lines")
    if len(chunks) > CHUNKS_MAX:
        raise ToolFailed(f"line {number} of the patch: a file has at most {CHUNKS_MAX:,} chunks")
    to = body[0][len(_MOVE) :].strip() if moves else None
    return FilePatch(path=head[len(_UPDATE) :].strip(), chunks=chunks, move_to=to)


def _chunks(lines: Sequence[str], number: int) -> Iterator[Chunk]:
    behind = ""
    old: list[str] = []
    new: list[str] = []
    for at, line in enumerate(lines, number):
        if line.startswith("@@"):
            if old or new:
                yield Chunk(old=tuple(old), new=tuple(new), behind=behind)
                old, new = [], []
            behind = line[2:].strip().removesuffix("@@").strip()
        elif line.rstrip() == _LAST:
            yield Chunk(old=tuple(old), new=tuple(new), behind=behind, at_end=True)
            behind, old, new = "", [], []
        elif line[:1] in (" ", ""):  # an empty line: its space was left out
            old.append(line[1:])
            new.append(line[1:])
        elif line[0] == "-":
            old.append(line[1:])
        elif line[0] == "+":
            new.append(line[1:])
        else:
            raise ToolFailed(f"line {at} of the patch: a line of a chunk begins with a space, - or +")
    if old or new:
        yield Chunk(old=tuple(old), new=tuple(new), behind=behind)


def patched(text: str, chunks: Sequence[Chunk], name: str) -> str:
    """Raises ToolFailed, which says of `name` that it was not changed. Line ends stay as they are."""
    dos = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    if dos:
        return patched(text.replace("\r\n", "\n"), chunks, name).replace("\n", "\r\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    places: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        places.setdefault(line, []).append(at)
    made: list[str] = []
    done = 0  # lines before this one are in `made`
    for number, chunk in enumerate(chunks, 1):
        try:
            at = _place(lines, places, chunk, done)
        except ToolFailed as error:
            raise ToolFailed(f"{name} was not changed: chunk {number} of {len(chunks)}: {error}") from None
        made += [*lines[done:at], *chunk.new]
        done = at + len(chunk.old)
    made += lines[done:]
    ends = "\n" if made and (text.endswith("\n") or not text) else ""
    return "\n".join(made) + ends


def _place(lines: Sequence[str], places: Mapping[str, Sequence[int]], chunk: Chunk, start: int) -> int:
    if chunk.behind:
        head = next((at for at in range(start, len(lines)) if lines[at].strip() == chunk.behind), None)
        if head is None:
            raise ToolFailed(f"no line behind the chunk before it is {chunk.behind[:200]!r}, as its @@ line says")
        start = head + 1
    if not chunk.old:
        return start if chunk.behind else len(lines)
    if chunk.behind and _fits(lines, chunk.old, start - 1):
        return start - 1  # the @@ line is repeated as the first line of the chunk
    found = _fitting(lines, places, chunk, start)
    if not found:
        raise ToolFailed(nearest("\n".join(lines), "\n".join(chunk.old)))
    if len(found) > 1 and not chunk.behind:
        shown = ", ".join(str(at + 1) for at in found)
        raise ToolFailed(f"it fits at lines {shown}: give more lines around it, or an @@ line before it")
    return found[0]


def _fitting(lines: Sequence[str], places: Mapping[str, Sequence[int]], chunk: Chunk, start: int) -> list[int]:
    """The first few places: one is wanted. Looked for by the rarest line of the chunk."""
    if chunk.at_end:
        at = len(lines) - len(chunk.old)
        return [at] if at >= start and _fits(lines, chunk.old, at) else []
    offset = min(range(len(chunk.old)), key=lambda offset: len(places.get(chunk.old[offset], ())))
    known = places.get(chunk.old[offset], ())
    begins = (known[at] - offset for at in range(bisect_left(known, start + offset), len(known)))
    return list(islice((at for at in begins if _fits(lines, chunk.old, at)), PLACES_SHOWN))


def _fits(lines: Sequence[str], old: Sequence[str], at: int) -> bool:
    return tuple(lines[at : at + len(old)]) == tuple(old)
