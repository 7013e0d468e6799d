"""A rule as it is written: `allow run(git status *)`, `deny write(**) for reviewer`.

    RULING ACT(PATTERN) [for AGENT]     RULING: allow, ask, deny     ACT: run, read, write, reach, call

Each rule is matched in two ways. `covers` is for an allow, and means for certain; `may_mean` is for a deny or an ask,
and means as soon as it may be meant.
"""

import difflib
import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import cast

from holdfast.core.records import Frozen
from holdfast.errors import ConfigError
from holdfast.tools.permissions.acts import CallTool
from holdfast.tools.permissions.host_patterns import HostPattern
from holdfast.tools.permissions.modes import CAREFUL, Ruling
from holdfast.tools.permissions.path_patterns import PathPattern
from holdfast.tools.permissions.run_patterns import RunPattern

RULE_CHARS_MAX = 500
RULES_KEPT = 4_096
ACTS = ("run", "read", "write", "reach", "call")
_RULE = re.compile(r"(?s)\s*(\w+)\s+(\w+)\s*\((.*)\)\s*(?:for\s+(\S+))?\s*")
_FORM = "write it like `allow run(git status *)`, `deny read(**/.env*)` or `ask write(**) for reviewer`"


class CallPattern:
    """`github/get_*` is of a tool server, `refund` one of the program's own tools. `*` stands for any characters."""

    def __init__(self, text: str) -> None:
        """Raises ConfigError."""
        server, slash, tool = text.partition("/")
        if not text or re.search(r"\s", text) or (slash and not (server and tool)):
            raise ConfigError("a tool is its name, call(refund), or its server's and its own, call(github/get_*)")
        self._server, self._tool = (server, tool) if slash else ("", server)
        self._any = text in ("*", "**")
        self._text = text

    def covers(self, act: CallTool) -> bool:
        return bool(self._server) == bool(act.server) and self._fits(act)

    def may_mean(self, act: CallTool) -> bool:
        """By the name that the model calls it by, too."""
        return self._any or self.covers(act) or fnmatchcase(f"{act.server}_{act.tool}", _glob(self._text))

    def _fits(self, act: CallTool) -> bool:
        return fnmatchcase(act.server, _glob(self._server)) and fnmatchcase(act.tool, _glob(self._tool))


Pattern = RunPattern | PathPattern | HostPattern | CallPattern


class Rule(Frozen):
    text: str  # as it is written
    ruling: Ruling
    act: str
    pattern: Pattern
    agent: str | None = None  # None: for every agent

    def is_for(self, agent: str | None) -> bool:
        """`helper@MODEL` is `helper` with another model."""
        return self.agent is None or (agent is not None and self.agent in (agent, agent.partition("@")[0]))


@lru_cache(maxsize=RULES_KEPT)
def rule_of(text: str) -> Rule:
    """Raises ConfigError, which quotes the rule and says what to write."""
    if len(text) > RULE_CHARS_MAX:
        raise ConfigError(f"the rule `{text[:80]}…` has more than {RULE_CHARS_MAX} characters")
    found = _RULE.fullmatch(text)
    if found is None:
        raise ConfigError(f"`{text}` is no rule: {_FORM}")
    ruling, act, pattern, agent = found.groups()
    _check_word(text, ruling, CAREFUL)
    _check_word(text, act, ACTS)
    try:
        made = _pattern(act, pattern.strip())
        if ruling == "allow" and isinstance(made, RunPattern):
            made.check_allows()
    except ConfigError as problem:
        raise ConfigError(f"the rule `{text}`: {problem}") from None
    return Rule(text=text.strip(), ruling=cast("Ruling", ruling), act=act, pattern=made, agent=agent)


def _pattern(act: str, text: str) -> Pattern:
    match act:
        case "run":
            return RunPattern(text)
        case "reach":
            return HostPattern(text)
        case "call":
            return CallPattern(text)
        case _:
            return PathPattern(text)


def _check_word(text: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise ConfigError(f"the rule `{text}`: `{word}` is not understood; {hint}")


def _glob(text: str) -> str:
    return text.replace("[", "[[]")
