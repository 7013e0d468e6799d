"""Whether git may be let loose in a folder: only if the repository there has no settings that start programs.

Even `git status` runs what `core.fsmonitor` says, and a diff what `diff.external` or a filter says. So the settings
of the repository are read first, and those that are known to be harmless are a short list. The user's own settings
in the home are the user's own business. A folder that has the shape of a repository without being named `.git` is
one to git, too: three files with common names are enough, and then git believes the settings among them.
"""

import os
import re
from collections.abc import Iterator

SETTINGS_BYTES_MAX = 1 << 20

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
    for place in _upwards(os.path.realpath(folder)):
        found = os.path.join(place, ".git")
        if os.path.lexists(found):
            return _objection_to(found)
        if all(os.path.lexists(os.path.join(place, name)) for name in ("HEAD", "objects", "refs")):
            return "the folder looks like a repository itself, and git would believe its settings"
    return None


def _upwards(folder: str) -> Iterator[str]:
    while True:
        yield folder
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


def _objection_to(found: str) -> str | None:
    try:
        own = _named_by(found) if os.path.isfile(found) else found
        shared = os.path.join(own, "commondir")
        common = os.path.join(own, _text(shared).strip()) if os.path.lexists(shared) else own
        for settings in (os.path.join(common, "config"), os.path.join(own, "config.worktree")):
            if os.path.lexists(settings) and (key := _first_unknown(_text(settings))):
                return f"git would believe `{key[:80]}` in the settings of the repository, which may start a program"
    except (OSError, ValueError) as error:
        return f"the repository cannot be looked at: {error}"
    return None


def _named_by(file: str) -> str:
    """A worktree or submodule: `.git` is a file that names the place."""
    text = _text(file).strip()
    if not text.startswith("gitdir: "):
        raise ValueError("its .git names no folder")
    return os.path.join(os.path.dirname(file), text.removeprefix("gitdir: "))


def _text(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read(SETTINGS_BYTES_MAX + 1)
    if len(data) > SETTINGS_BYTES_MAX:
        raise ValueError("its settings are too large")
    return data.decode()


def _first_unknown(text: str) -> str | None:
    """The first setting that is not known to be harmless. What cannot be read for certain is not."""
    section = ""
    if "\\\n" in text or "\r" in text.replace("\r\n", ""):
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
