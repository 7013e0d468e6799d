"""`kill -9` of a process that fires an occurrence, at every point of that transaction, on both stores."""

import asyncio
import signal
import subprocess
import sys

from holdfast.core.schedules import OccurrenceState, ScheduleRecord
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter, StoreOptions
from holdfast.system.clock import FakeClock
from tests.crash.firer import COMMITTED, FIRINGS, MINUTE, UNPASSED
from tests.crash.writer import WRITER_S_MAX
from tests.support.aftermath import find_faults
from tests.support.chats import history
from tests.support.programs import ROOT


def test_an_occurrence_its_chat_and_the_next_instant_are_there_together_or_not_at_all_and_it_fires_once(
    store_url: str,
) -> None:
    command = [sys.executable, "-m", "tests.crash.firer", store_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WRITER_S_MAX, text=True, check=False)
    ended = [(name, int(code)) for name, code in map(str.split, done.stdout.splitlines())]
    expected = [(name, 0 if point == UNPASSED else -signal.SIGKILL) for name, point, _ in FIRINGS]
    assert ended == expected, done.stderr
    asyncio.run(judge(store_url))


async def judge(url: str) -> None:
    clock = FakeClock()
    clock.advance(2 * MINUTE)  # the time that it was
    async with open_store(url, StoreOptions(clock=clock)) as store:
        for name, point, _ in FIRINGS:
            (schedule,) = await store.schedules.page(owner=name)
            before = 2 if point in (*COMMITTED, UNPASSED) else 1
            assert await instants_fired(store, schedule) == before, name
            # The next worker: it fires what was not, and nothing again.
            done = await store.schedules.attend(schedule.id)
            assert done is not None
            assert len(done.fired) == 2 - before, name
            assert await instants_fired(store, done.schedule) == 2, name
            again = await store.schedules.attend(schedule.id)
            assert again is not None
            assert again.fired == again.skipped == ()
        assert await find_faults(store) == []


async def instants_fired(store: Store, schedule: ScheduleRecord) -> int:
    """How many; the rows, the counter, the next instant and the messages in chats all say the same."""
    rows = (await store.schedules.history(schedule.id))[::-1]
    assert {row.state for row in rows} == {OccurrenceState.FIRED}
    assert [row.at for row in rows] == [(schedule.next_at or 0) - n * MINUTE for n in range(len(rows), 0, -1)]
    chats = await store.list_chats(ChatFilter(owner=schedule.owner))
    assert len(chats) == (len(rows) if schedule.chat == "new" else 1)
    sent = [message.id for chat in chats for message in await history(store, chat.id)]
    sent += [queued.id for chat in chats for queued in (await store.read_chat(chat.id)).queue]
    assert sorted(sent) == sorted(str(row.message_id) for row in rows)
    assert schedule.fired == len(rows)
    return len(rows)
