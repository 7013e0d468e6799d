"""Writing a file so that it is whole or untouched, whatever happens: the one function that everything here uses.

`write` makes a new file beside the target, syncs it, gives it the target's permissions, renames it over the target
and syncs the folder. It works inside a folder that the caller has opened, so no other process can move it elsewhere
by swapping a folder for a symlink meanwhile. A failed write leaves the target as it was and nothing beside it.

A process that is killed in between leaves its temporary file. Such a file has a name of its own kind and was locked
by its writer; a free lock means that the writer is dead, and the next write into the folder removes it.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

_TEMPORARY = re.compile(r"\.holdfast-[0-9a-f]{32}\.tmp")
_ACL = "system.posix_acl_access"
_TRIES_MAX = 10


def is_temporary(name: str) -> bool:
    """A file that is being written, or that a killed process left: not for other eyes."""
    return _TEMPORARY.fullmatch(name) is not None


def write_path(path: Path, data: bytes) -> None:
    """`write` for a path that no other user can tamper with."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write(folder, path.name, data)
    finally:
        os.close(folder)


def write(folder: int, name: str, data: bytes) -> None:
    """Replace or make the file `name` in the open `folder`. On the disk, name and all, when it returns.

    Atomic: a reader sees the old content or the new. Permissions, ACL and (where we may) owner of an existing file
    stay; a new one gets those of the umask. A hard link is parted from its other names. Raises OSError, and then the
    target is as it was; only where the folder's own sync fails is it the new one, perhaps not for good. Refuses what
    is no regular file, and a file that we may not write to, though its folder would let us replace it.
    """
    if name in ("", ".", "..") or "/" in name:
        raise ValueError(f"{name!r} is not the name of a file in a folder")
    remove_litter(folder)
    before = _target(folder, name)
    temporary, file = _new_file(folder, 0o666 if before is None else 0o600)
    try:
        try:
            _write_all(file, data)
            if before is not None:
                _take_over(before, folder, name, file)
            _sync(file)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(file)
    _sync(folder)


def remove(folder: int, name: str) -> None:
    """Take a name out of an open folder, for good when it returns. Raises OSError, and then it is still there."""
    os.unlink(name, dir_fd=folder)
    _sync(folder)


def create_path(path: Path, data: bytes, mode: int = 0o600) -> bool:
    """Make a file that is not there yet, whole and with its mode from the first moment on; False if it is there.

    Of several that try at once, one makes it. Raises OSError.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_litter(folder)
        temporary, file = _new_file(folder, mode)
        try:
            _write_all(file, data)
            _sync(file)
            os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary, dir_fd=folder)
            os.close(file)
        _sync(folder)
        return True
    finally:
        os.close(folder)


class UnfinishedFile:
    """A file that other code fills, by its path. It has no name of its own until it is published."""

    def __init__(self, folder: int, place: Path, temporary: str, file: int) -> None:
        self._folder = folder
        self._name = place.name
        self._temporary = temporary
        self._file = file
        self._published = False
        self.path = str(place.parent / temporary)

    def publish(self, *, overwrite: bool) -> None:
        """Synced, and under its name. Raises FileExistsError if there is one that may not be replaced."""
        _sync(self._file)
        if overwrite:
            os.replace(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        else:
            os.link(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.unlink(self._temporary, dir_fd=self._folder)
        self._published = True
        _sync(self._folder)

    def close(self) -> None:
        if not self._published:
            _remove(self._folder, self._temporary)
        os.close(self._file)


@contextlib.contextmanager
def unfinished_file(path: Path, mode: int = 0o600) -> Iterator[UnfinishedFile]:
    """For what is too large to be written at once, or is written by others: whole or not at all. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_litter(folder)
        made = UnfinishedFile(folder, path, *_new_file(folder, mode))
        try:
            yield made
        finally:
            made.close()
    finally:
        os.close(folder)


def nameless_file(folder: Path) -> BinaryIO:
    """For what is too large for memory and needed only now: gone when it is closed, or its process is. Not in the
    folder for temporary files, which may be memory. Raises OSError.
    """
    return cast(BinaryIO, tempfile.TemporaryFile(dir=folder, prefix=".holdfast-", suffix=".tmp"))


def have_private_file(path: str) -> None:
    """Make an empty file for this user alone where there is none, before others make one with the umask, as SQLite
    does. It is not opened where that can be helped: to close a descriptor of a database drops the locks that SQLite
    has on it in this process. What keeps it from being made, who opens the file will say.
    """
    place = os.path.realpath(path)
    try:
        os.mknod(place, stat.S_IFREG | 0o600)
    except FileExistsError:
        return
    except OSError:  # macOS, and some file systems
        with contextlib.suppress(OSError):
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def make_home(home: Path) -> None:
    """For this user alone, and nothing of it ever gets into a repository. Raises OSError."""
    if not home.is_dir():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        create_path(home / ".gitignore", b"*\n", 0o600)


def make_folder(folder: int, name: str) -> None:
    """Make the folder `name` in the open `folder`, for good. Raises FileExistsError if there is anything."""
    os.mkdir(name, dir_fd=folder)
    _sync(folder)


def remove_litter(folder: int) -> None:
    """Remove the temporary files of writers that are dead. Those of living ones are locked."""
    for name in _temporaries(folder):
        with contextlib.suppress(OSError):  # gone, not ours, or not for us to remove: the next one may succeed
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                found = os.fstat(file)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is(file, folder, name):
                        _remove(folder, name)
            finally:
                os.close(file)


def _remove(folder: int, name: str) -> None:
    """With what a database keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm", ".gate", ".lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{name}{suffix}", dir_fd=folder)


def _temporaries(folder: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if is_temporary(entry.name)]
    except PermissionError:  # a folder that may be written to, but not read
        return []


def _target(folder: int, name: str) -> os.stat_result | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{name!r} is not a regular file: it is not replaced")
    if not os.access(name, os.W_OK, dir_fd=folder, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(f"{name!r} is write-protected")
    return found


def _new_file(folder: int, mode: int) -> tuple[str, int]:
    """A file of a name that no other has, locked for as long as its descriptor is open.

    Between making and locking it, a process that tidies up may take it for a dead writer's: then it gets another
    name.
    """
    for _ in range(_TRIES_MAX):
        name = f".holdfast-{secrets.token_hex(16)}.tmp"
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        try:
            with _locks_missing():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(file, folder, name):
                return name, file
        except BlockingIOError:
            pass
        except BaseException:
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        os.close(file)
    raise OSError(f"{_TRIES_MAX} temporary files were removed by another process while they were made")


@contextlib.contextmanager
def _locks_missing() -> Iterator[None]:
    """On a file system without locks no process can lock it to remove it either."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError:
        return


def _is(file: int, folder: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _take_over(before: os.stat_result, folder: int, name: str, file: int) -> None:
    """Owner first: changing it would take permissions away. Set-user-id goes, as it does with any write."""
    now = os.fstat(file)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(file, before.st_uid, before.st_gid)
        except PermissionError:
            with contextlib.suppress(PermissionError):
                os.fchown(file, -1, before.st_gid)
    same_group = os.fstat(file).st_gid == before.st_gid  # else its rights would go to people who never had them
    os.fchmod(file, before.st_mode & (0o777 if same_group else 0o707))
    if hasattr(os, "getxattr"):  # with an ACL the group's bits are only its mask: alone they would allow too much
        try:
            acl = os.getxattr(f"/proc/self/fd/{folder}/{name}", _ACL, follow_symlinks=False)
        except OSError:  # the usual case: it has none
            return
        os.setxattr(file, _ACL, acl)


def _sync(file: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync reaches the drive, not its medium
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
    os.fsync(file)
