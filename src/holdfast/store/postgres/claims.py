"""Claims: which due chats a worker takes. Oldest first, in turn between agents, each chat by one worker only.

Chats are locked with SKIP LOCKED, so that workers who look at the same moment take different ones. What a claim took
whose answer was lost is looked at first the next time (`store/unheard_claims.py`).
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.change import Change
from holdfast.core.commands import Claim
from holdfast.core.limits import Limits
from holdfast.core.records import Snapshot
from holdfast.errors import LeaseLost, RecordError
from holdfast.faults import reach
from holdfast.store.claims import Claims, claim, in_turn, is_suspect
from holdfast.store.decisions import decided
from holdfast.store.postgres import sql
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.connection import Row
from holdfast.store.postgres.transactions import Busy, Transaction, snapshot_from
from holdfast.store.postgres.transactor import Transactor
from holdfast.store.unheard_claims import UnheardClaim

# Where chats that this code cannot read stand in front, so many are looked at together, so many times.
PASSED_TOGETHER = 100
PASSES_MAX = 100


class Chosen(msgspec.Struct):
    """What a claim takes. Most of it is written together; what reaches other chats is written at once."""

    chats: dict[str, Snapshot] = {}  # by id, as they are after it, once it is written
    changes: list[Change] = []  # that are written
    unwritten: list[Change] = []
    reached: set[str] = set()  # others, which are not what they were when this claim read them

    def add(self, changes: Sequence[Change]) -> None:
        """Those that were written."""
        self.changes += changes
        own = changes[0].after.chat.id
        for change in changes:
            chat_id = change.after.chat.id
            if chat_id == own or chat_id in self.chats:
                self.chats[chat_id] = change.after
            else:
                self.reached.add(chat_id)


class ClaimWanted(msgspec.Struct, frozen=True):
    worker: str
    rooms: dict[str, int]  # by agent
    limit: int
    suspects: int  # at most so many of them


class PostgresClaims(Claims):
    def __init__(self, transactor: Transactor, limits: Limits, clock: DatabaseClock) -> None:
        super().__init__(limits)
        self._transactor = transactor
        self._clock = clock

    async def claim_chats(self, worker: str, agents: Mapping[str, int], limit: int, suspects: int) -> list[Snapshot]:
        rooms = {agent: min(room, limit) for agent, room in agents.items() if room > 0 and limit > 0}
        if not self._unheard.left_over(worker):
            due = await self._transactor.write(
                lambda transaction: self._is_anything_due(transaction, worker, rooms), "work"
            )
            if not due:
                return []
        wanted = ClaimWanted(worker, rooms, limit, suspects)
        with self._unheard.asking(worker) as number:
            return await self._transactor.write(lambda transaction: self._claim(transaction, wanted, number), "work")

    async def _is_anything_due(self, transaction: Transaction, worker: str, rooms: dict[str, int]) -> bool:
        ((server_ms, live, due),) = await transaction.named_rows(
            sql.ANYTHING_DUE, **self._clock.values(), worker=worker, agents=list(rooms)
        )
        self._clock.observe(server_ms)
        if not live:
            raise LeaseLost(worker)
        return bool(due)

    async def _claim(self, transaction: Transaction, wanted: ClaimWanted, number: int) -> list[Snapshot]:
        worker = wanted.worker
        reach("claim.before")
        await transaction.begin()
        left_over = self._unheard.left_over(worker, number)
        lock = sql.SETTLE_LEASE if left_over else sql.SHARE_LEASE
        lease = await transaction.named_rows(lock, **self._clock.values(), worker=worker)
        if not lease:
            self._unheard.forget(worker)
            raise LeaseLost(worker)
        transaction.now = self._clock.observe(lease[0][0])
        if left_over:
            # It is decided what became of them: their transactions were waited for. So was another claim, perhaps,
            # that has handed them over meanwhile: look again.
            left_over = self._unheard.left_over(worker, number)
            found = await self._still_held(
                transaction, worker, [held for chats in left_over.values() for held in chats]
            )
            self._unheard.settle(worker, number, left_over, found)
            if found:
                return found
        chosen = await self._choose(transaction, wanted)
        if not chosen.chats:
            return []
        await self._write(transaction, chosen)
        reach("claim.after")
        # A waiting chat whose timers rang may still have to wait for an answer: that is not a claim.
        snapshots = [snapshot for snapshot in chosen.chats.values() if snapshot.chat.worker == worker]
        self._unheard.note(worker, number, snapshots)
        await transaction.commit()
        transaction.tell(chosen.changes)
        return snapshots

    async def _write(self, transaction: Transaction, chosen: Chosen) -> None:
        if chosen.unwritten:
            made = decided(chosen.unwritten)
            await transaction.write(made.writes)
            chosen.add(made.changes)
            chosen.unwritten = []

    async def _still_held(self, transaction: Transaction, worker: str, chats: list[UnheardClaim]) -> list[Snapshot]:
        ids, claims = [held.chat_id for held in chats], [held.claim_stamp for held in chats]
        mine = [row[0] for row in await transaction.rows(sql.CLAIMED_AS, ids, claims, worker)]
        return [snapshot_from(row) for row in await transaction.rows(sql.READ_SNAPSHOTS, mine)] if mine else []

    async def _choose(self, transaction: Transaction, wanted: ClaimWanted) -> Chosen:
        chosen = Chosen()
        passed: list[str] = []
        rooms, limit, suspects = dict(wanted.rooms), wanted.limit, wanted.suspects
        together = 0
        for _ in range(PASSES_MAX):
            due = await transaction.named_rows(
                sql.DUE_CHATS,
                agents=list(rooms),
                rooms=[max(room, together) for room in rooms.values()],
                due=transaction.now,
                passed=passed,
            )
            ids = list(in_turn(_by_agent(due)))
            found = {row[0]: row for row in await transaction.rows(sql.READ_SNAPSHOTS, ids)} if ids else {}
            for chat_id in ids:
                if len(chosen.chats) == limit:
                    break
                passed.append(chat_id)
                if chat_id in chosen.reached:
                    (found[chat_id],) = await transaction.rows(sql.READ_SNAPSHOT, chat_id)
                change = self._decide(found[chat_id], wanted.worker, transaction.now)
                suspect = change is not None and is_suspect(change.after, self._limits)
                if suspect and suspects == 0:
                    continue
                if change is None or rooms.get(change.after.chat.agent, 0) == 0:
                    continue
                if await self._take(transaction, wanted.worker, change, chosen):
                    suspects -= suspect
                    rooms[change.after.chat.agent] -= 1
            rooms = {agent: room for agent, room in rooms.items() if room > 0}
            if not ids or not rooms or len(chosen.chats) == limit or len(passed) == len(chosen.chats):
                break
            together = PASSED_TOGETHER  # a younger one may be hidden behind those that were passed
        return chosen

    async def _take(self, transaction: Transaction, worker: str, change: Change, chosen: Chosen) -> bool:
        """False: it reaches a chat that another transaction holds, or that this code cannot read. Locks are taken
        from the top of a family down, and this one came first, so none is waited for: the next claim finds it again.
        """
        if not change.reaches_others:
            chosen.chats[change.after.chat.id] = change.after
            chosen.unwritten.append(change)
            return True
        await self._write(transaction, chosen)
        assert change.before is not None
        try:
            changes = await transaction.apply(change.before, (Claim(worker=worker),), waits=False)
        except Busy:
            return False
        except RecordError:
            self.unreadable += 1
            return False
        made = decided(changes)
        await transaction.write(made.writes)
        chosen.add(made.changes)
        return True

    def _decide(self, row: Row, worker: str, now: int) -> Change | None:
        try:
            return claim(snapshot_from(row), worker, now, self._limits)
        except RecordError:
            self.unreadable += 1
            return None


def _by_agent(due: list[Row]) -> list[list[str]]:
    """Each agent's chats, oldest first; the agent whose oldest has waited longest comes first."""
    lists: dict[str, list[tuple[int, str]]] = {}
    for chat_id, agent, wake_at in due:
        lists.setdefault(agent, []).append((wake_at, chat_id))
    return [[chat_id for _, chat_id in found] for found in sorted(map(sorted, lists.values()))]
