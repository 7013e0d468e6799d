"""What a coding program says, read by its rules: its session, its answer, its figures, and lines for people.

Pure, and bounded whatever comes: a line that is no event is passed over, one that is too long is dropped. Half a
character, which is what programs leave of some that they cut, costs no event: it would be a lost result.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from holdfast.core.codec import decode_json
from holdfast.core.spending import COST_MAX, TOKENS_MAX
from holdfast.tools.coding_agents.programs import CodingProgram, EventRule
from holdfast.tools.coding_agents.verdicts import Figures

LINE_BYTES_MAX = 8 << 20
SHOWN_CHARS_MAX = 400  # of one line for people
TEXT_CHARS_MAX = 1 << 20  # of an answer: of a longer one the end is kept
DENIED_MAX = 20
_ID = re.compile(r"[A-Za-z0-9_][\w.:@+=/-]{0,199}", re.ASCII)  # a word of a command line that is no option
_GAP = re.compile(r"\{([^{}]+)\}")
_ESCAPED = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Events:
    """Of one run, as far as it was heard. `news` has the lines for people since it was last taken."""

    def __init__(self, program: CodingProgram) -> None:
        self._rules = program.events
        self._rest = bytearray()
        self._skips = False  # the rest of a line that is too long
        self._said: list[str] = []  # its answer, in pieces
        self._said_chars = 0
        self.began = False
        self.acted = False  # it said or did something that people are shown
        self.session = ""
        self.words = ""  # what went wrong
        self.figures = Figures()
        self.denied: tuple[str, ...] = ()
        self.last = False
        self.flagged = False
        self.unread = 0  # lines that are no events, or are too long
        self._news: list[str] = []

    def hear(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(bytes(self._rest + line) if self._rest else line)
            self._rest.clear()
        if self._skips or len(self._rest) + len(rest) > LINE_BYTES_MAX:
            self._skips = True
            self._rest.clear()
        else:
            self._rest += rest

    def end(self) -> None:
        """What came last may have no line end."""
        self._take(bytes(self._rest))
        self._rest.clear()

    @property
    def text(self) -> str:
        """Its answer, as far as it is one."""
        if len(self._said) > 1:
            self._said = ["".join(self._said)[-TEXT_CHARS_MAX:]]
            self._said_chars = len(self._said[0])
        return self._said[0] if self._said else ""

    def take_news(self) -> str:
        news, self._news = "".join(self._news), []
        return news

    def _take(self, line: bytes) -> None:
        if self._skips:
            self._skips = False
            self.unread += 1
            return
        if not line.strip():
            return
        event = _decoded(line) if line.lstrip()[:1] == b"{" else None
        if not isinstance(event, dict):
            self.unread += 1
            return
        for rule in self._rules:
            if _has(event, rule.when):
                self.began = True
                self._carry_out(rule, event)

    def _carry_out(self, rule: EventRule, event: dict[str, Any]) -> None:
        if rule.each:
            for part in found(event, rule.each):
                for item in part if isinstance(part, list) else ():
                    if isinstance(item, dict) and _has(item, rule.item):
                        self._read(rule, item)
            return
        self._read(rule, event)
        if rule.last:
            self.last = True
            self.flagged = any(_has(event, conditions) for conditions in rule.error)
            self.figures = Figures(
                tokens=_sum(event, rule.tokens) if rule.tokens else None,
                cost=_number(event, rule.cost, COST_MAX) if rule.cost else None,
                run_tokens=_sum(event, rule.run_tokens) if rule.run_tokens else None,
            )
            self.denied = tuple(shown(each) for part in found(event, rule.denied) for each in _listed(part))[
                :DENIED_MAX
            ]

    def _read(self, rule: EventRule, event: dict[str, Any]) -> None:
        if rule.clears:
            self._say("", adds=False)
        if rule.session and _ID.fullmatch(session := _text(event, rule.session)):
            self.session = session
        if rule.text:
            self._say(_text(event, rule.text), adds=rule.adds)
        if rule.words and (words := _text(event, rule.words)):
            self.words = words[:TEXT_CHARS_MAX]
        if rule.say and (line := filled(rule.say, event)):
            self.acted = True
            self._news.append(line if rule.adds else f"{line}\n")

    def _say(self, text: str, *, adds: bool) -> None:
        """Pieces are joined when there is twice as much as is kept: not each time, which would copy all of it."""
        if not adds:
            self._said, self._said_chars = [], 0
        self._said.append(text[-TEXT_CHARS_MAX:])
        self._said_chars += len(self._said[-1])
        if self._said_chars > 2 * TEXT_CHARS_MAX or len(self._said) > TEXT_CHARS_MAX // 16:
            _ = self.text


def filled(template: str, event: Mapping[str, Any]) -> str:
    """A line for people: each {path} is what is there, as plain text on one line."""
    text = _GAP.sub(lambda gap: _text(event, gap[1]), template)
    return shown(text)


def shown(value: Any) -> str:
    """Without what would steer a terminal, and no longer than a line may be."""
    text = _CONTROL.sub(" ", _plain(value)[: 16 * SHOWN_CHARS_MAX])
    text = " ".join(text.split()) if "\n" in text.strip() else text.replace("\n", " ")
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"


def found(event: Any, path: str) -> Iterator[Any]:
    """What a path leads to. Nothing, if it leads nowhere."""
    if not path:
        return
    name, _, rest = path.partition(".")
    inside: Iterable[Any] = ()
    if name == "*":
        inside = event.values() if isinstance(event, dict) else event if isinstance(event, list) else ()
    elif isinstance(event, dict) and name in event:
        inside = (event[name],)
    for value in inside:
        if rest:
            yield from found(value, rest)
        else:
            yield value


def _decoded(line: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return decode_json(line)
    except ValueError:
        pass
    try:
        return decode_json(_ESCAPED.sub(_whole_character, line.decode("utf-8", "replace")))
    except ValueError:
        return None


def _whole_character(escaped: re.Match[str]) -> str:
    """As it is, but for half of a pair that makes one character."""
    alone = escaped["low"] or (escaped["high"] and len(escaped[0]) < len("\\ud83d\\ude00"))
    return "\\ufffd" if alone else escaped[0]


def _has(event: Any, conditions: Mapping[str, str]) -> bool:
    return all(
        any(fnmatchcase(_plain(value), pattern) for value in found(event, path))
        for path, pattern in conditions.items()
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def _text(event: Any, path: str) -> str:
    return "\n".join(_plain(value) for value in found(event, path) if value is not None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(event: Any, path: str, most: float) -> float | None:
    """What is there, added up. What is no number is passed over, and what no session can come to: no budget could
    hold it, and no database.
    """
    values = [value for value in found(event, path) if type(value) in (int, float) and 0 <= value <= most]
    return float(sum(values)) if values else None


def _sum(event: Any, paths: tuple[str, ...]) -> int | None:
    numbers = [number for path in paths if (number := _number(event, path, TOKENS_MAX)) is not None]
    return int(sum(numbers)) if numbers else None
