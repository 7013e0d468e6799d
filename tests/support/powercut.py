"""A power cut for SQLite, simulated: records what reaches the disk, and builds what a cut could leave of it.

`PowerCutVFS` passes every call to the real files through SQLite's own "unix" VFS and keeps one log, in one
order, of whatever a disk has to remember: opens, writes, truncates, syncs, deletes, and the test's own marks
("this commit was acknowledged"). `Recorder.crashes` replays that log and cuts the power after any operation.
`materialise` writes the files of one such crash into a fresh folder, to be opened with the normal VFS.
`Faults` makes the same disk fail while it is in use.

What the simulated disk promises, and nothing more:

1.  A sync makes the writes and truncates of that one file durable that were complete when the sync began. It
    says nothing of other files, and nothing of the file's name in its folder.
2.  Of what is not synced, any part may survive in any combination: a later write without an earlier one, some
    512-byte sectors of a write (sectors count from the start of the file), the new length without the data
    (zeros), or noise. Survivors land in the order in which they were made.
3.  Bytes outside a write are never harmed by it. This is SQLITE_IOCAP_POWERSAFE_OVERWRITE, which the unix VFS
    claims on Linux (it reports 0x9000: that, and SUBPAGE_READ); so SQLite does not pad the WAL to whole
    sectors. Every other claim of the real device (atomic writes, ordered writes, safe append) is masked out,
    for the model does not keep them.
4.  A created or deleted name is durable only after its folder was synced; until then, each state that the
    name has had since the last such sync may be the one found. POSIX promises no more, although ext4, XFS and
    btrfs do keep the name of a file that was synced. SQLite never syncs the folder for a new main database
    file. It does so with the first sync of each handle on a -wal or -journal that was opened with
    SQLITE_OPEN_CREATE (os_unix.c, UNIXFILE_DIRSYNC), and that one sync covers all names in the folder, the
    database's too. It deletes -journal (unless synchronous=EXTRA) and -wal without syncing the folder: a
    deleted file may return.
5.  What a failed sync should have written stays uncertain for ever: no later sync makes it durable, only
    writing it again does. Linux marks such pages clean, so the next fsync succeeds without them.

Not recorded: -shm (volatile: recovery rebuilds it), temporary files, and what other processes write. One
recorder records one folder.

A limit of apsw: an exception raised in a Python VFS surfaces from the call that was running, even where
SQLite itself swallows the error. An automatic checkpoint that fails under injected faults makes the COMMIT
raise although it stands; with the C VFS that COMMIT would return normally. So it is with errors in close().
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import apsw

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Crash", "CrashPoint", "Faults", "PowerCutVFS", "Recorder", "materialise", "replay"]

SECTOR_BYTES = 512

FileKind = Literal["db", "wal", "journal", "super-journal"]
FaultyCall = Literal["open", "read", "write", "truncate", "sync", "delete"]

_KIND_OF_FLAG: dict[int, FileKind] = {
    apsw.SQLITE_OPEN_MAIN_DB: "db",
    apsw.SQLITE_OPEN_WAL: "wal",
    apsw.SQLITE_OPEN_MAIN_JOURNAL: "journal",
    apsw.SQLITE_OPEN_SUPER_JOURNAL: "super-journal",
}
_KEPT_CHARACTERISTICS = apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE | apsw.SQLITE_IOCAP_SUBPAGE_READ
# Calls that would change a file's length behind the recorder's back, or promise what the model does not keep.
_REFUSED_CONTROLS = {apsw.SQLITE_FCNTL_CHUNK_SIZE, apsw.SQLITE_FCNTL_BEGIN_ATOMIC_WRITE}


# ---- the log ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    name: str
    kind: FileKind
    inode: int
    found: bytes | None  # what a file from before the recording held; None: this open created it


@dataclass(frozen=True, slots=True)
class Wrote:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    inode: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Synced:
    inode: int
    covers: int  # the log's length when the sync began: what came later may have missed it
    folder: bool  # the folder was synced along with the file
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    name: str
    folder: bool


@dataclass(frozen=True, slots=True)
class Marked:
    label: Any


Operation = Opened | Wrote | Truncated | Synced | Deleted | Marked


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where and how the power went. The same log, seed and count give the same points and the same images."""

    position: int  # the first `position` entries of the log had happened
    seed: int
    variant: int
    story: str

    def __str__(self) -> str:
        return f"power cut at {self.position} (seed {self.seed}, variant {self.variant}): {self.story}"


class Crash(NamedTuple):
    point: CrashPoint
    files: dict[str, bytes]
    acknowledged: tuple[Any, ...]


class Recorder:
    """The log of one folder. Every method may be called from any thread."""

    def __init__(self) -> None:
        # Held across each open, write, truncate and delete: the log's order is the order of the effects.
        self.lock = threading.RLock()
        self._log: list[Operation] = []
        self._folder: Path | None = None
        self._inodes: dict[str, int] = {}
        self._numbers = itertools.count()

    @property
    def position(self) -> int:
        """The number of entries so far; pass it as `since` to cut the power only after this moment."""
        with self.lock:
            return len(self._log)

    @property
    def log(self) -> tuple[Operation, ...]:
        with self.lock:
            return tuple(self._log)

    def mark(self, label: Any) -> None:
        """Note that the world was told something: any crash after this must keep the promise made."""
        self.add(Marked(label))

    def crashes(self, *, seed: int = 0, count: int = 200, since: int = 0) -> Iterator[Crash]:
        """Exactly `count` crashes of what is recorded now, by ascending position.

        Every position from `since` on is used equally often where `count` allows; the rest is a seeded
        sample, which holds the end of the log in any case.
        """
        log = self.log
        disk = _Disk()
        acknowledged: list[Any] = []
        reached = 0
        for position, variant in _choose(Random(f"{seed}"), range(since, len(log) + 1), count):
            for at in range(reached, position):
                disk.apply(at, log[at])
                if isinstance(entry := log[at], Marked):
                    acknowledged.append(entry.label)
            reached = position
            files, story = disk.cut(Random(f"{seed}/{position}/{variant}"))
            yield Crash(CrashPoint(position, seed, variant, story), files, tuple(acknowledged))

    def add(self, operation: Operation) -> None:
        with self.lock:
            self._log.append(operation)

    def add_open(self, path: Path, kind: FileKind, found: Callable[[], bytes] | None) -> int:
        """Note an open, and return the number of the file behind the name. `found` None: the file is new."""
        with self.lock:
            if self._folder is None:
                self._folder = path.parent
            if self._folder != path.parent:
                raise apsw.CantOpenError(f"{path} is outside {self._folder}: one recorder records one folder")
            if found is None or path.name not in self._inodes:
                inode = self._inodes[path.name] = next(self._numbers)
                self.add(Opened(path.name, kind, inode, None if found is None else found()))
            return self._inodes[path.name]

    def add_delete(self, path: Path, folder: bool) -> None:
        with self.lock:
            if path.parent == self._folder and self._inodes.pop(path.name, None) is not None:
                self.add(Deleted(path.name, folder))


def replay(recorder: Recorder, seed: int, count: int) -> Iterator[Crash]:
    """`for crash_point, files, acknowledged_marks in replay(recorder, seed, count)`."""
    return recorder.crashes(seed=seed, count=count)


def materialise(files: Mapping[str, bytes], folder: Path) -> Path:
    """Write one crash's files into `folder`, which must not exist yet, and return it. There is no -shm."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _choose(rng: Random, positions: Sequence[int], count: int) -> list[tuple[int, int]]:
    rounds, rest = divmod(count, len(positions))
    chosen = [(position, variant) for position in positions for variant in range(rounds)]
    if rest:
        sample = [*rng.sample(positions[:-1], rest - 1), positions[-1]]
        chosen += [(position, rounds) for position in sample]
    return sorted(chosen)


# ---- the disk that loses power ----------------------------------------------------------------------------

Change = Wrote | Truncated
# What becomes of one unsynced change: all of it, nothing, only its length, its first sectors, some sectors,
# or sectors that are each old, new or noise.
Verdict = Literal["kept", "lost", "grown", "prefix", "sectors", "noise"]


def _mixed(*verdicts: Verdict) -> Callable[[Random, int], list[Verdict]]:
    def fate(rng: Random, changes: int) -> list[Verdict]:
        weights = [rng.random() + 0.05 for _ in verdicts]
        return rng.choices(verdicts, weights, k=changes)

    return fate


def _cut_short(rng: Random, changes: int) -> list[Verdict]:
    whole = rng.randrange(changes)
    return ["kept" if each < whole else "prefix" if each == whole else "lost" for each in range(changes)]


def _only_the_latest(rng: Random, changes: int) -> list[Verdict]:
    missing = rng.randint(1, changes)
    return ["lost" if each < missing else "kept" for each in range(changes)]


_FATES: dict[str, Callable[[Random, int], list[Verdict]]] = {
    "lost": _mixed("lost"),
    "kept": _mixed("kept"),
    "cut short": _cut_short,
    "only the latest": _only_the_latest,
    "scattered": _mixed("kept", "lost", "grown"),
    "torn": _mixed("kept", "lost", "sectors", "prefix"),
    "noisy": _mixed("kept", "lost", "sectors", "noise"),
}


@dataclass(slots=True)
class _Pending:
    position: int
    change: Change
    settled: bool = False  # synced, but waiting behind an earlier change that is not
    adrift: bool = False  # a sync of it failed


@dataclass(slots=True)
class _Inode:
    content: bytearray
    pending: list[_Pending] = field(default_factory=list)

    def sync(self, covers: int, succeeded: bool) -> None:
        for pending in self.pending:
            if pending.position < covers:
                pending.adrift = pending.adrift or not succeeded
                pending.settled = pending.settled or not pending.adrift
        unsettled = next((i for i, each in enumerate(self.pending) if not each.settled), len(self.pending))
        for pending in self.pending[:unsettled]:
            _land(self.content, pending.change, "kept", None)
        del self.pending[:unsettled]

    def survive(self, fate: str, rng: Random) -> bytes:
        content = bytearray(self.content)
        open_changes = sum(not each.settled for each in self.pending)
        verdicts = iter(_FATES[fate](rng, open_changes) if open_changes else ())
        for pending in self.pending:
            _land(content, pending.change, "kept" if pending.settled else next(verdicts), rng)
        return bytes(content)


class _Disk:
    """The state after the first entries of a log: what is certain, and what is still open."""

    def __init__(self) -> None:
        self._inodes: dict[int, _Inode] = {}
        # What each name has stood for since the folder was last synced, as (position, inode or None).
        self._names: dict[str, list[tuple[int, int | None]]] = {}

    def apply(self, position: int, operation: Operation) -> None:
        match operation:
            case Opened(name, _, inode, None):
                self._inodes[inode] = _Inode(bytearray())
                self._names.setdefault(name, [(-1, None)]).append((position, inode))
            case Opened(name, _, inode, bytes(found)):
                self._inodes[inode] = _Inode(bytearray(found))
                self._names[name] = [(-1, inode)]
            case Wrote(inode) | Truncated(inode):
                self._inodes[inode].pending.append(_Pending(position, operation))
            case Synced(inode, covers, folder, succeeded):
                self._inodes[inode].sync(covers, succeeded)
                if folder:
                    self._sync_names(covers)
            case Deleted(name, folder):
                self._names[name].append((position, None))
                if folder:
                    self._sync_names(position + 1)
            case Marked():
                pass

    def cut(self, rng: Random) -> tuple[dict[str, bytes], str]:
        """One state in which the disk may be found, and how it came to be."""
        # A third of all images treat everything alike; in the others each file meets its own fate, so that
        # one file runs ahead of another.
        common = rng.choice(["lost", "kept", None, None, None, None])
        files: dict[str, bytes] = {}
        story: list[str] = []
        for name, history in self._names.items():
            fate = common or rng.choice(list(_FATES))
            chosen = 0 if common == "lost" else len(history) - 1 if common == "kept" else rng.randrange(len(history))
            _, number = history[chosen]
            if number is not None:
                inode = self._inodes[number]
                files[name] = inode.survive(fate, rng)
                story.append(f"{name}: {len(inode.pending)} unsynced, {fate}" if inode.pending else f"{name}: synced")
            if chosen < len(history) - 1:
                story.append(f"{name}: {len(history) - 1 - chosen} creations or deletions undone")
        return files, "; ".join(story) or "nothing there"

    def _sync_names(self, covers: int) -> None:
        for name, history in self._names.items():
            durable = sum(position < covers for position, _ in history) - 1
            self._names[name] = history[durable:]


def _land(content: bytearray, change: Change, verdict: Verdict, rng: Random | None) -> None:
    """Bring onto the disk what `verdict` leaves of `change`; only torn verdicts need an `rng`."""
    if verdict == "lost":
        return
    if isinstance(change, Truncated):
        if verdict == "kept" or (rng and verdict != "grown" and rng.random() < 0.5):
            _resize(content, change.size_bytes)
        return
    if verdict == "kept" or rng is None:
        _put(content, change.offset, change.data)
        return
    pieces = list(_sectors(change))
    if verdict == "grown":
        _resize(content, max(len(content), change.offset + len(change.data)))
    elif verdict == "prefix":
        for offset, data in pieces[: rng.randrange(len(pieces))]:
            _put(content, offset, data)
    else:
        for offset, data in pieces:
            draw = rng.random()
            if draw < 0.4:
                _put(content, offset, data)
            elif draw < 0.6 and verdict == "noise":
                _put(content, offset, rng.randbytes(len(data)))


def _sectors(write: Wrote) -> Iterator[tuple[int, bytes]]:
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield start, write.data[start - write.offset : stop - write.offset]
        start = stop


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


# ---- the disk that fails ----------------------------------------------------------------------------------

_DEFAULT_ERRORS: dict[FaultyCall, int] = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


@dataclass(slots=True)
class _Fault:
    call: FaultyCall
    file: FileKind | None
    nth: int
    times: int | None
    code: int
    torn: bool
    seen: int = 0

    def strikes(self, call: FaultyCall, file: FileKind) -> bool:
        if call != self.call or self.file not in (None, file):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)


class Faults:
    """What the disk refuses to do. A refused call changes nothing, except that a write may stop half way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[_Fault] = []
        self._room_bytes: int | None = None
        self.tripped: list[str] = []  # one line per refusal, so that a test can tell that its fault was met

    def fail(
        self,
        op: FaultyCall,
        *,
        file: FileKind | None = None,
        nth: int = 1,
        times: int | None = 1,
        error: int | type[apsw.Error] | None = None,
        torn: bool = False,
    ) -> None:
        """Refuse the `nth` such call from now on, of any file unless one is named, and `times - 1` after it.

        `times` None refuses until `clear`. `error` is a SQLite result code, apsw.FullError or apsw.IOError;
        by default it is what the unix VFS would say. A `torn` write lands its first half before it fails.
        """
        if op not in get_args(FaultyCall):
            raise ValueError(f"no such call: {op!r}; take one of {get_args(FaultyCall)}")
        code = _DEFAULT_ERRORS[op]
        if isinstance(error, int):
            code = error
        elif error is apsw.FullError:
            code = apsw.SQLITE_FULL
        elif error not in (None, apsw.IOError):
            raise ValueError(f"{error!r}: pass the SQLite result code instead of the class")
        with self._lock:
            self._armed.append(_Fault(op, file, nth, times, code, torn))

    def disk_full_after(self, room_bytes: int) -> None:
        """Let the files grow by `room_bytes` more. A write that asks for more lands as far as there is room.

        Overwriting needs no room, as on a disk that does not copy on write; truncating and deleting give
        some back. The -shm is not counted.
        """
        with self._lock:
            self._room_bytes = room_bytes

    def clear(self) -> None:
        """The disk is well again, and has room."""
        with self._lock:
            self._armed.clear()
            self._room_bytes = None

    def check(self, call: FaultyCall, file: FileKind) -> None:
        """Raise if this call, which is not a write, is to fail."""
        if fault := self._struck(call, file):
            raise self._error(fault.code, f"{call} {file}")

    def admit_write(
        self, file: FileKind, offset: int, data: bytes, size: Callable[[], int]
    ) -> tuple[bytes, Exception | None]:
        """The part of `data` that lands, and what is to be raised after that."""
        if fault := self._struck("write", file):
            landing = data[: len(data) // 2] if fault.torn else b""
            return landing, self._error(fault.code, f"write {file}, {len(landing)} of {len(data)} bytes landed")
        with self._lock:
            if self._room_bytes is None:
                return data, None
            growth = max(0, offset + len(data) - size())
            missing = max(0, growth - self._room_bytes)
            self._room_bytes -= growth - missing
        if not missing:
            return data, None
        landing = data[: max(0, len(data) - missing)]
        return landing, self._error(apsw.SQLITE_FULL, f"write {file}, {len(landing)} of {len(data)} bytes landed")

    def free(self, size_bytes: int) -> None:
        """A file shrank, or went."""
        with self._lock:
            if self._room_bytes is not None:
                self._room_bytes += size_bytes

    def _struck(self, call: FaultyCall, file: FileKind) -> _Fault | None:
        with self._lock:
            # Every fault counts the call, also when another one has struck already.
            return next(iter([fault for fault in self._armed if fault.strikes(call, file)]), None)

    def _error(self, code: int, what: str) -> Exception:
        self.tripped.append(what)
        # apsw hands this very object to whoever called SQLite: it has to carry the codes SQLite would give.
        error = apsw.exception_for(code)
        error.args = (f"injected: {what}",)
        return error


# ---- the VFS ----------------------------------------------------------------------------------------------


class PowerCutVFS(apsw.VFS):
    """Registers itself under a name of its own: `apsw.Connection(path, vfs=disk.name)`.

    With `default=True`, connections that name no VFS use it too; open crash images with `vfs="unix"` then.
    Leaving the `with` block clears its faults, closes what connections a failed test left open (the garbage
    collector would take this object apart first, and then call it), and unregisters it.
    """

    _numbers = itertools.count(1)

    def __init__(self, *, default: bool = False) -> None:
        self.name = f"powercut-{next(self._numbers)}"
        self.recorder = Recorder()
        self.faults = Faults()
        super().__init__(self.name, "unix", makedefault=default)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.faults.clear()
        for connection in apsw.connections():
            if connection.open_vfs == self.name:
                connection.close(True)
        self.unregister()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        kind = next((kind for flag, kind in _KIND_OF_FLAG.items() if flags[0] & flag), None)
        if name is None or kind is None:
            return apsw.VFSFile("unix", name, flags)
        self.faults.check("open", kind)
        with self.recorder.lock:
            return _File(self, kind, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        path = Path(filename)
        self.faults.check("delete", "wal" if filename.endswith("-wal") else "journal")
        with self.recorder.lock:
            size_bytes = path.stat().st_size if path.exists() else 0
            super().xDelete(filename, syncdir)
            self.recorder.add_delete(path, syncdir)
            self.faults.free(size_bytes)

    def xSleep(self, microseconds: int) -> int:
        # apsw's own keeps the GIL while it sleeps, so whoever waits for a lock would stop its owner: with four
        # writing threads that cost 5 s instead of 0.05 s.
        time.sleep(microseconds / 1_000_000)
        return microseconds


class _File(apsw.VFSFile):
    def __init__(self, vfs: PowerCutVFS, kind: FileKind, name: str | apsw.URIFilename, flags: list[int]) -> None:
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
        existed = path.exists()
        self._recorder = vfs.recorder
        self._faults = vfs.faults
        self._kind = kind
        # The unix VFS looks at the flag, not at whether the file was there: every new handle does it once.
        self._folder_due = kind != "db" and bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        super().__init__("unix", name, flags)
        self._inode = vfs.recorder.add_open(path, kind, self._content if existed else None)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._faults.check("read", self._kind)
        return super().xRead(amount, offset)

    def xWrite(self, data: Buffer, offset: int) -> None:
        with self._recorder.lock:
            landing, error = self._faults.admit_write(self._kind, offset, bytes(data), self.xFileSize)
            if landing:
                super().xWrite(landing, offset)
                self._recorder.add(Wrote(self._inode, offset, landing))
        if error:
            raise error

    def xTruncate(self, newsize: int) -> None:
        self._faults.check("truncate", self._kind)
        with self._recorder.lock:
            freed_bytes = self.xFileSize() - newsize
            super().xTruncate(newsize)
            self._recorder.add(Truncated(self._inode, newsize))
            self._faults.free(freed_bytes)

    def xSync(self, flags: int) -> None:
        # The lock is not held: others may write during a sync, and it need not cover what they write.
        covers = self._recorder.position
        try:
            self._faults.check("sync", self._kind)
            super().xSync(flags)
        except apsw.Error:
            self._recorder.add(Synced(self._inode, covers, folder=False, succeeded=False))
            raise
        self._recorder.add(Synced(self._inode, covers, folder=self._folder_due, succeeded=True))
        self._folder_due = False

    def xDeviceCharacteristics(self) -> int:
        return super().xDeviceCharacteristics() & _KEPT_CHARACTERISTICS

    def xFileControl(self, op: int, ptr: int) -> bool:
        return op not in _REFUSED_CONTROLS and super().xFileControl(op, ptr)

    def _content(self) -> bytes:
        # Read through this handle: closing another descriptor of the file would drop SQLite's POSIX locks.
        size_bytes = self.xFileSize()
        return super().xRead(size_bytes, 0) if size_bytes else b""
