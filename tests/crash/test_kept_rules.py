"""`kill -9` of a process that approves a call with "always", at every point of that transaction, on both stores."""

import asyncio
import signal
import subprocess
import sys

from holdfast.core.records import CallState
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.crash.keeper import PASSED, RULES, UNPASSED, approval, key
from tests.crash.writer import WRITER_S_MAX
from tests.support.aftermath import find_faults
from tests.support.programs import ROOT


def test_an_approval_and_its_rules_are_there_together_or_not_at_all_wherever_their_process_is_killed(
    store_url: str,
) -> None:
    command = [sys.executable, "-m", "tests.crash.keeper", store_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WRITER_S_MAX, text=True, check=False)
    ended = [line.split() for line in done.stdout.splitlines()]
    codes = [(point, int(code)) for point, _, code in ended]
    assert codes == [*((point, -signal.SIGKILL) for point in PASSED), (UNPASSED, 0)], done.stderr
    asyncio.run(judge(store_url, [(point, call_id) for point, call_id, _ in ended]))


async def judge(url: str, approvals: list[tuple[str, str]]) -> None:
    async with open_store(url, StoreOptions()) as store:
        for point, call_id in approvals:
            call = (await store.read_chat(point)).call(call_id)
            assert call is not None
            committed = point in ("commit.after", "ack.before", UNPASSED)
            rules = [rule.rule for rule in await store.kept_rules.page(owner=point)]
            assert call.state is (CallState.APPROVED if committed else CallState.ASKING), point
            assert sorted(rules) == (sorted(RULES) if committed else []), point
            # The client asks again, with its key: it has happened once.
            await store.submit(point, approval(call_id), key(point))
            again = await store.kept_rules.page(owner=point)
            assert sorted(rule.rule for rule in again) == sorted(RULES), point
            assert {rule.call_id for rule in again} == {call_id}
        assert await find_faults(store) == []
