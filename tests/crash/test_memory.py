"""`kill -9` of a worker while its model writes to its memory, at every point of the write and behind it."""

import asyncio
import signal
import subprocess
import sys

from holdfast.app import App
from holdfast.core.records import State, ToolResult
from holdfast.store.records import StoreOptions
from tests.crash.rememberer import CASES, UNPASSED, clerk
from tests.crash.writer import WRITER_S_MAX
from tests.support.programs import ROOT
from tests.support.turns import rested


def test_what_a_model_remembers_is_there_once_wherever_its_worker_is_killed(store_url: str) -> None:
    command = [sys.executable, "-m", "tests.crash.rememberer", store_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WRITER_S_MAX, text=True, check=False)
    codes = [(case, int(code)) for case, code in (line.split() for line in done.stdout.splitlines())]
    assert codes == [*((case, -signal.SIGKILL) for case in CASES), (UNPASSED, 0)], done.stderr
    asyncio.run(judge(store_url))


async def judge(url: str) -> None:
    app = App(url, [clerk()], options=StoreOptions(lease_ttl_ms=5_000))
    async with app, app.worker(poll_s=0.2) as worker:
        for case in (*CASES, UNPASSED):
            chat = app.chat(case)
            assert await rested(chat) is State.IDLE, case
            (fact,) = await app.store.memory.page(owner=case, everything=True)
            block = await app.store.memory.block(case, "clerk", "notes")
            assert (fact.text, block.text, block.version) == ("likes tea", "a line", 1), case
            results = [part for message in await chat.messages() for part in message.parts]
            told = [part.content for part in results if isinstance(part, ToolResult)]
            assert told == [f"Remembered as {fact.id}.", "Block notes is now (version 1):\na line"], case
        while await worker.chronicler.run_once() == 0:
            pass
        for case in (*CASES, UNPASSED):
            found = await app.store.memory.search("hello", owner=case)
            assert [one.text for one in found.passages] == ["Hello."], f"{case}: it is owed whatever dies"
