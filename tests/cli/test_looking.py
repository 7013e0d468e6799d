"""Commands that only look, where nothing can be written: permissions that count, a real WAL, a real kill."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from tests.cli.conftest import APP, Desk, Done
from tests.cli.desk import AGENTS


@pytest.fixture
def home(desk: Desk) -> Iterator[Path]:
    """The home of the desk; whatever becomes of its permissions, it can be removed."""
    folder = desk.folder / ".holdfast"
    folder.mkdir()
    yield folder
    folder.chmod(0o700)


def protect(home: Path) -> None:
    for file in home.iterdir():
        file.chmod(0o444)
    home.chmod(0o555)


def content(home: Path) -> dict[str, bytes]:
    """Of all but the shared memory, in which readers leave marks."""
    return {
        file.name: file.read_bytes() for file in home.iterdir() if file.is_file() and not file.name.endswith("-shm")
    }


def unprivileged(desk: Desk, *arguments: str) -> Done:
    command = [sys.executable, "-W", "error", "-m", "tests.cli.unprivileged", *arguments]
    done = subprocess.run(command, cwd=desk.folder, env=desk.environ, text=True, timeout=60, capture_output=True)
    return Done(done.returncode, done.stdout, done.stderr)


def ids(done: Done) -> list[str]:
    assert (done.code, done.err) == (0, "")
    return [line.split("\t")[0] for line in done.out.splitlines()]


def test_a_home_that_cannot_be_written_to_can_be_looked_at(desk: Desk, home: Path) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    protect(home)
    before = content(home)
    assert len(ids(unprivileged(desk, "chats", "list"))) == 1
    assert "You said: hello" in unprivileged(desk, "chats", "show", "last").out
    assert unprivileged(desk, "chats", "tail", "last").out == "> hello\nYou said: hello\n"
    assert unprivileged(desk, "workers").code == 0
    assert content(home) == before
    refused = unprivileged(desk, "chats", "send", "last", "more")
    assert (refused.code, refused.out) == (1, "")
    assert "cannot be written to: check the permissions" in refused.err


def killed_in_mid_turn(desk: Desk) -> None:
    """What it did last is in the WAL alone."""
    asked = desk.start("run", "hello", "--app", APP, "--agent", "gated")
    try:
        desk.wait_at_the_gate(asked)
    finally:
        asked.send_signal(signal.SIGKILL)
        asked.communicate()


def test_what_a_killed_process_left_in_the_wal_is_seen(desk: Desk, home: Path) -> None:
    killed_in_mid_turn(desk)
    protect(home)
    before = content(home)
    assert "holdfast.db-wal" in before
    (row,) = unprivileged(desk, "chats", "list").out.splitlines()
    assert row.split("\t")[1:3] == ["gated", "running"]
    assert "One moment." in unprivileged(desk, "chats", "show", "last").out
    assert content(home) == before


def test_a_wal_that_sqlite_cannot_read_here_is_said_with_what_to_do_and_that_helps(desk: Desk, home: Path) -> None:
    killed_in_mid_turn(desk)
    (home / "holdfast.db-shm").unlink()
    protect(home)
    refused = unprivileged(desk, "chats", "list")
    assert (refused.code, refused.out) == (1, "")
    assert "-wal to a folder of yours, and read the copy" in refused.err
    mine = desk.folder / "mine"
    mine.mkdir()
    for name in ("holdfast.db", "holdfast.db-wal"):
        shutil.copyfile(home / name, mine / name)
    (row,) = unprivileged(desk, "chats", "list", "--database", f"sqlite:///{mine}/holdfast.db").out.splitlines()
    assert row.split("\t")[1:3] == ["gated", "running"]


def test_who_may_only_read_sees_what_somebody_else_writes(desk: Desk, home: Path) -> None:
    async def write_and_look() -> tuple[list[str], list[str], list[str]]:
        async with App(agents=AGENTS, home=str(home)) as app:
            first = await app.create("echo", "one")
            protect(home)
            seen = await asyncio.to_thread(unprivileged, desk, "chats", "list")
            second = await app.create("echo", "two")
            return [second.id, first.id], ids(seen), ids(await asyncio.to_thread(unprivileged, desk, "chats", "list"))

    made, before, after = asyncio.run(write_and_look())
    assert (before, after) == (made[1:], made)


def test_the_doctor_says_that_it_cannot_be_written_to_and_looks_on(desk: Desk, home: Path) -> None:
    async def leave_behind() -> None:
        async with App(agents=AGENTS, home=str(home)) as app:
            await app.create("echo", "nobody hears me")

    asyncio.run(leave_behind())
    protect(home)
    done = unprivileged(desk, "doctor", "--json")
    codes = {found["code"] for found in json.loads(done.out)["findings"] if found["wrong"]}
    assert (done.code, codes) == (
        1,
        {"home_not_writable", "store_read_only", "database_exposed", "no_worker_for_agent"},
    )


def test_a_home_that_is_not_there_is_not_made_to_look_at_another_database(desk: Desk, home: Path) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    empty = desk.folder / "empty"
    empty.mkdir()
    desk.folder = empty
    assert len(ids(desk.run("chats", "list", "--database", f"sqlite:///{home}/holdfast.db"))) == 1
    assert list(empty.iterdir()) == []


# --- file systems of our own ------------------------------------------------------------------------------------


def on_a_file_system_of_its_own(desk: Desk, home: Path, script: str) -> Done:
    """A shell script whose HOME_OF_ITS_OWN is a small tmpfs that nobody else sees."""
    alone = subprocess.run(["unshare", "-rm", "true"], capture_output=True) if shutil.which("unshare") else None
    if alone is None or alone.returncode != 0:
        pytest.skip("no name spaces of our own here: unshare -rm")
    mounted = f"set -e; mount -t tmpfs -o size=4m tmpfs {home}; set +e; {script}"
    holdfast = f'holdfast() {{ {sys.executable} -W error -m holdfast "$@"; }}; '
    done = subprocess.run(
        ["unshare", "-rm", "/bin/sh", "-c", holdfast + mounted],
        cwd=desk.folder, env=desk.environ, text=True, timeout=60, capture_output=True,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


RUN = f"holdfast run hello --app {APP} --agent echo >/dev/null || exit 9"
FILL = "dd if=/dev/zero of=.holdfast/filler bs=4k 2>/dev/null"


def test_a_read_only_file_system_can_be_looked_at(desk: Desk, home: Path) -> None:
    done = on_a_file_system_of_its_own(desk, home, f"{RUN}; mount -o remount,ro {home}; holdfast chats show last")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("You said: hello\n")


def test_on_a_full_disk_chats_can_be_looked_at_and_the_doctor_says_what_is_wrong(desk: Desk, home: Path) -> None:
    done = on_a_file_system_of_its_own(desk, home, f"{RUN}; {FILL}; holdfast chats show last; holdfast doctor")
    assert "You said: hello\n" in done.out
    assert done.code == 1, done.out + done.err
    assert "✗ home     home_full: " in done.out
    assert "✗ store    store_full: " in done.out
    assert "free some" in done.out
    assert "✓ chats    none is stranded" in done.out


def test_a_full_disk_is_said_in_one_line(desk: Desk, home: Path) -> None:
    done = on_a_file_system_of_its_own(desk, home, f"{RUN}; {FILL}; holdfast run again --app {APP} --agent echo")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("holdfast: no room left on the disk")
    assert len(done.err.splitlines()) == 1


COPIES = ["backup small/x.db", "restore .holdfast/holdfast.db --database sqlite:///small/x.db"]


@pytest.mark.parametrize("command", COPIES)
def test_a_copy_onto_a_full_disk_names_the_file_that_has_no_room(desk: Desk, home: Path, command: str) -> None:
    small = desk.folder / "small"
    small.mkdir()
    script = f"{RUN}; mount -t tmpfs -o size=100k tmpfs {small}; holdfast {command} && exit 9; ls -A small >&2"
    done = on_a_file_system_of_its_own(desk, home, script)
    words = f"holdfast: no room left on the disk of {small}/x.db: nothing was written; free some and try again\n"
    assert (done.code, done.out, done.err) == (0, "", words), "and nothing is left there"


def test_a_home_that_is_to_be_made_on_a_full_disk_is_said_to_be_so(desk: Desk, home: Path) -> None:
    script = f"dd if=/dev/zero of=.holdfast/filler bs=1k 2>/dev/null; holdfast tokens create any --home {home}/new"
    done = on_a_file_system_of_its_own(desk, home, script)
    assert (done.code, done.out) == (1, "")
    assert "No space left" in done.err or "no room left" in done.err
    assert len(done.err.splitlines()) == 1
