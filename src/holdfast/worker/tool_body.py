"""Running tool bodies: each in a task of its own, under its deadline, never able to hold up more than its own call.

What a body returns before it was cancelled is its result. What it returns or raises because it was cancelled
never is. One that ignores its cancellation is abandoned and counted; so is a thread, which cannot be cancelled. Then
its outcome is not known, as it is not if the body itself says so by raising OutcomeUnknown.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from holdfast.core.records import Cause, File, Frozen, Replay
from holdfast.errors import LimitReached, OutcomeUnknown, ToolFailed
from holdfast.stops import ended_within
from holdfast.system import threads
from holdfast.tools.base import Tool, ToolOutput, call_tool, output_text
from holdfast.tools.context import ToolContext, enter

KILL_S = 3.0  # how long a cancelled body is waited for before it is abandoned
SYNC_THREADS = 256  # made on demand: a body that blocks keeps its thread, and must not keep another chat's
ABANDONED_MAX = 64


class Returned(Frozen):
    content: str
    files: tuple[File, ...] = ()
    error: bool = False
    unknown: bool = False  # it began, and what came of it is not known; `content` says why
    ended: bool = True  # nothing of it runs any more
    untrusted: bool = False  # what it says comes from outside


class SyncPool:
    """One bounded pool for everything synchronous that users bring: tools and hooks.

    A thread that hangs in a user's code cannot be ended. It is abandoned, counted and replaced, so that it costs no
    other chat its place; with too many of them, new work is refused at once instead of waiting for ever.
    """

    def __init__(self, size: int = SYNC_THREADS) -> None:
        self._pool = threads.Pool("sync", size, lost_max=ABANDONED_MAX)
        self.size = size

    @property
    def thread_count(self) -> int:
        return self._pool.thread_count

    @property
    def abandoned(self) -> int:
        """Now; one that returns after all is not counted any more."""
        return self._pool.lost_count

    async def run(self, work: Callable[[], Any]) -> Any:
        """Cancelling the waiter abandons the thread. Raises LimitReached if too many of them are."""
        if self.abandoned >= ABANDONED_MAX:
            raise LimitReached(
                "abandoned threads", self.abandoned, ABANDONED_MAX, "a tool or a hook hangs: mend it, and restart"
            )
        context = copy_context()  # what it logs is about the chat it works for
        return await self._pool.run(lambda _: context.run(work))

    def stop(self) -> None:
        self._pool.stop()


class Body:
    """One call's body while it runs."""

    def __init__(
        self,
        tool: Tool,
        call_id: str,
        context: ToolContext,
        entered: set[str],
        may_begin: Callable[[], bool] = lambda: True,
    ) -> None:
        self.tool = tool
        self.call_id = call_id
        self.context = context
        self._entered = entered
        self._may_begin = may_begin
        self.raised: BaseException | None = (
            None  # by the tool's own code, where it did not mean to say it to the model
        )
        self._work: asyncio.Task[ToolOutput] | None = None
        self._woken: asyncio.Future[None] | None = None
        self.since = time.monotonic()
        self.abandoned = False
        self._wants_thread = False
        self._in_thread = False  # entered, in a thread

    def cancel(self, cause: Cause) -> None:
        """It is no longer wanted. One that has just returned is not cut off: what it did, it did."""
        if self._work is None or not self._work.done():
            self.context.cancel(cause)
            self._wake()

    def begin(self, arguments: str, run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        """In a task of its own, from the next turn of the loop on, with what is bound to this moment's context."""
        self._work = asyncio.get_running_loop().create_task(self._call(arguments, run_sync))

    async def run(self, arguments: str, run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Returned | None:
        """Begins it, if that was not done. The outcome; None if it was cancelled from outside: then there is none."""
        if self._work is None:
            if self.context.cancelled:
                return None  # before it began
            self.begin(arguments, run_sync)
        work = self._work
        assert work is not None
        if not work.done() and not self.context.cancelled:
            await self._ended_or_late(work)
        try:
            if work.done() and not self.context.cancelled:
                self.raised = _raised(work)
                return _returned(work, self.tool)
            if self.context.cancelled:
                await self._end(work)
                return None
            self.context.cancel(Cause.DEADLINE)
            await self._end(work)
            return self._late()
        finally:
            if not work.done():
                work.cancel()

    async def _ended_or_late(self, work: "asyncio.Task[ToolOutput]") -> None:
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        deadline = loop.call_later(self.tool.deadline_s, self._wake)
        try:
            await self._woken
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            deadline.cancel()

    def _wake(self) -> None:
        """It ended, was cancelled, or is late: `run` sees which. One future for all three, not a task for each."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _call(self, arguments: str, run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]) -> ToolOutput:
        try:
            if self.context.cancelled:
                return ToolOutput()  # before it was entered
            if not self._may_begin():
                # The process stood still since its start was committed: the worker that took over may have run it.
                self.cancel(Cause.LEASE_LOST)
                return ToolOutput()
            enter(self.context)
            self._entered.add(self.call_id)
            return await call_tool(
                self.tool, arguments, self.context, lambda work: self._off_the_loop(work, run_sync)
            )
        finally:
            self._wake()  # from here, not by a callback of the task: that is a turn of the loop less

    async def _off_the_loop(
        self, work: Callable[[], Any], run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> Any:
        """In a thread that enters the body, or comes too late and never does: after a cancellation we know which."""
        self._wants_thread = True
        mutex = threading.Lock()
        too_late = False

        def enter() -> Any:
            with mutex:
                if too_late:
                    return None
                self._in_thread = True
            return work()

        try:
            return await run_sync(enter)
        except asyncio.CancelledError:
            with mutex:
                too_late = True
            raise

    def _late(self) -> Returned:
        late = f"Timed out after {self.tool.deadline_s:g} s"
        if self.abandoned or self._in_thread:
            text = f"{late}, and could not be ended: it may still be running."
            return Returned(content=text, error=True, unknown=True, ended=False)
        if self._wants_thread:
            return Returned(content=f"{late}: no thread was free, and it never began.", error=True)
        unsafe = self.tool.replay is Replay.UNSAFE
        return Returned(content=f"{late}.{' It may have taken effect in part.' if unsafe else ''}", error=True)

    async def _end(self, work: "asyncio.Task[Any]") -> None:
        work.cancel()
        if not await ended_within(work, KILL_S):
            self.abandoned = True
            _let_go(work)
        work.add_done_callback(_forget)


def _returned(work: "asyncio.Task[ToolOutput]", tool: Tool) -> Returned:
    if work.cancelled():
        return Returned(content="The tool cancelled itself.", error=True)
    error = work.exception()
    if error is None:
        output = work.result()
        return Returned(content=output.text, files=output.files, untrusted=tool.untrusted or output.untrusted)
    # From around the body, where it is no ToolFailed: a validator of the tool's own types, say. Any of them may quote
    # what is no text, such as a file's name: it has to fit a record like any result.
    said = str(error) if isinstance(error, ToolFailed) else f"{type(error).__name__}: {error}"
    return Returned(
        content=output_text(said, tool.output_bytes_max),
        error=True,
        unknown=isinstance(error, OutcomeUnknown),
        untrusted=tool.untrusted
        or (isinstance(error, ToolFailed) and error.untrusted),  # an error may quote what came
    )


def _raised(work: "asyncio.Task[ToolOutput]") -> BaseException | None:
    """A ToolFailed is what a tool says on purpose: what it was made of is what its author wants to see."""
    error = None if work.cancelled() else work.exception()
    return error.__cause__ if isinstance(error, ToolFailed) else error


def _let_go(work: "asyncio.Task[Any]") -> None:
    """`asyncio.run` waits at its end for every task that it knows, and this one would keep the process for ever."""
    asyncio.tasks._unregister_task(work)  # documented in "Extending asyncio"
    work._log_destroy_pending = False  # type: ignore[attr-defined]


def _forget(work: "asyncio.Task[Any]") -> None:
    """What a cancelled body still raises is not its result."""
    if not work.cancelled():
        work.exception()
