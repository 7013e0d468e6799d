"""Whether git may be let loose in a folder: only if the repository there has no settings that start programs.

Even `git status` runs what `core.fsmonitor` says, and a diff what `diff.external` or a filter says. So the settings
of the repository are read first, and those that are known to be harmless are a short list. The user's own settings
in the home are the user's own business. A submodule has settings of its own, which `git status` believes as well, and
writing the index runs a hook.

The folder itself has to be the top of the repository. From one further up git shows what lies outside of the folder.
One that has the shape of a repository without being named `.git` is one to git, too: three files with common names
are enough, and it believes the settings among them. And where there is none, `git diff` reads whatever it is told.
"""

import os
import re
import struct
from collections.abc import Iterator

from holdfast.system.git_folders import folders_of, settings_text

INDEX_BYTES_MAX = 64 << 20  # some 500,000 files

_HOOK = "post-index-change"  # the one that reading runs: `git status` and `git diff` write what they learned
_SUBMODULE = b"\x00\x00\xe0\x00"  # mode 160000
_HEAD = re.compile(r"ref: refs/[^\n]+\n?|(?:[0-9a-f]{40}|[0-9a-f]{64})\n?")

_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=|$)")
_HARMLESS = {
    "core": (
        "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol "
        "safecrlf quotepath abbrev whitespace untrackedcache preloadindex compression bigfilethreshold longpaths "
        "sharedrepository trustctime checkstat"
    ),
    # No `promisor`: git would fetch what is missing, by whatever program the URL names.
    "remote": "url pushurl fetch push tagopt prune mirror",
    "branch": "remote merge rebase description pushremote",
    "user": "name email signingkey",
    "submodule": "url active path branch ignore",
    "extensions": "objectformat refstorage worktreeconfig",
    "lfs": "repositoryformatversion",
    "index": "version threads skiphash",
}
_HARMLESS_SECTIONS = frozenset({"advice", "color", "column", "fetch", "maintenance", "pull", "push"})


def objection_to_git(folder: str) -> str | None:
    """Why git is not started in this folder unasked."""
    found = os.path.join(os.path.realpath(folder), ".git")
    if os.path.lexists(found):
        if why := _objection_to(found):
            return why
        if _is_certain(found):
            return None
    return "its folder is not the top of a repository: git would take another, or read any two files that it is told"


def tracked_names(folder: str) -> list[str] | None:
    """What git keeps of a folder, which is the top of a repository. None: it cannot be told."""
    try:
        own, common = folders_of(os.path.join(os.path.realpath(folder), ".git"))
        if "objectformat" in settings_text(os.path.join(common, "config")).lower():
            return None
        return [os.fsdecode(name) for file in _indexes(own) for _, name in _entries(_read(file))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, IndexError, struct.error):
        return None


def _objection_to(found: str) -> str | None:
    try:
        own, common = folders_of(found)
        for settings in (os.path.join(common, "config"), os.path.join(own, "config.worktree")):
            if os.path.lexists(settings) and (key := _first_unknown(settings_text(settings))):
                return f"git would believe `{key[:80]}` in the settings of the repository, which may start a program"
        if os.path.lexists(os.path.join(common, "hooks", _HOOK)):
            return f"git would start the hook `{_HOOK}` of the repository"
        other_ids = "objectformat" in settings_text(os.path.join(common, "config")).lower()
        if any(_names_submodules(file, other_ids=other_ids) for file in _indexes(own)):
            return "the repository has submodules, and git would believe the settings of each"
    except (OSError, ValueError, IndexError, struct.error) as error:
        return f"the repository cannot be looked at: {error}"
    return None


def _is_certain(found: str) -> bool:
    """Whether git takes it for a repository, too. One that is broken it passes over."""
    try:
        own, common = folders_of(found)
        head = settings_text(os.path.join(own, "HEAD"))
    except (OSError, ValueError):
        return False
    folders = (os.path.join(common, name) for name in ("objects", "refs"))
    return _HEAD.fullmatch(head) is not None and all(map(os.path.isdir, folders))


def _indexes(own: str) -> Iterator[str]:
    with os.scandir(own) as entries:
        yield from (entry.path for entry in entries if entry.name == "index" or entry.name.startswith("sharedindex."))


def _read(index: str) -> bytes:
    with open(index, "rb") as file:
        data = file.read(INDEX_BYTES_MAX + 1)
    if len(data) > INDEX_BYTES_MAX:
        raise ValueError("its index is too large")
    return data


def _names_submodules(index: str, *, other_ids: bool) -> bool:
    data = _read(index)
    if _SUBMODULE not in data:
        return False
    return other_ids or any(
        mode == _SUBMODULE for mode, _ in _entries(data)
    )  # a file of 57,344 bytes has those bytes, too


def _entries(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Mode and name of each. Ids have 20 bytes."""
    magic, version, count = struct.unpack_from(">4sII", index)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("its index is of another kind")
    at, name = 12, b""
    for _ in range(count):
        mode, begin = index[at + 24 : at + 28], at + 62
        if version > 2 and index[begin - 2] & 0x40:
            begin += 2
        if version == 4:  # begins with how much of the name before it goes
            dropped, begin = _number(index, begin)
            end = index.index(b"\0", begin)
            name = name[: len(name) - dropped] + index[begin:end]
            at = end + 1
        else:
            end = index.index(b"\0", begin)
            name = index[begin:end]
            at += (end - at) // 8 * 8 + 8
        yield mode, name


def _number(index: bytes, at: int) -> tuple[int, int]:
    """One of several bytes, and where it ends."""
    value = index[at] & 0x7F
    while index[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (index[at] & 0x7F)
    return value, at + 1


def _first_unknown(text: str) -> str | None:
    """The first setting that is not known to be harmless. What cannot be read for certain is not."""
    section = ""
    text = text.replace("\r\n", "\n")  # as git reads it
    if "\\\n" in text or "\r" in text:
        return "a line that goes on"
    for line in text.split("\n"):
        rest = line.strip()
        if found := _SECTION.match(rest):
            section = found[1].lower()
            rest = rest[found.end() :].strip()
        if not rest or rest[0] in "#;":
            continue
        key = _KEY.match(rest)
        if key is None:
            return rest
        name = key[1].lower()
        if section not in _HARMLESS_SECTIONS and name not in _HARMLESS.get(section, "").split():
            return f"{section}.{name}"
    return None
