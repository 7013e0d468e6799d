"""The workload that every adapter runs, and the ledger that tells of it. Imports what is built in, and nothing else.

A chat is a turn of so many cycles: the model answers with a text and one call, the tool returns a text. Neither
thinks. Each writes a line into the ledger as it happens, unsynced: kind, chat, cycle, time, process. What a cycle
took, and what was done twice after a kill, is read from these lines, in the same way for all.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

TEXT = "I will look that up and come back with what I find. "
RESULT = "It is 14 degrees and raining in Bern, with more rain to come. "
QUESTION = "What is the weather in Bern?"
ANSWER = "Take an umbrella."
HELD_S = 600.0  # a tool that waits to be killed


class Workload:
    """What the command line asks for."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--database", default="")
        parser.add_argument("--ledger", required=True)
        parser.add_argument("--chats", type=int, default=1)
        parser.add_argument("--at-once", type=int, default=1)
        parser.add_argument("--cycles", type=int, default=50)
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--hold", type=int, default=-1, help="the cycle whose tool waits to be killed")
        parser.add_argument("--resume", action="store_true", help="go on with what was killed")
        parser.add_argument("--server", default="", help="where the peer's own server is")
        parser.add_argument("--option", default="", help="a variant of the peer")
        asked = parser.parse_args()
        self.database: str = asked.database
        self.cycles: int = asked.cycles
        self.at_once: int = asked.at_once
        self.processes: int = asked.processes
        self.hold: int = asked.hold
        self.resume: bool = asked.resume
        self.server: str = asked.server
        self.option: str = asked.option
        self.chats: Sequence[str] = [f"chat-{number}" for number in range(asked.chats)]
        self.ledger: str = asked.ledger
        self._ledger = os.open(asked.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, chat: str, cycle: int) -> None:
        os.write(self._ledger, f"{kind} {chat} {cycle} {time.monotonic_ns()} {os.getpid()}\n".encode())

    def asked(self, chat: str, cycle: int) -> bool:
        """The model is asked. Whether it calls the tool, or answers."""
        self.note("model", chat, cycle)
        return cycle < self.cycles

    async def tool(self, chat: str, cycle: int) -> str:
        self.note("tool", chat, cycle)
        if cycle == self.hold:
            await asyncio.sleep(HELD_S)
        return RESULT

    async def drive(self, one: Callable[[str], Awaitable[object]]) -> None:
        """Every chat by `one`, so many at once."""
        left = list(self.chats)

        async def lane() -> None:
            while left:
                await one(left.pop(0))

        await asyncio.gather(*(lane() for _ in range(self.at_once)))
