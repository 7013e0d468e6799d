"""Copies of a SQLite file: one of a moment, made while it is in use, and one that is put in its place.

A copy is read in one read transaction, in small steps: it shows one moment, and no writer waits for it. (While it
lasts the WAL cannot start over, so it grows by what is written meanwhile.) It is made under a temporary name,
checked, synced and renamed, so that there is a whole copy or none.

A file is replaced only while no process has it open, and none can open it. Processes that use a database hold
SQLite's shared lock on it for as long as they have it open; `Alone` holds that lock against them. What SQLite keeps
beside the file (`-wal`) belongs to the old one and would be taken for the new one's: it is brought into the old file
first.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import apsw

from holdfast.errors import ConfigError, StoreBusy, StoreCorrupt
from holdfast.faults import reach
from holdfast.store.sqlite.connection import check_whose, connect, reading
from holdfast.store.sqlite.errors import explain, translated
from holdfast.store.sqlite.holder import posix_holders
from holdfast.system import disk

PAGES_PER_STEP = 256  # a MiB: some milliseconds
SIDE_FILES = ("-journal", "-wal", "-shm", ".gate", ".lock")

# SQLite's own bytes of a file that carry its shared lock (os_unix.c: PENDING_BYTE + 2, for 510).
_MAGIC = b"SQLite format 3\0"
_SHARED_FIRST, _SHARED_BYTES = 0x40000002, 510

_WRITING = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_TRUNCATE, apsw.SQLITE_IOERR_FSYNC)

CopyProgress = Callable[[int, int], None]  # pages that are done, pages in all


def back_up(
    path: str, target: Path, *, overwrite: bool = False, progress: CopyProgress = lambda _done, _all: None
) -> int:
    """Returns how large it is. Raises ConfigError where there is such a file already, and what reading raises."""
    if not overwrite and target.exists():
        raise ConfigError(f"{target} is there already: name another file, or say --force to replace it")
    with disk.unfinished_file(target) as copy:
        with closing(connect(path, read_only=True)) as source, translated(path):
            _copy(source, copy.path, str(target), progress)
        with translated(str(target)):
            check_copy(copy.path)
        reach("backup.checked")
        copy.publish(overwrite=overwrite)
    return target.stat().st_size


@contextmanager
def copy_to_restore(
    backup: Path, path: str, progress: CopyProgress = lambda _done, _all: None
) -> Iterator[disk.UnfinishedFile]:
    """A whole copy of a backup beside the database, to be prepared, and then put in its place by `replace`."""
    if not backup.is_file():
        raise ConfigError(f"there is no file {backup}")
    with disk.unfinished_file(Path(path)) as copy:
        with translated(str(backup)), closing(_opened_to_read(backup)) as source:
            check_whose(source, str(backup))
            if source.pragma("application_id") == 0:
                raise ConfigError(f"{backup} is empty: it is no backup of ours")
            _copy(source, copy.path, path, progress)
        with translated(path):
            check_copy(copy.path)
        yield copy


def replace(copy: disk.UnfinishedFile, path: str) -> int:
    """Returns how large it is. Raises StoreBusy while a process has the database open; then nothing was changed."""
    reach("restore.prepared")
    for suffix in SIDE_FILES:
        with suppress(FileNotFoundError):
            os.unlink(f"{copy.path}{suffix}")
    if not os.path.exists(path):
        copy.publish(overwrite=False)
        return os.stat(path).st_size
    if _is_a_database(path):
        _empty_wal(path)
    with Alone(path):
        kept = kept_as(path)
        if os.path.exists(f"{path}-wal") and os.stat(f"{path}-wal").st_size:
            # It can only be that of a file that SQLite cannot read. It is kept with it, under the same name.
            os.replace(f"{path}-wal", f"{kept}-wal")
        if not os.path.exists(kept):  # else by a restore that was killed
            os.link(path, kept)
        os.chmod(copy.path, os.stat(path).st_mode & 0o777)
        reach("restore.kept")
        copy.publish(overwrite=True)
    return os.stat(path).st_size


def kept_as(path: str) -> str:
    """Where the database that is replaced will be. What an earlier restore kept stays: who restores twice mostly took
    the wrong backup first.
    """
    for n in count(1):
        name = f"{path}.before-restore" + (f"-{n}" if n > 1 else "")
        if not os.path.lexists(name) or (os.path.exists(name) and os.path.samefile(name, path)):
            return name
    raise AssertionError("a counter never ends")


def _is_a_database(path: str) -> bool:
    """SQLite, asked about a file that is none, would remove the WAL beside it. No process has it open meanwhile."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _empty_wal(path: str) -> None:
    """The newest changes of the old file are in its WAL. Raises StoreBusy; a damaged file is left as it is."""
    with suppress(apsw.CorruptError, apsw.NotADBError), closing(apsw.Connection(path)) as connection:
        connection.set_busy_timeout(0)
        try:
            connection.pragma("journal_mode", "DELETE")
        except apsw.BusyError:
            raise in_use(path) from None


class Alone:
    """No other process has the file open, and none opens it meanwhile. Raises StoreBusy."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED_FIRST)
        except OSError:
            error = in_use(self._path)
            os.close(self._fd)
            raise error from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def in_use(path: str) -> StoreBusy:
    holders = posix_holders(path)
    who = f" by {', '.join(holders)}" if holders else ""
    return StoreBusy(f"{path} is in use{who}: stop its workers and servers first; nothing was changed")


def _opened_to_read(backup: Path) -> apsw.Connection:
    return apsw.Connection(
        str(backup), flags=apsw.SQLITE_OPEN_READWRITE if os.access(backup, os.W_OK) else apsw.SQLITE_OPEN_READONLY
    )


def _copy(source: apsw.Connection, draft: str, target: str, progress: CopyProgress) -> None:
    """Into the file `draft`, which people know as `target`."""
    with _writing_to(target), closing(apsw.Connection(draft)) as made:
        made.pragma("synchronous", "OFF")  # it is synced as a whole
        with reading(source):
            source.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # from here on it is one moment
            with made.backup("main", source, "main") as copy:
                while not copy.done:
                    copy.step(PAGES_PER_STEP)
                    reach("copy.step")
                    progress(copy.page_count - copy.remaining, copy.page_count)
        made.pragma("journal_mode", "DELETE")  # one file, with nothing beside it


@contextmanager
def _writing_to(target: str) -> Iterator[None]:
    """SQLite does not say of which of the two files an error is; but only one of them is written to."""
    try:
        yield
    except (apsw.FullError, apsw.IOError) as error:
        if isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _WRITING:
            raise explain(error, target) from error
        raise


def check_copy(path: str) -> None:
    with closing(apsw.Connection(path)) as made:
        found = [row[0] for row in made.execute("PRAGMA integrity_check").fetchall()]
    if found != ["ok"]:
        raise StoreCorrupt(f"the copy is damaged ({found[0]}), and most likely so is what was copied: it is not kept")
