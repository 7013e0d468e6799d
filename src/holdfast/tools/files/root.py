"""A folder that nothing gets out of: paths are resolved here, component by component, each opened from its parent.

No component is ever opened through a symlink. A symlink is read and followed by hand, and only inside the root; since
every folder was reached by going down from the root, swapping names or symlinks meanwhile leads to an error, never
outside. What is opened is a regular file, looked at before and after: no device, and no FIFO that would block.

What no tool may touch in there (`tools/floor.py`) is refused on the way, by name and by inode. Not seen: a hard link
to any other file elsewhere, and what is mounted inside the root. Both are there because a user with the right to do
so put them there.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from holdfast.errors import ConfigError, ToolFailed
from holdfast.system import disk
from holdfast.tools.floor import Floor, floor

PATH_CHARS_MAX = 4096
SYMLINKS_MAX = 20
DEPTH_MAX = 64
SCANNED_MAX = 100_000  # entries that one walk looks at

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # to go on from
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a symlink"),
)


class Root:
    """`real`: its path was resolved when it was chosen. A symlink that is put on the way later is not followed."""

    def __init__(self, path: str | os.PathLike[str], *, real: bool = False) -> None:
        # Made absolute, not resolved: where a root that is a symlink points may change with a deploy.
        self.path = os.path.abspath(os.fspath(path))
        self._real = real
        if not os.path.isdir(self.path):
            raise ConfigError(f"{self.path} is not a folder: file tools need one to be confined to")

    @contextmanager
    def place(self, path: str, *, writes: bool = False, make_folders: bool = False) -> Iterator["RootPlace"]:
        """Where a path of the model's leads. Raises ToolFailed with the reason if it does not, or not inside, or to
        what no tool may touch.
        """
        with told(path), _Walk(self, path, writes=writes, make_folders=make_folders) as way:
            name = way.go()
            yield RootPlace(way.folder, name, shown(path), way.protected, way.real(name))

    def open(self) -> int:
        """The folder itself. Raises OSError, and ConfigError where another one lies there than was chosen."""
        if not self._real:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        above, name = os.path.split(self.path)
        folder = os.open("/", _STEP)
        try:
            for part in filter(None, above.split("/")):
                below = os.open(part, _STEP, dir_fd=folder)
                os.close(folder)
                folder = below
            return os.open(name or ".", _FOLDER, dir_fd=folder)
        except OSError as error:
            raise ConfigError(f"{self.path} is not the folder that it was: {error.strerror}") from error
        finally:
            os.close(folder)


class RootPlace(NamedTuple):
    """A name in an open folder. It is no symlink, and need not exist."""

    folder: int
    name: str
    shown: str
    protected: Floor
    real: str = ""  # its path below the root, without a symlink in it

    @contextmanager
    def opened(self) -> Iterator[tuple[int, os.stat_result]]:
        """The regular file of this name, for reading."""
        _check_regular(os.stat(self.name, dir_fd=self.folder, follow_symlinks=False), self.shown)
        file = os.open(self.name, _FILE, dir_fd=self.folder)
        try:
            found = os.fstat(file)
            _check_regular(found, self.shown)
            _refuse(self.protected, [self.name], found, self.shown, writes=False)
            yield file, found
        finally:
            os.close(file)

    @contextmanager
    def opened_folder(self) -> Iterator[int]:
        folder = os.open(self.name, _FOLDER, dir_fd=self.folder)
        try:
            yield folder
        finally:
            os.close(folder)


class _Walk:
    """The way down from the root, with every folder on it held open."""

    def __init__(self, root: Root, path: str, *, writes: bool, make_folders: bool) -> None:
        self._pending = deque(_components(root.path, path))
        self._open_root = root.open
        self._root = root.path
        self._shown = shown(path)
        self._writes = writes
        self._make = make_folders
        self._way: list[int] = []
        self._names: list[str] = []  # of all folders on the way but the root
        self.protected = floor()

    def __enter__(self) -> Self:
        self._way.append(self._open_root())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._way:
            os.close(self._way.pop())

    @property
    def folder(self) -> int:
        return self._way[-1]

    def real(self, name: str) -> str:
        return "/".join([*self._names, name])

    def go(self) -> str:
        """Down to the last folder; what is left is a name in it."""
        links = 0
        while self._pending:
            part = self._pending.popleft()
            if part == "..":  # only a symlink's: those of the path itself were refused
                if len(self._way) == 1:
                    raise self._outside()
                os.close(self._way.pop())
                self._names.pop()
            elif (target := self._link(part)) is not None:
                links += 1
                if links > SYMLINKS_MAX:
                    raise ToolFailed(f"{self._shown} leads through more than {SYMLINKS_MAX} symlinks")
                self._follow(target)
            else:
                self._check(part)
                if not self._pending:
                    return part
                self._enter(part)
        return "."

    def _check(self, part: str) -> None:
        try:
            found = os.stat(part, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        # With what is still to come: no folder is made on the way to a name that is refused.
        _refuse(self.protected, [*self._names, part, *self._pending], None, self._shown, writes=self._writes)
        _refuse(self.protected, [part], found, self._shown, writes=self._writes, above=os.fstat(self.folder))

    def _link(self, part: str) -> str | None:
        try:
            return os.readlink(part, dir_fd=self.folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no symlink; nothing at all
                return None
            raise

    def _follow(self, target: str) -> None:
        if target.startswith("/"):
            inside = _inside(self._root, target)
            if inside is None:
                raise self._outside()
            while len(self._way) > 1:
                os.close(self._way.pop())
            self._names.clear()
            target = inside
        self._pending.extendleft(reversed([part for part in target.split("/") if part not in ("", ".")]))
        if len(self._pending) > PATH_CHARS_MAX:
            raise ToolFailed(f"{self._shown} leads through symlinks that grow too long")

    def _enter(self, part: str) -> None:
        try:
            self._way.append(os.open(part, _FOLDER, dir_fd=self.folder))
        except FileNotFoundError:
            if not self._make:
                raise
            with suppress(FileExistsError):  # another process made it this instant
                disk.make_folder(self.folder, part)
            self._way.append(os.open(part, _FOLDER, dir_fd=self.folder))
        self._names.append(part)
        _refuse(self.protected, [part], os.fstat(self.folder), self._shown, writes=self._writes)

    def _outside(self) -> ToolFailed:
        return ToolFailed(
            f"{self._shown} leads out of the folder that these tools are confined to, through a symlink"
        )


def _components(root: str, path: str) -> list[str]:
    if "\x00" in path or len(path) > PATH_CHARS_MAX:
        raise ToolFailed(f"a path has no NUL and at most {PATH_CHARS_MAX:,} characters")
    inside: str | None = path
    if path.startswith("/"):
        inside = _inside(root, path)
    parts = None if inside is None else [part for part in inside.split("/") if part not in ("", ".")]
    if parts is None or ".." in parts:
        raise ToolFailed(
            f"{shown(path)} leads out of the folder that these tools are confined to: "
            "name files relative to it, and without '..'"
        )
    if len(parts) > DEPTH_MAX:
        raise ToolFailed(f"a path has at most {DEPTH_MAX} folders")
    return parts


def _inside(root: str, path: str) -> str | None:
    """An absolute path as one relative to the root, by its text; the walk decides where it really leads."""
    for base in (root, os.path.realpath(root)):
        if path == base or path.startswith(base.rstrip("/") + "/"):
            return path[len(base) :].lstrip("/")
    return None


def kind_of(mode: int) -> str:
    return next((kind for test, kind in _KINDS if test(mode)), "a regular file")


def _refuse(
    protected: Floor,
    names: Sequence[str],
    found: os.stat_result | None,
    said: str,
    *,
    writes: bool,
    above: os.stat_result | None = None,
) -> None:
    if why := protected.objection(names, found, above, writes=writes):
        raise ToolFailed(f"{said} {why}")


def _check_regular(found: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ToolFailed(f"{name} is {kind_of(found.st_mode)}, not a file")


def shown(name: str) -> str:
    """A name as text: what is no character, or would pass for layout, is escaped."""
    text = (name or ".").encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@contextmanager
def told(path: str) -> Iterator[None]:
    """What the operating system refused, in words for the model: the path it gave, and no other."""
    try:
        yield
    except OSError as error:
        name = shown(path)
        match error.errno:
            case errno.ENOENT:
                problem = f"{name} does not exist"
            case errno.ENOTDIR:
                problem = f"{name}: a part of it is not a folder"
            case errno.ELOOP:
                problem = f"{name} was replaced by a symlink while it was looked up"
            case errno.ENAMETOOLONG:
                problem = f"{name}: a name in it is too long"
            case errno.EISDIR:
                problem = f"{name} is a folder"
            case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
                problem = f"{name} was not written, there is no room for it on the disk; nothing was changed"
            case errno.EACCES | errno.EPERM:
                problem = f"{name}: no permission"
            case None:  # our own words
                problem = str(error)
            case number:
                problem = f"{name}: {os.strerror(number)}"
        raise ToolFailed(problem) from error


class FolderEntry(NamedTuple):
    """Something found on a walk. `folder` is open only until the next one is asked for."""

    path: str
    name: str
    mode: int
    folder: int


class LeftOut(Protocol):
    """What a walk passes over, told folder by folder."""

    def enter(self, folder: int, path: str) -> None: ...

    def has(self, path: str, *, folder: bool) -> bool: ...


def walk(
    folder: int,
    protected: Floor,
    *,
    hidden: bool,
    base: str = "",
    left_out: LeftOut | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Iterator[FolderEntry]:
    """Everything below an open folder, sorted, folders before what is in them. Symlinks are named, not followed; so
    are folders that no tool may look into. `base`: where the folder is below the root, for `left_out`. `goes_on` is
    asked before each name, those that are passed over too, and ends the walk.
    """
    if left_out is not None:
        left_out.enter(folder, base)
    prefix = ""
    open_folders: list[tuple[int, str, Iterator[str]]] = [(os.dup(folder), prefix, _names(folder))]
    try:
        while open_folders and goes_on():
            current, above, names = open_folders[-1]
            name = next(names, None)
            if name is None:
                os.close(open_folders.pop()[0])
                continue
            if disk.is_temporary(name) or (name.startswith(".") and not hidden):
                continue
            try:
                found = os.stat(name, dir_fd=current, follow_symlinks=False)
            except OSError:  # gone since
                continue
            is_folder = stat.S_ISDIR(found.st_mode)
            if left_out is not None and left_out.has(f"{base}{above}{name}", folder=is_folder):
                continue
            yield FolderEntry(above + name, name, found.st_mode, current)
            closed = protected.objection([name], found, writes=False) is not None
            if is_folder and not closed and len(open_folders) < DEPTH_MAX:
                try:
                    below = os.open(name, _FOLDER, dir_fd=current)
                except OSError:  # gone, swapped, or not for us
                    continue
                open_folders.append((below, f"{above}{name}/", _names(below)))
                if left_out is not None:
                    left_out.enter(below, f"{base}{above}{name}/")
    finally:
        for descriptor, _, _ in open_folders:
            os.close(descriptor)


def _names(folder: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            return iter(sorted(entry.name for entry in islice(entries, SCANNED_MAX + 1)))
    except OSError:
        return iter(())
