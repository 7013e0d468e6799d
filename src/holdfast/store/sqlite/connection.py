"""Opening a SQLite file: pragmas one by one and read back, checks of what the file is and where it lies, and the
locks around each write.

The database file is never opened by other means: closing a second descriptor in this process would drop SQLite's
own locks. `-wal` and `-shm` are SQLite's alone.
"""

import fcntl
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw

from holdfast.errors import ConfigError, SchemaError, StoreGone, StoreReadOnly, StoreTimeout, StoreUnavailable
from holdfast.store.sqlite.errors import DAMAGED, translated
from holdfast.store.sqlite.holder import holder_of
from holdfast.system import threads
from holdfast.system.disk import have_private_file

BUSY_TIMEOUT_MS = 5_000
# After a reset the WAL file is cut back to this; it can grow beyond while a reader is in the way.
WAL_KEEP_BYTES = 16 << 20

# Marks a file as ours ("HOLD"), so that another program's database is never taken for one.
APPLICATION_ID = 0x484F4C44

_NETWORK_FILESYSTEMS = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "afs",
            "9p",
            "davfs",
            "ceph",
            "glusterfs",
            "lustre",
            "gpfs",
            "beegfs",
        ),
        *("fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.davfs2"),
    }
)


def connect(
    path: str, *, read_only: bool = False, vfs: str | None = None, synchronous: str = "FULL"
) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with translated(path):
        try:
            return _connect(path, flags, vfs, read_only=read_only, synchronous=synchronous)
        except DAMAGED:
            return _connect(path, flags, vfs, read_only=read_only, synchronous=synchronous)


def _connect(path: str, flags: int, vfs: str | None, *, read_only: bool, synchronous: str) -> apsw.Connection:
    if vfs is None and flags & apsw.SQLITE_OPEN_CREATE:
        have_private_file(path)  # and what SQLite keeps beside it gets the same rights
    before = _inode(path)
    connection = apsw.Connection(path, flags=flags, vfs=vfs, statementcachesize=200)
    try:
        before = before or _inode(path)
        _configure(connection, path, read_only=read_only, synchronous=synchronous)
        # It has SQLite's shared lock now, which keeps a restore away. One that came before that left us with a file
        # that has no name any more: what is written to it is lost.
        if _inode(path) != before:
            raise StoreUnavailable(f"{path} was replaced while it was opened; try again")
    except BaseException:
        connection.close()
        raise
    return connection


def _configure(connection: apsw.Connection, path: str, *, read_only: bool, synchronous: str) -> None:
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    if connection.readonly("main"):
        raise StoreReadOnly(f"{path} cannot be written to: check the permissions of the file and of its folder")
    check_whose(connection, path)
    connection.wal_autocheckpoint(0)  # checkpoints are ours: counted, and never inside a commit
    _use_wal(connection)
    expected = {
        "journal_mode": ("WAL", "wal"),
        "synchronous": (synchronous, {"FULL": 2, "NORMAL": 1, "OFF": 0}[synchronous]),
        # On macOS a plain fsync leaves the data in the drive's own cache; elsewhere these change nothing.
        "fullfsync": ("ON", 1),
        "checkpoint_fullfsync": ("ON", 1),
        "foreign_keys": ("OFF", 0),
        "temp_store": ("MEMORY", 2),
        # What leaves the queue, the deltas or a page's free space is overwritten at once: when a chat is deleted,
        # earlier copies of its text would be out of reach. Measured: 2 to 3 % more pages while text is streamed.
        "secure_delete": ("ON", 1),
        "cache_size": ("-16000", -16000),
        "journal_size_limit": (str(WAL_KEEP_BYTES), WAL_KEEP_BYTES),
        "query_only": ("ON" if read_only else "OFF", int(read_only)),
    }
    for name, (value, wanted) in expected.items():
        connection.pragma(name, value)
        if (got := connection.pragma(name)) != wanted:
            raise StoreUnavailable(f"{path}: SQLite answered {name}={got!r} where {wanted!r} was asked for")


def _use_wal(connection: apsw.Connection) -> None:
    """Of two that turn a new file to WAL at the same instant, SQLite tells one that it is busy, without waiting."""
    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.pragma("journal_mode", "WAL")
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return


def check_whose(connection: apsw.Connection, path: str) -> None:
    """Before anything is changed in it. In one transaction: another process may be making it ours this instant."""
    with reading(connection):
        application_id = connection.pragma("application_id")
        tables = len(connection.execute("SELECT 1 FROM sqlite_schema").fetchall())
    if application_id != APPLICATION_ID and (application_id or tables):
        raise SchemaError(
            f"{path} is a SQLite database of another program ({tables} tables and indexes): name another file, "
            "nothing in this one was changed"
        )


Values = tuple[Any, ...] | dict[str, Any]  # by place, or by name


def rows(connection: apsw.Connection, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
    return connection.execute(statement, values).fetchall()


def row(connection: apsw.Connection, statement: str, values: Values = ()) -> tuple[Any, ...] | None:
    return connection.execute(statement, values).fetchone()


@contextmanager
def reading(connection: apsw.Connection) -> Iterator[None]:
    """One moment for all statements. An I/O error may have ended it already: that error is the one to be told."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# --- where the file lies ------------------------------------------------------------------------------------------


def check_place(path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConfigError(f"the folder {folder} does not exist: create it, or name another path for the database")
    if os.path.isdir(path):
        raise ConfigError(f"{path} is a folder: name a file for the database")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            kind = filesystem_of(os.path.realpath(path), mounts.read())
    except OSError:
        return
    if kind in _NETWORK_FILESYSTEMS:
        raise ConfigError(
            f"{path} lies on a network file system ({kind}), where SQLite's locks do not hold between machines: "
            "use a local disk, or PostgreSQL for several machines"
        )


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """The type of the file system that `path` is on, from the text of /proc/self/mountinfo."""
    best = ""
    kind = None
    for line in mountinfo.splitlines():
        fields, separator, tail = line.partition(" - ")
        columns = fields.split()
        if not separator or len(columns) < 5 or not tail:
            continue
        mount = _unescaped(columns[4])
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, tail.split()[0]
    return kind


def _unescaped(field: str) -> str:
    r"""The kernel writes a space as `\040`; everything but space, tab, newline and backslash stands as it is."""
    raw = field.encode("utf-8", "surrogateescape")
    plain = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), raw)
    return plain.decode("utf-8", "surrogateescape")


class FileIdentity:
    """Notices that the database file or its WAL was deleted or replaced: what is written then goes nowhere,
    and what is read is of the past.

    SQLite keeps its WAL as long as a process has the database open, so a missing one was removed by another program.
    """

    def __init__(self, path: str) -> None:
        self._files = (path, f"{path}-wal")
        self._identity = self._look()

    def _look(self) -> list[tuple[int, int] | None]:
        return [_inode(file) for file in self._files]

    @property
    def holds(self) -> bool:
        return self._same(self._look())

    def _same(self, now: list[tuple[int, int] | None]) -> bool:
        return now == self._identity and None not in now

    def check(self) -> None:
        now = self._look()
        if not self._same(now):
            file = next(
                file
                for file, had, has in zip(self._files, self._identity, now, strict=True)
                if has != had or has is None
            )
            raise StoreGone(
                f"{file} was deleted or replaced while it was open: nothing is read from it and no write is "
                "acknowledged; restore the file and restart"
            )


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# --- one writer at a time, in turn ----------------------------------------------------------------------------------


def lock_path(path: str) -> str:
    return f"{path}.lock"


def gate_path(path: str) -> str:
    return f"{path}.gate"


def lock_paths(path: str) -> tuple[str, str]:
    """Both keep every other writer out: who waits for the lock holds the gate meanwhile."""
    return lock_path(path), gate_path(path)


class WriteLock:
    """The `flock` side files around each write transaction, across processes and across our own connections.

    SQLite's own lock is polled with sleeps, which starves a process that comes second to a busy writer. A flock wakes
    its waiters; the gate in front of it keeps the last holder from taking it again before a waiter got its turn.
    """

    def __init__(self, path: str) -> None:
        self._gate = self._lock = -1
        self._database = path
        self.path = lock_path(path)
        self._open()
        _locks.add(self)

    def _open(self) -> None:
        """Again, where `_let_go` had to close one of them."""
        try:
            if self._gate < 0:
                self._gate = _open_side_file(gate_path(self._database))
            if self._lock < 0:
                self._lock = _open_side_file(self.path)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> None:
        """Raises StoreUnavailable where the system has no lock to give: nothing was written."""
        self._open()
        self._flock(self._gate, fcntl.LOCK_EX)
        try:
            self._flock(self._lock, fcntl.LOCK_EX)
        finally:
            self._gate = _let_go(self._gate)

    def __exit__(self, *_: object) -> None:
        self._lock = _let_go(self._lock)

    def try_enter(self) -> bool:
        """Only if no process holds it or waits for it. Raises as `__enter__` does."""
        self._open()
        if not self._flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        try:
            return self._flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            self._gate = _let_go(self._gate)

    def _flock(self, fd: int, how: int) -> bool:
        try:
            fcntl.flock(fd, how)
        except BlockingIOError:
            return False
        except OSError as error:  # no more locks, a disk that fails
            raise StoreUnavailable(
                f"{self.path} cannot be locked ({error}); nothing was written: try again"
            ) from error
        return True

    @property
    def holder(self) -> str:
        return holder_of(*lock_paths(self._database)) or "a process that is not known here"

    def close(self) -> None:
        """Does nothing the second time."""
        for fd in (self._gate, self._lock):
            if fd >= 0:
                os.close(fd)
        self._gate = self._lock = -1

    def __del__(self) -> None:
        self.close()  # one that was opened for a caller who had given up by then


def _let_go(fd: int) -> int:
    """Never fails: what was done under the lock is done. One that cannot be unlocked goes with its descriptor."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        with suppress(OSError):
            os.close(fd)
        return -1
    return fd


_locks: "weakref.WeakSet[WriteLock]" = weakref.WeakSet()


def _let_go_in_a_fork() -> None:
    """A flock lives as long as any copy of its descriptor. If we are killed in the middle of a write, a forked child
    that does not exec (multiprocessing) would keep every process from writing for as long as it lives.
    """
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_let_go_in_a_fork)


def _open_side_file(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError as error:
        raise StoreReadOnly(
            f"{path} cannot be written to ({error}): check the permissions of file and folder"
        ) from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be opened ({error}); mend that and try again") from error


class TimedWriteLock:
    """The same lock for a caller that must not wait forever. A flock knows no deadline, so a thread waits in it.

    A lock that is not granted in time stays asked for, by at most one thread, and is let go again when it comes at
    a moment when no other process wants it. For one caller at a time.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = WriteLock(path)
        self._changed = threading.Condition()
        self._asking = self._wanted = self._granted = self._closed = False
        self._error: BaseException | None = None  # of the last who asked

    @contextmanager
    def within(self, wait_s: float) -> Iterator[None]:
        with self._changed:
            if self._asking or not self._lock.try_enter():
                self._wait(wait_s)
        try:
            yield
        finally:
            self._lock.__exit__()

    def _wait(self, wait_s: float) -> None:
        self._wanted = True
        self._error = None
        if not self._asking:
            self._asking = True
            threads.start("sqlite-lock", self._ask)
        self._changed.wait_for(lambda: self._granted or self._error is not None, wait_s)
        granted, error = self._granted, self._error
        self._wanted = self._granted = False
        if error is not None:
            raise error
        if not granted:
            raise StoreTimeout(
                f"the write lock of {self._path} was not free within {wait_s:g} s: held by {self._lock.holder}"
            )

    def _ask(self) -> None:
        try:
            self._lock.__enter__()
        except BaseException as error:  # noqa: BLE001  the waiter's; the next one asks anew
            with self._changed:
                self._asking = False
                self._error = error
                self._changed.notify()
                if self._closed:
                    self._lock.close()
            return
        with self._changed:
            self._asking = False
            if self._wanted:
                self._granted = True
                self._changed.notify()
                return
            self._lock.__exit__()
            if self._closed:
                self._lock.close()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if not self._asking:  # else the thread that waits closes it
                self._lock.close()
