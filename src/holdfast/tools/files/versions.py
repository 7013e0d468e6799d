"""Which version of a file a chat has seen, so that none is changed that the model does not know.

A version is a digest of the file's path and content. Every result of a file tool names it in its last line, so it
is in the chat's history: it survives a crash, and every worker that gets the chat knows it. What a compaction left
out, the model does not know any more either. What this process read or wrote itself is remembered here besides, with
the text, bounded: for calls whose results are not in history yet, and to show what changed since.

The rule, asked before each change of a file that exists:
- the file is as the chat last saw it: it is changed;
- it is not: the change is refused, and the difference shown, which then counts as seen where it was shown whole;
- the chat never saw it: it is not overwritten; an edit or a patch goes on, what it replaces has to be there exactly.
Called by hand, outside of a chat, nothing is remembered and nothing refused.
"""

import difflib
import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from holdfast.core.records import ToolResult
from holdfast.errors import ToolFailed
from holdfast.tools.context import ToolContext
from holdfast.tools.files.root import RootPlace

CONTENT_BYTES_MAX = 8 << 20  # a larger file is known by its size and time
REMEMBERED_MAX = 2_000
TEXTS_CHARS_MAX = 16 << 20  # of all texts that are remembered
TEXT_CHARS_MAX = 256 << 10  # of one
DIFF_LINES_MAX = 120
DIFF_CHARS_MAX = 8_000
COMPARED_MAX = 4_000_000  # pairs of lines
COMPARED_LINES = 1_000  # of each side, where there are more: what is shown of them begins with the first difference
TOOLS = ("read_file", "write_file", "edit_file", "apply_patch")

_PATH_CHARS = 8  # of a version: which file it is of
_VERSION = re.compile(r"\bversion ((?:[0-9a-f]{20} ?)+)\]\Z")


class Version(NamedTuple):
    tag: str
    text: str | None = None  # of a text that is small enough to be compared later


def version_of(place: RootPlace, data: bytes | None, found: os.stat_result) -> Version:
    """`data`: all of it; None where it is too large, and then size and time count."""
    if data is None or len(data) > CONTENT_BYTES_MAX:
        data = None
    content = f"{found.st_size} {found.st_mtime_ns}".encode() if data is None else data
    path = hashlib.blake2b(place.real.encode("utf-8", "surrogateescape"), digest_size=_PATH_CHARS // 2).hexdigest()
    tag = path + hashlib.blake2b(content, digest_size=6).hexdigest()
    if data is None or len(data) > TEXT_CHARS_MAX:
        return Version(tag)
    return Version(tag, data.decode("utf-8", "replace"))


def whole(file: int, found: os.stat_result) -> bytes | None:
    """What is in an open file; None if it is too large to be compared by its content."""
    if found.st_size > CONTENT_BYTES_MAX:
        return None
    with open(file, "rb", closefd=False) as stream:
        data = stream.read(CONTENT_BYTES_MAX + 1)
    return data if len(data) <= CONTENT_BYTES_MAX else None


def tagged(versions: Iterable[Version]) -> str:
    """As the last line of a result ends, for `Versions` to find."""
    return f"version {' '.join(version.tag for version in versions)}"


class Versions:
    """What chats have seen, of the tools of one root. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], Version] = OrderedDict()  # by chat and path
        self._chars = 0

    def remember(self, place: RootPlace, version: Version, context: ToolContext) -> None:
        if not context.chat_id:
            return
        with self._lock:
            self._drop((context.chat_id, place.real))
            self._seen[context.chat_id, place.real] = version
            self._chars += len(version.text or "")
            while len(self._seen) > REMEMBERED_MAX or self._chars > TEXTS_CHARS_MAX:
                self._drop(next(iter(self._seen)))

    def _drop(self, key: tuple[str, str]) -> None:
        if (old := self._seen.pop(key, None)) is not None:
            self._chars -= len(old.text or "")

    def check(self, place: RootPlace, now: Version, context: ToolContext, *, whole: bool) -> None:
        """Raises ToolFailed unless the chat may change this file, which is there. `whole`: all of it is replaced."""
        if not context.chat_id:
            return
        with self._lock:
            remembered = self._seen.get((context.chat_id, place.real))
        known = set(_last_told(context.earlier_results(), now.tag[:_PATH_CHARS]))
        if remembered is not None:
            known.add(remembered.tag)
        if now.tag in known:
            return
        if known:
            raise ToolFailed(self._changed(place, remembered, now, context))
        if whole:
            raise ToolFailed(
                f"{place.shown} was not written: it is there, and you have not read it. Read it first, or "
                "choose another name."
            )

    def _changed(self, place: RootPlace, then: Version | None, now: Version, context: ToolContext) -> str:
        why = f"{place.shown} was not changed: another program, or another chat, changed it since you last saw it."
        if then is None or then.text is None or now.text is None:
            return f"{why} Read it again."
        shown, complete = _difference(then.text, now.text)
        if not complete:
            return f"{why} What changed begins with:\n{shown}\n[there is more: read the file again]"
        self.remember(place, now, context)
        return f"{why} This is what changed; if your change still fits, make it again.\n{shown}\n[{tagged([now])}]"


def _last_told(results: Iterable[ToolResult], path: str) -> Iterator[str]:
    """The version of a file that the newest result tells of; nothing where none does."""
    for result in results:
        if result.name in TOOLS and (found := _VERSION.search(result.content[-4_000:])) is not None:
            for tag in found[1].split():
                if tag.startswith(path):
                    yield tag
                    return


def _difference(then: str, now: str) -> tuple[str, bool]:
    """Unified, bounded; and whether it is all of it. Comparing takes the product of the lines that differ."""
    before, after = then.split("\n"), now.split("\n")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    if (len(before) - same) * (len(after) - same) > COMPARED_MAX:
        before, after = before[: same + COMPARED_LINES], after[: same + COMPARED_LINES]
        cut = True
    else:
        cut = False
    lines = difflib.unified_diff(before, after, "as you saw it", "as it is", lineterm="", n=2)
    taken: list[str] = []
    chars = 0
    for line in lines:
        if len(taken) == DIFF_LINES_MAX or chars + len(line) > DIFF_CHARS_MAX:
            return "\n".join(taken), False
        taken.append(line)
        chars += len(line)
    return "\n".join(taken), not cut
