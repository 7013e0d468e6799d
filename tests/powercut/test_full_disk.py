"""A disk that is really full: a file system of two megabytes, and what happens to the SQLite store on it."""

import asyncio
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.core import commands as cmd
from holdfast.errors import StoreFull
from holdfast.store.records import Answer, Key, StoreOptions
from holdfast.store.sqlite.store import SqliteStore
from holdfast.system.clock import FakeClock
from tests.support.aftermath import find_faults
from tests.support.chats import Hand, call, history, new_chat, texts, told, user

DISK_BYTES = 2 << 20
WRITES_MAX = 1_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "holdfast-test", str(folder)],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a small file system cannot be mounted here: {error.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, timeout=30, check=True)


def fill(folder: Path) -> Path:
    """Take all the room there is."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:

        def write() -> int | None:
            return file.write(bytes(512))

        with pytest.raises(OSError, match="No space left"):
            deque(iter(write, None), maxlen=0)
    return ballast


async def test_when_the_disk_has_room_again_work_goes_on_without_a_restart(disk: Path, clock: FakeClock) -> None:
    async with SqliteStore(f"/{disk}/holdfast.db", StoreOptions(clock=clock)) as store:
        hand = Hand(store)
        await store.create_chat(new_chat("hello", id="c1"))
        await hand.take("c1")
        before = await store.read_chat("c1")
        ballast = fill(disk)

        new = [new_chat("x" * 5_000, id=f"more-{n}") for n in range(20)]
        told = await asyncio.gather(*(store.create_chat(chat) for chat in new), return_exceptions=True)
        assert [type(error) for error in told] == [StoreFull] * 20
        response = hand.response("let me see", call("k1"))
        with pytest.raises(StoreFull, match="free some and try again"):
            await store.commit(hand.held, [response], "x1")
        with suppress(StoreFull):  # one page is all it takes, and that may still be there
            hand.line.renew(hand.name)
        assert await store.read_chat("c1") == before
        assert texts(await history(store, "c1")) == ["hello"]
        assert [line.id for line in await store.list_chats()] == ["c1"]

        ballast.unlink()
        hand.line.renew(hand.name)
        hand.snapshot = await store.commit(hand.held, [response], "x1")
        await hand.finish("k1", "seen")
        await hand.end_turn("done")
        assert texts(await history(store, "c1")) == ["hello", "let me see", "seen", "done"]
        answers = await asyncio.gather(*(store.create_chat(chat) for chat in new))
        assert [answer.chat_id for answer in answers] == [chat.id for chat in new]
        assert await find_faults(store) == []
        assert await store.check_integrity() == []
        hand.close()


async def test_a_store_that_fills_the_disk_itself_keeps_all_it_acknowledged(disk: Path, clock: FakeClock) -> None:
    """Until it is full to the last page, with checkpoints that find no room; then the disk is made larger."""
    location = f"/{disk}/holdfast.db"
    async with SqliteStore(location, StoreOptions(clock=clock)) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        messages = [user(f"{n} " * 400) for n in range(WRITES_MAX)]

        async def send(n: int) -> Answer:
            return await store.submit("c1", cmd.Send(message=messages[n]), Key(principal="p", key=f"{n}"))

        sent = 0
        with suppress(StoreFull):
            for sent in range(WRITES_MAX):
                await send(sent)
        assert 20 < sent < WRITES_MAX // 2
        fill(disk)
        for _ in range(3):
            with pytest.raises(StoreFull):
                await send(sent)
        queued = [queued.id for queued in (await store.read_chat("c1")).queue]
        assert queued == [message.id for message in messages[:sent]]

        _resize(disk, 16 << 20)
        for n in range(WRITES_MAX // 2):  # those of before are asked for again, too, and not queued twice
            await send(n)
        assert await find_faults(store) == []
    async with SqliteStore(location, StoreOptions(clock=clock)) as store:
        queued = [queued.id for queued in (await store.read_chat("c1")).queue]
        assert queued == [message.id for message in messages[: max(sent, WRITES_MAX // 2)]]
        assert messages[0].id in await told(store, "c1")
        assert await store.check_integrity() == []


async def test_a_store_on_a_full_disk_says_so_and_opens_when_there_is_room(disk: Path, clock: FakeClock) -> None:
    ballast = fill(disk)
    store = SqliteStore(f"/{disk}/holdfast.db", StoreOptions(clock=clock))
    with pytest.raises(StoreFull):
        await store.open()
    ballast.unlink()
    async with store:
        await store.create_chat(new_chat("hello", id="c1"))
    ballast = fill(disk)
    with pytest.raises(StoreFull):
        await store.open()
    ballast.unlink()
    async with store:
        assert texts(await history(store, "c1")) == ["hello"]


def _resize(disk: Path, size_bytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(disk)], timeout=30, check=True)
