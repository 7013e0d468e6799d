"""A SQLite file after a reboot, in a new container, on another machine: who had it before, and is it still in use?"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.app import App
from holdfast.core.records import State
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import boot_id, session_id
from tests.store.rebooted import BOOT_ID
from tests.support.behind import sql
from tests.support.chats import new_chat
from tests.support.programs import Program
from tests.support.waiting import eventually

TTL_MS = 3_000
LONG_TTL_MS = 600_000  # nobody waits for that


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


class Machine:
    """Starts programs as if in the boot that it was given."""

    def __init__(self, folder: Path, url: str, stack: ExitStack) -> None:
        self._folder, self._url, self._stack = folder, url, stack

    def boots(self, name: str, ttl_ms: int = LONG_TTL_MS) -> Program:
        file = self._folder / name
        file.write_text(f"{name}\n")
        return self._stack.enter_context(Program("tests.store.rebooted", str(file), self._url, str(ttl_ms)))


@pytest.fixture
def machine(tmp_path: Path, url: str) -> Iterator[Machine]:
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False) if _can_unshare() else None
    if tried is None or tried.returncode:
        pytest.skip("a boot id of one's own needs root and a mount namespace")
    folder = tmp_path / "boots"
    folder.mkdir()
    with ExitStack() as stack:
        yield Machine(folder, url, stack)


def _can_unshare() -> bool:
    return os.geteuid() == 0 and shutil.which("unshare") is not None and Path(BOOT_ID).exists()


def is_ready(program: Program) -> float:
    """How long it took. A duration that decides nothing: the TTL is one that nobody could wait for."""
    word, seconds = program.hear().split()
    assert word == "ready"
    return float(seconds)


async def test_a_worker_starts_at_once_after_a_clean_stop_and_a_fast_reboot(machine: Machine) -> None:
    first = machine.boots("boot-1")
    is_ready(first)
    first.say("stop")
    first.finish()
    is_ready(machine.boots("boot-2"))


async def test_a_power_cut_and_a_fast_reboot_cost_no_wait_and_the_chats_go_on(machine: Machine, url: str) -> None:
    """Nobody holds the lock that lies beside the database: whoever had it is gone, whatever its lease says."""
    first = machine.boots("boot-1")
    is_ready(first)
    async with App(url, [], options=StoreOptions(lease_ttl_ms=LONG_TTL_MS, only_reads=True)) as app:
        await app.store.create_chat(new_chat(id="c1", agent="a"))
        await eventually(lambda: _holder(app, "c1"))
        before = await _holder(app, "c1")
        first.process.kill()
        first.process.wait(30)
        is_ready(machine.boots("boot-2"))
        await eventually(lambda: _held_by_another(app, "c1", before))


async def _holder(app: App, chat_id: str) -> str | None:
    return (await app.store.read_chat(chat_id)).chat.worker


async def _held_by_another(app: App, chat_id: str, before: str | None) -> bool:
    return await _holder(app, chat_id) not in (None, before)


async def test_a_file_that_another_machine_keeps_using_is_refused(machine: Machine, url: str) -> None:
    """Its lock is held, or cannot be seen: its renewals tell."""
    is_ready(machine.boots("boot-1", TTL_MS))
    said = machine.boots("boot-2", TTL_MS).hear()
    assert said.startswith("ConfigError:")
    assert "one machine; use PostgreSQL for several" in said


async def test_a_new_container_sees_the_death_of_the_old_one(url: str) -> None:
    """The same boot, another TMPDIR, another place where the volume is mounted: the lock lies beside the file."""
    async with open_store(url, StoreOptions(lease_ttl_ms=LONG_TTL_MS)) as store:
        folder = Path(store.lock_folder)
        folder.mkdir(mode=0o700)
        (folder / "w1.lock").touch()
        row = ("w1", boot_id(), "/elsewhere/holdfast.db-workers/w1.lock")
        sql(url, _REGISTER, (*row, LONG_TTL_MS))
        assert await store.expire_workers() == {"w1": 0}
        assert list(folder.iterdir()) == []


_REGISTER = (
    "INSERT INTO workers (id, host, pid, lock_path, started_at, renewed_at, ttl_ms, info) "
    "VALUES (?, ?, 4711, ?, 0, 0, ?, '{}')"
)


async def test_a_file_that_came_from_another_machine_is_watched_for_a_ttl_and_then_taken(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Copied over with its leases, or its locks are lost: the lease does not move, and its chats are taken back."""
    async with open_store(url, StoreOptions()) as store:
        await store.create_chat(new_chat(id="c1"))
    sql(url, _REGISTER, ("w-far", "another-boot", "/gone/w-far.lock", 300))
    sql(url, "UPDATE chats SET worker = 'w-far', fence = 1, wake_at = NULL WHERE id = 'c1'")
    async with open_store(url, StoreOptions()) as store:
        assert [record.__dict__["wait_s"] for record in caplog.records if "wait_s" in record.__dict__] == [0.3]
        assert await store.expire_workers() == {"w-far": 1}
        assert (await store.read_chat("c1")).chat.worker is None
        assert await store.find_violations() == []


async def test_who_only_looks_waits_for_nobody(url: str) -> None:
    async with open_store(url, StoreOptions()) as store:
        await store.create_chat(new_chat(id="c1"))
    sql(url, _REGISTER, ("w-far", "another-boot", "/gone/w-far.lock", LONG_TTL_MS))
    async with open_store(url, StoreOptions(only_reads=True)) as store:
        assert (await store.read_chat("c1")).chat.state is State.RUNNING


def test_the_boot_session_of_a_mac_is_read_as_sysctl_writes_it() -> None:
    """It names the boot. The boot's instant, which served before, moved with every step of the wall clock."""
    answer = b"5A0E5E1C-7F3B-4E3B-9C57-2F6D0C0F8A11\0\0\0"
    assert session_id(answer) == "5a0e5e1c-7f3b-4e3b-9c57-2f6d0c0f8a11"
