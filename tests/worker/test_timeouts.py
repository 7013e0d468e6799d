"""`Timeouts`: many deadlines of one task, with one timer."""

import asyncio
from typing import Any

import pytest

from holdfast.system.timeouts import Timeouts

LONG_S = 600.0


async def test_a_wait_that_takes_too_long_is_ended_and_the_next_one_is_not() -> None:
    timeouts = Timeouts()
    for _ in range(3):
        with pytest.raises(TimeoutError), timeouts.within(0.001):
            await asyncio.Event().wait()
        with timeouts.within(LONG_S):
            await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    timeouts.close()


async def test_waits_that_end_in_time_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_at: Any = loop.call_at

    def counted(*given: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*given))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", counted)
    timeouts = Timeouts()
    for _ in range(100):
        with timeouts.within(LONG_S):
            await asyncio.sleep(0)
    assert len(timers) == 1
    timeouts.close()


async def test_a_timer_that_rings_for_an_earlier_wait_leaves_a_later_one_its_time() -> None:
    timeouts, rung = Timeouts(), asyncio.Event()
    with timeouts.within(0.001):
        pass
    asyncio.get_running_loop().call_later(0.02, rung.set)  # behind the timer, which was set before
    with timeouts.within(LONG_S):
        await rung.wait()
    with pytest.raises(TimeoutError), timeouts.within(0.001):
        await asyncio.Event().wait()
    timeouts.close()


async def test_a_shorter_wait_is_ended_in_its_own_time() -> None:
    timeouts = Timeouts()
    with timeouts.within(LONG_S):
        pass
    with pytest.raises(TimeoutError), timeouts.within(0.001):
        await asyncio.Event().wait()
    timeouts.close()


async def test_a_task_that_is_cancelled_hears_of_that_and_not_of_its_deadline() -> None:
    waits = asyncio.Event()

    async def work() -> None:
        with Timeouts().within(LONG_S):
            waits.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
