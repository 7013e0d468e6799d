"""Waits for turns of a chat, and reads them back from its journal: which turn took a message, how it stands."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.fold import Fold
from holdfast.core.journal import MessageAdded, MessagesDropped, TurnStarted
from holdfast.core.records import Cause, ChatRecord, Failure, Frozen, Message, Role, Snapshot, State
from holdfast.core.updates import NO_USAGE, TurnState, TurnUsage, TurnView
from holdfast.errors import MessageDropped, NotFound, NoTurn
from holdfast.store.chat_store import ChatStore
from holdfast.store.cursor import Cursor
from holdfast.store.driver_watch import Patience
from holdfast.store.notify.bell import rest_topic
from holdfast.store.open_calls import OpenCallRecord
from holdfast.store.records import Answer
from holdfast.store.turn_starts import find_turn_start
from holdfast.store.update_reader import event_of

Found = TypeVar("Found")
AT_REST = (State.IDLE, State.FAILED)
SHORT_ROWS = 16  # of the journal: most turns have fewer, so the last one is found by reading so many at its end


class TurnRead(Frozen):
    """A turn as it stands. `number` None: the message that will begin it is still queued."""

    agent: str
    number: int | None = None
    state: TurnState
    cause: Cause | None = None
    detail: str | None = None
    error: Failure | None = None
    response: Message | None = None  # the last one that was committed
    said: str = ""  # in its last response, the one that is under way if there is one
    open: tuple[OpenCallRecord, ...] = ()
    usage: TurnUsage = NO_USAGE
    cost: float | None = None


class _Spot(Frozen):
    """Which turn it is, and a journal number before its start; None: it is not known."""

    number: int
    start: int | None = None


class TurnReader:
    """For one wait: it remembers what it found out on the way."""

    def __init__(
        self,
        store: ChatStore,
        chat_id: str,
        patience: Patience,
        answer: Answer | None = None,
        *,
        number: int | None = None,
    ) -> None:
        """What is looked for: the turn with this number; the one that takes the message which got this `answer` when
        it was sent; without either, the last one of the chat.
        """
        self._store = store
        self._chat_id = chat_id
        self._patience = patience
        self._answer = answer
        self._spot = _Spot(number=number) if number is not None else _spot_of(answer)

    async def wait(self) -> TurnRead:
        """Until the turn is over or waits for people; of a chat: until the chat rests, or waits for people.

        Raises NoTurn, MessageDropped, NotFound, NoWorker. It has no deadline: give it one.
        """
        last = self._answer is None and self._spot is None
        return await self.until(self._last if last else self._taken)

    async def until(self, found: Callable[[Snapshot], Awaitable[Found | None]]) -> Found:
        options = self._store.options
        with self._store.bell.listen(rest_topic(self._chat_id)) as listener:
            while True:
                snapshot = await self._store.read_chat(self._chat_id)
                if (value := await found(snapshot)) is not None:
                    return value
                await self._patience.check(snapshot, options.clock.boot_ms())
                await listener.wait(options.poll_interval_s)

    async def now(self) -> TurnRead:
        """As it stands, over or not."""
        snapshot = await self._store.read_chat(self._chat_id)
        spot = await self._find(snapshot)
        if spot is None:
            return await self._behind(snapshot) or TurnRead(agent=snapshot.chat.agent, state="queued")
        read = await self._read(spot, snapshot)
        if read.state != "waiting":
            return read
        asked = await self._store.open_calls(self._chat_id)
        return replace(read, open=tuple(asked)) if asked else replace(read, state="running")

    # --- what is looked for ---------------------------------------------------------------------------------

    async def _last(self, snapshot: Snapshot) -> TurnRead | None:
        """The turn that a chat which rests, or waits for people, is in or was in last."""
        chat = snapshot.chat
        if chat.state in AT_REST:
            if chat.turn == 0:
                raise NoTurn(chat.id)
            read = await self._read(_Spot(number=chat.turn), snapshot)
            return read if read.state not in ("running", "waiting") else None  # else it has moved on meanwhile
        return await self._waiting(_Spot(number=chat.turn), snapshot) if chat.state is State.WAITING else None

    async def _taken(self, snapshot: Snapshot) -> TurnRead | None:
        """The turn that is meant, or that took the message that is meant."""
        spot, chat = await self._find(snapshot), snapshot.chat
        if spot is None:
            return await self._behind(snapshot)
        if chat.turn > spot.number or chat.turn_started_at is None:
            return await self._read(spot, snapshot)
        return await self._waiting(spot, snapshot) if chat.state is State.WAITING else None

    async def _behind(self, snapshot: Snapshot) -> TurnRead | None:
        """It is still queued. Nothing takes it while the turn before it waits for people, or has failed."""
        chat = snapshot.chat
        if chat.state is State.FAILED:
            cause = chat.error.cause if chat.error is not None else None
            return TurnRead(agent=chat.agent, state="failed", cause=cause, error=chat.error)
        if chat.state is State.WAITING and (asked := await self._store.open_calls(chat.id)):
            return TurnRead(agent=chat.agent, state="waiting", open=tuple(asked))
        return None

    async def _waiting(self, spot: _Spot, snapshot: Snapshot) -> TurnRead | None:
        """Only people and clients make a turn wait: a sub-agent and the clock come by themselves."""
        asked = await self._store.open_calls(snapshot.chat.id)
        read = await self._read(spot, snapshot) if asked else None
        return replace(read, open=tuple(asked)) if read is not None and read.state == "waiting" else None

    # --- finding and reading it -----------------------------------------------------------------------------

    async def _find(self, snapshot: Snapshot) -> _Spot | None:
        """None: the message is still queued. Raises MessageDropped, NoTurn."""
        answer, chat = self._answer, snapshot.chat
        if answer is None:
            spot = self._spot or _Spot(number=chat.turn)
            if not 0 < spot.number <= chat.turn:
                raise NoTurn(chat.id, spot.number or None)
            return spot
        if self._spot is None and not any(queued.id == answer.message_id for queued in snapshot.queue):
            self._spot = await self._look_for(answer)
        return self._spot

    async def _look_for(self, answer: Answer) -> _Spot:
        """From where the message was queued on, to what became of it."""
        spot = _Spot(number=answer.turn)  # one that steers joins the turn that was open
        cursor: Cursor | str = Cursor(seq=answer.seq)
        while True:
            page = await self._store.read_journal(self._chat_id, cursor)
            for item in page.items:
                match event_of(item).body:
                    case TurnStarted(turn=turn):
                        spot = _Spot(number=turn, start=(item.seq or 1) - 1)
                    case MessageAdded(attempt=None, off_history=False) as added:
                        if _is(added, answer.message_id):
                            return spot
                    case MessagesDropped(message_ids=ids, why=why) if answer.message_id in ids:
                        raise MessageDropped(str(answer.message_id), why)
            if not page.more:
                raise NotFound("message", str(answer.message_id))
            cursor = page.cursor

    async def _read(self, spot: _Spot, snapshot: Snapshot) -> TurnRead:
        start, chat = spot.start, snapshot.chat
        if start is None and spot.number == chat.turn:
            start = max(0, chat.seq - SHORT_ROWS)
        turn = await self._fold(spot.number, start) if start is not None else None
        if turn is None:
            start = await find_turn_start(self._store, chat, spot.number)
            turn = await self._fold(spot.number, start - 1) if start is not None else None
        return _read_of(turn or TurnView(number=spot.number, state="running"), chat)

    async def _fold(self, number: int, start: int) -> TurnView | None:
        """None: it has not begun behind there."""
        fold, begun = Fold(), False
        cursor: Cursor | str = Cursor(seq=start)
        while True:
            page = await self._store.read_journal(self._chat_id, cursor)
            for event in map(event_of, page.items):
                if isinstance(event.body, TurnStarted):
                    if event.body.turn > number:  # only now is it over for certain: a retry opens a failed one again
                        return fold.turn if begun else None
                    begun = event.body.turn == number
                if begun:
                    fold.take(event)
            if not page.more:
                return fold.turn if begun else None
            cursor = page.cursor


def _read_of(turn: TurnView, chat: ChatRecord) -> TurnRead:
    usage, cost = turn.usage, turn.cost
    if not turn.over and chat.turn == turn.number:
        usage, cost = replace(usage, total_tokens=chat.turn_tokens), chat.turn_cost
    return TurnRead(
        agent=chat.agent,
        number=turn.number,
        state="running" if turn.state == "stopping" else turn.state,
        cause=turn.cause if turn.over else None,
        detail=turn.detail,
        error=turn.error,
        response=turn.response,
        said=turn.answer,
        usage=usage,
        cost=cost,
    )


def _spot_of(answer: Answer | None) -> _Spot | None:
    if answer is None or answer.placed == "queued":
        return None
    # The message is the last thing that such a call tells, and the start of its turn comes just before it.
    return _Spot(number=answer.turn, start=max(0, answer.seq - 2) if answer.placed == "began" else None)


class _Head(msgspec.Struct):
    """Of a message, as much as every code knows."""

    id: str
    role: str


_head = msgspec.json.Decoder(_Head)


def _is(added: MessageAdded, message_id: str | None) -> bool:
    head = _head.decode(added.raw)
    return (head.role, head.id) == (Role.USER, message_id)
