"""`holdfast prune` and `holdfast vacuum`: beside workers, whole or not at all, and what they freed."""

import asyncio
import fcntl
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.cli.commands.prune import prune
from holdfast.cli.options import Where
from holdfast.core import commands as cmd
from holdfast.errors import StoreFull
from holdfast.store import open_store
from holdfast.store.records import DeltaBatch, StoreOptions
from holdfast.store.retention import ROWS_MAX
from holdfast.store.sqlite import vacuum as rebuilding
from tests.cli.conftest import Desk, Done
from tests.cli.test_backups import in_a_process, litter
from tests.support.behind import path_of, sql
from tests.support.chats import Hand, history, new_chat, texts
from tests.support.waiting import until

LEFT = 3 * ROWS_MAX + 100  # some slices


@pytest.fixture
def sqlite_url(desk: Desk) -> str:
    (desk.folder / ".holdfast").mkdir()
    return f"sqlite:///{desk.folder}/.holdfast/holdfast.db"


async def filled(url: str, left: int = LEFT) -> None:
    """A chat at rest with much text of an attempt that is over, and one that is archived."""
    async with open_store(url) as store:
        hand = Hand(store)
        await store.create_chat(new_chat("hello", id="c1"))
        await hand.take("c1")
        attempt = hand.attempt()
        bodies = (b'{"text":"never mind never mind never mind"}',) * left
        assert (
            await store.add_deltas([DeltaBatch(chat=hand.held.chat, attempt=attempt, first_k=0, bodies=bodies)]) == ()
        )
        await hand.commit(cmd.AttemptLost(by=hand.by, attempt=attempt, model="m", error="no"))
        await hand.end_turn("that is all")
        await store.create_chat(new_chat(None, id="old"))
        await store.submit("old", cmd.Archive())
        hand.close()


def rows_left(url: str) -> int:
    return int(sql(url, "SELECT count(*) FROM deltas")[0][0])


async def test_what_nobody_can_reach_is_removed_beside_those_who_write(desk: Desk, store_url: str) -> None:
    await filled(store_url)
    command = ("prune", "--older-than", "0h", "--json", "--database", store_url)
    async with open_store(store_url) as store:
        pruning = asyncio.ensure_future(in_a_process(desk, *command))
        written = 0
        while not pruning.done():
            await store.create_chat(new_chat("hello", id=f"new-{written:05}"))
            written += 1
        code, out, err = await pruning
        assert (code, err) == (0, "")
        told = json.loads(out)
        assert told["freed"]["attempts"] == {"rows": LEFT, "bytes": LEFT * 43}
        assert (told["freed"]["archived_chats"]["rows"], told["interrupted"]) == (0, False)
        assert told["database"]["before"]["total"] > 0
        assert texts(await history(store, "c1")) == ["hello", "that is all"]
        assert len(await store.list_chats(limit=10_000)) == written + 2
    assert rows_left(store_url) == 0
    again = desk.run("prune", "--older-than", "0", "--archived-chats", "--database", store_url)
    assert again.code == 0, again.err
    assert "archived chats: 1 chats" in again.out
    assert "streamed text" not in again.out


def test_a_dry_run_says_what_would_go_and_the_policy_comes_from_the_settings(
    desk: Desk, quick: Callable[..., Done], sqlite_url: str
) -> None:
    asyncio.run(filled(sqlite_url))
    done = quick("prune")
    assert (done.code, "--older-than" in done.err) == (2, True), "nothing goes that nobody asked for"
    assert quick("prune", "--older-than", "soon").code == 2
    assert quick("prune", "--archived-chats").code == 2
    (desk.folder / "holdfast.toml").write_text("[retention]\nattempts_days = 0\narchived_chats_days = 100\n")
    dry = quick("prune", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert f"streamed text of ended attempts: {LEFT:,} rows, 0.1 MB of text\n" in dry.out
    assert "would go" in dry.out
    assert rows_left(sqlite_url) == LEFT
    assert quick("prune").code == 0
    assert rows_left(sqlite_url) == 0
    (desk.folder / "holdfast.toml").write_text("[retention]\nattempt_days = 0\n")
    assert quick("prune").code == 1, "a key that nobody knows"


async def test_a_prune_that_is_killed_has_done_what_it_has_done_and_the_next_does_the_rest(
    desk: Desk, store_url: str
) -> None:
    await filled(store_url)
    desk.environ["HOLDFAST_CRASH_AT"] = "commit.before:6"
    assert desk.run("prune", "--older-than", "0", "--database", store_url).code == -signal.SIGKILL
    assert 0 < rows_left(store_url) < LEFT
    del desk.environ["HOLDFAST_CRASH_AT"]
    assert desk.run("prune", "--older-than", "0", "--database", store_url).code == 0
    assert rows_left(store_url) == 0
    async with open_store(store_url) as store:
        assert (await store.find_violations(), await store.find_torn()) == ([], [])


@contextmanager
def write_lock(path: str) -> Iterator[None]:
    with Path(f"{path}.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: str) -> bool:
    with Path(path).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def test_ctrl_c_ends_a_prune_with_130_and_it_says_what_is_done(desk: Desk, sqlite_url: str) -> None:
    await filled(sqlite_url)
    path = path_of(sqlite_url)
    with write_lock(path):
        process = desk.start("prune", "--older-than", "0")
        await until(lambda: is_locked(f"{path}.gate"))  # it waits for us
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "interrupted; what is done is done:\n"
    assert process.wait(30) == 130
    process.communicate()
    assert rows_left(sqlite_url) == LEFT


async def test_a_prune_that_is_given_up_in_the_middle_tells_of_the_rows_that_are_gone(
    desk: Desk, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await filled(sqlite_url)
    pruning = asyncio.ensure_future(
        prune(
            Where(None, str(desk.folder / ".holdfast"), sqlite_url),
            older_than="0",
            archived_chats=False,
            dry_run=False,
            json=True,
        )
    )
    await until(lambda: rows_left(sqlite_url) < LEFT)
    pruning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pruning
    told = json.loads(capsys.readouterr().out)
    assert told["interrupted"]
    assert 0 < rows_left(sqlite_url) < LEFT


# --- vacuum -----------------------------------------------------------------------------------------------------


def test_a_vacuum_makes_the_file_smaller_and_everything_is_in_it(quick: Callable[..., Done], sqlite_url: str) -> None:
    asyncio.run(filled(sqlite_url, left=20_000))
    assert quick("prune", "--older-than", "0").code == 0
    path = Path(path_of(sqlite_url))
    before, mode = path.stat().st_size, path.stat().st_mode
    done = quick("vacuum", "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["before"] == before
    assert told["after"] == path.stat().st_size < before - told["free"] + 50_000
    assert path.stat().st_mode == mode
    assert litter(path.parent) == []
    asyncio.run(goes_on(sqlite_url))
    assert "MB after, in" in quick("vacuum").out


async def goes_on(url: str) -> None:
    async with open_store(url) as store:
        assert texts(await history(store, "c1")) == ["hello", "that is all"]
        assert await store.check_integrity() == []  # type: ignore[attr-defined]
        await store.create_chat(new_chat("hello", id="c2"))


async def test_a_vacuum_refuses_while_anybody_has_the_file_open(desk: Desk, sqlite_url: str) -> None:
    async with open_store(sqlite_url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        code, _, err = await in_a_process(desk, "vacuum")
        assert code == 1
        assert "in use" in err
        assert "stop its workers" in err
        await store.create_chat(new_chat("hello", id="c2"))
    assert desk.run("vacuum").code == 0


async def test_nobody_can_open_the_file_while_it_is_built_anew(sqlite_url: str) -> None:
    """What they wrote would be missing in the new one."""
    await filled(sqlite_url)
    path = path_of(sqlite_url)
    tried: list[str] = []

    def somebody_comes(_done: int, _all: int) -> None:
        if not tried:
            tried.append(in_another_process(path))

    rebuilding.STEPS_BETWEEN_LOOKS, steps = 1_000, rebuilding.STEPS_BETWEEN_LOOKS
    try:
        rebuilding.vacuum(path, somebody_comes)
    finally:
        rebuilding.STEPS_BETWEEN_LOOKS = steps
    assert tried == ["BusyError"]


def in_another_process(path: str) -> str:
    program = (
        "import apsw, sys\nc = apsw.Connection(sys.argv[1])\n"
        "try:\n    c.execute('SELECT count(*) FROM chats').fetchall()\n"
        "except apsw.Error as error:\n    print(type(error).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


async def test_a_vacuum_that_is_killed_leaves_the_old_file_and_the_next_one_tidies_up(
    desk: Desk, sqlite_url: str
) -> None:
    await filled(sqlite_url)
    path = Path(path_of(sqlite_url))
    inode = path.stat().st_ino
    desk.environ["HOLDFAST_CRASH_AT"] = "vacuum.rebuilt"
    assert desk.run("vacuum").code == -signal.SIGKILL
    assert path.stat().st_ino == inode
    assert litter(path.parent)
    del desk.environ["HOLDFAST_CRASH_AT"]
    async with open_store(sqlite_url) as store:
        assert texts(await history(store, "c1")) == ["hello", "that is all"]
    assert desk.run("vacuum").code == 0
    assert path.stat().st_ino != inode
    assert litter(path.parent) == []


async def test_a_vacuum_without_room_on_the_disk_changes_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(sqlite_url)
    path = Path(path_of(sqlite_url))
    inode = path.stat().st_ino
    usage: Any = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(StoreFull, match="nothing was changed"):
        rebuilding.vacuum(str(path))
    assert path.stat().st_ino == inode
    assert litter(path.parent) == []


async def test_what_a_killed_vacuum_left_does_not_take_the_room_of_the_next_one(
    desk: Desk, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(sqlite_url)
    path = Path(path_of(sqlite_url))
    desk.environ["HOLDFAST_CRASH_AT"] = "vacuum.rebuilt"
    assert desk.run("vacuum").code == -signal.SIGKILL
    [left] = litter(path.parent)
    room = shutil.disk_usage(path.parent)
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: room._replace(free=0 if left in litter(path.parent) else room.free)
    )
    inode = path.stat().st_ino
    rebuilding.vacuum(str(path))
    assert path.stat().st_ino != inode
    assert litter(path.parent) == []


async def test_a_vacuum_that_is_given_up_changes_nothing(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(sqlite_url)
    path = Path(path_of(sqlite_url))
    inode = path.stat().st_ino
    with pytest.raises(rebuilding.GaveUp):
        rebuilding.vacuum(str(path), gave_up=lambda: True)
    assert (path.stat().st_ino, litter(path.parent)) == (inode, [])
    assert apsw.Connection(str(path)).pragma("integrity_check") == "ok"


async def test_the_tables_of_postgresql_are_vacuumed_beside_a_worker(desk: Desk, postgres_url: str) -> None:
    async with open_store(postgres_url):
        sql(postgres_url, "ALTER TABLE deltas SET (autovacuum_enabled = off)")  # else it may come before us
    await filled(postgres_url)
    assert desk.run("prune", "--older-than", "0", "--database", postgres_url).code == 0
    async with open_store(postgres_url, StoreOptions()) as store:
        hand = Hand(store)
        code, out, err = await in_a_process(desk, "vacuum", "--json", "--database", postgres_url)
        assert (code, err) == (0, "")
        hand.close()
    told = json.loads(out)
    assert told["after"] < told["before"]
    ((dead,),) = sql(postgres_url, "SELECT count(*) FROM pg_stat_user_tables WHERE last_vacuum IS NULL")
    assert dead <= 1, "all but meta"
