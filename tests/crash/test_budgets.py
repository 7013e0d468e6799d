"""`kill -9` of a process that draws on a budget, spends and folds, at every point of it, on both stores."""

import asyncio
import signal
import subprocess
import sys

from holdfast.core.budgets import Estimate, Verdict
from holdfast.core.records import LeaseEnd
from holdfast.store import open_store
from holdfast.store.budgets import Draw, Granted
from holdfast.store.records import StoreOptions
from tests.crash.spender import DAY, DRAWN, LIMITS, PASSED, SPENT, UNPASSED
from tests.crash.writer import WRITER_S_MAX
from tests.support.aftermath import find_faults
from tests.support.programs import ROOT


def test_what_is_spent_counts_once_and_what_was_reserved_comes_back_wherever_a_worker_is_killed(
    store_url: str,
) -> None:
    command = [sys.executable, "-m", "tests.crash.spender", store_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WRITER_S_MAX, text=True, check=False)
    codes = [(point, int(code)) for point, code in map(str.split, done.stdout.splitlines())]
    assert codes == [*((point, -signal.SIGKILL) for point in PASSED), (UNPASSED, 0)], done.stderr
    asyncio.run(judge(store_url))


async def judge(url: str) -> None:
    async with open_store(url, StoreOptions()) as store:
        for point in (*PASSED, UNPASSED):
            chat = (await store.read_chat(point)).chat
            found = await store.budgets.usage(("owner",), owner=point)
            spent = found[0].tokens if found else 0
            # In its commit or not at all, and folded or not, the same.
            assert spent == chat.chat_tokens, point
            assert spent in (0, SPENT), point
            wanted = Draw(
                id=f"{point}-next",
                worker="other",
                owner=point,
                chat_id=point,
                day=DAY,
                wanted=Estimate(tokens=60),
                limits=LIMITS,
            )
            reserved = not spent and point not in DRAWN
            if reserved:
                assert await store.budgets.draw(wanted) is Verdict.WAIT, point
            await store.recovery.end_lease(point, LeaseEnd.DIED)
        await store.sweep()
        await store.budgets.fold(0)
        assert (await store.budgets.figures())[:2] == (0, 0)
        for point in (*PASSED, UNPASSED):
            spent = (await store.read_chat(point)).chat.chat_tokens
            found = await store.budgets.usage(("owner",), owner=point)
            assert sum(usage.tokens for usage in found) == spent, point
            wanted = Draw(
                id=f"{point}-last",
                worker="other",
                owner=point,
                chat_id=point,
                day=DAY,
                wanted=Estimate(tokens=100 - spent),
                limits=LIMITS,
            )
            assert isinstance(await store.budgets.draw(wanted), Granted), point
        assert await find_faults(store) == []
