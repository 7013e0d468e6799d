"""Giving the room of deleted rows back to the disk: the file is built anew, and the new one put in its place.

SQLite uses the pages of deleted rows again: a file that is pruned stops growing without this. What gives them back:

- `VACUUM` in place writes everything twice, once into the WAL, needs twice the room, and keeps every writer waiting,
  the renewals of leases among them.
- `incremental_vacuum` works beside others, in slices, but only in files that keep a map of all pages from their
  beginning on. Measured here, that map costs every turn 6 % more pages. Too much for what most never need.
- `VACUUM INTO` a file beside it, checked, synced and renamed, as here. It takes the room of what is left, once. The
  file changes in one instant: a process that is killed before it leaves the old one, one that runs out of disk as
  well.

No other process may have the database open meanwhile, and none can open it: what they wrote would be missing in the
new file. The lock is SQLite's own, held until the new file has its name.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from holdfast.errors import ConfigError, StoreFull, StoreReadOnly, StoreUnavailable
from holdfast.faults import reach
from holdfast.store.sqlite.backup import CopyProgress, check_copy, in_use
from holdfast.store.sqlite.checkpoints import in_doubt, write_anew
from holdfast.store.sqlite.connection import check_place, check_whose
from holdfast.store.sqlite.errors import translated
from holdfast.store.sqlite.holder import posix_holders
from holdfast.system import disk

STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's work, between two looks at how far it is
ROOM_SPARE = 1.02  # a page is not always as full as it was
ROOM_SPARE_BYTES = 1 << 20


class GaveUp(Exception):
    """The caller does not want it any more."""


class Vacuumed(NamedTuple):
    """How large the file was, how much of that was free, and how large it is."""

    before: int
    free: int
    after: int


def vacuum(
    path: str, progress: CopyProgress = lambda _done, _all: None, gave_up: Callable[[], bool] = bool
) -> Vacuumed:
    """Raises StoreBusy while a process has the database open, StoreFull where there is no room, ConfigError where
    there is no database, and GaveUp when `gave_up`. In each case nothing was changed.
    """
    path = os.path.realpath(path)
    check_place(path)
    if not os.path.exists(path):
        raise ConfigError(f"there is no database {path}")
    if posix_holders(path):
        raise in_use(path)
    write_anew(path)
    if in_doubt(path):
        raise StoreUnavailable(f"{path} is in doubt after a failed sync: mend the disk first; nothing was changed")
    with _alone(path) as connection, translated(path):
        page, pages, free = (connection.pragma(name) for name in ("page_size", "page_count", "freelist_count"))
        left = page * (pages - free)
        with disk.unfinished_file(Path(path)) as copy:  # which removes what a killed one left
            _check_room(path, left)
            _build(connection, copy.path, left, progress, gave_up)
            check_copy(copy.path)
            _take_over(path, copy.path)
            reach("vacuum.rebuilt")
            copy.publish(overwrite=True)
        return Vacuumed(page * pages, page * free, os.stat(path).st_size)


@contextmanager
def _alone(path: str) -> Iterator[apsw.Connection]:
    """No other process has the file open, and none opens it. Its WAL is in it. Raises StoreBusy."""
    with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(0)
        try:
            connection.pragma("locking_mode", "EXCLUSIVE")
            check_whose(connection, path)
            alone = connection.pragma("journal_mode", "DELETE") == "delete"
            connection.execute("BEGIN EXCLUSIVE; COMMIT")  # the lock stays
        except apsw.BusyError:
            alone = False
        if not alone:
            raise in_use(path)
        yield connection


def _check_room(path: str, left: int) -> None:
    need = int(left * ROOM_SPARE) + ROOM_SPARE_BYTES
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < need:
        raise StoreFull(
            f"the disk of {path} has {free / 1e6:,.0f} MB free, and {need / 1e6:,.0f} MB are needed for a while: "
            "free some; nothing was changed"
        )


def _build(
    connection: apsw.Connection, target: str, left: int, progress: CopyProgress, gave_up: Callable[[], bool]
) -> None:
    def look() -> bool:
        progress(min(os.stat(target).st_size, left), left)
        return gave_up()

    connection.pragma("temp_store", "FILE")
    connection.set_progress_handler(look, STEPS_BETWEEN_LOOKS)
    try:
        connection.execute("VACUUM INTO ?", (target,))
    except apsw.InterruptError:
        raise GaveUp from None
    finally:
        connection.set_progress_handler(None)
    if gave_up():
        raise GaveUp


def _take_over(path: str, made: str) -> None:
    """Whose file it is, and who may read it."""
    before, now = os.stat(path), os.stat(made)
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        try:
            os.chown(made, before.st_uid, before.st_gid)
        except PermissionError:
            raise StoreReadOnly(f"{path} is another user's: run this as that user; nothing was changed") from None
    os.chmod(made, before.st_mode & 0o777)
