"""Where the path of an act leads: every file that it may stand for, by its name and by where links lead.

Looked up when it is judged, and bounded: a pattern of the shell stands for so many files, a folder holds so many
names. What does not fit into that, or cannot be told, is unclear; nothing is allowed by a rule or a mode then.
"""

import glob
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain, islice

from holdfast.core.records import Frozen
from holdfast.tools.floor import floor
from holdfast.tools.permissions.acts import Read, Whereabouts, Write
from holdfast.tools.permissions.path_patterns import below
from holdfast.tools.shell.repository import tracked_names

MATCHES_MAX = 1_000  # of a pattern of the shell that are looked at
ENTRIES_MAX = 10_000  # of folders that are looked through
NOWHERE = "/dev/null"


class PathLook(Frozen):
    """What was found. All paths are absolute, but in a container, where they are as they were given."""

    root: str | None
    meant: tuple[str, ...]  # by every name that a rule may be about
    real: tuple[str, ...]  # with all links followed
    inside: bool = False  # all of them lie below the root, and are plain files and folders
    forbidden: str | None = None  # by the floor
    unclear: str | None = None  # why it cannot be told for certain what is read or written


def look_at(act: Read | Write, where: Whereabouts, *, closely: bool) -> PathLook:
    """`closely`: there are rules that forbid paths, so what else a file is called and what a folder holds counts."""
    if "\x00" in act.path:
        return PathLook(root=None, meant=(act.path,), real=(), unclear="it holds a NUL character")
    if where.root is None:
        return _as_given(act, where, closely)
    root = os.path.realpath(where.root)
    if not where.looks:
        return _by_words(act, root)
    given = meant_paths(act, root)
    names = [os.path.normpath(path) for path in given]
    # Of the path as it was given: where `link/..` leads is for the link to say, as the kernel has it.
    real = list(dict.fromkeys(os.path.realpath(path) for path in given[: MATCHES_MAX + 1]))
    look = PathLook(
        root=root,
        meant=tuple(dict.fromkeys((*names, *real))),
        real=tuple(real),
        inside=all(below(path, root) is not None for path in real),
        forbidden=forbidden_in(act, root),
    )
    others: list[str] = []
    unclear = _unclear_words(act, len(names))
    for path in real:
        unclear = unclear or _unclear_file(path, act, look, where)
    if closely:
        others, whole = _also_meant(real, act, root)
        unclear = unclear or (None if whole else "more files lie there than can be looked through")
    return PathLook(
        root=root,
        meant=(*look.meant, *others),
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
        if os.path.realpath(path).startswith("/proc/"):  # most of it is harmless: a person may say so
            continue
        if why := protected.objection_to(path, root, writes=writes):
            return f"`{act.path[:80]}` {why}"
    return None


def meant_paths(act: Read | Write, root: str) -> list[str]:
    """The paths that a word stands for. One that stands for no file stands for itself, to the shell."""
    path = os.path.join(os.path.realpath(root), act.path)
    if not act.pattern or "\x00" in path:
        return [path]
    # To some shells `?` is a character, to others a byte.
    matches = chain(glob.iglob(path), map(os.fsdecode, glob.iglob(os.fsencode(path))) if "?" in path else ())
    return list(islice(dict.fromkeys(matches), MATCHES_MAX + 1)) or [path]


def _as_given(act: Read | Write, where: Whereabouts, closely: bool) -> PathLook:
    """In a container: what is read in there is the container's; so is what is written, if it was made for that."""
    path = os.path.normpath(act.path)
    free = isinstance(act, Read) or where.sandboxed
    vague = act.pattern or act.moved
    unclear = "nothing can be looked at in there" if not free or (vague and closely) else None
    return PathLook(root=None, meant=(path,), real=() if vague else (path,), inside=free, unclear=unclear)


def _by_words(act: Read | Write, root: str) -> PathLook:
    path = os.path.normpath(os.path.join(root, act.path))
    parts = below(path, root)
    why = floor().objection(path.split("/") if parts is None else parts, None, writes=isinstance(act, Write))
    return PathLook(
        root=root,
        meant=(path,),
        real=(path,),
        inside=parts is not None,
        forbidden=None if why is None else f"`{act.path[:80]}` {why}",
        unclear=_unclear_words(act, 1),
    )


def _unclear_words(act: Read | Write, count: int) -> str | None:
    if act.moved:
        return f"the folder is changed before `{act.path[:80]}`: it cannot be told where that leads"
    if act.pattern and (isinstance(act, Write) or _is_beyond(act.path)):
        return f"it cannot be told what `{act.path[:80]}` stands for"
    if count > MATCHES_MAX:
        return f"`{act.path[:80]}` stands for more than {MATCHES_MAX:,} files"
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


def _also_meant(real: list[str], act: Read | Write, root: str) -> tuple[list[str], bool]:
    """What is in the folders that are read whole, and the other names of files that have several; and whether that
    is all."""
    found: list[str] = []
    linked: set[tuple[int, int]] = set()
    left = ENTRIES_MAX
    for path in real:
        try:
            seen = os.stat(path)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink > 1:
            linked.add((seen.st_dev, seen.st_ino))
        if not isinstance(act, Read) or not stat.S_ISDIR(seen.st_mode):
            continue
        if act.extent == "tracked":
            names = tracked_names(path)
            if names is None:
                return found, False
            found += [os.path.join(path, name) for name in names]
        elif act.extent != "itself":
            for entry in islice(_walk(path, hidden=act.hidden), left + 1):
                found.append(entry.path)
                left -= 1
            if left < 0:
                return found[:ENTRIES_MAX], False
    if linked:
        for entry in islice(_walk(root, hidden=True), left + 1):
            left -= 1
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:  # gone since
                continue
            if (seen.st_dev, seen.st_ino) in linked:
                found.append(entry.path)
    return found, left >= 0


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
