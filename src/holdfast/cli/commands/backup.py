"""`holdfast backup` and `holdfast restore`: a copy of the database, and back.

PostgreSQL has its own tools for both (docs/operating.md says which). After them `holdfast restore` without a file
does what they cannot: it ends the leases that came back with the database.
"""

import time
from pathlib import Path

from msgspec.structs import replace as changed

from holdfast.cli.app_choice import UsageError, app_of_data, app_with_data
from holdfast.cli.given_paths import given_path
from holdfast.cli.options import Where
from holdfast.cli.progress import ProgressLine, megabytes
from holdfast.safe_text import safe
from holdfast.store.sqlite.backup import back_up, copy_to_restore, in_use, kept_as, replace
from holdfast.store.sqlite.holder import posix_holders
from holdfast.store.sqlite.store import SqliteStore


async def backup(where: Where, file: str, *, force: bool) -> int:
    store = app_with_data(where).store
    if not isinstance(store, SqliteStore):
        raise UsageError(
            f"{safe(str(store))} has its own tools for that: pg_dump, or pg_basebackup (docs/operating.md)"
        )
    began = time.monotonic()
    target = _absolute(file)
    with ProgressLine("copying") as shown, given_path(target):
        size = back_up(store.path, target, overwrite=force, progress=shown.update)
    print(f"{safe(file)}: {megabytes(size)} in {time.monotonic() - began:.1f} s, checked")
    return 0


async def restore(where: Where, file: str | None, *, force: bool) -> int:
    store = app_of_data(where).store
    if isinstance(store, SqliteStore):
        if file is None:
            raise UsageError("which backup? holdfast restore FILE")
        return await _restore_file(store, _absolute(file), force=force)
    if file is not None:
        raise UsageError(
            f"{safe(str(store))} is restored by its own tools (docs/operating.md): run `holdfast restore` after "
            "them, without a file"
        )
    async with store:
        ended = await store.end_all_leases()
    print(f"{safe(str(store))}: noted that it went back; {_leases(ended)} ended")
    return 0


async def _restore_file(store: SqliteStore, backup: Path, *, force: bool) -> int:
    path = _check_place(store.path, backup, force=force)
    began = time.monotonic()
    with ProgressLine("copying") as shown, copy_to_restore(backup, str(path), shown.update) as draft:
        # Before it is in its place: no worker is to see a lease of then that looks alive.
        options = changed(store.options, only_reads=False)
        async with SqliteStore(f"/{draft.path}", options, private=True) as copy:
            ended = await copy.end_all_leases()
        size = replace(draft, str(path))
    took_s = time.monotonic() - began
    print(f"{safe(store.path)}: {megabytes(size)} in {took_s:.1f} s, checked; {_leases(ended)} ended")
    return 0


def _check_place(database: str, backup: Path, *, force: bool) -> Path:
    """What can be said before anything is copied. Returns what is replaced: behind a link, the database itself."""
    path = Path(database).resolve()
    with given_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return path
    if backup.exists() and path.samefile(backup):
        raise UsageError(f"{safe(str(backup))} is the database itself")
    if not force:
        raise UsageError(f"{path} is there: say --force to replace it (it is kept as {kept_as(str(path))})")
    if posix_holders(str(path)):
        raise in_use(str(path))
    return path


def _absolute(file: str) -> Path:
    return Path(file).absolute()


def _leases(count: int) -> str:
    return f"{count} lease{'s' if count != 1 else ''}"
