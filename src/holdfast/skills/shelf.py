"""Where skills come from, and what an agent has of them now.

Folders are looked at again at the start of each turn, and where people call or list skills: a look at times and
sizes, in a thread, under a deadline. What has not changed is not read again. A file that is broken, huge, or not
what it seems is left out with a warning; nothing here stops an agent.
"""

import asyncio
import importlib.util
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from holdfast.core.codec import storable
from holdfast.core.records import Frozen
from holdfast.errors import ConfigError
from holdfast.log_context import logger
from holdfast.skills.skill import NAMES, Skill, SkillRefused, read_skill
from holdfast.system import threads

log = logger("holdfast.skills")

LOOK_S = 5.0
SKILLS_MAX = 200
ENTRIES_MAX = 1_000  # of one folder
ENTRIES_SCANNED_MAX = 100_000
PROBLEMS_MAX = 100
CATALOGUE_CHARS_MAX = 16_000
DESCRIBED_CHARS_MIN = 80

_pool = threads.Pool("skills", 2)
_TAG = re.compile(r"<(\s*/?\s*)available_skills", re.IGNORECASE)

PREAMBLE = (
    "Skills are instructions for particular tasks, written by people. Where a task fits the description of one, call"
    " the tool `skill` with its name before you begin, and follow what it says; `read_skill_file` reads the files"
    " that it speaks of. A skill that is shown already need not be called again."
)


class Skills:
    """Where an agent finds skills: `Agent(skills=[Skills("./skills"), Skills.from_package("acme_skills")])`.

    A folder holds one folder for each skill, or is one. Where two have one name, the one that is named first counts.
    What a program names here is its own word, and needs no trust.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises ConfigError if it is not there."""
        place = Path(folder).absolute()
        if not place.is_dir():
            raise ConfigError(f"skills: {place} is not a folder")
        self.folders: tuple[Path, ...] = (place,)
        self.origin = str(folder)
        self.within: Path | None = None  # what leads out of it is left out; None: as it is

    @classmethod
    def from_package(cls, package: str, folder: str = "skills") -> "Skills":
        """That an installed package brings, in a folder of that name. It is not imported. Raises ConfigError."""
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"skills: there is no package {package!r}: {error}") from error
        places = [Path(place) / folder for place in (spec.submodule_search_locations or ())] if spec else []
        found = next((place for place in places if place.is_dir()), None)
        if found is None:
            raise ConfigError(f"skills: there is no package {package!r} with a folder {folder!r}")
        made = cls(found)
        made.origin, made.within = f"package {package}", found.resolve()
        return made

    @classmethod
    def of_project(cls, folder: str | os.PathLike[str] = ".") -> "Skills":
        """`.agents/skills` and `.claude/skills` of a folder, as far as they are there. What leads out of the folder
        is left out. Whoever can write there speaks to the model: name it where the folder is trusted.
        """
        place = Path(folder).absolute()
        return cls._at((place / ".agents/skills", place / ".claude/skills"), "project", place.resolve())

    @classmethod
    def of_user(cls, environ: Mapping[str, str] | None = None) -> "Skills":
        """Those of the user: `holdfast/skills` in their configuration, `~/.agents/skills`, `~/.claude/skills`."""
        environ = os.environ if environ is None else environ
        home = Path(environ.get("HOME") or "~").expanduser()
        ours = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "holdfast/skills"
        return cls._at((ours, home / ".agents/skills", home / ".claude/skills"), "user", None)

    @classmethod
    def _at(cls, folders: tuple[Path, ...], origin: str, within: Path | None) -> "Skills":
        made = cls.__new__(cls)
        made.folders, made.origin, made.within = folders, origin, within
        return made


class Catalogue(Frozen):
    """The skills of an agent at one moment, by name. `problems`: what is wrong with them, for people."""

    skills: Mapping[str, Skill] = MappingProxyType({})
    problems: tuple[str, ...] = ()

    def for_model(self, called: frozenset[str] = frozenset()) -> list[Skill]:
        """Those that a model may call. `called`: by a person, in this turn."""
        return [skill for skill in self.skills.values() if skill.by_model or skill.name in called]

    def told(self, called: frozenset[str] = frozenset()) -> str:
        """What the model is told of them: bounded, whatever they say of themselves."""
        skills = self.for_model(called)
        if not skills:
            return ""
        chars = max(DESCRIBED_CHARS_MIN, CATALOGUE_CHARS_MAX // len(skills))
        lines = [f"- {skill.name}: {_short(_described(skill), chars)}" for skill in skills]
        return "\n".join([PREAMBLE, "<available_skills>", *lines, "</available_skills>"])


def _described(skill: Skill) -> str:
    pieces = [skill.description, skill.when_to_use]
    if skill.paths:
        pieces.append(f"For files like {', '.join(skill.paths)}.")
    return _TAG.sub(r"<\1available-skills", " ".join(piece for piece in pieces if piece))


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


class _Seen(NamedTuple):
    """What a folder was like when its skill was read."""

    stat: tuple[int, int, int, int]
    skill: Skill | None
    problem: str


class SkillShelf:
    """The skills of an agent. One for all its chats in this process."""

    def __init__(self, sources: Sequence[Skills]) -> None:
        self.sources = tuple(sources)
        self._seen: dict[Path, _Seen] = {}
        self._last = Catalogue()
        self._looking = threading.Lock()
        self._looks = 0  # that have begun

    async def catalogue(self) -> Catalogue:
        """As it is now; where that cannot be told in time, as it was. Never raises."""
        try:
            async with asyncio.timeout(LOOK_S):
                asked = self._looks
                return await _pool.run(lambda _: self._look_since(asked))
        except (TimeoutError, OSError, RuntimeError) as error:
            extra = {"action": "skills.not_looked_at", "error": f"{type(error).__name__}: {error}"}
            log.warning("the folders of skills could not be looked at; they are used as they were", extra=extra)
        return self._last

    def _look_since(self, looks: int) -> Catalogue:
        """Blocks. Chats that begin their turns at once share a look: it began after each of them had asked."""
        if not self._looking.acquire(timeout=LOOK_S):
            raise TimeoutError("another look does not come back")
        try:
            if self._looks == looks:
                self._looks += 1
                found = self.look()
                self._log_problems(found)
                self._last = found
            return self._last
        finally:
            self._looking.release()

    def look(self) -> Catalogue:
        """Blocks. Logs nothing: who calls it says what is wrong."""
        skills: dict[str, Skill] = {}
        problems: list[str] = []
        seen: dict[Path, _Seen] = {}
        for source in self.sources:
            for folder in _folders(source, problems):
                if len(skills) >= SKILLS_MAX:
                    problems.append(f"there are more than {SKILLS_MAX} skills: {folder} and others are left out")
                    break
                found = seen[folder] = self._read(folder, source.origin)
                if found.skill is None:
                    problems.append(f"{folder}: {found.problem}")
                elif found.skill.name in skills:
                    first = skills[found.skill.name].folder
                    problems.append(f"{folder}: {found.skill.name} is left out, there is one in {first}")
                else:
                    skills[found.skill.name] = found.skill
                    problems += [f"{folder}: {warning}" for warning in found.skill.warnings]
        self._seen = seen
        told = tuple(storable(problem) for problem in problems[:PROBLEMS_MAX])
        return Catalogue(skills=MappingProxyType(skills), problems=told)

    def _read(self, folder: Path, origin: str) -> _Seen:
        now = (0, 0, 0, 0)
        try:
            now = _stat(folder)
            before = self._seen.get(folder)
            if before is not None and before.stat == now:
                return before
            return _Seen(now, read_skill(folder, origin), "")
        except SkillRefused as error:
            return _Seen(now, None, str(error))
        except (OSError, ValueError) as error:
            return _Seen((0, 0, 0, 0), None, f"it cannot be read: {error}")

    def _log_problems(self, found: Catalogue) -> None:
        for problem in [problem for problem in found.problems if problem not in self._last.problems][:20]:
            log.warning("a skill: %s", problem, extra={"action": "skill.problem"})


def _stat(folder: Path) -> tuple[int, int, int, int]:
    for name in NAMES:
        try:
            found = (folder / name).lstat()
        except FileNotFoundError:
            continue
        return found.st_ctime_ns, found.st_size, found.st_ino, folder.stat().st_mtime_ns  # no copy keeps a ctime
    raise SkillRefused("it has no SKILL.md")


def _folders(source: Skills, problems: list[str]) -> Iterator[Path]:
    """The folders of skills, really where they are. Each once: `.claude/skills` is often a link to the other one."""
    known: set[Path] = set()
    for place in source.folders:
        found = [place] if _holds_skill(place) else [place / name for name in _entries(place, problems)]
        for folder in found:
            try:
                real = folder.resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if real in known or not _holds_skill(real):
                continue
            known.add(real)
            if source.within is not None and not real.is_relative_to(source.within):
                problems.append(f"{folder}: it leads out of {source.within}, and is left out")
                continue
            yield real


def _entries(place: Path, problems: list[str]) -> list[str]:
    """By name, so that the same ones count at every look and on every machine."""
    try:
        with os.scandir(place) as entries:
            names = [entry.name for _, entry in zip(range(ENTRIES_SCANNED_MAX), entries, strict=False)]
    except OSError:
        return []
    names = sorted(name for name in names if not name.startswith("."))
    if len(names) > ENTRIES_MAX:
        last = names[ENTRIES_MAX - 1]
        problems.append(f"{place}: it has {len(names):,} entries, and those after {last!r} are left out")
    return names[:ENTRIES_MAX]


def _holds_skill(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in NAMES)
