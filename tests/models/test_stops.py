"""A stop ends what waits for it, with its cause, and nothing else."""

import asyncio
import time

import pytest

from holdfast.stops import StopSignal, ended_within

pytestmark = pytest.mark.timeout(30)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_stop_ends_a_wait_and_the_cancellation_stays_inside() -> None:
    stop = StopSignal[str]()
    asyncio.get_running_loop().call_soon(stop.set, "user")
    with stop.scope() as scope:
        await for_ever()
    assert scope.ended
    assert stop.cause == "user"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing is left behind


async def test_the_first_cause_stays() -> None:
    stop = StopSignal[str]()
    assert not stop
    assert stop.set("user")
    assert not stop.set("shutdown")
    assert stop
    assert stop.cause == "user"


async def test_a_stop_that_was_set_before_ends_the_wait_at_once() -> None:
    stop = StopSignal[str]()
    stop.set("user")
    with stop.scope() as scope:
        await for_ever()
    assert scope.ended


async def test_a_body_that_does_not_wait_is_not_ended_and_nothing_is_left_behind() -> None:
    stop = StopSignal[str]()
    with stop.scope() as scope:
        stop.set("user")
    assert not scope.ended
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_after_the_scope_a_stop_ends_nothing() -> None:
    stop = StopSignal[str]()
    with stop.scope():
        await asyncio.sleep(0)
    stop.set("user")
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_another_cancellation_passes_even_together_with_the_stop() -> None:
    stop = StopSignal[str]()
    inside = asyncio.Event()

    async def work() -> None:
        with stop.scope():
            inside.set()
            await for_ever()
        raise AssertionError("the cancellation was swallowed")

    task = asyncio.create_task(work())
    await inside.wait()
    stop.set("user")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_inside_and_outside_still_works() -> None:
    stop = StopSignal[str]()

    async def inside() -> None:
        with stop.scope():
            async with asyncio.timeout(0.01):
                await for_ever()

    async def outside() -> None:
        async with asyncio.timeout(0.01):
            with stop.scope():
                await for_ever()

    with pytest.raises(TimeoutError):
        await inside()
    with pytest.raises(TimeoutError):
        await outside()


async def test_an_error_on_the_way_out_comes_out_as_it_is() -> None:
    stop = StopSignal[str]()
    asyncio.get_running_loop().call_soon(stop.set, "user")

    async def sore() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise ValueError("torn") from None

    with pytest.raises(ValueError, match="torn"), stop.scope() as scope:
        await sore()
    assert not scope.ended
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_one_stop_ends_many_waits() -> None:
    stop = StopSignal[str]()

    async def work() -> str | None:
        with stop.scope():
            await for_ever()
        return stop.cause

    tasks = [asyncio.create_task(work()) for _ in range(10)]
    await asyncio.sleep(0)
    stop.set("shutdown")
    assert await asyncio.gather(*tasks) == ["shutdown"] * 10


def test_outside_of_a_task_there_is_nothing_to_end() -> None:
    with pytest.raises(RuntimeError):
        StopSignal[str]().scope().__enter__()


async def test_what_ended_while_the_process_stood_still_ended_in_time() -> None:
    """A timer that came due meanwhile is no reason to give up what only needs its turn."""

    async def work() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.get_running_loop().call_soon(time.sleep, 0.4)
    assert await ended_within(asyncio.ensure_future(work()), 0.3)


async def test_what_does_not_end_is_waited_for_so_long_and_left_alone() -> None:
    never = asyncio.get_running_loop().create_future()
    began = time.monotonic()
    assert not await ended_within(never, 0.25)
    assert time.monotonic() - began >= 0.24
    assert not never.done()
