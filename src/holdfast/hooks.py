"""Hooks: callbacks around a turn, each isolated, each under a deadline, none able to hang or fail a chat.

A callback gets what its point is about, and a `RunContext`: which chat it is, and what the agent keeps for it.

A hook that hangs is abandoned at its deadline, counted, reported, and skipped while it is suspended; the others still
run. Sync callbacks run in the bounded pool, never on the event loop. A guard (`before_tool`) says for itself what its
absence means: fail closed (the call is denied) or open.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from holdfast.core.codec import storable
from holdfast.core.records import Frozen
from holdfast.log_context import logger

log = logger("holdfast.hooks")

Point = Literal["before_model", "after_model", "before_tool", "after_tool", "on_step", "on_error", "on_turn_end"]
HOOK_DEADLINE_S = 30.0
SUSPENDED_S = 300.0


class RunContext(Struct, frozen=True):
    """Whose turn it is. `deps` is what the agent's `deps` function made for this chat."""

    chat_id: str
    agent: str
    owner: str
    metadata: Mapping[str, Any]
    turn: int
    step: int
    deps: Any = None


class Hook(Struct, frozen=True):
    """`Hook("before_tool", check, fails="closed")`. `check(call, context)` may be async or not.

    >>> def check(call, context):
    ...     return Veto(reason="not on Sundays") if call.name == "transfer" else None
    >>> app = App("sqlite:///example.db", agents=[Agent("echo", "scripted", hooks=[Hook("before_tool", check)])])
    >>> app.run_sync("echo", "hello").text
    'You said: hello'

    What it is given, and what it may return:

        before_model  the Request            a Request to send instead, or None
        after_model   the Completed response
        before_tool   the ToolCall           Veto, Ask, Arguments, or None
        after_tool    the ToolResult
        on_step       the Message, committed
        on_error      the Failure
        on_turn_end   the Snapshot
    """

    point: Point
    callback: Callable[[Any, RunContext], Any]
    name: str = ""
    deadline_s: float = HOOK_DEADLINE_S
    fails: Literal["open", "closed"] = "open"

    @property
    def label(self) -> str:
        return self.name or getattr(self.callback, "__qualname__", repr(self.callback))


class Veto(Frozen):
    """A `before_tool` hook's answer: do not run this call, and tell the model why."""

    reason: str


class Ask(Frozen):
    """A `before_tool` hook's answer: a person must approve this call."""

    question: str
    expires_s: float | None = None


class Arguments(Frozen):
    """A `before_tool` hook's answer: run it with these arguments instead (the text of a JSON object)."""

    text: str


Verdict = Veto | Ask | Arguments | None


class HookFailed(Frozen):
    error: str
    hung: bool = False


Change = Callable[[Any, Any], Any]
Raised = Callable[[str, BaseException], None]  # who keeps what a callback raised, under its label


def unchanged(about: Any, _answer: Any) -> Any:
    return about


def not_kept(_label: str, _error: BaseException) -> None:
    """It is in the log."""


class Hooks:
    """Runs the hooks of all agents of a worker; keeps the suspensions."""

    def __init__(self, run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._run_sync = run_sync
        self._suspended: dict[Hook, float] = {}
        self.failed = 0

    @property
    def suspended(self) -> list[str]:
        now = time.monotonic()
        return [hook.label for hook, until in list(self._suspended.items()) if until > now]

    async def run(
        self,
        hooks: Sequence[Hook],
        point: Point,
        about: Any,
        context: RunContext,
        change: Change = unchanged,
        raised: Raised = not_kept,
    ) -> list[Any]:
        """The answers of the point's hooks, in order; a HookFailed where a closed guard gave none.

        `change(about, answer)` is what the next hook is told of, after one that changed something.
        """
        answers: list[Any] = []
        for hook in hooks:
            if hook.point != point:
                continue
            answer = await self._run_one(hook, about, context, raised)
            if not isinstance(answer, HookFailed) or hook.fails == "closed":
                answers.append(answer)
                about = change(about, answer)
        return answers

    async def make(self, make: Callable[[RunContext], Any], context: RunContext, raised: Raised = not_kept) -> Any:
        """What an agent's `deps` makes for a chat, under the same deadline and isolation as a hook."""
        return await self._isolated("deps", HOOK_DEADLINE_S, lambda: self._call(make, context), raised)

    async def choose(self, label: str, choose: Callable[[Any], Any], about: Any, raised: Raised = not_kept) -> Any:
        """What a function of the chat chooses, under the same deadline and isolation as a hook."""
        return await self._isolated(label, HOOK_DEADLINE_S, lambda: self._call(choose, about), raised)

    async def judge(self, label: str, decide: Callable[[], Any], raised: Raised = not_kept) -> Any:
        """What a tool says about a call of its own, under the same deadline and isolation as a hook."""
        return await self._isolated(f"approval of {label}", HOOK_DEADLINE_S, lambda: self._call(decide), raised)

    async def _run_one(self, hook: Hook, about: Any, context: RunContext, raised: Raised) -> Any:
        label = f"hook {hook.label}"
        if self._suspended.get(hook, 0.0) > time.monotonic():
            return HookFailed(error=f"{label} is suspended after it hung")
        call = lambda: self._call(hook.callback, about, context)  # noqa: E731
        answer = await self._isolated(label, hook.deadline_s, call, raised)
        if isinstance(answer, HookFailed) and answer.hung:
            self._suspended[hook] = time.monotonic() + SUSPENDED_S
        return answer

    async def _isolated(
        self, label: str, deadline_s: float, call: Callable[[], Coroutine[Any, Any, Any]], raised: Raised
    ) -> Any:
        task = asyncio.get_running_loop().create_task(call())
        try:
            done, _ = await asyncio.wait((task,), timeout=deadline_s)
        except asyncio.CancelledError:
            task.cancel()
            task.add_done_callback(_forget)
            raise
        if not done:
            task.cancel()
            task.add_done_callback(_forget)
            self.failed += 1
            log.error("hook hung", extra={"action": "hook_hung", "hook": label, "deadline_s": deadline_s})
            words = f"{label} gave no answer within {deadline_s:g} s"
            raised(label, TimeoutError(words))
            return HookFailed(error=words, hung=True)
        error = RuntimeError("it cancelled itself") if task.cancelled() else task.exception()
        if error is not None:
            self.failed += 1
            log.error("hook failed", extra={"action": "hook_failed", "hook": label}, exc_info=error)
            raised(label, error)
            return HookFailed(error=storable(f"{label} failed: {type(error).__name__}: {error}"))
        return task.result()

    async def _call(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        try:
            if inspect.iscoroutinefunction(callback):
                return await callback(*arguments)
            answer = await self._run_sync(lambda: callback(*arguments))
            return await answer if inspect.isawaitable(answer) else answer
        except (SystemExit, KeyboardInterrupt) as error:  # in a task of the loop they would end the process
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _forget(task: "asyncio.Task[Any]") -> None:
    """Whatever an abandoned callback still raises was reported when it was abandoned."""
    if not task.cancelled():
        task.exception()
