"""The power-cut simulator, tried on SQLite alone: it must find what can be lost, and nothing that cannot.

Every claim is tried in both directions. Where SQLite promises durability no image may break the promise; where
it promises less, or where the recorded disk is made to lie, the same checker has to report the loss.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from tests.support.powercut import (
    Deleted,
    Marked,
    Opened,
    PowerCutVFS,
    Recorder,
    Synced,
    Truncated,
    Wrote,
    materialise,
    replay,
)

COMMITS = 60
KEPT_ROWS = 20


@pytest.fixture
def disk() -> Iterator[PowerCutVFS]:
    with PowerCutVFS() as vfs:
        yield vfs


# ---- the workload and its checker -------------------------------------------------------------------------


def connect(disk: PowerCutVFS, path: Path, synchronous: str = "full") -> apsw.Connection:
    db = apsw.Connection(str(path), vfs=disk.name)
    db.set_busy_timeout(30_000)
    assert db.pragma("journal_mode", "wal") == "wal"
    db.pragma("synchronous", synchronous)
    db.pragma("wal_autocheckpoint", 0)
    return db


def body(row: int) -> bytes:
    return row.to_bytes(4, "big") * (row * 737 % 2000)


def create(db: apsw.Connection) -> None:
    with db:
        db.execute("create table kept (id integer primary key, body blob); create table latest (id)")
        db.execute("insert into latest values (0)")


def commit(db: apsw.Connection, row: int) -> None:
    """Change pages all over the file in one transaction, leaving exactly the last KEPT_ROWS rows."""
    with db:
        db.execute("insert into kept values (?, ?)", (row, body(row)))
        db.execute("delete from kept where id <= ?", (row - KEPT_ROWS,))
        db.execute("update latest set id = ?", (row,))


def commit_until(db: apsw.Connection, end: int) -> None:
    for row in range(2, end):
        commit(db, row)


def work(disk: PowerCutVFS, path: Path, synchronous: str) -> Recorder:
    """Sixty acknowledged commits, with passive and truncating checkpoints and a reopening among them."""
    db = connect(disk, path, synchronous)
    create(db)
    disk.recorder.mark(0)
    for row in range(1, COMMITS + 1):
        commit(db, row)
        disk.recorder.mark(row)
        if row % 13 == 0:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if row % 23 == 0:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if row % 40 == 0:
            db.close()
            db = connect(disk, path, synchronous)
    db.close()
    return disk.recorder


def judge(folder: Path, acknowledged: int | None) -> str:
    """ok, lost (an acknowledged commit is gone), mangled (no commit ever looked like this) or corrupt."""
    db = apsw.Connection(str(folder / "a.db"), vfs="unix")
    try:
        if db.pragma("integrity_check") != "ok":
            return "corrupt"
        if not db.table_exists("main", "latest"):
            return "ok" if acknowledged is None else "lost"
        latest: int = db.execute("select id from latest").get
        if acknowledged is not None and latest < acknowledged:
            return "lost"
        expected = [(row, body(row)) for row in range(max(1, latest - KEPT_ROWS + 1), latest + 1)]
        return "ok" if db.execute("select id, body from kept").fetchall() == expected else "mangled"
    except (apsw.CorruptError, apsw.NotADBError):
        return "corrupt"
    finally:
        db.close()


def judge_all(recorder: Recorder, folder: Path, *, seed: int = 1, count: int = 200) -> dict[str, list[str]]:
    """The verdicts reached, each but "ok" with the crashes that came to it."""
    verdicts: dict[str, list[str]] = {}
    for number, (point, files, acknowledged) in enumerate(replay(recorder, seed, count)):
        verdict = judge(materialise(files, folder / str(number)), acknowledged[-1] if acknowledged else None)
        stories = verdicts.setdefault(verdict, [])
        if verdict != "ok":
            stories.append(f"{folder / str(number)}: {point}")
    return verdicts


def lying(recorder: Recorder, *, about: str) -> Recorder:
    """The same log from a disk that reports success without doing what it says."""
    names = {entry.inode: entry.kind for entry in recorder.log if isinstance(entry, Opened)}
    liar = Recorder()
    for entry in recorder.log:
        if isinstance(entry, Synced) and about == "folder":
            entry = replace(entry, folder=False)
        elif isinstance(entry, Synced) and about == names[entry.inode]:
            entry = replace(entry, covers=0)
        liar.add(entry)
    return liar


# ---- both directions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_synchronous_full_every_acknowledged_commit_survives_every_cut(
    disk: PowerCutVFS, tmp_path: Path, seed: int
) -> None:
    recorder = work(disk, tmp_path / "a.db", "full")
    verdicts = judge_all(recorder, tmp_path / "images", seed=seed)
    assert verdicts.keys() == {"ok"}, verdicts


def test_with_synchronous_normal_commits_are_lost_but_nothing_is_corrupt(disk: PowerCutVFS, tmp_path: Path) -> None:
    recorder = work(disk, tmp_path / "a.db", "normal")
    verdicts = judge_all(recorder, tmp_path / "images")
    assert verdicts.keys() == {"ok", "lost"}, verdicts


def test_with_synchronous_off_commits_are_lost_and_the_file_is_corrupt(disk: PowerCutVFS, tmp_path: Path) -> None:
    recorder = work(disk, tmp_path / "a.db", "off")
    verdicts = judge_all(recorder, tmp_path / "images")
    assert {"lost", "corrupt"} <= verdicts.keys(), verdicts


@pytest.mark.parametrize(
    ("about", "damage"), [("wal", {"lost"}), ("db", {"lost", "corrupt", "mangled"}), ("folder", {"lost"})]
)
def test_a_disk_that_lies_about_its_syncs_is_found_out(
    disk: PowerCutVFS, tmp_path: Path, about: str, damage: set[str]
) -> None:
    honest = work(disk, tmp_path / "a.db", "full")
    verdicts = judge_all(lying(honest, about=about), tmp_path / "images")
    assert verdicts.keys() & damage, verdicts


@pytest.mark.parametrize(("reader", "verdicts"), [(False, {"ok"}), (True, {"ok", "mangled"})])
def test_what_a_checkpoint_wrote_that_a_reader_cut_short_is_not_written_again_after_a_failed_sync(
    disk: PowerCutVFS, tmp_path: Path, reader: bool, verdicts: set[str]
) -> None:
    """A limit of SQLite on a disk that fails, told in docs/guarantees.md. Without the reader it is no limit."""
    db, other = connect(disk, tmp_path / "a.db"), connect(disk, tmp_path / "a.db")
    create(db)
    disk.recorder.mark(0)
    for row in range(1, 30):
        commit(db, row)
        disk.recorder.mark(row)
        if reader and row == 12:
            other.execute("begin; select * from latest").fetchall()
    if reader:
        total, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        assert 0 < moved < total
        other.execute("rollback")
    disk.faults.fail("sync", file="db")
    with pytest.raises(apsw.IOError):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    assert len(set(db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE))) == 1
    for row in range(30, 36):
        commit(db, row)
        disk.recorder.mark(row)
    found = judge_all(disk.recorder, tmp_path / "images", count=400)
    assert found.keys() == verdicts, found


def test_a_flipped_byte_in_the_wal_is_caught_by_its_checksum(disk: PowerCutVFS, tmp_path: Path) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    for row in (1, 2, 3):
        commit(db, row)
        disk.recorder.mark(row)
    *_, (_, files, acknowledged) = replay(disk.recorder, seed=1, count=1)
    assert judge(materialise(files, tmp_path / "whole"), acknowledged[-1]) == "ok"
    wal = bytearray(files["a.db-wal"])
    wal[-1] ^= 1
    harmed = materialise({**files, "a.db-wal": bytes(wal)}, tmp_path / "harmed")
    assert judge(harmed, acknowledged[-1]) == "lost"
    assert judge(harmed, acknowledged[-1] - 1) == "ok"
    db.close()


def test_a_commit_torn_before_its_sync_is_there_wholly_or_not_at_all(disk: PowerCutVFS, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(disk, path)
    create(db)
    commit(db, 1)
    begun = disk.recorder.position
    before = Path(f"{path}-wal").read_bytes()
    commit(db, 2)
    after = Path(f"{path}-wal").read_bytes()
    rows: Counter[int] = Counter()
    torn = 0
    for number, (point, files, _) in enumerate(disk.recorder.crashes(seed=5, count=200, since=begun)):
        folder = materialise(files, tmp_path / str(number))
        assert judge(folder, 1) == "ok", point
        torn += files["a.db-wal"] not in (before, after)
        image = apsw.Connection(str(folder / "a.db"), vfs="unix")
        rows[image.execute("select id from latest").get] += 1
        image.close()
    assert set(rows) == {1, 2}
    assert torn > 100
    db.close()


# ---- what is recorded -------------------------------------------------------------------------------------


def test_several_connections_and_threads_share_one_wal_through_the_shim(disk: PowerCutVFS, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with connect(disk, path) as db:
        db.execute("create table acks (thread, n)")

    def write(thread: int) -> None:
        mine = connect(disk, path)
        for n in range(15):
            mine.execute("begin immediate")
            mine.execute("insert into acks values (?, ?)", (thread, n))
            mine.execute("commit")
            disk.recorder.mark((thread, n))
            if n % 5 == 4:
                with suppress(apsw.BusyError):  # another thread is at it
                    mine.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        mine.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert Path(f"{path}-shm").exists()
    assert db.execute("select count(*) from acks").get == 60
    db.close()
    for number, (point, files, acknowledged) in enumerate(replay(disk.recorder, seed=3, count=150)):
        assert not any(name.endswith("-shm") for name in files)
        image = apsw.Connection(str(materialise(files, tmp_path / str(number)) / "a.db"), vfs="unix")
        assert image.pragma("integrity_check") == "ok", point
        if acknowledged:
            assert set(acknowledged) <= set(image.execute("select thread, n from acks")), point
        image.close()


def test_the_log_tells_what_sqlite_did_in_order(disk: PowerCutVFS, tmp_path: Path) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    disk.recorder.mark("created")
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()
    names: dict[int, str] = {}
    told: list[str] = []
    for entry in disk.recorder.log:
        match entry:
            case Opened(name, _, inode, _):
                names[inode] = name.removeprefix("a.db") or "db"
                told.append(f"open {names[inode]}")
            case Wrote(inode):
                told.append(f"write {names[inode]}")
            case Truncated(inode, size_bytes):
                told.append(f"truncate {names[inode]} {size_bytes}")
            case Synced(inode, _, folder, _):
                told.append(f"sync {names[inode]}" + " and folder" * folder)
            case Deleted(name, folder):
                told.append(f"delete {name.removeprefix('a.db')}" + " and sync folder" * folder)
            case Marked(label):
                told.append(f"{label}!")
    once = [entry for at, entry in enumerate(told) if at == 0 or told[at - 1] != entry]
    assert once == [
        # journal_mode=wal writes the header page under a rollback journal
        "open db", "open -journal", "write -journal", "sync -journal and folder", "write -journal", "sync -journal",
        "write db", "sync db", "delete -journal",
        # the first commit: the WAL's header is synced before its frames
        "open -wal", "write -wal", "sync -wal and folder", "write -wal", "sync -wal", "created!",
        # the checkpoint
        "sync -wal", "write db", "truncate db 12288", "sync db", "truncate -wal 0",
        # the last connection closes
        "delete -wal",
    ]  # fmt: skip


def test_the_folder_is_synced_exactly_when_the_log_says_so(disk: PowerCutVFS, tmp_path: Path) -> None:
    # The shim cannot see the unix VFS sync a folder, it only knows the rule. SQLite lets us watch it open one.
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    address = disk.xGetSystemCall("openDirectory")
    assert address
    real = kind(address)
    opened: list[int] = []

    def watch(path: bytes, descriptor: int) -> int:
        opened.append(disk.recorder.position)
        return int(real(path, descriptor))

    watched = kind(watch)
    disk.xSetSystemCall("openDirectory", ctypes.cast(watched, ctypes.c_void_p).value or 0)
    try:
        recorder = work(disk, tmp_path / "a.db", "full")
    finally:
        disk.xSetSystemCall("openDirectory", address)
    said = [at for at, entry in enumerate(recorder.log) if isinstance(entry, Synced | Deleted) and entry.folder]
    assert said == opened
    assert len(said) == 3  # the journal, and the WAL of each of the two connections


def test_a_file_from_before_the_recording_counts_as_durable(disk: PowerCutVFS, tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "a.db"), vfs="unix") as old:
        create(old)
        commit(old, 1)
    old.close()
    db = connect(disk, tmp_path / "a.db")
    commit(db, 2)
    disk.recorder.mark(2)
    db.close()
    for number, crash in enumerate(disk.recorder.crashes(count=60, since=1)):
        promised = 2 if crash.acknowledged else 1
        assert judge(materialise(crash.files, tmp_path / str(number)), promised) == "ok", crash.point


def test_a_file_replaced_behind_the_recorder_is_a_new_one(disk: PowerCutVFS, tmp_path: Path) -> None:
    for row in (1, 2):
        db = connect(disk, tmp_path / "a.db")
        create(db)
        commit(db, row)
        db.close()
        (tmp_path / "a.db").unlink()
    opened = [entry for entry in disk.recorder.log if isinstance(entry, Opened) and entry.kind == "db"]
    assert [entry.found for entry in opened] == [None, None]
    assert opened[0].inode != opened[1].inode


def test_a_sync_records_which_writes_came_before_it(
    disk: PowerCutVFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_READWRITE, 0]
    file = disk.xOpen(str(tmp_path / "a.db"), flags)
    file.xWrite(b"before", 0)
    monkeypatch.setattr(disk.faults, "check", lambda *_: file.xWrite(b"during", 6))
    file.xSync(apsw.SQLITE_SYNC_NORMAL)
    file.xClose()
    assert disk.recorder.log[1:] == (Wrote(0, 0, b"before"), Wrote(0, 6, b"during"), synced(0, covers=2))


def test_the_simulated_device_promises_powersafe_overwrite_only(disk: PowerCutVFS, tmp_path: Path) -> None:
    flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_READWRITE, 0]
    file = disk.xOpen(str(tmp_path / "a.db"), flags)
    promised = file.xDeviceCharacteristics()
    file.xClose()
    assert promised & apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE
    assert not promised & ~(apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE | apsw.SQLITE_IOCAP_SUBPAGE_READ)


def test_a_default_shim_also_records_connections_that_name_no_vfs(tmp_path: Path) -> None:
    with PowerCutVFS(default=True) as disk:
        with apsw.Connection(str(tmp_path / "a.db")) as db:
            create(db)
        db.close()
        assert disk.recorder.position
    assert apsw.vfs_names()[0] == "unix"


def test_one_recorder_refuses_a_second_folder(disk: PowerCutVFS, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    db = connect(disk, tmp_path / "a.db")
    with pytest.raises(apsw.CantOpenError, match="one folder"):
        apsw.Connection(str(tmp_path / "other" / "a.db"), vfs=disk.name)
    db.close()


# ---- the model, without SQLite ----------------------------------------------------------------------------


def images(*entries: Opened | Wrote | Truncated | Synced | Deleted, count: int = 1000) -> list[dict[str, bytes]]:
    """What may be found when the power goes after the last of `entries`."""
    recorder = Recorder()
    for entry in entries:
        recorder.add(entry)
    return [crash.files for crash in recorder.crashes(seed=9, count=count, since=len(entries))]


def contents(*entries: Opened | Wrote | Truncated | Synced | Deleted) -> set[bytes | None]:
    return {files.get("f") for files in images(*entries)}


OLD = Opened("f", "db", 0, b"o" * 2048)
NEW = Opened("f", "wal", 1, None)


def synced(inode: int, covers: int, *, folder: bool = False, succeeded: bool = True) -> Synced:
    return Synced(inode, covers, folder, succeeded)


def test_any_combination_of_unsynced_writes_may_survive() -> None:
    first, second = Wrote(0, 0, b"1" * 512), Wrote(0, 1024, b"2" * 512)
    survivors = {(f[0:1] + f[1024:1025]) for f in contents(OLD, first, second) if f is not None}
    assert {b"oo", b"1o", b"o2", b"12"} <= survivors


def test_a_synced_write_survives_and_an_earlier_one_does_not_return() -> None:
    assert contents(OLD, Wrote(0, 0, b"a" * 2048), synced(0, covers=2)) == {b"a" * 2048}


def test_a_sync_says_nothing_of_another_file() -> None:
    other = Opened("g", "wal", 5, b"o" * 512)
    found_in = {files["f"] for files in images(OLD, other, Wrote(0, 0, b"a" * 2048), synced(5, covers=3))}
    assert {b"o" * 2048, b"a" * 2048} <= found_in


def test_a_sync_does_not_cover_a_write_that_came_during_it() -> None:
    during = contents(OLD, Wrote(0, 0, b"a"), Wrote(0, 1, b"b"), synced(0, covers=2))
    assert {b"ao" + b"o" * 2046, b"ab" + b"o" * 2046} <= during
    assert all(content and content[:1] == b"a" for content in during)


def test_a_write_tears_between_sectors_and_harms_nothing_outside_itself() -> None:
    torn = {content for content in contents(OLD, Wrote(0, 700, b"n" * 1000)) if content}
    for content in torn:
        assert len(content) == 2048
        assert content[:700] == b"o" * 700
        assert content[1700:] == b"o" * 348
    whole_sectors = {content[700:1700] for content in torn if set(content) <= set(b"on")}
    patterns = {(each[0:324], each[324:836], each[836:]) for each in whole_sectors}
    assert all(len(set(piece)) == 1 for pattern in patterns for piece in pattern)
    assert len(patterns) == 8, "every combination of the three sectors"
    assert any(not set(content) <= set(b"on") for content in torn), "and noise"


def test_an_unsynced_append_may_leave_only_its_length() -> None:
    found_in = contents(OLD, Wrote(0, 2048, b"n" * 512))
    assert {b"o" * 2048, b"o" * 2048 + b"n" * 512, b"o" * 2048 + bytes(512)} <= found_in


def test_an_unsynced_truncate_may_or_may_not_have_happened() -> None:
    assert contents(OLD, Truncated(0, 512)) == {b"o" * 2048, b"o" * 512}
    assert contents(OLD, Truncated(0, 512), synced(0, covers=2)) == {b"o" * 512}


def test_a_new_name_is_certain_only_after_the_folder_was_synced() -> None:
    written = Wrote(1, 0, b"n")
    assert contents(NEW, written) > {None, b"", b"n"}
    assert contents(NEW, written, synced(1, covers=2)) == {None, b"n"}
    assert contents(NEW, written, synced(1, covers=2, folder=True)) == {b"n"}


def test_a_folder_sync_does_not_cover_a_name_that_came_during_it() -> None:
    other = Opened("g", "wal", 5, None)
    assert contents(other, NEW, synced(5, covers=1, folder=True)) == {None, b""}
    assert contents(other, NEW, synced(5, covers=2, folder=True)) == {b""}


def test_a_deleted_file_may_return_until_the_folder_was_synced() -> None:
    old = Opened("f", "wal", 0, b"old")
    assert contents(old, Deleted("f", folder=False)) == {None, b"old"}
    assert contents(old, Deleted("f", folder=True)) == {None}
    again = (old, Deleted("f", folder=False), NEW, Wrote(1, 0, b"n"))
    assert contents(*again, synced(1, covers=4)) == {None, b"old", b"n"}
    assert contents(*again, synced(1, covers=4, folder=True)) == {b"n"}


def test_what_a_failed_sync_left_uncertain_no_later_sync_makes_certain() -> None:
    lost = (OLD, Wrote(0, 0, b"a"), synced(0, covers=2, succeeded=False))
    old, new = b"o" * 2048, b"a" + b"o" * 2047
    assert contents(*lost, synced(0, covers=3)) > {old, new}
    assert contents(*lost, Wrote(0, 0, b"a"), synced(0, covers=4)) == {new}


def test_the_same_seed_gives_the_same_crashes(disk: PowerCutVFS, tmp_path: Path) -> None:
    recorder = work(disk, tmp_path / "a.db", "off")
    assert list(replay(recorder, 7, 50)) == list(replay(recorder, 7, 50))
    assert list(replay(recorder, 7, 50)) != list(replay(recorder, 8, 50))


@pytest.mark.parametrize("count", [1, 10, 21, 50])
def test_the_number_of_crashes_is_bounded_and_the_end_is_among_them(count: int) -> None:
    recorder = Recorder()
    for label in range(20):
        recorder.mark(label)
    crashes = list(recorder.crashes(seed=1, count=count))
    positions = [crash.point.position for crash in crashes]
    assert len(crashes) == count
    assert positions == sorted(positions)
    assert positions[-1] == 20
    assert len(set(positions)) == min(count, 21)
    assert all(crash.acknowledged == tuple(range(crash.point.position)) for crash in crashes)


# ---- a disk that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("room_bytes", [0, 10, 4096, 9000])
def test_a_full_disk_refuses_a_commit_keeps_the_rest_and_works_once_freed(
    disk: PowerCutVFS, tmp_path: Path, room_bytes: int
) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    commit(db, 1)
    disk.faults.disk_full_after(room_bytes)
    with pytest.raises(apsw.FullError):
        commit_until(db, 9)
    assert len(disk.faults.tripped) == 1
    assert not db.in_transaction
    assert judge(tmp_path, 1) == "ok"
    disk.faults.clear()
    reached: int = db.execute("select id from latest").get
    commit(db, reached + 1)
    disk.recorder.mark(reached + 1)
    assert judge(tmp_path, reached + 1) == "ok"
    db.close()
    assert judge_all(disk.recorder, tmp_path / "images", count=40).keys() == {"ok"}


def test_a_full_disk_has_room_for_what_is_overwritten_or_was_freed(disk: PowerCutVFS, tmp_path: Path) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    commit(db, 1)
    commit(db, 2)
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    disk.faults.disk_full_after(0)
    db.execute("update latest set id = 3")  # the WAL starts over inside its old length
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.execute("update latest set id = 4")  # in the room that the truncation gave back
    assert not disk.faults.tripped
    with pytest.raises(apsw.FullError):
        db.execute("insert into kept values (5, zeroblob(100000))")
    db.close()


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError, apsw.SQLITE_IOERR_CORRUPTFS])
def test_a_failed_write_costs_its_own_commit_only(
    disk: PowerCutVFS, tmp_path: Path, torn: bool, nth: int, error: int | type[apsw.Error]
) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    commit(db, 1)
    disk.faults.fail("write", file="wal", nth=nth, error=error, torn=torn)
    with pytest.raises(apsw.FullError if error is apsw.FullError else apsw.IOError):
        commit(db, 2)
    assert len(disk.faults.tripped) == 1
    last_write = [entry for entry in disk.recorder.log if isinstance(entry, Wrote)][-1]
    assert (len(last_write.data) in (12, 2048)) == torn  # half a frame's header or page landed
    assert judge(tmp_path, 1) == "ok"
    commit(db, 2)
    disk.recorder.mark(2)
    db.close()
    assert judge_all(disk.recorder, tmp_path / "images", count=40).keys() == {"ok"}


def test_a_fault_counts_its_own_calls_and_strikes_as_often_as_told(disk: PowerCutVFS, tmp_path: Path) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    disk.faults.fail("sync", file="wal", nth=2, times=2)
    disk.faults.fail("sync", file="db")  # stays armed: nothing syncs the database file here
    outcomes = []
    for row in range(1, 6):
        try:
            commit(db, row)
            outcomes.append("ok")
        except apsw.IOError:
            outcomes.append("failed")
    assert outcomes == ["ok", "failed", "failed", "ok", "ok"]
    assert disk.faults.tripped == ["sync wal", "sync wal"]
    disk.faults.clear()
    db.close()


def test_a_fault_without_an_end_lasts_until_it_is_cleared(disk: PowerCutVFS, tmp_path: Path) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    disk.faults.fail("write", times=None)
    for _ in range(5):
        with pytest.raises(apsw.IOError):
            commit(db, 1)
    disk.faults.clear()
    commit(db, 1)
    assert judge(tmp_path, 1) == "ok"
    db.close()


def test_a_file_that_cannot_be_opened_or_deleted_says_so(disk: PowerCutVFS, tmp_path: Path) -> None:
    disk.faults.fail("open", file="db")
    with pytest.raises(apsw.CantOpenError):
        apsw.Connection(str(tmp_path / "a.db"), vfs=disk.name)
    db = connect(disk, tmp_path / "a.db")
    create(db)
    disk.faults.fail("delete", file="wal")
    with pytest.raises(apsw.IOError):  # apsw again: SQLite itself ignores this when it closes
        db.close()
    assert (tmp_path / "a.db-wal").exists()
    assert judge(tmp_path, 0) == "ok"


def test_a_commit_whose_sync_failed_may_be_there_after_the_cut(disk: PowerCutVFS, tmp_path: Path) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    commit(db, 1)
    disk.faults.fail("sync", file="wal")
    with pytest.raises(apsw.IOError):
        commit(db, 2)
    assert [entry.succeeded for entry in disk.recorder.log if isinstance(entry, Synced)][-2:] == [True, False]
    assert db.execute("select id from latest").get == 1  # the process itself sees it undone
    latest = set()
    for number, crash in enumerate(disk.recorder.crashes(count=40, since=disk.recorder.position)):
        folder = materialise(crash.files, tmp_path / str(number))
        assert judge(folder, 1) == "ok", crash.point
        image = apsw.Connection(str(folder / "a.db"), vfs="unix")
        latest.add(image.execute("select id from latest").get)
        image.close()
    assert latest == {1, 2}
    db.close()


@pytest.mark.parametrize("file", ["wal", "db"])
def test_commits_acknowledged_around_failed_syncs_survive_every_cut(
    disk: PowerCutVFS, tmp_path: Path, file: str
) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    disk.recorder.mark(0)
    for attempt in range(40):
        if attempt % 4 == 3:
            disk.faults.fail("sync", file="wal" if file == "wal" else "db", nth=1 + attempt % 3)
        with suppress(apsw.IOError):
            row = db.execute("select id from latest").get + 1
            commit(db, row)
            disk.recorder.mark(row)
            db.wal_checkpoint(mode=(apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_TRUNCATE)[row % 2])
    assert len(disk.faults.tripped) >= 5
    db.close()
    verdicts = judge_all(disk.recorder, tmp_path / "images")
    assert verdicts.keys() == {"ok"}, verdicts


@pytest.mark.parametrize(
    ("call", "file"), [("write", "db"), ("sync", "db"), ("truncate", "wal"), ("truncate", "db"), ("read", "wal")]
)
def test_a_failed_checkpoint_harms_nothing_and_can_be_repeated(
    disk: PowerCutVFS, tmp_path: Path, call: str, file: str
) -> None:
    db = connect(disk, tmp_path / "a.db")
    create(db)
    commit(db, 1)
    disk.recorder.mark(1)
    disk.faults.fail(call, file=file)  # type: ignore[arg-type]
    with pytest.raises(apsw.IOError):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert judge(tmp_path, 1) == "ok"
    commit(db, 2)
    disk.recorder.mark(2)
    assert db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
    db.close()
    assert judge_all(disk.recorder, tmp_path / "images", count=60).keys() == {"ok"}


def test_apsw_raises_what_sqlite_swallows_when_an_automatic_checkpoint_fails(
    disk: PowerCutVFS, tmp_path: Path
) -> None:
    # Not SQLite's behaviour but apsw's, and the reason to turn automatic checkpoints off under injected faults.
    db = connect(disk, tmp_path / "a.db")
    create(db)
    db.pragma("wal_autocheckpoint", 1)
    disk.faults.fail("sync", file="db")
    with pytest.raises(apsw.IOError):
        commit(db, 1)
    assert not db.in_transaction
    assert db.execute("select id from latest").get == 1  # the commit stands
    db.close()


def test_a_fault_that_makes_no_sense_is_refused(disk: PowerCutVFS) -> None:
    with pytest.raises(ValueError, match="no such call"):
        disk.faults.fail("fsync")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="result code"):
        disk.faults.fail("sync", error=apsw.BusyError)
