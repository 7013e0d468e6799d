"""`kill -9` in the middle of a fork and of a deletion that are made in slices, on both stores.

What is in the store then is the chat, whole, or no chat; whoever comes next goes on: with the fork, where it is asked
for again, and else with the removal of what the dead one left.
"""

import asyncio
import signal
import subprocess

import pytest

from holdfast.errors import NotFound
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.store.remnants import ABANDONED_MS
from holdfast.system.clock import FakeClock
from tests.crash.slicer import KEY, MESSAGES, SLICE, a_large_chat
from tests.crash.writer import WRITER_S_MAX
from tests.store.test_fork_delete import rows_of
from tests.support.aftermath import find_faults
from tests.support.behind import sql
from tests.support.forks import Fork, fork_module

SLICES = -(-MESSAGES // SLICE.rows)
# A fork has SLICES transactions, and the last of them makes the chat; then the deletion begins.
POINTS = (
    *("fork.before:1", "fork.slice:1", "fork.slice:2", "fork.before:3", f"fork.slice:{SLICES - 1}", "fork.after"),
    *("commit.before:2", "commit.after:1", "commit.after:3", f"commit.after:{SLICES}", f"ack.before:{SLICES}"),
    *("delete.rows:1", "delete.rows:6", "delete.after", f"commit.before:{SLICES + 1}", f"ack.before:{SLICES + 1}"),
    *("clear.before:1", "delete.rows:9", "clear.after:1", f"commit.after:{SLICES + 3}", "clear.after:4"),
)


@pytest.mark.parametrize("point", POINTS)
def test_a_chat_is_whole_or_not_there_wherever_a_fork_or_a_deletion_in_slices_is_killed(
    point: str, store_url: str
) -> None:
    asyncio.run(make(store_url))
    with slicer(store_url, point) as process:
        said, _ = process.communicate(WRITER_S_MAX)
    assert process.returncode == -signal.SIGKILL, "it was to die there"
    asyncio.run(judge(store_url, said.split()))


def slicer(url: str, crash_at: str) -> Fork:
    return fork_module("tests.crash.slicer", url, environ={"HOLDFAST_CRASH_AT": crash_at}, stdout=subprocess.PIPE)


async def make(url: str) -> None:
    async with open_store(url, StoreOptions()) as store:
        await store.create_chat(a_large_chat())


async def judge(url: str, answered: list[str]) -> None:
    clock = FakeClock()
    async with open_store(url, StoreOptions(clock=clock)) as store:
        store.large_chats.slice = SLICE
        copy, large = await texts_of(store, "copy"), await texts_of(store, "large")
        whole = [f"message {n}" for n in range(MESSAGES)]
        assert copy in ([], whole)
        assert large in ([], whole)
        if "forked" in answered:
            assert copy == whole
        else:
            assert large == whole
        assert await find_faults(store) == []
        if large:
            # The client asks again, with its key: it has happened once.
            answer = await store.fork_chat("large", "copy", key=KEY)
            assert answer.chat_id == "copy"
            assert await texts_of(store, "copy") == whole
        await store.sweep()
        clock.advance(ABANDONED_MS)
        await store.sweep()
        assert sql(url, "SELECT * FROM remnants") == []
        for chat_id in ("copy", "large"):
            if not await texts_of(store, chat_id):
                assert rows_of(url, chat_id) == {}
        assert await find_faults(store) == []


async def test_a_fork_whose_process_died_is_swept_where_nobody_asks_again(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    await store.create_chat(a_large_chat())
    with slicer(store_url, "fork.slice:3") as process:
        assert await asyncio.wait_for(process.ended(), WRITER_S_MAX) == -signal.SIGKILL
    assert sql(store_url, "SELECT chat_id, source_id FROM remnants") == [("copy", "large")]
    await store.sweep()
    assert sql(store_url, "SELECT count(*) FROM remnants") == [(1,)], "it may be alive"
    clock.advance(ABANDONED_MS)
    await store.sweep()
    assert (rows_of(store_url, "copy"), sql(store_url, "SELECT * FROM remnants")) == ({}, [])


async def texts_of(store: Store, chat_id: str) -> list[str]:
    """Empty: there is no such chat."""
    rows = await store.read_history(chat_id)
    try:
        await store.read_chat(chat_id)
    except NotFound:
        assert rows == []
    return [row.body.decode().split('"text":"')[1].split('"')[0] for row in rows]
