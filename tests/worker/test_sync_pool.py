"""Synchronous code of users: bounded threads, and one that hangs costs nobody else a place."""

import asyncio
import threading

import pytest

from holdfast.errors import LimitReached
from holdfast.system import threads
from holdfast.worker import tool_body
from holdfast.worker.tool_body import SyncPool
from tests.support.waiting import until


async def abandon(pool: SyncPool, held: threading.Event) -> None:
    entered = threading.Event()

    def hang() -> None:
        entered.set()
        held.wait(60)

    waiter = asyncio.ensure_future(pool.run(hang))
    await until(entered.is_set)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_a_thread_that_hangs_is_replaced_and_counted_until_it_returns() -> None:
    pool, held = SyncPool(2), threading.Event()
    try:
        for n in range(1, 4):
            await abandon(pool, held)
            assert pool.abandoned == n
        assert await asyncio.wait_for(pool.run(lambda: "still here"), 10) == "still here"
        assert pool.thread_count <= 2 + 3
    finally:
        held.set()
    await until(lambda: pool.abandoned == 0)
    await asyncio.gather(*(pool.run(lambda: None) for _ in range(10)))
    await until(lambda: pool.thread_count <= 2)
    pool.stop()
    await until(lambda: pool.thread_count == 0)


async def test_too_many_of_them_refuse_new_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_body, "ABANDONED_MAX", 2)
    pool, held = SyncPool(1), threading.Event()
    try:
        for _ in range(2):
            await abandon(pool, held)
        with pytest.raises(LimitReached, match="abandoned threads is 2, the limit is 2"):
            await pool.run(lambda: None)
    finally:
        held.set()
    await until(lambda: pool.abandoned == 0)
    await pool.run(lambda: None)
    pool.stop()


async def test_work_that_nobody_began_is_withdrawn_and_not_abandoned() -> None:
    pool, held, ran = SyncPool(1), threading.Event(), threading.Event()
    try:
        first = asyncio.ensure_future(pool.run(lambda: held.wait(60)))
        second = asyncio.ensure_future(pool.run(ran.set))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait((second,))
        assert pool.abandoned == 0
    finally:
        held.set()
    await first
    await pool.run(lambda: None)
    assert not ran.is_set()
    pool.stop()


async def test_every_one_of_many_blocked_jobs_has_a_thread_of_its_own() -> None:
    """A thread that has just taken a job is not idle: a job left to it would wait for as long as that one hangs."""
    loop = asyncio.get_running_loop()
    for _ in range(10):  # the moment is short: without the rule most rounds leave some of the fifty behind
        pool = threads.Pool("blocked", 50, lambda: None, lambda _: None)
        over, inside = threading.Event(), threading.Semaphore(0)

        def block(_: None, over: threading.Event = over, inside: threading.Semaphore = inside) -> None:
            inside.release()
            over.wait()

        try:
            for _ in range(50):
                pool.submit(threads.Job(block, loop))
            for _ in range(50):
                await until(lambda inside=inside: inside.acquire(blocking=False))  # type: ignore[misc]
        finally:
            over.set()
            pool.stop()


async def test_a_job_that_waits_gets_a_thread_for_one_that_was_given_up() -> None:
    pool = threads.Pool("spared", 1)
    over, began, ran = threading.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang(_: None) -> None:
        began.set()
        over.wait()

    stuck = threads.Job(hang, loop)
    try:
        pool.submit(stuck)
        pool.submit(threads.Job(lambda _: ran.set(), loop))
        await until(began.is_set)
        assert not pool.give_up(stuck)
        await until(ran.is_set)
        assert pool.lost_count == 1
    finally:
        over.set()
        pool.stop()
    await until(lambda: pool.lost_count == 0)


async def test_no_more_threads_are_given_up_than_the_pool_may_lose() -> None:
    pool, over, inside = threads.Pool("lost", 1, lost_max=2), threading.Event(), threading.Semaphore(0)
    loop = asyncio.get_running_loop()

    def hang(_: None) -> None:
        inside.release()
        over.wait()

    try:
        for _ in range(3):
            job = threads.Job(hang, loop)
            pool.submit(job)
            await until(lambda: inside.acquire(blocking=False))
            pool.give_up(job)
        waiting = threads.Job(lambda _: None, loop)
        pool.submit(waiting)
        assert pool.thread_count == 3
        assert pool.give_up(waiting)  # nobody has begun it
    finally:
        over.set()
        pool.stop()
    await until(lambda: pool.thread_count == 0)
