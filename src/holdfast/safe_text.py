"""What others wrote, made safe to print, and made visible.

`safe` is for what people read: it takes out what a terminal would obey. `revealed` is for what people decide upon: it
takes nothing out, and writes as a plain escape whatever a terminal would obey or a person would not see.
"""

import re
from typing import NamedTuple

# Whatever could move the cursor, change colours, retitle the window, fill the clipboard or reverse what is read: a
# model, a tool or a web page may have written it.
_OBEYED = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{_OBEYED}]")

# Python calls these printable, and they take no room or look like a space: fillers, variation selectors.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_NOT_ASCII = re.compile("[^ -~]+")
_GAP = re.compile(" {25,}")
_PLAIN = {"\t": "\\t", "\r": "\\r"}
BLANK_LINES_MAX = 2


def safe(text: str) -> str:
    """Without control characters but tabs and line ends."""
    return _UNSAFE.sub("", text)


def safe_json(text: bytes) -> bytes:
    """The same JSON: what a terminal would obey can stand only in its strings, and is escaped there."""
    if text.isascii() and b"\x7f" not in text:
        return text
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text.decode()).encode()


class Revealed(NamedTuple):
    lines: list[str]
    escapes: int  # characters that are written as escapes; tabs are not counted


def revealed(text: str) -> Revealed:
    """By lines, with nothing left out: what would not be seen is escaped; wide gaps and runs of blank lines are
    counted instead of printed, so that nothing stands where no reader looks.
    """
    lines = text.split("\n")
    escaped = [_NOT_ASCII.sub(_escape_unseen, line) for line in lines]
    return Revealed(
        _without_blank_runs([_GAP.sub(_gap, line) for line in escaped]),
        sum(_count_unseen(line) for line in lines if not line.isascii() or not line.isprintable()),
    )


def _is_unseen(char: str) -> bool:
    return not char.isprintable() or _UNSEEN.match(char) is not None


def _escape_unseen(found: re.Match[str]) -> str:
    run = found.group()
    if run.isprintable() and _UNSEEN.search(run) is None:
        return run  # as most are: no need to look at each character
    return "".join(_escaped(char) if _is_unseen(char) else char for char in run)


def _escaped(char: str) -> str:
    if char in _PLAIN:
        return _PLAIN[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _count_unseen(line: str) -> int:
    return sum(_is_unseen(char) for run in _NOT_ASCII.findall(line) for char in run if char != "\t")


def _gap(found: re.Match[str]) -> str:
    return f" [{len(found.group())} spaces] "


def _without_blank_runs(lines: list[str]) -> list[str]:
    kept: list[str] = []
    blank = 0
    for line in [*lines, "."]:
        if not line.strip():
            blank += 1
            continue
        kept += [f"[{blank} blank lines]"] if blank > BLANK_LINES_MAX else [""] * blank
        blank = 0
        kept.append(line)
    return kept[:-1]
