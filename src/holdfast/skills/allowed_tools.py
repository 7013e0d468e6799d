"""`allowed-tools` and `disallowed-tools` of a skill: what may be done while it is active.

Elsewhere `allowed-tools` grants: what it lists is not asked about. Here it narrows, and never widens: in the turn in
which a skill was activated, a call goes through only if the list covers all that it does, and then the rules, the
mode and people are asked as ever. An entry is a tool's name, or one of the names below, with a rule's pattern or not:

    Bash(git add *)   Read   Edit(src/**)   WebFetch(domain:example.org)   mcp__github__get_issue   refund
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from holdfast.core.records import Frozen
from holdfast.core.skill_texts import ActiveSkill, attribute
from holdfast.errors import ConfigError
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Run, Whereabouts, Write
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.permissions.rules import rule_of
from holdfast.tools.permissions.run_patterns import RunPattern

ENTRIES_MAX = 100
ENTRY_CHARS_MAX = 300

# The tools of other harnesses, by the acts that they come to.
_KINDS = {
    "Bash": "run", "Shell": "run", "Read": "read", "Grep": "read", "Glob": "read", "LS": "read",
    "NotebookRead": "read", "Write": "write", "Edit": "write", "MultiEdit": "write", "NotebookEdit": "write",
    "WebFetch": "reach",
}  # fmt: skip
_NAMES = {"WebSearch": "web_search", "AskUserQuestion": "ask_user", "TodoWrite": "plan"}
_ENTRY = re.compile(r"([\w.:*-]+)(?:\((.*)\))?", re.DOTALL)
_SERVED = re.compile(r"mcp__([^_](?:[^_]|_(?!_))*)(?:__(.+))?")


class Entry(Frozen):
    """`kind`: run, read, write, reach, or call; `pattern` as a rule has it, None: all of that kind. `tool`: this very
    one, whatever it does. Neither: it can mean nothing.
    """

    kind: str = ""
    pattern: str | None = None
    tool: str = ""


def listed_tools(value: str | list[str]) -> tuple[str, ...]:
    """The entries of a list, or of a text that has spaces or commas between them, as they stand in a skill's tag."""
    texts = value if isinstance(value, list) else [value]
    entries = [attribute(" ".join(entry.split())) for text in texts for entry in _parted(text)[0]]
    return tuple(entry[:ENTRY_CHARS_MAX] for entry in entries if entry)


def in_tag(entries: Iterable[str]) -> str:
    """What means nothing is left out: a parenthesis without its end would take the entries behind it along."""
    return " ".join(entry for entry in entries if entry_problem(entry) is None)


def _parted(text: str) -> tuple[list[str], bool]:
    """The entries of a text, and whether each parenthesis in it has an end."""
    entries, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")" and depth > 0)
        if depth == 0 and (sign.isspace() or sign == ","):
            entries.append("")
        else:
            entries[-1] += sign
    return entries, depth == 0


def entry_problem(text: str) -> str | None:
    """What its author should know: it means nothing here."""
    entry = entry_of(text)
    return (
        None
        if entry.kind or entry.tool
        else f"`{text[:80]}` of its list of tools is not understood: it covers nothing"
    )


@lru_cache(maxsize=4_096)
def entry_of(text: str) -> Entry:
    match = _ENTRY.fullmatch(text.strip())
    if match is None or not _parted(text)[1]:
        return Entry()
    name, pattern = match.groups()
    pattern = None if pattern in (None, "", "*", "**", ":*") else pattern.strip()
    if served := _SERVED.fullmatch(name):
        return _checked("call", f"{served[1]}/{served[2] or '*'}") if pattern is None else Entry()
    if (kind := _KINDS.get(name)) is None:
        return Entry(tool=_NAMES.get(name, name)) if pattern is None and "*" not in name else Entry()
    if pattern is None:
        return Entry(kind=kind)
    if kind == "run":
        pattern = re.sub(r":\*$", " *", pattern)
    return _checked(kind, pattern.removeprefix("domain:") if kind == "reach" else pattern)


def _checked(kind: str, pattern: str) -> Entry:
    try:
        rule_of(f"deny {kind}({pattern})")
    except ConfigError:
        return Entry()
    return Entry(kind=kind, pattern=pattern)


def has_lists(skill: ActiveSkill) -> bool:
    return skill.allowed is not None or bool(skill.disallowed)


class Narrowing:
    """What the skills that are active in a turn leave of what its agent may do."""

    def __init__(self, skills: Sequence[ActiveSkill]) -> None:
        self.skills = [skill for skill in skills if has_lists(skill)]
        self._lists = [_Lists(skill) for skill in self.skills]

    def __bool__(self) -> bool:
        return bool(self._lists)

    def judge(self, tool: str, acts: Sequence[Act], where: Whereabouts) -> Decision | None:
        """None: nothing against it here. It looks at files, so a runner asks in a thread."""
        for lists in self._lists:
            if (decision := lists.judge(tool, acts, where)) is not None:
                return decision
        return None


class _Lists:
    def __init__(self, skill: ActiveSkill) -> None:
        self._skill = skill.name
        self._words = skill.allowed or "no tool"
        self._allowed = None if skill.allowed is None else _Entries(skill.allowed, "allow")
        self._denied = _Entries(skill.disallowed or "", "deny")

    def judge(self, tool: str, acts: Sequence[Act], where: Whereabouts) -> Decision | None:
        if tool in self._denied.tools or (met := [act for act in acts if self._denied.means(act, where)]):
            shown = (f"call({tool})",) if tool in self._denied.tools else tuple(map(str, met))
            return self._denial(
                shown, "disallowed-tools", f"the skill {self._skill}, active in this turn, rules it out"
            )
        if self._allowed is None or tool in self._allowed.tools:
            return None
        runs = any(isinstance(act, Run) for act in acts)
        if runs and "run" in self._allowed.kinds:
            return None  # a command is one tool, with all the files that it names
        written = {act.path for act in acts if isinstance(act, Write) and self._allowed.means(act, where)}
        missing = tuple(
            str(act)
            for act in acts
            # What a command reads is the command's affair, what is edited is read.
            if not (isinstance(act, Read) and (runs or act.path in written)) and not self._allowed.means(act, where)
        )
        if not missing:
            return None
        words = f"the skill {self._skill}, active in this turn, allows only {self._words}"
        return self._denial(missing, "allowed-tools", words)

    def _denial(self, acts: tuple[str, ...], key: str, why: str) -> Decision:
        return Decision(ruling="deny", acts=acts, by=f"{key} of the skill {self._skill}", why=why)


class _Entries:
    def __init__(self, words: str, ruling: str) -> None:
        listed = listed_tools(words)
        entries = [entry_of(text) for text in listed]
        self.tools = {*listed, *(entry.tool for entry in entries if entry.tool)}  # one's own may be called `Bash`
        self.kinds = {entry.kind for entry in entries if entry.kind and entry.pattern is None}
        self._ruling = ruling
        patterns = [(entry.kind, entry.pattern) for entry in entries if entry.pattern is not None]
        self._runs = [RunPattern(pattern) for kind, pattern in patterns if kind == "run"]
        rules = [f"{ruling} {kind}({pattern})" for kind, pattern in patterns if kind != "run"]
        self._book = Rulebook(rules, "ask") if rules else None

    def means(self, act: Act, where: Whereabouts) -> bool:
        if _kind_of(act) in self.kinds:
            return True
        if isinstance(act, Run):  # whether it is harmless is for the rules of the agent
            if self._ruling == "deny":
                return any(pattern.may_mean(act) for pattern in self._runs)
            return any(pattern.begins(act) and (pattern.open or pattern.words == act.argv) for pattern in self._runs)
        if self._book is None:
            return False
        decision = self._book.judge([act], where)
        return decision.ruling == self._ruling and not decision.by_mode


def _kind_of(act: Act) -> str:
    match act:
        case Run():
            return "run"
        case Read():
            return "read"
        case Write():
            return "write"
        case Reach():
            return "reach"
        case CallTool():
            return "call"
