"""What a tool's body knows about its call. Made per call, never stored on the tool."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from holdfast.core.budgets import BudgetLeft
from holdfast.core.records import Cause, File, ToolResult
from holdfast.core.spending import COST_MAX, TOKENS_MAX
from holdfast.errors import ToolFailed
from holdfast.system import cover, processes, sandbox
from holdfast.system.processes import Children
from holdfast.tools.figures import show
from holdfast.tools.memory.desk import MemoryDesk
from holdfast.tools.permissions.rulebook import NO_RULES, Rulebook


class ToolContext:
    """The call and the chat it belongs to.

    `key` is the same in every rerun of this call: give it to the service that must do a thing only once. `deps` is
    what the agent's `deps` made for the chat. `approved`: a person was asked, and let it run. `children` is None
    where no guard ends child processes: outside of a run. `rulebook` decides on what a body finds out only while it
    runs, such as where a page redirects to.
    """

    def __init__(
        self,
        *,
        call_id: str = "",
        chat_id: str = "",
        owner: str = "",
        metadata: Mapping[str, Any] | None = None,
        deps: Any = None,
        say: Callable[[str], None] | None = None,
        children: Children | None = None,
        approved: bool = False,
        results: Callable[[], Iterable[ToolResult]] = tuple,
        arguments: Callable[[str], str | None] = lambda _: None,
        whole_result: Callable[[str], Awaitable[ToolResult | None]] | None = None,
        result_chars: int | None = None,
        rulebook: Rulebook = NO_RULES,
        kept: Callable[[], Mapping[str, str]] | None = None,
        keep: Callable[[str, str], Awaitable[None]] | None = None,
        budget_left: Callable[[], Awaitable[BudgetLeft]] | None = None,
        memory: MemoryDesk | None = None,
        ask_model: "Callable[[ToolContext, str, str, Sequence[File]], Awaitable[str]] | None" = None,
    ) -> None:
        self.call_id = call_id
        self.key = f"{chat_id}:{call_id}"
        self.chat_id = chat_id
        self.owner = owner
        self.metadata = metadata or {}
        self.deps = deps
        self.children = children
        self.approved = approved
        self.rulebook = rulebook
        self.memory = memory  # of the agent and the chat's owner, for the tool `memory`
        self._say = say
        self._results = results
        self._arguments = arguments
        self._whole_result = whole_result
        self._kept = kept
        self._keep = keep
        self._budget_left = budget_left
        self._ask_model = ask_model
        self._kept_here: dict[str, str] = {}  # outside of a run
        self.result_chars = result_chars  # of a result that the model is shown; None: all
        self._spending = threading.Lock()  # of the two below
        self._tokens = 0
        self._cost = 0.0
        self._cancelled = asyncio.Event()
        self.cause: Cause | None = None

    @property
    def cancelled(self) -> bool:
        """For bodies that cannot be interrupted: look at it now and then."""
        return self.cause is not None

    def earlier_results(self) -> Iterable[ToolResult]:
        """Of this chat's calls, newest first, as the model is shown them: not those that a summary stands for. For a
        tool that `recalls`.
        """
        return self._results()

    def earlier_arguments(self, call_id: str) -> str | None:
        """What the model wrote for one of these calls; None if the model is not shown it."""
        return self._arguments(call_id)

    async def whole_result(self, call_id: str) -> ToolResult | None:
        """Of an earlier call, as it is kept; None if the model is not shown it."""
        return None if self._whole_result is None else await self._whole_result(call_id)

    def progress(self, text: str) -> None:
        """Tell clients how far it is, from any thread. Journaled and streamed, a few times a second."""
        if self._say is not None and self.cause is None:
            self._say(text)

    @property
    def kept(self) -> Mapping[str, str]:
        """What bodies of this chat kept, oldest first: an earlier run of this call, or an earlier call."""
        return self._kept_here if self._kept is None else self._kept()

    async def keep(self, key: str, text: str) -> None:
        """Keep a text of up to 1,000 characters with the chat, in place of what was kept under this key before.
        Durable when it returns, so that a rerun after a crash finds it. A chat keeps 32 of them, and the oldest
        gives way that no other running call has kept. An empty text keeps nothing. Raises ToolFailed if it cannot be
        kept.
        """
        if self._keep is not None:
            await self._keep(key, text)
            return
        self._kept_here.pop(key, None)
        if text:
            self._kept_here[key] = text

    def spent(self, *, tokens: int = 0, cost: float = 0.0) -> None:
        """Count what this call has spent since it last said so, such as on a model of its own: in the budget of its
        turn, and in what people are shown. From any thread; what was said counts however the call ends. Raises
        ValueError for what is less than nothing, or would make more than a call can spend.
        """
        with self._spending:
            if not (tokens >= 0 and cost >= 0):
                raise ValueError(f"what is spent is nothing or more, not {tokens} tokens and {cost}")
            if not (self._tokens + tokens <= TOKENS_MAX and self._cost + cost <= COST_MAX):
                most = f"a call spends at most {TOKENS_MAX:,} tokens and {COST_MAX:,.0f}"
                raise ValueError(f"{most}: {tokens} tokens and {cost} are too much")
            self._tokens += int(tokens)
            self._cost += float(cost)

    async def budget_left(self) -> BudgetLeft:
        """Tokens and cost that are left of the budgets of its turn, chat, family, owner and day, the tightest of
        them: for a body that can bound what it spends. Calls of one tool that run at once are told an even share
        each. Nobody else is kept from them meanwhile. Raises ToolFailed.
        """
        return BudgetLeft() if self._budget_left is None else await self._budget_left()

    async def ask_model(self, model: str, text: str, files: Sequence[File] = ()) -> str:
        """What a model, such as "openai:gpt-6.1-terra", says to this: by the path of all model calls, with their
        deadlines, retries and limits. What it takes is spent by this call. Raises ToolFailed; also outside of a run.
        """
        if self._ask_model is None:
            raise ToolFailed(f"{model} was not asked: models are asked in a run of a chat alone")
        return await self._ask_model(self, model, text, files)

    @property
    def spending(self) -> tuple[int, float]:
        """Tokens and cost, of all that was said so far."""
        with self._spending:
            return self._tokens, self._cost

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


show("children", processes.figures)  # they are the bottom layer's, which knows no health
show("cover", cover.figures)
show("sandbox", sandbox.figures)
