"""Chat titles: asked of a model beside the turn, by the same path as every model call. Best effort.

A title never delays or fails a turn: it is made in a task of its own, a few at a time; what does not fit, fails or is
cut off by a shutdown is dropped, and the next turn of a chat without a title asks again, a few times. What it took
counts in the chat's turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.agent import Agent
from holdfast.core.commands import Rename
from holdfast.core.records import Cause, ChatRecord, Message, Role, Text
from holdfast.core.spending import SpendingKind
from holdfast.errors import HoldfastError, ModelCallFailed, RefusedError
from holdfast.log_context import logger
from holdfast.models.base import Model, Request, Settings, Usage
from holdfast.models.calls import Caller, Completed
from holdfast.stops import StopSignal
from holdfast.store.contract import Store
from holdfast.store.settlements import key_of
from holdfast.worker.draws import BudgetReached, Draws
from holdfast.worker.payer import Payer

log = logger("holdfast.titles")

TITLES_MAX = 4  # made at the same time
TRIES_MAX = 3  # for one chat, each in another turn
REMEMBERED_MAX = 10_000  # chats whose tries are known
DEADLINE_S = 120.0
GRACE_S = 5.0  # for a model to end when it is told to
EXCERPT_CHARS = 2_000
TITLE_CHARS = 80

_ASK = (
    "Give the conversation below a title of two to six words, in its own language. "
    "Answer with the title alone: no quotes, no full stop."
)


class Titles:
    """One per worker."""

    def __init__(self, store: Store, caller: Caller, draws: Draws) -> None:
        self._store = store
        self._draws = draws
        self._caller = caller
        self._stopped = False
        self._stops: set[StopSignal[Cause]] = set()  # of those that are being made
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tried: dict[str, tuple[int, int]] = {}  # by chat: its tries, and the turn of the last one
        self.made = 0
        self.failed = 0

    def ask(
        self,
        chat: ChatRecord,
        choose: Callable[[], Awaitable[Model]],
        messages: Sequence[Message],
        cost_of: Callable[[str, Usage | None], float],
        agent: Agent[Any],
    ) -> None:
        """Begin to make a title, once in a turn, unless one is being made for this chat or too many for others."""
        tries, turn = self._tried.get(chat.id, (0, -1))
        if self._stopped or chat.id in self._tasks or len(self._tasks) >= TITLES_MAX:
            return
        if turn == chat.turn or tries >= TRIES_MAX:
            return
        self._remember(chat.id, tries + 1, chat.turn)
        chat_id = chat.id
        task = self._tasks[chat_id] = asyncio.get_running_loop().create_task(
            self._make(chat, choose, _request(_excerpt(messages)), cost_of, agent)
        )
        task.add_done_callback(lambda _: self._tasks.pop(chat_id, None))

    def _remember(self, chat_id: str, tries: int, turn: int) -> None:
        self._tried.pop(chat_id, None)
        self._tried[chat_id] = (tries, turn)
        if len(self._tried) > REMEMBERED_MAX:
            del self._tried[next(iter(self._tried))]

    async def stop(self) -> None:
        """Drop what is being made. Bounded by a model's own cancellation and one store call."""
        self._stopped = True
        for stop in self._stops:
            stop.set(Cause.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=self._store.options.deadline_s)

    async def _make(
        self,
        chat: ChatRecord,
        choose: Callable[[], Awaitable[Model]],
        request: Request,
        cost_of: Callable[[str, Usage | None], float],
        agent: Agent[Any],
    ) -> None:
        payer = Payer(self._draws, SpendingKind.TITLE, chat, agent, request, cost_of)
        stop: StopSignal[Cause] = StopSignal()
        self._stops.add(stop)
        timer = asyncio.get_running_loop().call_later(DEADLINE_S, stop.set, Cause.DEADLINE)
        try:
            async with asyncio.timeout(DEADLINE_S + GRACE_S):
                model = await choose()
                outcome = await self._caller.call([model], request, observer=payer, stop=stop)
            payer.pay(outcome.model, outcome.usage)
            if isinstance(outcome, Completed) and (title := _tidy(outcome.message.text)):
                await self._name(chat, title, payer)
        except RefusedError:
            return  # a person gave it one meanwhile, or the chat is gone
        except BudgetReached:
            return  # a title is worth no wait
        except (ModelCallFailed, HoldfastError, TimeoutError) as error:
            if getattr(error, "outcome", None) == "unknown":
                payer.leave()  # it is counted if it is written
            self.failed += 1
            extra = {"action": "title_failed", "chat": chat.id, "error": type(error).__name__}
            log.warning("no title", extra=extra)
        finally:
            timer.cancel()
            self._stops.discard(stop)
            await payer.close()

    async def _name(self, chat: ChatRecord, title: str, payer: Payer) -> None:
        bill = payer.bill
        tokens, cost = sum(part.tokens for part in bill.parts), sum(part.cost for part in bill.parts)
        named = Rename(title=title, unless_titled=True, tokens=tokens, cost=cost, bill=bill)
        await self._store.submit(chat.id, named, key_of(bill.reservations))
        self.made += 1
        payer.told()
        await self._draws.settled(bill.reservations)


def _request(excerpt: str) -> Request:
    system = Message(id="title", role=Role.SYSTEM, parts=(Text(text=_ASK),))
    asked = Message(id="excerpt", role=Role.USER, parts=(Text(text=excerpt),))
    return Request(messages=[system, asked], settings=Settings(max_tokens=64))


def _excerpt(messages: Sequence[Message]) -> str:
    """How the conversation began: the first words of both sides."""
    lines = [f"{message.role}: {message.text[:EXCERPT_CHARS]}" for message in messages if message.text]
    return "\n".join(lines)[:EXCERPT_CHARS]


def _tidy(text: str) -> str:
    lines = text.strip().splitlines()
    title = " ".join(lines[0].split()).strip("\"'`*# ").rstrip(".") if lines else ""
    return title if len(title) <= TITLE_CHARS else title[: TITLE_CHARS - 1].rstrip() + "…"
