"""A SQLite file on a bad day: not ours, not writable, gone, damaged, locked, on a network, closed.

Each gets a typed error that says what to do, and what was in the file before is in it afterwards.
"""

import asyncio
import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import State
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    SchemaError,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreGone,
    StoreTimeout,
    StoreUnavailable,
)
from holdfast.store import open_store
from holdfast.store.migrations import Migration, migrations
from holdfast.store.records import StoreOptions, WorkerInfo
from holdfast.store.sqlite import connection as sqlite_connection
from holdfast.store.sqlite.connection import filesystem_of
from holdfast.store.sqlite.leases import SqliteLeaseLine
from holdfast.store.sqlite.store import SqliteStore
from holdfast.system.clock import FakeClock, boot_id
from tests.support.chats import Hand, history, new_chat, texts, user
from tests.support.deaths import Mortal
from tests.support.looptime import LoopTime
from tests.support.programs import Program
from tests.support.waiting import until

DEADLINE_S = 1.0  # of what is to meet it, and is stuck until then; all else has the usual time
PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489") * 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[SqliteStore]:
    async with open_store(url, StoreOptions(**options)) as store:  # type: ignore[arg-type]
        assert isinstance(store, SqliteStore)
        yield store


async def filled(url: str, chats: int = 3) -> None:
    """A file with some chats in it, closed again."""
    async with opened(url) as store:
        for n in range(chats):
            await store.create_chat(new_chat(f"hello {n}", id=f"c{n}"))


async def fails_to_open(url: str, kind: type[StoreError] | type[ConfigError], *says: str) -> str:
    with pytest.raises(kind) as caught:
        await open_store(url, StoreOptions(deadline_s=60)).open()
    for text in says:
        assert text in str(caught.value)
    return str(caught.value)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder. Only while nobody in this process has the database open."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# --- what the file is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bytes_of_it",
    [b"Dear diary,\n" * 500, b"short", PNG, b"SQLite format 3\x00" + b"\xa5" * 8_000, bytes(3), os.urandom(65_536)],
    ids=["text", "few-bytes", "png", "header-only", "three-zeros", "noise"],
)
async def test_a_file_that_is_no_database_is_refused_and_not_touched(
    url: str, path: Path, tmp_path: Path, bytes_of_it: bytes
) -> None:
    path.write_bytes(bytes_of_it)
    await fails_to_open(url, StoreCorrupt, str(path), "is not a SQLite database: name another file")
    assert contents(tmp_path) == {path.name: bytes_of_it}


async def test_an_empty_file_is_an_empty_store(url: str, path: Path) -> None:
    path.touch()
    await filled(url)
    async with opened(url) as store:
        assert len(await store.list_chats()) == 3


async def test_a_file_that_was_cut_off_is_refused_as_damaged_and_not_touched(
    url: str, path: Path, tmp_path: Path
) -> None:
    await filled(url, chats=200)
    half = path.read_bytes()[: path.stat().st_size // 8192 * 4096]
    path.write_bytes(half)
    await fails_to_open(url, StoreCorrupt, "is damaged", "restore it from a backup, and keep the damaged file")
    assert path.read_bytes() == half


async def test_a_row_that_nobody_can_have_written_is_damage(url: str, path: Path) -> None:
    await filled(url)
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.pragma("writable_schema", True)
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'TEXT NOT NULL', 'TEXT') WHERE name = 'workers'")
    connection.close()
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO workers (id, pid, started_at, renewed_at) VALUES ('w', 1, 1, 1)")
    connection.close()
    await fails_to_open(url, StoreCorrupt, "is damaged", "restore it from a backup")


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
async def test_the_database_of_another_program_is_refused_and_not_touched(
    url: str, path: Path, tmp_path: Path, journal_mode: str
) -> None:
    foreign = apsw.Connection(str(path))
    foreign.pragma("journal_mode", journal_mode)
    foreign.execute("CREATE TABLE chats (id TEXT, said TEXT)")
    foreign.execute("INSERT INTO chats VALUES ('1', 'hello')")
    foreign.close()
    before = contents(tmp_path)
    await fails_to_open(url, SchemaError, "of another program", "name another file, nothing in this one was changed")
    assert contents(tmp_path) == before
    again = apsw.Connection(str(path))
    assert again.pragma("journal_mode") == journal_mode
    assert again.execute("SELECT * FROM chats").fetchall() == [("1", "hello")]
    again.close()


async def test_an_empty_database_that_another_program_has_marked_is_refused(url: str, path: Path) -> None:
    foreign = apsw.Connection(str(path))
    foreign.pragma("application_id", 0x0F055112)
    foreign.execute("VACUUM")
    foreign.close()
    await fails_to_open(url, SchemaError, "of another program")


async def test_damage_inside_the_file_is_named_and_other_chats_go_on(url: str, path: Path) -> None:
    """One page of the journal is overwritten: its chat cannot be read, nobody else notices."""
    async with opened(url) as store:
        for n in range(40):
            await store.create_chat(new_chat(f"{n} " + "x" * 3_000, id=f"c{n:02}"))
    connection = apsw.Connection(str(path))
    rows = "SELECT pageno FROM dbstat WHERE name = 'journal' AND pagetype = 'leaf' ORDER BY path"
    leaves = [row[0] for row in connection.execute(rows)]
    connection.close()
    with path.open("r+b") as file:
        file.seek((leaves[len(leaves) // 2] - 1) * 4096)
        file.write(b"\xff" * 4096)
    async with opened(url) as store:
        reads = [history(store, f"c{n:02}") for n in range(40)]
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        damaged = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert 1 <= len(damaged) <= 3
        for error in damaged:
            assert isinstance(error, StoreCorrupt)
            assert "is damaged" in str(error)
            assert "restore it from a backup" in str(error)
        for n, outcome in enumerate(outcomes):
            if not isinstance(outcome, BaseException):
                assert texts(outcome)[0].startswith(f"{n} ")
                await store.submit(f"c{n:02}", cmd.Send(message=user("still there?")))
        assert await store.check_integrity() != []


# --- where the file lies --------------------------------------------------------------------------------------------


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    said = await fails_to_open(f"sqlite:///{tmp_path}/not/there.db", ConfigError, f"{tmp_path}/not", "create it")
    assert "does not exist" in said
    assert not (tmp_path / "not").exists()


async def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    await fails_to_open(f"sqlite:///{tmp_path}", ConfigError, "is a folder: name a file")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "names a file"),
        ("sqlite:///", "names a file"),
        ("sqlite://holdfast.db", "sqlite:///path/to/file.db"),
        ("sqlite:///:memory:", "there is no store in memory"),
        ("sqlite:///a.db?mode=ro&cache=shared", "takes no options"),
        ("holdfast.db", "is not a store URL: use sqlite:///"),
        ("", "is not a store URL"),
        ("mysql://root:hunter2@db/chats", "'mysql://…' is not a store URL"),
        ("mysql://root:hun@ter2@db/chats", "'mysql://…' is not a store URL"),
    ],
)
async def test_a_url_that_names_no_store_says_how_one_looks(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)


MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:12 - proc proc rw
40 22 0:36 / /data rw,relatime shared:20 - nfs4 filer:/export rw,vers=4.2,addr=10.0.0.7
41 40 254:1 / /data/local rw,relatime - xfs /dev/vdb rw
42 22 0:37 / /mnt/my\040share rw shared:5 master:7 - cifs //filer/share rw
43 22 0:38 / /mnt/caf\303\251 rw - fuse.sshfs ada@host:/ rw
44 22 0:39 / /mnt/größe rw - nfs filer:/x rw
45 22 0:40 / /mnt/back\134slash rw - nfs filer:/y rw
46 22 0:41 / /over rw - nfs filer:/z rw
47 22 254:2 / /over rw - ext4 /dev/vdc rw
48 22 0:42 / /glu rw - fuse.glusterfs gluster:/vol rw
a line that is none
49 22 0:43 / /cut rw -
"""


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/srv/ada/holdfast.db", "ext4"),
        ("/data/holdfast.db", "nfs4"),
        ("/data", "nfs4"),
        ("/database/holdfast.db", "ext4"),
        ("/data/local/holdfast.db", "xfs"),
        ("/data/localhost/holdfast.db", "nfs4"),
        ("/mnt/my share/holdfast.db", "cifs"),
        ("/mnt/my/holdfast.db", "ext4"),
        ("/mnt/café/holdfast.db", "fuse.sshfs"),
        ("/mnt/größe/holdfast.db", "nfs"),
        ("/mnt/back\\slash/holdfast.db", "nfs"),
        ("/over/holdfast.db", "ext4"),
        ("/glu/holdfast.db", "fuse.glusterfs"),
        ("/cut/holdfast.db", "ext4"),
    ],
)
def test_the_file_system_of_a_path_is_the_one_mounted_last_and_deepest(file: str, kind: str) -> None:
    assert filesystem_of(file, MOUNTS) == kind


def test_without_a_word_about_mounts_nothing_is_said() -> None:
    assert filesystem_of("/srv/holdfast.db", "") is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "fuse.glusterfs", "ceph", "lustre", "9p"])
async def test_a_network_mount_is_refused_before_anything_is_written(
    url: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "filesystem_of", lambda _path, _mounts: kind)
    await fails_to_open(url, ConfigError, f"network file system ({kind})", "use a local disk, or PostgreSQL")
    assert contents(tmp_path) == {}


# --- permissions --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    tmp_path.chmod(0o700)


def tried_unprivileged(path: Path) -> tuple[str, str]:
    with Program("tests.store.unprivileged", f"sqlite:///{path}") as program:
        said = json.loads(program.finish())
    return said["error"], said["message"]


async def test_a_file_that_may_be_written_opens(url: str, path: Path) -> None:
    await filled(url)
    assert tried_unprivileged(path) == ("", "")


async def test_a_read_only_file_is_named_as_such(url: str, path: Path) -> None:
    await filled(url)
    path.chmod(0o444)
    before = path.read_bytes()
    error, message = tried_unprivileged(path)
    assert (error, path.read_bytes()) == ("StoreReadOnly", before)
    assert f"{path} cannot be written to" in message
    assert "check the permissions" in message


async def test_a_read_only_folder_is_named_as_such(url: str, path: Path, folder: Path) -> None:
    await filled(url)
    before = path.read_bytes()
    folder.chmod(0o555)
    error, message = tried_unprivileged(path)
    assert (error, path.read_bytes()) == ("StoreReadOnly", before)
    assert "check the permissions of file and folder" in message


async def test_a_new_file_in_a_read_only_folder_is_refused(path: Path, folder: Path) -> None:
    folder.chmod(0o555)
    error, message = tried_unprivileged(path)
    assert error in ("StoreUnavailable", "StoreReadOnly")
    assert str(path) in message
    assert "writable?" in message


async def test_a_file_that_may_not_be_read_is_refused(url: str, path: Path) -> None:
    await filled(url)
    path.chmod(0)
    error, message = tried_unprivileged(path)
    assert error in ("StoreUnavailable", "StoreReadOnly")
    assert str(path) in message


async def test_lock_files_that_may_not_be_written_are_named(url: str, path: Path) -> None:
    """As when a second user shares the database: the first one's lock files are the first one's."""
    await filled(url)
    Path(f"{path}.lock").chmod(0o400)
    error, message = tried_unprivileged(path)
    assert error == "StoreReadOnly"
    assert "holdfast.db.lock cannot be written to" in message


# --- gone while open ------------------------------------------------------------------------------------------------


async def test_a_write_into_a_deleted_file_is_not_acknowledged(url: str, path: Path) -> None:
    async with opened(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        path.unlink()
        for _ in range(2):
            with pytest.raises(StoreGone, match=r"was deleted or replaced while it was open.*restore the file"):
                await store.submit("c1", cmd.Send(message=user("lost")))


async def test_a_write_into_a_replaced_file_is_not_acknowledged_and_the_new_file_is_not_touched(
    url: str, path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    await filled(f"sqlite:///{other}", chats=1)
    async with opened(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        await until(lambda: store.stats()["wake_connects"])  # else its watch might open the file in this very moment
        shutil.move(other, path)
        with pytest.raises(StoreGone, match="deleted or replaced"):
            await store.create_chat(new_chat("lost", id="c2"))
        # Nobody opens it either: with our WAL beside it, SQLite would write our chats into that file.
        with pytest.raises(StoreGone, match="deleted or replaced"):
            store._transactor.open_reader().execute("SELECT count(*) FROM chats")
    for side_file in (tmp_path / "holdfast.db-wal", tmp_path / "holdfast.db-shm"):
        side_file.unlink(missing_ok=True)
    async with opened(url) as store:
        assert [line.id for line in await store.list_chats()] == ["c0"]


async def test_a_write_while_the_wal_is_deleted_is_not_acknowledged(url: str, path: Path) -> None:
    """What somebody does who sees "temporary" files: the next power cut would take everything since with it."""
    async with opened(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        Path(f"{path}-wal").unlink()
        with pytest.raises(StoreGone, match="deleted or replaced"):
            await store.create_chat(new_chat("lost", id="c2"))


async def test_nothing_is_read_from_a_deleted_file_and_those_who_wait_for_news_are_told(url: str, path: Path) -> None:
    """An open connection would go on showing the past, and nothing would ever be added to it."""
    async with opened(url) as store:
        await store.create_chat(new_chat(None, id="c1"))
        end = (await store.read_journal("c1")).cursor
        waiting = asyncio.ensure_future(store.wait_journal("c1", end, deadline_s=600, poll_s=600))
        await until(lambda: store.bell.waiter_count == 1)
        assert not store.gone
        path.unlink()
        assert store.gone
        with pytest.raises(StoreGone, match="deleted or replaced"):
            await store.read_chat("c1")
        with pytest.raises(StoreGone, match="deleted or replaced"):
            await asyncio.wait_for(waiting, 20.0)


async def test_a_lease_in_a_deleted_file_is_not_renewed(url: str, path: Path) -> None:
    async with opened(url) as store:
        hand = Hand(store)
        path.unlink()
        with pytest.raises(StoreGone):
            hand.line.renew(hand.name)
        hand.close()


# --- locked, stuck --------------------------------------------------------------------------------------------------


async def test_a_program_that_keeps_sqlites_own_lock_costs_a_timeout_and_then_work_goes_on(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_TIMEOUT_MS", 200)
    async with opened(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        foreign = apsw.Connection(str(path))
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreTimeout, match=r"is locked by another program.*try again") as caught:
            await store.submit("c1", cmd.Send(message=user("first try", id="m1")))
        assert caught.value.outcome == "not_written"
        assert (await store.read_chat("c1")).queue == (), "reading goes on meanwhile"
        foreign.execute("ROLLBACK")
        foreign.close()
        await store.submit("c1", cmd.Send(message=user("second try", id="m2")))
        assert [queued.id for queued in (await store.read_chat("c1")).queue] == ["m2"]


async def test_a_stopped_process_that_holds_the_write_lock_costs_a_timeout_and_then_work_goes_on(
    url: str, path: Path
) -> None:
    """As a debugger or a frozen container leaves it: what was not begun is not written, now or later."""
    loop_time = LoopTime()
    async with opened(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        with Program("tests.store.holder", str(path)) as holder:
            assert holder.hear() == "held"
            os.kill(holder.pid, signal.SIGSTOP)
            tries = [user(f"try {n}", id=f"m{n}") for n in range(3)]
            sends = [asyncio.ensure_future(store.submit("c1", cmd.Send(message=message))) for message in tries]
            await until(lambda: store.stats()["write_jobs_queued"] == 2)  # the writer has one, and waits for the lock
            assert not any(send.done() for send in sends)
            loop_time.advance(store.options.deadline_s)
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                assert isinstance(outcome, StoreTimeout)
                assert outcome.outcome == "not_written"
                assert "did not answer within 8 s: is the disk, or a process, stuck?" in str(outcome)
            assert (await store.read_chat("c1")).queue == (), "reading goes on meanwhile"
            os.kill(holder.pid, signal.SIGCONT)
            holder.say("go")
            holder.finish()
        await store.submit("c1", cmd.Send(message=user("later", id="m9")))
        assert [queued.id for queued in (await store.read_chat("c1")).queue] == ["m9"]


async def test_a_child_that_was_forked_during_a_write_does_not_keep_the_lock_of_a_killed_process(
    url: str, path: Path
) -> None:
    """As `multiprocessing` makes them: it has a copy of every descriptor, and a flock lives as long as any copy."""
    async with opened(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        with Program("tests.store.holder", str(path), "fork") as holder, Mortal(int(holder.hear())) as child:
            try:
                holder.process.kill()
                holder.process.wait()
                await store.submit("c1", cmd.Send(message=user("on we go", id="m1")))
                assert not child.dead
            finally:
                os.kill(child.pid, signal.SIGKILL)


async def test_a_renewal_behind_a_stopped_process_ends_at_its_deadline(url: str, path: Path) -> None:
    async with opened(url) as store:
        usual = store.options
        store.options = replace(usual, deadline_s=DEADLINE_S)
        hand = Hand(store)
        store.options = usual
        with Program("tests.store.holder", str(path)) as holder:
            assert holder.hear() == "held"
            os.kill(holder.pid, signal.SIGSTOP)
            for _ in range(3):
                with pytest.raises(
                    StoreTimeout, match=r"not free within 1 s: held by pid .*, which is stopped"
                ) as caught:
                    hand.line.renew(hand.name)
                assert caught.value.outcome == "not_written"
            os.kill(holder.pid, signal.SIGCONT)
            holder.say("go")
            holder.finish()
        await store.create_chat(new_chat("what was asked for in vain is not kept when it comes"))
        hand.line.renew(hand.name)
        hand.close()


async def test_a_file_opens_behind_a_stopped_process_where_nothing_is_to_be_done(url: str, path: Path) -> None:
    await filled(url)
    with Program("tests.store.holder", str(path)) as holder:
        assert holder.hear() == "held"
        os.kill(holder.pid, signal.SIGSTOP)
        async with opened(url, deadline_s=60) as store:
            assert len(await store.list_chats()) == 3
            line = SqliteLeaseLine(str(path), "host", StoreOptions(deadline_s=0.1), vfs=None, synchronous="FULL")
            with pytest.raises(StoreTimeout, match=rf"held by pid {holder.pid} \(.*python.*\), which is stopped"):
                line.retire("nobody")
            line.close()
            os.kill(holder.pid, signal.SIGCONT)
            holder.say("go")
            holder.finish()
            await store.create_chat(new_chat())


async def test_making_a_file_behind_a_stopped_process_ends_at_its_deadline(url: str, path: Path) -> None:
    with Program("tests.store.holder", str(path)) as holder:
        assert holder.hear() == "held"
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(StoreTimeout, match=f"pid {holder.pid} .* holds its write lock"):
            await open_store(url, StoreOptions(deadline_s=DEADLINE_S)).open()
        os.kill(holder.pid, signal.SIGCONT)
        holder.say("go")
        holder.finish()
    await until(lambda: open_files(path) == [])  # what was opened after all, for nobody, is closed
    await filled(url)
    await filled_again(url)


async def test_who_starts_behind_a_stopped_process_waits_for_it_and_says_so(
    url: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(url, StoreOptions(deadline_s=0.01))
    with Program("tests.store.holder", str(path)) as holder:
        assert holder.hear() == "held"
        opening = asyncio.ensure_future(store.open(wait_s=600))
        await until(lambda: [record for record in caplog.records if getattr(record, "action", "") == "store.waiting"])
        assert f"pid {holder.pid} " in caplog.text
        assert not opening.done()
        holder.say("go")
        holder.finish()
    await opening
    await store.close()


async def test_a_migration_that_takes_longer_than_the_deadline_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go, loop_time = threading.Event(), threading.Event(), LoopTime()

    def slow(*_: object) -> int:
        entered.set()
        go.wait(60)
        return 1

    def teach(connection: apsw.Connection) -> None:
        connection.create_scalar_function("slow", slow, 0)

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, teach])
    known = migrations("sqlite")
    more = Migration(
        number=len(known) + 1, name="0099_slow.sql", oldest_code=1, sql="CREATE TABLE t AS SELECT slow();"
    )
    monkeypatch.setattr("holdfast.store.sqlite.schema.migrations", lambda _dialect: [*known, more])
    store = open_store(url, StoreOptions(deadline_s=60))
    opening = asyncio.ensure_future(store.open())
    await until(entered.is_set)
    loop_time.advance(300)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not opening.done()
    go.set()
    await opening
    assert store.schema_version == len(known) + 1
    await store.close()


def open_files(path: Path) -> list[str]:
    """Those of the database that this process has open."""
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed by another thread meanwhile
            found.append(str(link.readlink()))
    return [name for name in found if name.startswith(str(path))]


async def filled_again(url: str) -> None:
    async with opened(url) as store:
        assert len(await store.list_chats()) == 3


@pytest.mark.parametrize("read_only", [False, True])
def test_a_sync_reaches_the_drive_itself_where_the_system_makes_a_difference(path: Path, read_only: bool) -> None:
    """On macOS a plain one does not. The pragmas are read back, so that a misspelt one would not pass."""
    sqlite_connection.connect(str(path)).close()
    connection = sqlite_connection.connect(str(path), read_only=read_only)
    assert [connection.pragma(name) for name in ("fullfsync", "checkpoint_fullfsync")] == [1, 1]
    connection.close()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO, errno.EBADF])
async def test_a_lock_that_the_system_does_not_give_is_told_and_asked_for_again(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = fcntl.flock

    def no_lock(fd: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    async with opened(url) as store:
        await store.create_chat(new_chat(id="c1"))
        hand = Hand(store)
        monkeypatch.setattr(fcntl, "flock", no_lock)
        with pytest.raises(StoreUnavailable, match="cannot be locked") as caught:
            await store.create_chat(new_chat(id="c2"))
        assert caught.value.outcome == "not_written"
        with pytest.raises(StoreUnavailable, match="cannot be locked"):
            hand.line.renew(hand.name)
        monkeypatch.setattr(fcntl, "flock", real)
        await store.create_chat(new_chat(id="c2"))
        hand.line.renew(hand.name)
        hand.close()


async def test_a_lock_that_cannot_be_given_back_fails_nothing_and_is_free(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def no_unlock(fd: int, how: int) -> None:
        if how == fcntl.LOCK_UN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd, how)

    async with opened(url) as store, opened(url) as other:
        monkeypatch.setattr(fcntl, "flock", no_unlock)
        for n in range(3):
            await store.create_chat(new_chat(id=f"c{n}"))
            await other.create_chat(new_chat(id=f"d{n}"))


async def test_a_renewal_that_waited_for_a_lock_in_vain_does_not_keep_the_next_from_asking(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits in the lock is told the error, too, and must not end with it."""
    real, broken = fcntl.flock, threading.Event()

    def sometimes(fd: int, how: int) -> None:
        if how & fcntl.LOCK_NB:
            raise BlockingIOError
        if how == fcntl.LOCK_EX and broken.is_set():
            raise OSError(errno.ENOLCK, "no locks available")
        real(fd, how)

    async with opened(url) as store:
        hand = Hand(store)
        monkeypatch.setattr(fcntl, "flock", sometimes)
        broken.set()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="no locks available"):
                hand.line.renew(hand.name)
        broken.clear()
        hand.line.renew(hand.name)
        hand.close()


# --- open and closed ------------------------------------------------------------------------------------------------


async def test_a_store_that_is_not_open_says_so(url: str) -> None:
    store = open_store(url)
    for _ in range(2):
        with pytest.raises(StoreClosed, match="not open"):
            await store.read_chat("c1")
        with pytest.raises(StoreClosed, match="not open"):
            await store.create_chat(new_chat())
        with pytest.raises(StoreClosed, match="not open"):
            store.lease_line()
        store.stats()
        await store.open()
        await store.close()
    await store.close()


async def test_opening_twice_is_opening_once(url: str) -> None:
    store = open_store(url)
    await asyncio.gather(store.open(), store.open(), store.open())
    await store.open()
    await store.create_chat(new_chat(id="c1"))
    await store.close()
    with pytest.raises(StoreClosed):
        await store.read_chat("c1")
    async with open_store(url) as again:
        assert len(await again.list_chats()) == 1


async def test_a_store_that_could_not_be_opened_can_be_opened_later(url: str, path: Path) -> None:
    path.write_bytes(PNG)
    store = open_store(url)
    with pytest.raises(StoreCorrupt):
        await store.open()
    path.unlink()
    async with store:
        await store.create_chat(new_chat())


async def test_two_stores_of_one_process_share_a_file(url: str) -> None:
    async with opened(url) as one, opened(url) as two:
        await one.create_chat(new_chat("hello", id="c1"))
        await two.submit("c1", cmd.Send(message=user("and again")))
        assert len((await one.read_chat("c1")).queue) == 1


async def test_closing_finishes_what_was_begun(url: str) -> None:
    """Every call that was made before `close` gets its answer, and what was answered is there."""
    store = open_store(url)
    await store.open()
    calls = [asyncio.ensure_future(store.create_chat(new_chat(id=f"c{n:03}"))) for n in range(300)]
    reads = [asyncio.ensure_future(store.list_chats()) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(not isinstance(read, BaseException) for read in await asyncio.gather(*reads, return_exceptions=True))
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    acknowledged = sorted(answer.chat_id for answer in answers if not isinstance(answer, BaseException))
    assert acknowledged == [f"c{n:03}" for n in range(300)]
    async with opened(url) as again:
        assert sorted(line.id for line in await again.list_chats(limit=1_000)) == acknowledged


async def test_a_read_that_was_slow_to_begin_is_answered_when_the_store_closes(url: str) -> None:
    """Its thread has no connection yet. The last one that is closed takes the WAL with it: to a reader that comes
    after that, the database would look like one that somebody deleted.
    """
    store = open_store(url)
    await store.open()
    await store.create_chat(new_chat(id="c1"))
    with new_threads_held("holdfast-sqlite-reads") as let_go:
        reading = asyncio.ensure_future(store.read_chat("c1"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        await until(lambda: store.stats()["write_jobs"] is None)  # from here on its deadline runs
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(closing), 0.2)  # what does not wait for the reader is done by then
        let_go()
        await closing
    assert (await reading).chat.id == "c1"


@contextmanager
def new_threads_held(name: str) -> Iterator[Callable[[], None]]:
    """Threads with this name begin when they are let go, and not before."""
    go = threading.Event()

    def hold(*_: object) -> None:
        sys.setprofile(None)
        if threading.current_thread().name.startswith(name):
            go.wait(30)

    threading.setprofile(hold)
    try:
        yield go.set
    finally:
        threading.setprofile(None)
        go.set()


async def test_closing_is_bounded_and_does_not_hold_up_the_event_loop(url: str, path: Path) -> None:
    """The writer hangs behind a stopped process: the loop goes on, and `close` gives up at the deadline."""
    loop_time = LoopTime()
    store = open_store(url)
    await store.open()
    with Program("tests.store.holder", str(path)) as holder:
        assert holder.hear() == "held"
        os.kill(holder.pid, signal.SIGSTOP)
        send = asyncio.ensure_future(store.create_chat(new_chat()))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        await until(lambda: store.stats()["write_jobs"] is None)  # from here on its deadline runs
        for _ in range(10):
            await asyncio.sleep(0.005)
            assert not closing.done(), "if it held up the loop, it would be over when the loop goes on"
        loop_time.advance(store.options.deadline_s)
        await closing
        with pytest.raises(StoreTimeout):
            await send
        os.kill(holder.pid, signal.SIGCONT)
        holder.say("go")
        holder.finish()


async def test_closing_has_one_deadline_for_readers_and_writer_together(url: str, path: Path) -> None:
    loop_time, loop = LoopTime(), asyncio.get_running_loop()
    store = open_store(url, StoreOptions(deadline_s=60.0))
    await store.open()
    with Program("tests.store.holder", str(path)) as holder, new_threads_held("holdfast-sqlite-reads"):
        assert holder.hear() == "held"
        stuck = [asyncio.ensure_future(store.create_chat(new_chat())), asyncio.ensure_future(store.read_chat("c1"))]
        await asyncio.sleep(0)
        began = loop.time()
        closing = asyncio.ensure_future(store.close())
        await until(lambda: store.stats()["write_jobs"] is None)  # from here on its deadline runs
        loop_time.advance(store.options.deadline_s)
        await closing
        assert loop.time() - began < 2 * store.options.deadline_s
        assert [type(error) for error in await asyncio.gather(*stuck, return_exceptions=True)] == [StoreTimeout] * 2
        holder.say("go")
        holder.finish()


async def test_those_who_wait_when_the_store_closes_are_told(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.create_chat(new_chat(None, id="c1"))
    page = await store.read_journal("c1")
    waiting = asyncio.ensure_future(store.wait_journal("c1", page.cursor, deadline_s=60))
    await until(lambda: store.bell.waiter_count)
    await store.close()
    with pytest.raises(StoreClosed):
        await asyncio.wait_for(waiting, 30)


async def test_the_watch_for_other_processes_survives_a_bad_moment(url: str, path: Path) -> None:
    """It is a hint, but one that must not die silently: a file that is gone is noticed, and found when it is back."""
    async with opened(url, poll_interval_s=0.05) as store:
        await store.create_chat(new_chat(None, id="c1"))
        assert store.wakes is not None
        await until(lambda: store.stats()["wake_pings"])
        away = path.rename(path.with_suffix(".away"))
        store.wakes.check()
        await until(lambda: store.stats()["wake_pings_failed"] == 2)
        assert "was deleted or replaced" in str(store.stats()["wake_last_error"])
        away.rename(path)
        await until(lambda: store.stats()["wake_connects"] == 2)
        with store.bell.listen("c1") as listener:
            async with opened(url) as other:
                await other.submit("c1", cmd.Send(message=user("from elsewhere")))
            assert await listener.wait(30)


async def test_what_failed_leaves_the_store_usable(url: str, clock: FakeClock) -> None:
    """One error of each kind, then ordinary work."""
    async with opened(url, clock=clock) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        attempts = (
            store.read_chat("nope"),
            store.create_chat(new_chat(id="c1")),
            store.submit("c1", cmd.Retry()),
            store.submit("c1", cmd.Send(message=user("a\x00b"))),
            store.claim_chats("nobody", {"agent": 1}, 1),
            store.read_journal("c1", "not-a-cursor"),
        )
        for outcome in await asyncio.gather(*attempts, return_exceptions=True):
            assert isinstance(outcome, HoldfastError)
        hand = Hand(store)
        await hand.take("c1")
        assert (await hand.end_turn()).chat.state is State.IDLE
        assert await store.find_violations() == []
        assert await store.check_integrity() == []
        hand.close()


async def test_a_worker_row_can_be_read_by_people(url: str) -> None:
    """`host` is the boot id, `pid` the process: what `check_single_machine` says must be findable."""
    async with opened(url) as store:
        line = store.lease_line()
        line.register(WorkerInfo(worker="w1", host="", pid=os.getpid()))
        assert [(lease.worker, lease.host, lease.pid) for lease in await store.list_workers()] == [
            ("w1", boot_id(), os.getpid())
        ]
        line.close()
