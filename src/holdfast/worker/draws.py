"""What a worker draws on budgets: an estimate before each attempt at a model call, where a limit applies at all.

A chat that no limit bounds draws nothing, and pays nothing for those that are bounded. Where what is left is reserved
by other calls, a draw waits until one of them is settled; a stop ends the wait. A reservation that was neither
settled nor released, because a store failed or a stop came in between, is found by `tidy`: what its call took is
counted, and one whose call never began is released.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.config import ModelFacts
from holdfast.core.budgets import NOTHING, BudgetLeft, Estimate, Reached, Verdict, least, left_in_row, own_ceilings
from holdfast.core.records import ChatRecord, Frozen
from holdfast.core.spending import Bill, SpendingKind, Spent
from holdfast.errors import StoreError
from holdfast.ids import new_id
from holdfast.log_context import logger
from holdfast.models.base import Request, Usage
from holdfast.models.calls import estimated_usage
from holdfast.owner_limits import Budgets
from holdfast.store.budgets import Draw, Granted
from holdfast.store.contract import Store
from holdfast.store.settlements import count_spending
from holdfast.timetable import zone_of

log = logger("holdfast.budgets")

LOOK_S = 0.1  # at first, and then twice as long each time
LOOK_S_MAX = 1.0
LEFT_MAX = 1_000  # reservations whose commit failed, and what they took
WAIT_S_MAX = 600.0  # for what is reserved by others: then the turn ends


class BudgetReached(Exception):
    """No call may begin. `detail` names the budget, the figure and the limit."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Drawn(Frozen):
    """What a call may use. `id` None: nothing bounds it."""

    day: str
    id: str | None = None
    accounts: tuple[str, ...] = ()
    own: tuple[str, ...] = ()  # of the chat itself: its commits need not name them


class _Left(Frozen):
    chat: ChatRecord
    kind: SpendingKind
    parts: tuple[Spent, ...]
    drawn: Drawn


def bill_of(drawn: Sequence[Drawn], parts: Sequence[Spent] = ()) -> Bill:
    last = drawn[-1]
    ids = tuple(one.id for one in drawn if one.id is not None)
    return Bill(day=last.day, accounts=last.accounts, reservations=ids, parts=tuple(parts))


class Draws:
    """Of one worker."""

    def __init__(self, store: Store, budgets: Budgets, worker: Callable[[], str]) -> None:
        self._store = store
        self._budgets = budgets
        self._worker = worker
        self._zone = zone_of(budgets.zone)
        self._day = (-1, "")  # by the minute of the last look
        self._live: set[str] = set()  # reservations that are drawn, or being drawn
        self._left: dict[str, _Left] = {}  # what a commit should have told of, by its reservation
        self._settled = asyncio.Condition()
        self._drew = 0  # draws that were begun
        self._doubted = False  # one may be entered that this worker does not know of
        self._tidied = 0  # how many had been begun when nothing was found reserved any more
        self.granted = 0
        self.waiting = 0
        self.reached = 0
        self.lost = 0  # spending that could not be entered

    @property
    def open_count(self) -> int:
        return len(self._live)

    def day(self) -> str:
        """Looked up once a minute: no zone's day begins within one."""
        minute = self._store.now_ms() // 60_000
        if self._day[0] != minute:
            self._day = minute, datetime.fromtimestamp(minute * 60, self._zone).date().isoformat()
        return self._day[1]

    async def _asked(self, chat: ChatRecord, agent: Agent[Any], wanted: Callable[[], Estimate]) -> Draw | None:
        """None: no limit applies."""
        limits, own = self._budgets.of(chat.owner), own_ceilings(chat, agent.limits)
        if limits is None and not own and not chat.purses and not await self._store.budgets.is_limited(chat.owner):
            return None
        return Draw(
            id=new_id("draw"),
            worker=self._worker(),
            owner=chat.owner,
            chat_id=chat.id,
            day=self.day(),
            wanted=wanted(),
            own=own,
            purses=chat.purses,
            limits=limits,
        )

    async def draw(
        self,
        chat: ChatRecord,
        agent: Agent[Any],
        wanted: Callable[[], Estimate],
        trusted: Callable[[], bool],
        *,
        took: Estimate = NOTHING,
        wait_s: float = WAIT_S_MAX,
    ) -> Drawn:
        """Raises BudgetReached, also where it would have to wait for longer than `wait_s`, and StoreError once the
        worker's lease is not trusted any more.
        """
        asked = await self._asked(chat, agent, wanted)
        if asked is None:
            return Drawn(day=self.day())
        asked = replace(asked, took=took)
        self._drew += 1
        self._live.add(asked.id)
        try:
            answer = await self._granted(asked, trusted, wait_s)
        except BaseException as error:
            self._live.discard(asked.id)  # if it is there after all, `tidy` finds it
            self._doubted |= not isinstance(error, BudgetReached)
            raise
        if not answer.reserved:
            self._live.discard(asked.id)
        self.granted += answer.reserved
        id = asked.id if answer.reserved else None
        return Drawn(day=asked.day, id=id, accounts=answer.accounts, own=answer.own)

    async def left(self, chat: ChatRecord, agent: Agent[Any]) -> BudgetLeft:
        """What a call that spends by itself could take now. Raises StoreError."""
        asked = await self._asked(chat, agent, lambda: NOTHING)
        own = left_in_row(chat, agent.limits)
        return own if asked is None else least((own, await self._store.budgets.left(asked)))

    async def _granted(self, asked: Draw, trusted: Callable[[], bool], wait_s: float) -> Granted:
        now_s = asyncio.get_running_loop().time
        pause_s, give_up_at = LOOK_S, now_s() + min(wait_s, WAIT_S_MAX)
        while True:
            try:
                answer = await self._store.budgets.draw(asked)
            except StoreError:
                self._doubted = True
                if not trusted() or not wait_s:
                    raise
                await asyncio.sleep(pause_s)
                continue
            if isinstance(answer, Granted):
                return answer
            if isinstance(answer, Reached):
                self.reached += 1
                raise BudgetReached(answer.detail)
            assert answer is Verdict.WAIT
            left_s = give_up_at - now_s()
            if left_s <= 0:
                raise BudgetReached("what is left of the budget is reserved by calls under way")
            await self._wait(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LOOK_S_MAX)

    async def _wait(self, pause_s: float) -> None:
        """Until a call of this worker is settled, or so long: others settle, too."""
        self.waiting += 1
        try:
            async with asyncio.timeout(pause_s), self._settled:
                await self._settled.wait()
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    async def settled(self, ids: Sequence[str]) -> None:
        """By a commit: they are not reserved any more."""
        if ids:
            self._live.difference_update(ids)
            async with self._settled:
                self._settled.notify(1)

    def leave(self, chat: ChatRecord, kind: SpendingKind, parts: Sequence[Spent], drawn: Drawn | None) -> None:
        """Whether the commit that settles it was written is not known. If it was not, `tidy` finds it and counts it.
        Where nothing was reserved, there is nothing to find.
        """
        if drawn is None or drawn.id is None:
            return
        self._left[drawn.id] = _Left(chat=chat, kind=kind, parts=tuple(parts), drawn=drawn)
        while len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]  # it is then released, and not counted
        self._live.discard(drawn.id)

    async def enter(
        self, chat: ChatRecord, kind: SpendingKind, parts: Sequence[Spent], drawn: Sequence[Drawn]
    ) -> None:
        """What no commit tells of, so that it is counted all the same; and what was reserved is free. A store that
        fails is not waited for: what was reserved is then found later.
        """
        ids = [one.id for one in drawn if one.id is not None]
        parts = [part for part in parts if part.tokens or part.cost]
        if not parts and not ids:
            return
        try:
            if parts:
                bill = bill_of(drawn, parts) if drawn else Bill(day=self.day(), parts=tuple(parts))
                await count_spending(self._store, chat, kind, bill, drawn[-1].own if drawn else ())
            else:
                await self._store.budgets.enter((), ids)
        except StoreError as error:
            self.leave_all(chat, kind, parts, drawn)
            self.lost += bool(parts) and not ids
            extra = {"action": "spending_lost", "chat": chat.id, "error": str(error)}
            log.warning("what a call spent is not counted", extra=extra)
        finally:
            self._live.difference_update(ids)  # if they are there after all, `tidy` finds them
        await self.settled(ids)

    def leave_all(self, chat: ChatRecord, kind: SpendingKind, parts: Sequence[Spent], drawn: Sequence[Drawn]) -> None:
        """No store is asked: `tidy` finds what was reserved, and counts these parts."""
        if parts and drawn:
            self.leave(chat, kind, parts, drawn[-1])
        self._live.difference_update(one.id for one in drawn if one.id is not None)

    async def tidy(self) -> None:
        """Settle what is reserved in this worker's name and belongs to no call of it: what it took is counted, if it
        took anything. Looked up first and compared then: what is drawn meanwhile is not among it.

        Once nothing is reserved, there is nothing to look for until the next draw; but for one whose outcome is not
        known: that may be entered late.
        """
        drew, live = self._drew, bool(self._live)
        if drew == self._tidied and not self._doubted:
            return
        reserved = await self._store.budgets.reserved_by(self._worker())
        if not reserved and not live and not self._left:
            self._tidied = drew
        for id in reserved:
            if id in self._live:
                continue
            if (left := self._left.pop(id, None)) is not None:
                await self.enter(left.chat, left.kind, left.parts, (left.drawn,))
            else:
                await self._store.budgets.enter((), [id])
        for id in self._left.keys() - set(reserved):
            del self._left[id]  # its commit was written, or the lease ended that it was reserved under

    def figures(self) -> dict[str, int]:
        """From any thread."""
        return {
            "reserved": len(self._live),
            "waiting": self.waiting,
            "granted": self.granted,
            "reached": self.reached,
            "lost": self.lost,
        }

    def estimate(self, agent: Agent[Any], model: str, request: Request, facts: Mapping[str, ModelFacts]) -> Estimate:
        """What an attempt may take: the request, and as long an answer as is allowed."""
        given = estimated_usage(request, ()).input_tokens
        made = request.settings.max_tokens or self._budgets.slice_tokens
        read = Usage(input_tokens=given, output_tokens=made)
        kept = Usage(input_tokens=given, output_tokens=made, cache_write_tokens=given)
        cost = max(agent.cost_of(model, usage, facts) for usage in (read, kept))
        return Estimate(tokens=given + made, cost=cost)
