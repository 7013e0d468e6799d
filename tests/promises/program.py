"""A worker as a process of its own, to be killed: `python -m tests.promises.program URL LOG MOMENT`.

It adds a line to LOG whenever its model is asked (`model 0`: no response is in the history yet) and whenever a tool's
body begins. MOMENT says when it kills itself with SIGKILL: right after a commit, before anybody is told of it
(`response 0`, `result look`, …); or it is `hold`: then `slow` waits for a line on stdin. On SIGTERM it shuts down.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

from holdfast import Agent, App, Hook, StoreOptions, tool
from holdfast.testing import Call, Hold, Say, ScriptedModel, arm
from tests.support.behind import sql


class Log:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: str) -> None:
        """In the kernel when it returns: the process is killed, not the machine."""
        os.write(self._fd, f"{line}\n".encode())


class LoggedModel(ScriptedModel):
    def __init__(self, log: Log, *responses: Any) -> None:
        super().__init__(*responses)
        self._log = log

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        answered = sum(message.role == "assistant" for message in request.messages)
        self._log.write(f"model {answered}")
        async for part in super().stream(request):
            yield part


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_the_next_commit(url: str) -> None:
    """Of something that a client sees. A worker also commits for its own upkeep, at moments of its own choice: on
    PostgreSQL, where several are under way at once, also between the write and its own commit. The right one is that
    behind which the journal has grown.
    """
    if url.startswith("sqlite"):
        arm("write.journal.after", lambda: arm("commit.after", die))
        return

    def written() -> None:
        known = journal_lines(url)

        def committed() -> None:
            if journal_lines(url) > known:
                die()
            arm("commit.after", committed)

        arm("commit.after", committed)

    arm("write.journal.after", written)


def journal_lines(url: str) -> int:
    ((count,),) = sql(url, "SELECT count(*) FROM journal")
    return int(count)


def booking_agent(
    log: Log, moment: str = "", hold: Callable[[], object] = sys.stdin.readline, *, url: str = ""
) -> Agent:
    """Three responses: one that asks for a tool, one that asks for two, an answer. `hold`: what `slow` waits for."""

    slow_began = threading.Event()

    def body(name: str) -> None:
        log.write(name)
        if moment == f"result {name}":
            die_after_the_next_commit(url)

    @tool(replay="pure")
    async def look() -> str:
        """Look."""
        body("look")
        return "seen"

    @tool(replay="pure")
    async def quick() -> str:
        """Be quick."""
        body("quick")
        if moment == "result quick":
            await asyncio.to_thread(slow_began.wait)  # then its sibling runs when this one's result kills us
        return "quick"

    @tool(replay="pure")
    def slow() -> str:
        """Take time."""
        body("slow")
        slow_began.set()
        if moment == "result quick":
            signal.pause()
        if moment == "hold":
            return f"slow, {hold()}".strip()
        return "slow"

    async def after_model(_response: Any, context: Any) -> None:
        if moment == f"response {context.step}":
            die_after_the_next_commit(url)

    model = LoggedModel(log, [Call(name="look")], [Call(name="quick"), Call(name="slow")], "Booked.")
    return Agent("booking", model, tools=[look, quick, slow], hooks=[Hook("after_model", after_model)])


def talking_agent() -> Agent:
    return Agent("talking", ScriptedModel([Say(text="Half an "), Hold(name="for ever")]))


async def work(url: str, agents: list[Agent]) -> None:
    app = App(url, agents=agents, options=StoreOptions(lease_ttl_ms=10_000))
    # One chat at a time: no claim of another one comes between a moment and its commit.
    async with app.worker(chats_max=1, poll_s=0.2):
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        await terminated.wait()


if __name__ == "__main__":
    url, path, moment = sys.argv[1:]
    asyncio.run(work(url, [booking_agent(Log(path), moment, url=url), talking_agent()]))
