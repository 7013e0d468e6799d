"""Checkpoints, and none after one whose sync failed: until the file was written anew from the WAL.

**What goes wrong.** A checkpoint copies pages from the WAL into the file and syncs that at its end. One that a
reader cuts short is not at its end: SQLite counts what it copied as done, and does not sync. If the sync of the
next one fails, Linux takes all those pages for clean, and no later sync writes them; SQLite copies only what came
after the first. Once a checkpoint is complete the WAL starts over, and what only the WAL held for certain is gone:
a power cut then loses writes that were acknowledged, or mangles the file. (`tests/powercut/test_the_simulator.py`
shows it of SQLite alone.)

**What helps.** As long as the WAL does not start over, everything is in it, synced. So after a failed sync no process
makes a checkpoint. Reading and writing go on, and the WAL grows. How far it was copied stands in the shared memory
of those who have the file open; when the last of them has closed it, that is forgotten. The process that opens it
then, alone, copies all of the WAL, syncs, and only then is the file as good as before.

**How the others know.** A byte in the file of the write lock says that the file is in doubt. A checkpoint is made
under that lock, and the process that meets the failed sync sets the byte before letting go: none can come between. It
is read by living processes of this machine, so it need not be durable: after a power cut no process has the file
open, and recovery copies everything. If not even the byte can be written, this process remembers, and makes no
checkpoint; the others have the failed sync told by their own (Linux tells each open file of it), and doubt it by
themselves.

SQLite makes a checkpoint by itself when the last connection closes. `leave` closes without, while the file is in
doubt. What a foreign program does to the file is beyond us.
"""

import logging
import os
from contextlib import closing, suppress

import apsw

from holdfast.errors import StoreError
from holdfast.store.sqlite.connection import WriteLock, lock_path

log = logging.getLogger("holdfast.store")

_SYNCS = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
_IN_DOUBT = b"1"

_here: set[str] = set()  # files in doubt that could not be marked as such


class InDoubt(Exception):
    """No checkpoint is made."""


def checkpoint(connection: apsw.Connection, path: str, mode: int) -> tuple[int, int]:
    """For who holds the write lock. Raises InDoubt, and what SQLite raises."""
    if in_doubt(path):
        raise InDoubt
    try:
        return connection.wal_checkpoint(mode=mode)
    except apsw.IOError as error:
        if getattr(error, "extendedresult", 0) in _SYNCS:
            _doubt(path)
        raise


def in_doubt(path: str) -> bool:
    if path in _here:
        return True
    try:
        with open(lock_path(path), "rb", buffering=0) as file:
            return file.read(1) == _IN_DOUBT
    except OSError:
        return False


def _doubt(path: str) -> None:
    try:
        _mark(path, _IN_DOUBT)
    except OSError:
        _here.add(path)
    log.error(
        "a sync of %s failed: no checkpoint is made any more, and its WAL grows; mend the disk, then stop every "
        "process that uses the file, and start again",
        path,
        extra={"action": "store.in_doubt"},
    )


def _mark(path: str, mark: bytes) -> None:
    fd = os.open(lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, mark, 0)
    finally:
        os.close(fd)


def leave(connection: apsw.Connection, path: str) -> None:
    """Close it; if it is the last one, without the checkpoint that SQLite would make of a file in doubt."""
    if in_doubt(path):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()


def write_anew(path: str, vfs: str | None = None) -> None:
    """Before a file is opened: if it is in doubt and no process has it open, all of its WAL is written into it."""
    if not in_doubt(path) or not os.path.exists(path):
        return
    lock = WriteLock(path)
    try:
        if not lock.try_enter():
            return
        try:
            _copy_all(path, vfs)
            _here.discard(path)
            with suppress(OSError):
                _mark(path, b"0")
            log.info("%s was written anew from its WAL", path, extra={"action": "store.written_anew"})
        except apsw.BusyError:
            log.warning(
                "%s is in doubt after a failed sync, and others have it open: stop all of them once",
                path,
                extra={"action": "store.in_doubt"},
            )
        except apsw.Error as error:
            extra = {"action": "store.in_doubt", "error": str(error)}
            log.error("%s is in doubt, and could not be written anew: %s", path, error, extra=extra)
        finally:
            lock.__exit__()
    except StoreError:
        return  # no lock is given: opening it will say so
    finally:
        lock.close()


def _copy_all(path: str, vfs: str | None) -> None:
    """Alone: SQLite then keeps what it knows of the WAL for itself, and begins with nothing. Raises BusyError."""
    with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(0)
        connection.wal_autocheckpoint(0)
        for name, value in (("locking_mode", "EXCLUSIVE"), ("synchronous", "FULL"), ("checkpoint_fullfsync", "ON")):
            connection.pragma(name, value)
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        total, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if total != moved:
            raise apsw.BusyError(f"{moved} of {total} pages were written")
