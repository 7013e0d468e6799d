"""Following a chat until there is nothing more to see: to the end of its turn, or until a person must act."""

import asyncio
import errno
import select
import sys
import time
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any, Protocol

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.cli.terminal.journal_reader import Reader
from holdfast.core.journal import CallChanged, DescendantAnswered, DescendantAsking, TurnResumed, TurnWaiting
from holdfast.core.records import Snapshot, State
from holdfast.core.updates import TurnState
from holdfast.errors import NoTurn, RefusedError, StoreUnavailable, TurnTimeout
from holdfast.health.checks import judge
from holdfast.store.cursor import AfterCursor, Cursor
from holdfast.store.open_calls import OpenCallRecord
from holdfast.store.records import Item, Page
from holdfast.store.turn_starts import find_turn_start
from holdfast.turn import Turn

LOOK_S = 5.0
AWAY_S = 300.0  # a store that stays away longer is not waited for
RETRY_S = 1.0


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    WAITING = 4


class Viewer(Protocol):
    def take(self, item: Item) -> object:
        """Show it; returns what it was."""

    def interrupted(self) -> None:
        """Ctrl-C was pressed for the first time."""

    def trouble(self, text: str) -> None:
        """Something holds it up; nothing is lost."""


Ask = Callable[[OpenCallRecord], Awaitable[bool]]  # True: it was answered; False: it will not be


def cursor_now(snapshot: Snapshot) -> Cursor:
    """Just after everything that is in the journal."""
    return Cursor(seq=snapshot.chat.seq)


async def recall(app: App, chat: Chat, reader: Reader, upto: Cursor) -> None:
    """Lets the reader know what the turn that goes on did before that place, so that it can name what is resumed."""
    record = (await chat.snapshot()).chat
    start = await find_turn_start(app.store, record, record.turn) if record.turn_started_at is not None else None
    if start is None or start > upto.seq:
        return
    cursor: AfterCursor = Cursor(seq=start - 1)
    while True:
        page = await app.store.read_journal(chat.id, cursor)
        for item in page.items:
            if item.seq is None or item.seq > upto.seq:
                return
            reader.recall(item)
        if not page.more:
            return
        cursor = page.cursor


class TurnFollower:
    """One look at a chat, from a cursor on."""

    def __init__(self, app: App, chat: Chat, viewer: Viewer, ask: Ask | None = None) -> None:
        self._app = app
        self.chat = chat
        self._viewer = viewer
        self._ask = ask
        self._declined: set[str] = set()  # calls that the person here does not answer
        self.cursor: AfterCursor = None
        self._away_since: float | None = None
        self._why = ""  # nothing happens, as was said last

    async def follow(self) -> Exit:
        """Until the chat rests, or waits for a person who is not here. A store that is away is waited for."""
        while True:
            try:
                return await self._follow()
            except StoreUnavailable as error:
                now = time.monotonic()
                if self._away_since is None:
                    self._away_since = now
                    self._viewer.trouble(f"{error}; waiting for it")
                if now - self._away_since > AWAY_S:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _follow(self) -> Exit:
        look = True  # a chat that waits already will tell us nothing more
        while True:
            page = await self._next(0.0 if look else LOOK_S)
            entries = [self._viewer.take(item) for item in page.items]
            self.cursor = page.cursor
            self._away_since = None
            check_somebody_reads()
            if page.at_rest:
                if (end := await self._end()) is not None:
                    return end
                continue
            idle = not page.items
            if idle and not look:
                await self._say_why_it_stands_still()
            if idle or look or any(map(concerns_people, entries)):
                look = False
                if await self._people() and await self._nobody_answers():
                    return Exit.WAITING

    async def _end(self) -> Exit | None:
        """None: a worker goes on with it."""
        try:
            return exit_of(await self.chat.turn(timeout_s=0))
        except NoTurn:
            return Exit.DONE  # nothing was said in it
        except TurnTimeout:
            return None

    async def _say_why_it_stands_still(self) -> None:
        """Once for each reason."""
        why = self._trouble_here() if self._app.workers else await self._lack_of_a_worker()
        if why and why != self._why:
            self._viewer.trouble(why)
        self._why = why

    def _trouble_here(self) -> str:
        """A disk that is full, say: the chat can be read, and nothing comes."""
        status, reasons = judge([self._app])
        stuck = f"it stands still: {', '.join(reasons)}; `holdfast doctor` says more"
        return stuck if status == "unhealthy" else ""

    async def _lack_of_a_worker(self) -> str:
        """For who only looks: one of our own would take it."""
        chat = (await self.chat.snapshot()).chat
        due = chat.worker is None and chat.state in (State.RUNNING, State.STOPPING)
        return "no worker drives this chat now; `holdfast serve` or `holdfast worker` takes it" if due else ""

    async def _next(self, deadline_s: float) -> Page:
        return await self._app.store.wait_journal(self.chat.id, self.cursor, deadline_s)

    async def _people(self) -> bool:
        """Asks the person here. True: something is left that is not answered here."""
        left = False
        for asked in [call.record for call in await self.chat.open_calls()]:
            if asked.call_id in self._declined:
                left = True
            elif self._ask is None or not await self._answered(asked):
                self._declined.add(asked.call_id)
                left = True
        return left

    async def _answered(self, asked: OpenCallRecord) -> bool:
        assert self._ask is not None
        try:
            return await self._ask(asked)
        except RefusedError:
            return True  # another person was quicker, or it was stopped meanwhile

    async def _nobody_answers(self) -> bool:
        return (await self.chat.snapshot()).chat.state is State.WAITING


def check_somebody_reads() -> None:
    """Who reads our output may have left while there was nothing to write. Raises BrokenPipeError."""
    look = select.poll()
    try:
        look.register(sys.stdout.fileno(), 0)
        found = look.poll(0)
    except (OSError, ValueError):  # no file at all
        return
    if any(what & select.POLLERR for _, what in found):
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")


def concerns_people(entry: object) -> bool:
    """After it, what is asked of people may be more or less than before."""
    return isinstance(entry, TurnWaiting | TurnResumed | CallChanged | DescendantAsking | DescendantAnswered)


EXITS: dict[TurnState, Exit] = {
    "done": Exit.DONE,
    "failed": Exit.FAILED,
    "stopped": Exit.STOPPED,
    "waiting": Exit.WAITING,
}


def exit_of(turn: Turn[Any]) -> Exit:
    """Of a turn that is over, or waits for people."""
    return EXITS[turn.state]


async def ticking(draw: Callable[[], None], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        draw()
