"""One call's body while it runs: its end, its deadline, its cancellation."""

import asyncio
from typing import Any

from holdfast.core.records import Cause
from holdfast.tools.base import Tool, tool
from holdfast.tools.context import ToolContext
from holdfast.worker.bodies import Body, Returned, SyncPool


def body_of(made: Tool, entered: set[str]) -> Body:
    return Body(made, "call", ToolContext(call_id="call"), entered)


async def run(body: Body) -> Returned | None:
    pool = SyncPool()
    try:
        return await body.run("{}", pool.run)
    finally:
        pool.stop()


async def test_a_body_that_was_cancelled_before_it_began_is_not_begun() -> None:
    @tool
    async def never() -> str:
        """Must not run."""
        raise AssertionError("it ran")

    entered: set[str] = set()
    body = body_of(never, entered)
    body.cancel(Cause.USER)
    assert await run(body) is None
    assert entered == set()


async def test_a_body_leaves_no_task_and_no_timer_behind() -> None:
    made: list[Any] = []
    loop = asyncio.get_running_loop()

    def count(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        made.append(asyncio.Task(work, loop=loop, **options))
        return made[-1]

    @tool
    async def quick() -> str:
        """Returns at once."""
        return "done"

    timers = len(live_timers(loop))
    loop.set_task_factory(count)
    try:
        assert await run(body_of(quick, set())) == Returned(content="done")
    finally:
        loop.set_task_factory(None)
    assert len(made) == 1, "a task for the body itself, and none to watch it"
    assert made[0].done()
    assert len(live_timers(loop)) == timers


def live_timers(loop: asyncio.AbstractEventLoop) -> list[Any]:
    return [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


async def test_a_body_that_is_late_is_ended_and_says_so() -> None:
    ended = asyncio.Event()

    @tool(deadline_s=0.01)
    async def slow() -> str:
        """Waits for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    body = body_of(slow, set())
    returned = await run(body)
    assert returned == Returned(content="Timed out after 0.01 s.", error=True)
    assert ended.is_set()
    assert body.context.cause is Cause.DEADLINE
