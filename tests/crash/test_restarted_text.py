"""Workers are killed in the midst of what a model says, and the next time it says something else.

A loop that prints `TextAdded` and takes back what `Restarted` says ends with the exact text, wherever it leaves and
comes back; `settled=True` never takes anything back. Two kills in `make test`, a hundred in `make long`.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import pytest

from holdfast import Agent, App, Chat, Finished, Restarted, Retrying, TextAdded, Update
from holdfast.testing import ScriptedModel
from tests.crash.fickle_worker import look
from tests.support.programs import Program
from tests.support.scale import scaled
from tests.support.screens import Screen
from tests.support.tallies import Tell

KILLS = scaled(2, 100)
CHATS = 3  # at work at the same time; each kill meets all of them
PIECES_MAX = 30  # that are shown before a kill
LEAVES = 0.05  # the chance that a reader leaves after an update


class Reader:
    """One that shows a turn, leaves now and then, and comes back by its cursor, each time on another App."""

    def __init__(self, apps: list[App], chat_id: str, dice: random.Random, *, settled: bool) -> None:
        self._apps = itertools.cycle(apps)
        self._chat_id = chat_id
        self._dice = dice
        self._settled = settled
        self._cursor: str | None = None
        self.screen = Screen()
        self.seen: Counter[str] = Counter()
        self.turn_text = ""

    async def read(self, shown: asyncio.Semaphore) -> None:
        while not await self._read_a_while(shown):
            self.seen["left"] += 1

    async def _read_a_while(self, shown: asyncio.Semaphore) -> bool:
        """True: the turn is over."""
        chat = next(self._apps).chat(self._chat_id)
        stream = cast("AsyncGenerator[Update, None]", chat.stream(after=self._cursor, settled=self._settled))
        async with aclosing(stream) as updates:
            async for update in updates:
                self._cursor = update.cursor
                self.screen.take(update)
                self.seen[type(update).__name__] += 1
                if isinstance(update, TextAdded):
                    shown.release()
                if isinstance(update, Finished):
                    self.turn_text = update.turn.text
                    return True
                if self._dice.random() < LEAVES:
                    return False
        raise AssertionError("the chat rests, and nobody was told that the turn is over")


async def committed(chat: Chat) -> str:
    return "".join([message.text for message in await chat.messages() if message.role == "assistant"])


class Fleet:
    """One worker at a time, and the next as soon as it is killed."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self._url = url
        self._dice = dice
        self._program = self._start()

    def _start(self) -> Program:
        return Program("tests.crash.fickle_worker", self._url, str(self._dice.randrange(1 << 30)))

    async def ready(self) -> None:
        assert await asyncio.to_thread(self._program.hear) == "at work"

    def kill(self) -> None:
        self._program.process.kill()
        self.close()
        self._program = self._start()

    def close(self) -> None:
        self._program.__exit__(None, None, None)


async def take(shown: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await shown.acquire()


async def play(fleet: Fleet, apps: list[App], dice: random.Random) -> Counter[str]:
    """Chats begin, the worker is killed while they talk, and the next one ends them."""
    chats = [await apps[0].create("fickle", "How is the weather?") for _ in range(CHATS)]
    live = [Reader(apps, chat.id, dice, settled=False) for chat in chats]
    settled = [Reader(apps, chat.id, dice, settled=True) for chat in chats]
    shown, unheard = asyncio.Semaphore(0), asyncio.Semaphore(0)
    reading = [
        *[asyncio.create_task(reader.read(shown)) for reader in live],
        *[asyncio.create_task(reader.read(unheard)) for reader in settled],
    ]
    pieces = asyncio.create_task(take(shown, dice.randint(1, PIECES_MAX)))
    await asyncio.wait((pieces, *reading[:CHATS]), return_when=asyncio.FIRST_COMPLETED)
    pieces.cancel()  # a turn is over before so much was shown: the others are met where they are
    fleet.kill()
    await asyncio.gather(*reading)
    for chat, one, other in zip(chats, live, settled, strict=True):
        text = await committed(chat)
        assert one.screen.text == one.turn_text == text, "it ends with the exact text"
        assert other.screen.text == other.turn_text == text
        assert not other.seen[Restarted.__name__], "nothing is ever taken back"
    return sum((reader.seen for reader in live), Counter())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
async def test_a_loop_that_takes_back_what_it_is_told_to_ends_with_the_exact_text_whatever_is_killed(
    store_url: str, seed: int, tell: Tell
) -> None:
    dice = random.Random(seed)
    agent = Agent("fickle", ScriptedModel(), tools=[look])
    apps = [App(store_url, agents=[agent]) for _ in range(2)]
    fleet = Fleet(store_url, dice)
    seen: Counter[str] = Counter()
    try:
        async with apps[0], apps[1]:
            await fleet.ready()
            for _ in range(KILLS):
                seen += await play(fleet, apps, dice)
    finally:
        fleet.close()
        tell(
            f"{KILLS} kills, {KILLS * CHATS} turns; asked again {seen[Retrying.__name__]} times, text taken back "
            f"{seen[Restarted.__name__]} times; {seen['left']} times a reader left and came back"
        )
    assert seen[Retrying.__name__], "a kill met an attempt"
