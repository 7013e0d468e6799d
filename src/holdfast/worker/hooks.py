"""Hooks: callbacks around a turn, each isolated, each under a deadline, none able to hang or fail a chat.

A hook that hangs is abandoned at its deadline, counted, reported, and skipped while it is suspended; the others still
run. Sync callbacks run in the bounded pool, never on the event loop. A guard (`before_tool`) says for itself what its
absence means: fail closed (the call is denied) or open.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from holdfast.core.records import Frozen

log = logging.getLogger("holdfast.hooks")

Point = Literal["before_model", "after_model", "before_tool", "after_tool", "on_step", "on_error", "on_turn_end"]
HOOK_DEADLINE_S = 30.0
SUSPENDED_S = 300.0


class Hook(Struct, frozen=True):
    """`Hook("before_tool", check, fails="closed")`. The callback gets one argument: what the point is about."""

    point: Point
    callback: Callable[[Any], Any]
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
    hook: Hook
    error: str


class Hooks:
    """Runs the hooks of all agents of a worker; keeps the suspensions."""

    def __init__(self, run_sync: Callable[[Callable[[], Any]], Awaitable[Any]], *, enabled: bool = True) -> None:
        self._run_sync = run_sync
        self._enabled = enabled
        self._suspended: dict[Hook, float] = {}
        self.abandoned = 0
        self.failed = 0

    @property
    def suspended(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        return [hook.label for hook, until in self._suspended.items() if until > now]

    async def run(self, hooks: Sequence[Hook], point: Point, about: Any) -> list[Any]:
        """The answers of the point's hooks, in order; a HookFailed where a closed guard gave none."""
        answers: list[Any] = []
        for hook in hooks:
            if hook.point != point or not self._enabled:
                continue
            answer = await self._run_one(hook, about)
            if not isinstance(answer, HookFailed) or hook.fails == "closed":
                answers.append(answer)
        return answers

    async def _run_one(self, hook: Hook, about: Any) -> Any:
        loop = asyncio.get_running_loop()
        if self._suspended.get(hook, 0.0) > loop.time():
            return HookFailed(hook=hook, error=f"hook {hook.label} is suspended after it hung")
        task = loop.create_task(self._call(hook, about))
        done, _ = await asyncio.wait((task,), timeout=hook.deadline_s)
        if not done:
            task.cancel()
            task.add_done_callback(_forget)
            self.abandoned += 1
            self._suspended[hook] = loop.time() + SUSPENDED_S
            log.error("hook hung", extra={"action": "hook_hung", "hook": hook.label, "deadline_s": hook.deadline_s})
            return HookFailed(hook=hook, error=f"hook {hook.label} gave no answer within {hook.deadline_s:g} s")
        error = task.exception()
        if error is not None:
            self.failed += 1
            log.error("hook failed", extra={"action": "hook_failed", "hook": hook.label}, exc_info=error)
            return HookFailed(hook=hook, error=f"hook {hook.label} failed: {type(error).__name__}: {error}")
        return task.result()

    async def _call(self, hook: Hook, about: Any) -> Any:
        if inspect.iscoroutinefunction(hook.callback):
            return await hook.callback(about)
        return await self._run_sync(lambda: hook.callback(about))


def _forget(task: "asyncio.Task[Any]") -> None:
    """Whatever an abandoned callback still raises was reported when it was abandoned."""
    if not task.cancelled():
        task.exception()
