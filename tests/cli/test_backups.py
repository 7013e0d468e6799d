"""`holdfast backup` and `holdfast restore`: a whole copy or none, made while the database is in use, and back."""

import asyncio
import os
import re
import signal
from pathlib import Path

import apsw
import pytest

from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.incidents import WENT_BACK
from tests.cli.conftest import Desk
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat

COPY = "copy.db"


@pytest.fixture
def url(desk: Desk) -> str:
    (desk.folder / ".holdfast").mkdir()
    return f"sqlite:///{desk.folder}/.holdfast/holdfast.db"


def database(desk: Desk) -> Path:
    return desk.folder / ".holdfast" / "holdfast.db"


async def filled(url: str, *ids: str) -> None:
    async with open_store(url) as store:
        for id in ids:
            await store.create_chat(new_chat("x" * 5_000, id=id))


async def chats_in(url: str) -> list[str]:
    async with open_store(url) as store:
        assert await store.check_integrity() == []  # type: ignore[attr-defined]
        return sorted(line.id for line in await store.list_chats(limit=10_000))


def litter(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if ".tmp" in file.name)


async def in_a_process(desk: Desk, *arguments: str) -> tuple[int, str, str]:
    """While this one goes on."""
    process = await asyncio.create_subprocess_exec(
        *desk.command(*arguments), cwd=desk.folder, env=desk.environ,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_database_is_backed_up_while_it_is_written_to(desk: Desk, url: str) -> None:
    await filled(url, *(f"old-{n:03}" for n in range(100)))
    async with open_store(url) as store:
        hand, written = Hand(store), 0
        backing_up = asyncio.ensure_future(in_a_process(desk, "backup", COPY))
        while not backing_up.done():
            await store.create_chat(new_chat("x" * 5_000, id=f"new-{written:05}"))
            written += 1
        code, out, err = await backing_up
        hand.close()
    assert code == 0, err
    assert re.fullmatch(rf"{COPY}: [\d.]+ MB in [\d.]+ s, checked\n", out)
    found = await chats_in(f"sqlite:///{desk.folder / COPY}")
    new = [id for id in found if id.startswith("new-")]
    assert [id for id in found if id not in new] == [f"old-{n:03}" for n in range(100)]
    assert new == [f"new-{n:05}" for n in range(len(new))], "a moment, with nothing missing before it"
    assert len(await chats_in(url)) == 100 + written
    assert litter(desk.folder) == []


async def test_a_backup_replaces_no_file_unless_it_is_told_to(desk: Desk, url: str) -> None:
    await filled(url, "c1")
    (desk.folder / COPY).write_text("mine")
    done = desk.run("backup", COPY)
    assert (done.code, (desk.folder / COPY).read_text()) == (1, "mine")
    assert "--force" in done.err
    assert desk.run("backup", COPY, "--force").code == 0
    assert await chats_in(f"sqlite:///{desk.folder / COPY}") == ["c1"]


@pytest.mark.parametrize("point", ["copy.step", "backup.checked"])
async def test_a_backup_that_is_killed_leaves_none_and_the_next_one_tidies_up(
    desk: Desk, url: str, point: str
) -> None:
    await filled(url, "c1")
    desk.environ["HOLDFAST_CRASH_AT"] = point
    assert desk.run("backup", COPY).code == -signal.SIGKILL
    assert not (desk.folder / COPY).exists()
    assert litter(desk.folder)
    del desk.environ["HOLDFAST_CRASH_AT"]
    assert desk.run("backup", COPY).code == 0
    assert litter(desk.folder) == []
    assert await chats_in(f"sqlite:///{desk.folder / COPY}") == ["c1"]


async def test_a_restore_brings_back_what_was_and_ends_the_leases(desk: Desk, url: str) -> None:
    async with open_store(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        assert (await in_a_process(desk, "backup", COPY))[0] == 0
        await store.create_chat(new_chat(None, id="c2"))
        hand.close()
    assert desk.run("restore", COPY).code == 2, "there is a database, and nobody said --force"
    assert await chats_in(url) == ["c1", "c2"]
    done = desk.run("restore", COPY, "--force")
    assert (done.code, done.err) == (0, "")
    assert "1 lease ended" in done.out
    assert await chats_in(url) == ["c1"]
    assert await chats_in(f"{url}.before-restore") == ["c1", "c2"]
    async with open_store(url) as store:
        assert await nobody_holds(store, "c1")
        assert await store.incident_at(WENT_BACK) is not None


async def test_a_backup_of_another_boot_or_machine_is_restored_at_once_and_counts_no_death(
    desk: Desk, url: str
) -> None:
    async with open_store(url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        sql(url, "UPDATE workers SET host = 'another boot'")
        assert (await in_a_process(desk, "backup", COPY))[0] == 0
        hand.close()
    done = desk.run("restore", COPY, "--force")
    assert (done.code, done.err) == (0, "")
    assert "1 lease ended" in done.out
    async with open_store(url) as store:
        assert await nobody_holds(store, "c1")
        assert (await store.read_chat("c1")).chat.unclean == 0


async def test_a_second_restore_keeps_what_the_first_one_kept(desk: Desk, url: str) -> None:
    """Who took the wrong backup first still has the database that it replaced."""
    await filled(url, "c1")
    assert desk.run("backup", COPY).code == 0
    await filled(url, "c2")
    for _ in range(2):
        assert desk.run("restore", COPY, "--force").code == 0
    assert await chats_in(f"{url}.before-restore") == ["c1", "c2"]
    assert await chats_in(f"{url}.before-restore-2") == ["c1"]


async def test_where_a_link_stands_in_for_the_database_the_database_is_replaced(desk: Desk, url: str) -> None:
    await filled(url, "c1")
    assert desk.run("backup", COPY).code == 0
    await filled(url, "c2")
    real = desk.folder / "real.db"
    database(desk).rename(real)
    database(desk).symlink_to(real)
    assert desk.run("restore", COPY, "--force").code == 0
    assert database(desk).is_symlink()
    assert await chats_in(f"sqlite:///{real}") == ["c1"]
    assert await chats_in(f"sqlite:///{real}.before-restore") == ["c1", "c2"]


async def nobody_holds(store: Store, chat_id: str) -> bool:
    """A new worker can have it at once, because the lease of then is over."""
    await store.sweep()
    assert (await store.read_chat(chat_id)).chat.worker is None
    return True


async def test_a_restore_is_refused_while_somebody_has_the_database_open(desk: Desk, url: str) -> None:
    await filled(url, "c1")
    assert desk.run("backup", COPY).code == 0
    async with open_store(url) as store:
        await store.create_chat(new_chat(None, id="c2"))
        code, _, err = await in_a_process(desk, "restore", COPY, "--force")
        assert code == 1
        assert f"is in use by pid {os.getpid()} " in err
        await store.create_chat(new_chat(None, id="c3"))
    assert await chats_in(url) == ["c1", "c2", "c3"]
    assert litter(database(desk).parent) == []


@pytest.mark.parametrize("point", ["copy.step", "restore.prepared", "restore.kept"])
async def test_a_restore_that_is_killed_leaves_the_database_as_it_was(desk: Desk, url: str, point: str) -> None:
    await filled(url, "c1")
    assert desk.run("backup", COPY).code == 0
    await filled(url, "c2")
    desk.environ["HOLDFAST_CRASH_AT"] = point
    assert desk.run("restore", COPY, "--force").code == -signal.SIGKILL
    assert await chats_in(url) == ["c1", "c2"]
    del desk.environ["HOLDFAST_CRASH_AT"]
    assert desk.run("restore", COPY, "--force").code == 0
    assert litter(database(desk).parent) == []
    assert await chats_in(url) == ["c1"]


async def test_a_damaged_database_is_replaced_and_kept(desk: Desk, url: str) -> None:
    await filled(url, "c1")
    assert desk.run("backup", COPY).code == 0
    damage = b"not a database any more" * 500
    database(desk).write_bytes(damage)
    Path(f"{database(desk)}-wal").write_bytes(b"nor is this a wal")
    assert desk.run("restore", COPY, "--force").code == 0
    assert await chats_in(url) == ["c1"]
    assert Path(f"{database(desk)}.before-restore").read_bytes() == damage
    assert Path(f"{database(desk)}.before-restore-wal").exists()


@pytest.mark.parametrize("what", ["nothing", "foreign", "noise"])
async def test_what_is_no_backup_of_ours_replaces_nothing(desk: Desk, url: str, what: str) -> None:
    await filled(url, "c1")
    copy = desk.folder / COPY
    if what == "foreign":
        connection = apsw.Connection(str(copy))
        connection.execute("CREATE TABLE theirs (id)")
        connection.close()
    elif what == "noise":
        copy.write_bytes(b"noise" * 1000)
    done = desk.run("restore", COPY, "--force")
    assert done.code in (1, 2)
    assert await chats_in(url) == ["c1"]
    assert litter(database(desk).parent) == []


async def test_on_postgresql_the_leases_of_a_restored_database_are_ended(desk: Desk, postgres_url: str) -> None:
    """Between a dump that its own tools bring back and the first worker."""
    async with open_store(postgres_url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        hand.close()
        code, out, err = await in_a_process(desk, "restore", "--database", postgres_url)
        assert (code, err) == (0, "")
        assert "1 lease ended" in out
        assert await nobody_holds(store, "c1")
        assert sql(postgres_url, "SELECT value > 0 FROM meta WHERE key = 'went_back_at'") == [(True,)]
        for arguments in (("backup", COPY), ("restore", COPY)):
            code, _, err = await in_a_process(desk, *arguments, "--database", postgres_url)
            assert code == 2
            assert "docs/operating.md" in err
