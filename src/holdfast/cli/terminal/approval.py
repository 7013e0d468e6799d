"""What a person is shown before allowing a call: all of it, or how much is hidden and how to see it.

A call is a document of lines in which nothing is left out and nothing is invisible. What does not fit the window is
shown by its head and its tail, and a plain yes does not allow it until the rest was shown, page by page.
"""

import json
from collections.abc import Sequence
from typing import Any

from rich.cells import chop_cells

from holdfast.cli.words import line
from holdfast.core.codec import is_too_deep
from holdfast.safe_text import revealed
from holdfast.store.open_calls import OpenCallRecord

ONE_LINE_CHARS = 160  # of a call that is told in one line
COLUMNS, ROWS = 100, 40  # where the window is unknown: in a listing, and for approval by a command
ROWS_KEPT = 8  # of a window: for the question, the prompt, and some of what stood there before
ROWS_MIN = 6


def as_lines(name: str, arguments: str) -> list[str]:
    """A call, whole: in one line where it fits, else each argument by itself, of several lines below its name."""
    name = revealed(name).lines[0][:200]
    found = _arguments(arguments)
    if found is None:
        first, *rest = revealed(arguments).lines
        return [f"{name}: {first}", *_below(rest)]
    short = f"{name}({', '.join(f'{key}={value!r}' for key, value in found.items())})"
    if len(short) <= ONE_LINE_CHARS and not any("\n" in value for value in found.values() if isinstance(value, str)):
        return revealed(short).lines
    lines = [f"{name}:"]
    for key, value in found.items():
        body = revealed(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).lines
        shown_key = "\\n".join(revealed(key).lines)
        lines += [f"  {shown_key}: {body[0]}"] if len(body) == 1 else [f"  {shown_key}:", *_below(body)]
    return lines


class Document:
    """A call as lines; `notes` tell what is odd about it."""

    def __init__(self, asked: OpenCallRecord) -> None:
        self.asked = asked
        self.lines = as_lines(asked.name, asked.arguments)
        self.notes = self._notes()

    def _notes(self) -> list[str]:
        notes = []
        if escapes := _escapes_of(self.asked):
            notes.append(f"{escapes:,} character{'s' * (escapes != 1)} that could not be seen: shown as escapes")
        if not self.asked.whole:
            notes.append("this is an excerpt: the rest is not shown here")
        return notes

    @property
    def question(self) -> list[str]:
        return revealed(self.asked.question).lines if self.asked.question else []

    @property
    def offer(self) -> list[str]:
        """What "always" would keep. A rule that is offered has no character that cannot be seen."""
        return [f"(always: {rule})" for rule in self.asked.offer]

    @property
    def all_lines(self) -> list[str]:
        return [*self.lines, *self.question, *self.offer, *(f"({note})" for note in self.notes)]


def _arguments(text: str) -> dict[str, Any] | None:
    """None: they are no object, or one that two readers could read in two ways."""
    if is_too_deep(text.encode(errors="replace")):
        return None
    try:
        found = json.loads(text or "{}", object_pairs_hook=_once_each)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _below(lines: Sequence[str]) -> list[str]:
    return [f"  | {text}" for text in lines]


def _escapes_of(asked: OpenCallRecord) -> int:
    """In the name, the question and the arguments as they are meant: JSON may have escaped them already."""
    found = _arguments(asked.arguments)
    given = [asked.arguments] if found is None else _texts_in(found)
    return sum(revealed(text).escapes for text in (asked.name, asked.question or "", *given))


def _texts_in(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for part in pair for text in _texts_in(part)]
        case list():
            return [text for part in value for text in _texts_in(part)]
    return []


class ApprovalView:
    """What one person has been shown of a call so far."""

    def __init__(self, asked: OpenCallRecord, columns: int = COLUMNS, rows: int = ROWS + ROWS_KEPT) -> None:
        self.document = Document(asked)
        self._rows_max = max(rows - ROWS_KEPT, ROWS_MIN)
        lines = self.document.all_lines
        rows_of = [row for text in lines for row in chop_cells(text, max(columns - 1, 10)) or [""]]
        self._lines: Sequence[str] = lines
        self._head: list[str] = []
        self._hidden: list[str] = []
        self._tail: list[str] = []
        if len(rows_of) > self._rows_max:
            tail = self._rows_max // 3
            head = self._rows_max - tail - 1
            self._head, self._hidden, self._tail = rows_of[:head], rows_of[head:-tail], rows_of[-tail:]

    @property
    def asked(self) -> OpenCallRecord:
        return self.document.asked

    @property
    def hides(self) -> bool:
        return bool(self._hidden) or not self.asked.whole

    def opening(self) -> str:
        if not self._hidden:
            return "\n".join(self._lines)
        return "\n".join([*self._head, f"… {self.hidden} hidden …", *self._tail])

    def more(self) -> str:
        """The next page of what was hidden; where nothing is, all of it once more."""
        if not self._hidden:
            return "\n".join(self._lines)
        page, self._hidden = self._hidden[: self._rows_max], self._hidden[self._rows_max :]
        return "\n".join([*page, f"… {self.hidden} more …" if self._hidden else "(that was all of it)"])

    @property
    def hidden(self) -> str:
        if not self._hidden:
            return "a part of it"
        chars = sum(map(len, self._hidden))
        return f"{len(self._hidden):,} line{'s' * (len(self._hidden) != 1)}, {chars:,} characters"

    def refusal(self) -> str:
        """Why a plain yes is not taken, and what to do instead."""
        where = f"holdfast chats show {self.asked.chat_id} --call {self.asked.call_id}"
        if not self._hidden:
            return f"not allowed: this is only an excerpt of it; `{where}` shows what there is"
        return f"not allowed yet: {self.hidden} are hidden; v shows them, and so does `{where}`"


def listed(asked: OpenCallRecord) -> str:
    """For a listing: in one line where that is all, else lines."""
    return ApprovalView(asked).opening()


def summary(asked: OpenCallRecord) -> str:
    """One line, which may leave things out."""
    return line(" ".join(Document(asked).lines), ONE_LINE_CHARS)
