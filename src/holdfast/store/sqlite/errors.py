"""What SQLite's errors mean: which of our errors to raise, and whether a second look is worth it."""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from holdfast.core.codec import NOT_UNICODE
from holdfast.errors import (
    HoldfastError,
    InvalidInput,
    Outcome,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)

# What SQLite says of a damaged file, and of a read that went wrong without an error (a bad cable, memory that flips).
# A file counts as damaged when a second look finds it so.
DAMAGED = (apsw.CorruptError, apsw.NotADBError)


@contextmanager
def translated(path: str, *, committing: bool = False) -> Iterator[None]:
    """SQLite's errors as ours. `committing`: an I/O error leaves open whether the commit reached the disk."""
    try:
        yield
    except (apsw.Error, UnicodeError) as error:
        raise explain(error, path, committing=committing) from error


def explain(error: apsw.Error | UnicodeError, path: str, *, committing: bool = False) -> HoldfastError:
    match error:
        case UnicodeError():
            return InvalidInput("text", f"{NOT_UNICODE}; decode the input properly")
        case apsw.FullError():
            return StoreFull(f"no room left on the disk of {path}: nothing was written; free some and try again")
        case apsw.IOError() if not committing and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
            # The shared memory of the WAL is a file, too. (In a commit the frames are on the disk by then.)
            return StoreFull(f"no room left on the disk of {path} to open it: free some and try again")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreReadOnly(f"{path} cannot be written to ({error}): check the permissions of file and folder")
        case apsw.NotADBError():
            return StoreCorrupt(f"{path} is not a SQLite database: name another file, nothing in it was changed")
        case apsw.CorruptError():
            return StoreCorrupt(f"{path} is damaged ({error}): restore it from a backup, and keep the damaged file")
        case apsw.CantOpenError():
            return StoreUnavailable(f"{path} cannot be opened ({error}): is its folder there, and writable?")
        case apsw.BusyError() | apsw.LockedError():
            return StoreTimeout(f"{path} is locked by another program, which does not let go: end it, or try again")
        case _:
            outcome: Outcome = "unknown" if committing else "not_written"
            return StoreUnavailable(f"{path}: {error}; ask again", outcome=outcome)
