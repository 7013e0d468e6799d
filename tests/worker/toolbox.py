"""The tools of the random turns: one for each way in which a call can be replayed, fail, wait or need somebody."""

import asyncio
from collections import Counter

from holdfast.tools.base import Tool, tool
from holdfast.tools.context import ToolContext
from tests.worker.evidence import Evidence, Line

AT_ONCE = ("look", "pay", "launch", "launch_in_a_thread", "boom")
GATED = ("wait_pure", "wait_unsafe", "wait_stubborn", "wait_doubted")
APPROVED = ("ask_unsafe", "ask_pure", "ask_then_wait")
SAFE = frozenset({"look", "pay", "wait_pure", "ask_pure"})  # to be run again; all others are unsafe


class Gates:
    """Where bodies wait until the test lets them go, or for a moment where there is no test."""

    def __init__(self, moment_s: float | None = None) -> None:
        self._moment_s = moment_s
        self._waiting: list[asyncio.Event] = []
        self.waiting: Counter[str] = Counter()  # by chat
        self.open_for_good = False

    async def wait(self, chat_id: str) -> None:
        if self._moment_s is not None:
            await asyncio.sleep(self._moment_s)
        elif not self.open_for_good:
            event = asyncio.Event()
            self._waiting.append(event)
            self.waiting[chat_id] += 1
            try:
                await event.wait()
            finally:
                self.waiting[chat_id] -= 1

    def open(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()


def toolbox(evidence: Evidence, gates: Gates) -> list[Tool]:
    def enter(name: str, context: ToolContext) -> str:
        evidence.write(
            Line(
                what="entered",
                life=evidence.life,
                call_id=context.call_id,
                chat_id=context.chat_id,
                key=context.key,
                tool=name,
            )
        )
        return f"{name} did {context.call_id}"

    @tool(replay="pure")
    async def look(context: ToolContext) -> str:
        return enter("look", context)

    @tool(replay="idempotent")
    async def pay(context: ToolContext) -> str:
        return enter("pay", context)

    @tool
    async def launch(context: ToolContext) -> str:
        return enter("launch", context)

    @tool
    def launch_in_a_thread(context: ToolContext) -> str:
        return enter("launch_in_a_thread", context)

    @tool
    async def boom(context: ToolContext) -> str:
        raise RuntimeError(enter("boom", context))

    async def enter_and_wait(name: str, context: ToolContext) -> str:
        done = enter(name, context)
        await gates.wait(context.chat_id)
        return done

    @tool(replay="pure")
    async def wait_pure(context: ToolContext) -> str:
        return await enter_and_wait("wait_pure", context)

    @tool
    async def wait_unsafe(context: ToolContext) -> str:
        return await enter_and_wait("wait_unsafe", context)

    @tool
    async def wait_stubborn(context: ToolContext) -> str:
        try:
            return await enter_and_wait("wait_stubborn", context)
        except asyncio.CancelledError:
            return "I was cancelled"

    @tool(on_unknown="ask")
    async def wait_doubted(context: ToolContext) -> str:
        return await enter_and_wait("wait_doubted", context)

    @tool(needs_approval=True)
    async def ask_unsafe(context: ToolContext) -> str:
        return enter("ask_unsafe", context)

    @tool(needs_approval=True, replay="pure")
    async def ask_pure(context: ToolContext) -> str:
        return enter("ask_pure", context)

    @tool(needs_approval=True)
    async def ask_then_wait(context: ToolContext) -> str:
        return await enter_and_wait("ask_then_wait", context)

    return [
        *(look, pay, launch, launch_in_a_thread, boom),
        *(wait_pure, wait_unsafe, wait_stubborn, wait_doubted),
        *(ask_unsafe, ask_pure, ask_then_wait),
    ]
