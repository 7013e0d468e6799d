"""Where the path of an act leads: every file that it may stand for, by its name and by where links lead.

Looked up when it is judged, and bounded: a pattern of the shell stands for so many files, a folder holds so many
names. What does not fit into that, or cannot be told, is unclear; nothing is allowed by a rule or a mode then.
"""

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain, islice

from holdfast.core.records import Frozen
from holdfast.tools.floor import floor
from holdfast.tools.permissions.acts import Read, Whereabouts, Write
from holdfast.tools.permissions.path_patterns import MeantPath, PathPattern, below
from holdfast.tools.shell.repository import tracked_names

MATCHES_MAX = 1_000  # of a pattern of the shell that are looked at
ENTRIES_MAX = 10_000  # of folders that are looked through
LINKS_MAX = 40  # as the kernel has it
NOWHERE = "/dev/null"
_OF_PROCESS = re.compile(r"/proc/[0-9]+(?:/task/[0-9]+)?/(cwd|root)")  # `self` is a link to one


class PathLook(Frozen):
    """What was found. All paths are absolute, but in a container, where they are as they were given."""

    root: str | None
    meant: tuple[MeantPath, ...]  # by every name that a rule that forbids may be about
    real: tuple[str, ...]  # with all links followed
    inside: bool = False  # all of them lie below the root, and are plain files and folders
    forbidden: str | None = None  # by the floor
    unclear: str | None = None  # why it cannot be told for certain what is read or written


def look_at(act: Read | Write, where: Whereabouts, forbidding: Sequence[PathPattern] = ()) -> PathLook:
    """Where there are rules that forbid paths, what else a file is called and what a folder holds counts, too."""
    closely = bool(forbidding)
    if "\x00" in act.path:
        return PathLook(root=None, meant=(MeantPath.of(act.path, None),), real=(), unclear="it holds a NUL character")
    if where.root is None:
        return _as_given(act, where, closely)
    root = os.path.realpath(where.root)
    if not where.looks:
        return _by_words(act, root, closely)
    given = meant_paths(act, root)
    names = [os.path.normpath(path) for path in given]
    # Of the path as it was given: where `link/..` leads is for the link to say, as the kernel has it.
    real = list(dict.fromkeys(_real(path) for path in given[: MATCHES_MAX + 1]))
    look = PathLook(
        root=root,
        meant=(),
        real=tuple(real),
        inside=all(below(path, root) is not None for path in real),
        forbidden=forbidden_in(act, root),
    )
    others: list[str] = []
    unclear = _unclear_words(act, len(names))
    for path in real:
        unclear = unclear or _unclear_file(path, act, look, where)
    if closely:
        folders = [pattern.anchor for pattern in forbidding if pattern.anchor is not None]
        others, whole = _also_meant(real, act, root, folders)
        unclear = unclear or (None if whole else "more files lie there than can be looked through") or _past(act)
    return PathLook(
        root=root,
        meant=tuple(MeantPath.of(path, root) for path in dict.fromkeys((*names, *real, *others))) if closely else (),
        real=look.real,
        inside=look.inside,
        forbidden=look.forbidden,
        unclear=unclear,
    )


def forbidden_in(act: Read | Write, root: str) -> str | None:
    """Why no tool may do that, whatever a rule says and a person approves, as far as the act itself tells."""
    protected = floor()
    writes = isinstance(act, Write)
    for path in meant_paths(act, root):
        try:
            if os.path.realpath(path).startswith("/proc/"):  # most of it is harmless: a person may say so
                continue
            why = protected.objection_to(path, root, writes=writes)
        except OSError:  # of another user's process
            why = "leads where nobody can look"
        if why is not None:
            return f"`{act.path[:80]}` {why}"
    return None


def meant_paths(act: Read | Write, root: str) -> list[str]:
    """The paths that a word stands for. One that stands for no file stands for itself, to the shell."""
    path = os.path.join(os.path.realpath(root), act.path)
    if "\x00" in path:
        return [path]
    if not act.pattern:
        return list(dict.fromkeys((path, *_as_a_program_sees(path, root))))
    # To some shells `?` is a character, to others a byte.
    matches = chain(glob.iglob(path), map(os.fsdecode, glob.iglob(os.fsencode(path))) if "?" in path else ())
    found = list(islice(dict.fromkeys(matches), MATCHES_MAX + 1)) or [path]
    return list(dict.fromkeys((*found, *(seen for each in found for seen in _as_a_program_sees(each, root)))))


def _as_a_program_sees(path: str, root: str) -> Iterator[str]:
    """Where a path that leads through /proc leads for a program that is started in the root: what is the folder of a
    process there is ours when we look.
    """
    done, left, links = "/", path.split("/")[::-1], 0
    through = False
    while left and links < LINKS_MAX:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done)
            continue
        here = os.path.join(done, part)
        if found := _OF_PROCESS.fullmatch(here):
            done, through = os.path.realpath(root) if found[1] == "cwd" else "/", True
            continue
        try:
            target = os.readlink(here)
        except (OSError, ValueError):
            done = here
            continue
        links += 1
        done = "/" if target.startswith("/") else done
        left += target.split("/")[::-1]
    if through:
        yield os.path.join(done, *left[::-1])


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # the floor objects
        return os.path.normpath(path)


def _as_given(act: Read | Write, where: Whereabouts, closely: bool) -> PathLook:
    """In a container: what is read in there is the container's; so is what is written, if it was made for that."""
    path = os.path.normpath(act.path)
    free = isinstance(act, Read) or where.sandboxed
    vague = act.pattern or act.moved
    unclear = "nothing can be looked at in there" if not free or (vague and closely) else None
    meant = (MeantPath.of(path, None),)
    return PathLook(root=None, meant=meant, real=() if vague else (path,), inside=free, unclear=unclear)


def _by_words(act: Read | Write, root: str, closely: bool) -> PathLook:
    path = os.path.normpath(os.path.join(root, act.path))
    parts = below(path, root)
    why = floor().objection(path.split("/") if parts is None else parts, None, writes=isinstance(act, Write))
    return PathLook(
        root=root,
        meant=(MeantPath.of(path, root),),
        real=(path,),
        inside=parts is not None,
        forbidden=None if why is None else f"`{act.path[:80]}` {why}",
        unclear=_unclear_words(act, 1) or (_past(act) if closely else None),
    )


def _unclear_words(act: Read | Write, count: int) -> str | None:
    if act.moved:
        return f"the folder is changed before `{act.path[:80]}`: it cannot be told where that leads"
    if act.pattern and (isinstance(act, Write) or _is_beyond(act.path)):
        return f"it cannot be told what `{act.path[:80]}` stands for"
    if count > MATCHES_MAX:
        return f"`{act.path[:80]}` stands for more than {MATCHES_MAX:,} files"
    return None


def _past(act: Read | Write) -> str | None:
    if isinstance(act, Read) and act.extent == "past":
        return "it may show what git kept in the past, where a rule on paths cannot look (before paths, write `--`)"
    return None


def _is_beyond(pattern: str) -> bool:
    """Whether a shell may see more in it than we do: to some `.*` stands for `..`, too, and a `[` was quoted."""
    parts = [part for part in pattern.split("/") if part.startswith(".") and set(part) & set("*?")]
    return "[" in pattern or any(fnmatchcase(folder, part) for part in parts for folder in (".", ".."))


def _unclear_file(path: str, act: Read | Write, look: PathLook, where: Whereabouts) -> str | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return f"`{act.path[:80]}` cannot be looked at"
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        return f"`{act.path[:80]}` is no plain file or folder"
    if isinstance(act, Write):
        # A tool of ours puts another file in its place; a program would write to all its names.
        several = stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and not where.confined
        return f"`{act.path[:80]}` is a file with several names, which may lie anywhere" if several else None
    if not stat.S_ISDIR(found.st_mode):
        return None
    if act.extent == "anywhere":
        return f"it reads everything in `{act.path[:80]}`, through symlinks that may lead anywhere"
    if act.extent == "below" and not where.confined and look.inside and floor().lies_below(path):
        return f"it reads everything in `{act.path[:80]}`, where keys or holdfast's own files lie"
    return None


def _also_meant(real: list[str], act: Read | Write, root: str, folders: Sequence[str]) -> tuple[list[str], bool]:
    """What is in the folders that are read whole, and the other names, below the root and in these folders, of files
    that have several; and whether that is all."""
    found: list[str] = []
    linked: set[tuple[int, int]] = set()
    left = ENTRIES_MAX
    for path in real:
        try:
            seen = os.stat(path)
        except (OSError, ValueError):
            continue
        linked |= _several_names(seen)
        if not isinstance(act, Read) or not stat.S_ISDIR(seen.st_mode):
            continue
        if act.extent in ("tracked", "past"):
            names = tracked_names(path)
            if names is None:
                return found, False
            found += [os.path.join(path, name) for name in names]
        elif act.extent != "itself":
            for entry in islice(_walk(path, hidden=act.hidden), left + 1):
                left -= 1
                if act.extent != "folders" or entry.is_dir(follow_symlinks=False):
                    found.append(entry.path)
                if act.extent != "folders":
                    linked |= _several_names(_seen(entry))
            if left < 0:
                return found[:ENTRIES_MAX], False
    if linked:
        # Those that are not there have no other names.
        entries = chain.from_iterable(
            _walk(folder, hidden=True) for folder in (root, *filter(os.path.isdir, folders))
        )
        for entry in islice(entries, left + 1):
            left -= 1
            if not linked.isdisjoint(_several_names(_seen(entry))):
                found.append(entry.path)
        for path in filter(os.path.isfile, folders):
            if not linked.isdisjoint(_several_names(os.stat(path))):
                found.append(path)
    return found, left >= 0


def _seen(entry: "os.DirEntry[str]") -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:  # gone since
        return None


def _several_names(seen: os.stat_result | None) -> set[tuple[int, int]]:
    """What it is known by, if it is a file with several names."""
    several = seen is not None and stat.S_ISREG(seen.st_mode) and seen.st_nlink > 1
    return {(seen.st_dev, seen.st_ino)} if several and seen is not None else set()


def _walk(folder: str, *, hidden: bool) -> "Iterator[os.DirEntry[str]]":
    """Everything below a folder; symlinks are named, not followed."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith(".") and not hidden:
                        continue
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # gone, or not for us: then a tool cannot read it either
            continue
