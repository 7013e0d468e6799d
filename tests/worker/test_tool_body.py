"""One call's body while it runs: its end, its deadline, its cancellation."""

import asyncio
import threading
from contextlib import suppress
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from holdfast.core.records import Cause
from holdfast.errors import OutcomeUnknown
from holdfast.tools.base import Tool, tool
from holdfast.tools.context import ToolContext
from holdfast.worker import tool_body
from holdfast.worker.tool_body import Body, Returned, SyncPool
from tests.support.looptime import LoopTime
from tests.support.waiting import until


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


async def test_a_body_that_may_not_begin_any_more_when_its_turn_comes_is_not_entered() -> None:
    @tool
    async def never() -> str:
        """Must not run."""
        raise AssertionError("it ran")

    entered: set[str] = set()
    body = Body(never, "call", ToolContext(call_id="call"), entered, lambda: False)
    assert await run(body) is None
    assert (entered, body.context.cause) == (set(), Cause.LEASE_LOST)


async def test_what_a_body_returned_before_it_was_cancelled_is_its_result() -> None:
    """Even if nobody had the time to look: it has happened, and is not to be told as cut off."""

    @tool
    async def pay() -> str:
        """Returns; before anybody sees that, a stop comes."""
        asyncio.get_running_loop().call_soon(body.cancel, Cause.USER)
        return "paid"

    body = body_of(pay, set())
    assert await run(body) == Returned(content="paid")


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
    assert returned == Returned(content="Timed out after 0.01 s. It may have taken effect in part.", error=True)
    assert ended.is_set()
    assert body.context.cause is Cause.DEADLINE


NEVER_BEGAN = "Timed out after 0.05 s: no thread was free, and it never began."


async def test_a_late_body_that_has_no_effects_had_none() -> None:
    @tool(deadline_s=0.01, replay="pure")
    async def slow() -> None:
        """Waits for ever."""
        await asyncio.Event().wait()

    assert await run(body_of(slow, set())) == Returned(content="Timed out after 0.01 s.", error=True)


# --- when nobody knows what came of it ------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_late_body_that_cannot_be_ended_may_still_be_running(
    stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_body, "KILL_S", 0.05)
    began, over = threading.Event(), threading.Event()

    @tool(deadline_s=600.0)
    def blocks() -> str:
        """Cannot be interrupted."""
        began.set()
        over.wait(60)
        return "over"

    @tool(deadline_s=600.0)
    async def ignores() -> str:
        """Does not let itself be interrupted."""
        began.set()
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return "over"

    loop_time = LoopTime()
    running = asyncio.ensure_future(run(body_of(ignores if stubborn else blocks, set())))
    try:
        await until(began.is_set)
        loop_time.advance(600.0)
        returned = await running
    finally:
        over.set()
    text = "Timed out after 600 s, and could not be ended: it may still be running."
    assert returned == Returned(content=text, error=True, unknown=True, ended=False)


async def test_a_late_body_that_never_got_a_thread_did_nothing_and_never_will() -> None:
    ran: list[str] = []

    @tool(deadline_s=0.05)
    def never() -> None:
        """Must not run."""
        ran.append("it ran")

    pool, over, taken = SyncPool(1), threading.Event(), threading.Event()

    def hold() -> None:
        taken.set()
        over.wait(60)

    holder = asyncio.ensure_future(pool.run(hold))
    try:
        await until(taken.is_set)
        returned = await body_of(never, set()).run("{}", pool.run)
    finally:
        over.set()
    await holder
    await pool.run(lambda: None)  # whatever was queued before it has had its turn
    pool.stop()
    assert returned == Returned(content=NEVER_BEGAN, error=True)
    assert ran == []


async def test_a_thread_that_takes_a_body_up_too_late_does_not_enter_it() -> None:
    """The moment between taking a job and entering it, in which nobody wants it any more."""
    ran: list[str] = []
    taken: list[Any] = []

    @tool(deadline_s=0.05)
    def never() -> None:
        """Must not run."""
        ran.append("it ran")

    async def take_and_wait(work: Any) -> Any:
        taken.append(work)
        await asyncio.Event().wait()

    returned = await body_of(never, set()).run("{}", take_and_wait)
    taken[0]()
    assert returned == Returned(content=NEVER_BEGAN, error=True)
    assert ran == []


async def test_a_body_says_itself_that_nobody_knows() -> None:
    @tool
    async def pay() -> str:
        """Its bank does not answer."""
        raise OutcomeUnknown("The bank took the order and hung up.")

    returned = await run(body_of(pay, set()))
    assert returned == Returned(content="The bank took the order and hung up.", error=True, unknown=True)


def _refuse(_: int) -> int:
    raise RuntimeError("no such thing")


async def test_an_error_of_any_kind_in_the_arguments_is_the_tools_error() -> None:
    @tool
    async def picky(n: Annotated[int, AfterValidator(_refuse)] = 1) -> str:
        """Its arguments are checked by somebody else's code."""
        return "never"

    body = body_of(picky, set())
    pool = SyncPool()
    returned = await body.run('{"n": 1}', pool.run)
    pool.stop()
    assert returned == Returned(content="RuntimeError: no such thing", error=True)


@pytest.mark.parametrize("text", ["caf\udce9.txt", "nul \x00", "x" * 5_000])
async def test_an_error_that_quotes_what_is_not_text_or_too_much_of_it_still_has_a_result(text: str) -> None:
    @tool(output_bytes_max=1_000)
    async def fails() -> str:
        """Fails."""
        raise FileNotFoundError(text)

    returned = await run(body_of(fails, set()))
    assert returned is not None
    assert returned.error
    assert returned.content.startswith("FileNotFoundError: ")
    assert "\x00" not in returned.content
    assert len(returned.content.encode()) < 1_100
