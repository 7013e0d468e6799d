"""`kill -9` of a worker whose call speaks to a child or cancels it, on both stores: child, all below it, and the
call's answer are told together or not at all.
"""

import asyncio
import signal
import subprocess
import sys

from holdfast.core.records import CallState, Cause, State
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.crash.reacher import DEEDS, POINTS
from tests.crash.writer import WRITER_S_MAX
from tests.support.programs import ROOT


def test_a_child_is_reached_and_the_call_answered_or_neither_wherever_the_worker_is_killed(store_url: str) -> None:
    command = [sys.executable, "-m", "tests.crash.reacher", store_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WRITER_S_MAX, text=True, check=False)
    ended = [tuple(line.split()) for line in done.stdout.splitlines()]
    assert ended == [(deed, point, str(-signal.SIGKILL)) for deed in DEEDS for point in POINTS], done.stderr
    asyncio.run(judge(store_url))


async def judge(url: str) -> None:
    async with open_store(url, StoreOptions()) as store:
        for deed in DEEDS:
            for point in POINTS:
                name, committed = f"{deed}-{point}", point == "commit.after"
                call = (await store.read_chat(name)).call("r")
                assert call is not None
                assert call.state is (CallState.DONE if committed else CallState.STARTED), name
                child, below = await store.read_chat(f"{name}-child"), await store.read_chat(f"{name}-below")
                if deed == "message":
                    assert [queued.id for queued in child.queue] == (["more"] if committed else []), name
                    assert (child.chat.state, below.chat.state) == (State.RUNNING, State.RUNNING)
                else:
                    state, cause = (State.STOPPING, Cause.PARENT) if committed else (State.RUNNING, None)
                    assert [(one.chat.state, one.chat.cause) for one in (child, below)] == [(state, cause)] * 2, name
