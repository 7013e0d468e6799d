"""What a tool's body knows about its call. Made per call, never stored on the tool."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from msgspec import Raw

from holdfast.core.records import Cause

Progress = Callable[[str], Awaitable[None]]
NO_METADATA = Raw(b"{}")


async def _say_nothing(_text: str) -> None:
    return None


class ToolContext:
    """`call_id`, an idempotency `key` that is the same in every rerun of this call, and the chat it belongs to."""

    def __init__(
        self,
        *,
        call_id: str = "",
        chat_id: str = "",
        owner: str = "",
        metadata: Raw = NO_METADATA,
        deps: Any = None,
        progress: Progress = _say_nothing,
    ) -> None:
        self.call_id = call_id
        self.key = f"{chat_id}:{call_id}"
        self.chat_id = chat_id
        self.owner = owner
        self.metadata = metadata
        self.deps = deps
        self._progress = progress
        self._cancelled = asyncio.Event()
        self.cause: Cause | None = None

    @property
    def cancelled(self) -> bool:
        """For bodies that cannot be interrupted: look at it now and then."""
        return self.cause is not None

    async def progress(self, text: str) -> None:
        """Tell clients how far it is. Journaled and streamed."""
        await self._progress(text)

    def cancel(self, cause: Cause) -> None:
        """The runner's word: this call is no longer wanted."""
        if self.cause is None:
            self.cause = cause
            self._cancelled.set()

    async def wait_cancelled(self) -> Cause:
        await self._cancelled.wait()
        assert self.cause is not None
        return self.cause


_current: ContextVar[ToolContext | None] = ContextVar("holdfast_tool_context", default=None)


def tool_context() -> ToolContext:
    """The running call's context; outside of a run, one that is never cancelled."""
    return _current.get() or ToolContext()


def enter(context: ToolContext) -> None:
    _current.set(context)
