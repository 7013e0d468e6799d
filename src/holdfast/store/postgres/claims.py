"""Claims: which due chats a worker takes. In turn between owners and agents, oldest first, each chat by one worker
only.

Chats are locked with SKIP LOCKED, so that workers who look at the same moment take different ones.
"""

from collections.abc import Sequence

from holdfast.core.change import Change
from holdfast.core.commands import Claim
from holdfast.core.limits import Limits
from holdfast.core.records import Snapshot
from holdfast.errors import LeaseLost, RecordError
from holdfast.faults import reach
from holdfast.store.claims import (
    PASSED_TOGETHER,
    Chosen,
    Claims,
    ClaimWanted,
    UnheardClaim,
    claim,
)
from holdfast.store.decisions import decided
from holdfast.store.fairness import OWNERS_TOGETHER, TIMERS_TOGETHER, DueChat, DueOwner, asked_of, in_turn
from holdfast.store.postgres import sql
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.connection import Row
from holdfast.store.postgres.transactions import Busy, Transaction, Transactor, snapshot_from

PASSES_MAX = 100  # each holds its locks until the end


class PostgresClaims(Claims):
    def __init__(self, transactor: Transactor, limits: Limits, clock: DatabaseClock) -> None:
        super().__init__(limits)
        self._transactor = transactor
        self._clock = clock

    async def claim_chats(self, wanted: ClaimWanted) -> list[Snapshot]:
        owners: list[DueOwner] = []
        if not self._unheard.left_over(wanted.worker):
            looked = await self._look(wanted)
            if looked is None:
                return []
            owners = looked
        with self._unheard.asking(wanted.worker) as number:
            return await self._transactor.write(
                lambda transaction: self._claim(transaction, wanted, owners, number), "work"
            )

    async def _look(self, wanted: ClaimWanted) -> list[DueOwner] | None:
        """One statement for a worker that looks in vain, as most do: then None. Else, where chats pile up, owners
        that have something due.
        """
        agents, full, ring = list(wanted.rooms), wanted.shares.full, self._ring
        values = {
            **self._clock.values(),
            "worker": wanted.worker,
            "agents": agents,
            "rooms": list(wanted.rooms.values()),
            "after_ready": [ring.ready.get(agent) for agent in agents],
            "after_timed": [ring.timers.get(agent) for agent in agents],
            "owners_together": OWNERS_TOGETHER + full,
            "timers_together": TIMERS_TOGETHER + full,
        }
        rows = await self._transactor.write(
            lambda transaction: transaction.named_rows(sql.ANYTHING_DUE, **values), "work"
        )
        server_ms, live, due = rows[0][:3]
        now = self._clock.observe(server_ms)
        if not live:
            raise LeaseLost(wanted.worker)
        if not due:
            return None
        found: list[DueOwner] = []
        for agent in agents:
            walked = [(DueOwner(*row[3:6]), row[6]) for row in rows if row[4] == agent]
            found += ring.passed(ring.ready, agent, (owner for owner, timed in walked if not timed))
            timed = ring.passed(ring.timers, agent, (owner for owner, timed in walked if timed))
            found += [owner for owner in timed if owner.at <= now]
        return found

    async def _claim(
        self, transaction: Transaction, wanted: ClaimWanted, owners: Sequence[DueOwner], number: int
    ) -> list[Snapshot]:
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
        chosen = await self._choose(transaction, wanted, owners)
        if not chosen.chats:
            return []
        await self._write(transaction, chosen)
        reach("claim.after")
        self._unheard.note(worker, number, chosen.claimed)
        await transaction.commit()
        transaction.tell(chosen.changes)
        return chosen.claimed

    async def _still_held(self, transaction: Transaction, worker: str, chats: list[UnheardClaim]) -> list[Snapshot]:
        ids, claims = [held.chat_id for held in chats], [held.claim_stamp for held in chats]
        mine = [row[0] for row in await transaction.rows(sql.CLAIMED_AS, ids, claims, worker)]
        return [snapshot_from(row) for row in await transaction.rows(sql.READ_SNAPSHOTS, mine)] if mine else []

    async def _choose(self, transaction: Transaction, wanted: ClaimWanted, owners: Sequence[DueOwner]) -> Chosen:
        chosen = Chosen(wanted, self._limits)
        together = 0
        for _ in range(PASSES_MAX):
            due = await self._due(transaction, chosen, owners, together)
            offered = in_turn(due, wanted.shares)
            ids = [chat.id for chat in offered]
            found = {row[0]: row for row in await transaction.rows(sql.READ_SNAPSHOTS, ids)} if ids else {}
            for chat in offered:
                if chosen.is_full:
                    break
                if not chosen.looks_at(chat):
                    continue
                if chat.id in chosen.reached:
                    (found[chat.id],) = await transaction.rows(sql.READ_SNAPSHOT, chat.id)
                change = self._decide(transaction, found[chat.id], wanted.worker)
                if change is not None and chosen.has_room(change):
                    await self._take(transaction, wanted.worker, change, chosen)
            if not due or chosen.is_done:
                break
            together = PASSED_TOGETHER  # a younger one may be hidden behind those that were passed
        return chosen

    async def _due(
        self, transaction: Transaction, chosen: Chosen, owners: Sequence[DueOwner], together: int
    ) -> list[DueChat]:
        rooms = {agent: max(room, together) for agent, room in chosen.rooms.items() if room > 0}
        values = {"due": transaction.now, "passed": chosen.passed}
        rows = await transaction.named_rows(sql.DUE_CHATS, agents=list(rooms), rooms=list(rooms.values()), **values)
        found = list(map(DueChat._make, rows))
        asked = asked_of([owner for owner in owners if owner.agent in rooms], found, chosen.left, chosen.shares)
        if asked:
            of = {name: [getattr(room, name) for room in asked] for name in ("agent", "owner", "room")}
            rows = await transaction.named_rows(
                sql.DUE_CHATS_OF_OWNERS, agents=of["agent"], owners=of["owner"], rooms=of["room"], **values
            )
            found += map(DueChat._make, rows)
        return found

    def _decide(self, transaction: Transaction, row: Row, worker: str) -> Change | None:
        try:
            return claim(snapshot_from(row), worker, transaction.now, self._limits)
        except RecordError:
            self.unreadable += 1
            return None

    async def _take(self, transaction: Transaction, worker: str, change: Change, chosen: Chosen) -> None:
        """Not one that reaches a chat that another transaction holds, or that this code cannot read. Locks are taken
        from the top of a family down, and this one came first, so none is waited for: the next claim finds it again.
        """
        if not change.reaches_others:
            chosen.take(change)
            chosen.unwritten.append(change)
            return
        await self._write(transaction, chosen)
        assert change.before is not None
        try:
            changes = await transaction.apply(change.before, (Claim(worker=worker),), waits=False)
        except Busy:
            return
        except RecordError:
            self.unreadable += 1
            return
        chosen.take(change)
        made = decided(changes)
        await transaction.write(made.writes)
        chosen.add(made.changes)

    async def _write(self, transaction: Transaction, chosen: Chosen) -> None:
        if chosen.unwritten:
            made = decided(chosen.unwritten)
            await transaction.write(made.writes)
            chosen.add(made.changes)
            chosen.unwritten = []
