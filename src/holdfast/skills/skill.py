"""One skill: a folder with a SKILL.md, as it was read. Lenient: what can be used is used, with a warning.

The format is that of agentskills.io, with the keys that Claude Code has beside it. What is read and not heeded is
said in a warning, so that no author believes in what does not happen.
"""

import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.codec import storable
from holdfast.core.records import Frozen
from holdfast.core.skill_texts import skill_text
from holdfast.skills import frontmatter
from holdfast.skills.allowed_tools import ENTRIES_MAX, entry_problem, in_tag, listed_tools
from holdfast.skills.frontmatter import NoFrontmatter, Value

NAMES = ("SKILL.md", "skill.md")
SKILL_BYTES_MAX = 128 << 10
HEAD_CHARS_MAX = 16 << 10
NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1_024  # of the format; a longer one is cut
ARGUMENTS_PUT_CHARS_MAX = 128 << 10  # into all places of a body together
FOLDERS_PUT_MAX = 100
FILES_LISTED_MAX = 50
FILES_SCANNED_MAX = 500
DEPTH_MAX = 4

_GOOD_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_USABLE_NAME = re.compile(r"[^\s/\\\"'<>:&\x00-\x1f]+")
_OF_THE_FORMAT = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
_HEEDED = {
    "when_to_use", "argument-hint", "arguments", "disable-model-invocation", "user-invocable", "context", "agent",
    "paths", "disallowed-tools",
}  # fmt: skip
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Skill(Frozen):
    """`forks`: it runs in a chat of its own, and its answer comes back. `allowed`: None narrows nothing."""

    name: str
    description: str
    folder: str
    origin: str  # project, user, a package, a folder
    body: str
    files: tuple[str, ...] = ()
    when_to_use: str = ""
    argument_hint: str = ""
    arguments: tuple[str, ...] = ()
    by_model: bool = True
    by_people: bool = True
    forks: bool = False
    agent: str | None = None
    paths: tuple[str, ...] = ()
    allowed: tuple[str, ...] | None = None
    disallowed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def text(self, arguments: str) -> str:
        """As the model reads it when it is called with these."""
        beside = [f"Folder of this skill: {self.folder}"]
        if self.files:
            beside.append(f"Files in it, for `read_skill_file`: {', '.join(self.files)}")
        body = "\n\n".join([filled(self.body, self.arguments, arguments, self.folder), "\n".join(beside)])
        allowed = None if self.allowed is None else in_tag(self.allowed)
        return skill_text(self.name, storable(body), allowed, in_tag(self.disallowed) or None)


class SkillRefused(Exception):
    """It cannot be used, and why."""


def read_skill(folder: Path, origin: str) -> Skill:
    """Raises SkillRefused, and OSError."""
    head, body = _parts(folder)
    try:
        found = frontmatter.read(head)
    except NoFrontmatter as error:
        raise SkillRefused(str(error)) from None
    warnings: list[str] = []
    description = " ".join(_text(found.get("description")).split())
    if not description:
        raise SkillRefused("it has no description, so that no model could tell when to use it")
    if len(description) > DESCRIPTION_CHARS_MAX:
        warnings.append(f"its description is cut at {DESCRIPTION_CHARS_MAX} characters")
    name = _name(found, folder, warnings)
    warnings += _not_heeded(found)
    allowed = _tools(found, "allowed-tools", warnings)
    disallowed = _tools(found, "disallowed-tools", warnings) or ()
    warnings += [problem for entry in (*(allowed or ()), *disallowed) if (problem := entry_problem(entry))]
    return Skill(
        name=name,
        description=description[:DESCRIPTION_CHARS_MAX],
        folder=str(folder),
        origin=origin,
        body=body,
        files=tuple(sorted(_files(folder))),
        when_to_use=" ".join(_text(found.get("when_to_use")).split())[:DESCRIPTION_CHARS_MAX],
        argument_hint=_line(found.get("argument-hint")),
        arguments=_names(found.get("arguments")),
        by_model=_flag(found, "disable-model-invocation") is not True,
        by_people=_flag(found, "user-invocable") is not False,
        forks=_text(found.get("context")) == "fork",
        agent=_text(found.get("agent")) or None,
        paths=_names(found.get("paths"))[:20],
        allowed=allowed,
        disallowed=disallowed,
        warnings=tuple(warnings),
    )


def _parts(folder: Path) -> tuple[str, str]:
    data = _content(folder)
    if b"\x00" in data:
        raise SkillRefused("its SKILL.md is no text")
    try:
        head, body = frontmatter.split(data.decode().replace("\r\n", "\n"))
    except UnicodeDecodeError:
        raise SkillRefused("its SKILL.md is not UTF-8") from None
    except NoFrontmatter as error:
        raise SkillRefused(str(error)) from None
    if len(head) > HEAD_CHARS_MAX:
        raise SkillRefused(f"its frontmatter has more than {HEAD_CHARS_MAX:,} characters")
    return head, body


def _content(folder: Path) -> bytes:
    """Of a regular file that is really in this folder: no symlink, no device, no FIFO that would block."""
    for name in NAMES:
        try:
            file = os.open(folder / name, _FILE)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SkillRefused(f"its {name} cannot be read: {error.strerror}; a symlink is not followed") from None
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise SkillRefused(f"its {name} is no regular file")
            if found.st_size > SKILL_BYTES_MAX:
                raise SkillRefused(f"its {name} is larger than {SKILL_BYTES_MAX:,} bytes")
            return os.read(file, SKILL_BYTES_MAX)
        finally:
            os.close(file)
    raise SkillRefused("it has no SKILL.md")


def _name(found: dict[str, Value], folder: Path, warnings: list[str]) -> str:
    name = _text(found.get("name")).strip()
    if not name:
        warnings.append("it has no name; its folder's is used")
    elif not _usable(name):
        warnings.append(f"its name {name[:80]!r} cannot be called; its folder's is used")
        name = ""
    if not name:
        name = folder.name
        if not _usable(name):
            raise SkillRefused(f"neither it nor its folder has a name that can be called: {name[:80]!r}")
    if not _GOOD_NAME.fullmatch(name):
        warnings.append(f"its name {name!r} is not of small letters, digits and single hyphens")
    elif name != folder.name:
        warnings.append(f"its name {name!r} is not that of its folder, {folder.name!r}")
    return name


def _usable(name: str) -> bool:
    """One line that is seen as it is: no control character, nothing that turns the direction, no half of a letter."""
    return len(name) <= NAME_CHARS_MAX and name.isprintable() and _USABLE_NAME.fullmatch(name) is not None


def _tools(found: dict[str, Value], key: str, warnings: list[str]) -> tuple[str, ...] | None:
    """None: there is no such list. One that is no list covers nothing, as an entry does that is not understood."""
    value = found.get(key)
    if isinstance(value, bool | dict):
        warnings.append(f"`{key}` is no list of tools: it covers nothing")
        return ()
    if value is None:
        return None
    entries = listed_tools(value)
    if len(entries) > ENTRIES_MAX and key == "disallowed-tools":
        raise SkillRefused(f"its `{key}` has more than {ENTRIES_MAX} entries, and those behind them would be allowed")
    if len(entries) > ENTRIES_MAX:
        warnings.append(f"its `{key}` has more than {ENTRIES_MAX} entries: those behind them cover nothing")
    return entries[:ENTRIES_MAX]


def _flag(found: dict[str, Value], key: str) -> bool | None:
    value = found.get(key)
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())  # in quotes it is meant so, too
    return value if isinstance(value, bool) else None


def _not_heeded(found: dict[str, Value]) -> list[str]:
    unknown = sorted(set(found) - _OF_THE_FORMAT - _HEEDED)
    warnings = [f"`{key[:40]}` is not heeded" for key in unknown[:10]]
    if _text(found.get("context")) not in ("", "fork"):
        warnings.append(f"`context: {_line(found.get('context'))}` is not known; only fork is")
    for flag in ("disable-model-invocation", "user-invocable"):
        if flag in found and _flag(found, flag) is None:
            warnings.append(f"`{flag}` is neither true nor false, and is not heeded")
    if "agent" in found and _text(found.get("context")) != "fork":
        warnings.append("`agent` is heeded with `context: fork` only")
    return warnings


def _text(value: Value | None) -> str:
    return storable(value) if isinstance(value, str) else ""


def _line(value: Value | None) -> str:
    """`argument-hint: [issue]` is a list to a parser, and a hint to its author."""
    text = f"[{', '.join(value)}]" if isinstance(value, list) else _text(value)
    return " ".join(storable(text).split())[:200]


def _names(value: Value | None) -> tuple[str, ...]:
    words = value if isinstance(value, list) else re.split(r"[\s,]+", _text(value))
    return tuple(storable(word) for word in words if word)[:50]


def _files(folder: Path) -> Iterator[str]:
    """Beside its SKILL.md, and no deeper than a reader would look. Symlinks are not listed."""
    waiting, scanned, listed = [("", 0)], 0, 0
    while waiting:
        below, depth = waiting.pop(0)
        try:
            entries = os.scandir(folder / below)
        except OSError:
            continue
        with entries:
            for entry in entries:
                scanned += 1
                if scanned > FILES_SCANNED_MAX or listed >= FILES_LISTED_MAX:
                    return
                place = f"{below}/{entry.name}" if below else entry.name
                if entry.name.startswith(".") or place in NAMES or not place.isprintable():
                    continue
                if entry.is_dir(follow_symlinks=False) and depth < DEPTH_MAX:
                    waiting.append((place, depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    listed += 1
                    yield place


def filled(body: str, names: tuple[str, ...], arguments: str, folder: str) -> str:
    """With the arguments in their places: `$ARGUMENTS`, `$ARGUMENTS[0]`, `$0`, and `$name` of those that it names.
    Without such a place they stand at the end, and so they do if the places are too many for them.
    """
    words = _words(arguments)
    places = {name: words[at] if at < len(words) else "" for at, name in enumerate(names) if name.isidentifier()}
    used, room = False, ARGUMENTS_PUT_CHARS_MAX

    def meant(found: re.Match[str]) -> str | None:
        _, index, number, name = found.groups()
        if name is not None:
            return places.get(name)
        if index is None and number is None:
            return arguments
        at = int(index if index is not None else number)
        return words[at] if at < len(words) else ""

    def put(found: re.Match[str]) -> str:
        nonlocal used, room
        piece = meant(found)
        if piece is None or room < len(piece):
            room = room if piece is None else -1
            return found[0]
        used, room = True, room - len(piece)
        return piece

    text = _PLACE.sub(put, body).replace("${CLAUDE_SKILL_DIR}", folder, FOLDERS_PUT_MAX)
    return text if (used and room >= 0) or not arguments else f"{text}\n\nARGUMENTS: {arguments}"


_PLACE = re.compile(r"\$(?:(ARGUMENTS)(?:\[(\d{1,2})\])?(?!\w)|(\d)(?!\d)|([A-Za-z_]\w{0,63}))")


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:  # a quote without its end
        return arguments.split()
