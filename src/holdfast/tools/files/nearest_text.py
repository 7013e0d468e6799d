"""What a text has that is nearest to what was looked for in it and is not there. Linear in the text."""

import re
from collections import Counter

LINES_SHOWN_MAX = 40
LINE_CHARS_MAX = 300
OLD_CHARS_MAX = 20_000
SHARE_MIN = 0.2

TRIPLES_TEXT_CHARS_MAX = 256 << 10  # a larger text is compared by words: a fifth of the time

_WORD = re.compile(r"\w+")
_TRIPLE = re.compile(r"(?=(\S\S\S))")


def nearest(text: str, old: str) -> str:
    """A sentence that says why `old` did not match, and the closest lines with their numbers."""
    if "\r\n" in text and "\r" not in old and old in text.replace("\r\n", "\n"):
        return "its lines end in \\r\\n, and what is to be replaced has \\n alone."
    lines = text.split("\n")
    height = old[:OLD_CHARS_MAX].rstrip("\n").count("\n") + 1
    pieces = _TRIPLE if len(text) <= TRIPLES_TEXT_CHARS_MAX else _WORD
    at, share = _closest(lines, old[:OLD_CHARS_MAX], height, pieces)
    if share < SHARE_MIN:
        return "it does not have what is to be replaced, nor anything like it."
    shown = lines[at : at + height]
    spaces = _squeezed("\n".join(shown)) == _squeezed(old)
    why = "only white space differs" if spaces else "the nearest is"
    listing = "\n".join(
        f"{number:>6} | {line[:LINE_CHARS_MAX]}" for number, line in enumerate(shown[:LINES_SHOWN_MAX], at + 1)
    )
    return f"it does not have exactly what is to be replaced; {why}:\n{listing}"


def _closest(lines: list[str], old: str, height: int, pieces: re.Pattern[str]) -> tuple[int, float]:
    """Where the window of `height` lines begins that shares most pieces with `old`; of equals the first.

    A piece is a word, or three characters in a row.

    A window is its predecessor less one line and plus one, so every line is looked at twice.
    """
    wanted = Counter(pieces.findall(old))
    if not wanted:
        return 0, 0.0
    have: Counter[str] = Counter()
    shared = extra = 0
    best, best_score, best_shared = 0, float("-inf"), 0
    entered: list[list[str]] = []
    for number, line in enumerate(lines):
        words = pieces.findall(line)
        entered.append(words)
        for word in words:
            have[word] += 1
            if have[word] <= wanted[word]:
                shared += 1
            else:
                extra += 1
        if number >= height:
            for word in entered[number - height]:
                if have[word] <= wanted[word]:
                    shared -= 1
                else:
                    extra -= 1
                have[word] -= 1
            entered[number - height] = []
        score = shared - extra / 4  # a window that has it all, and little else
        if score > best_score and shared:
            best, best_score, best_shared = max(0, number - height + 1), score, shared
    return best, best_shared / wanted.total()


def _squeezed(text: str) -> str:
    return "".join(text.split())
