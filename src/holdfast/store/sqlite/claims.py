"""Claims: which due chats a worker takes. In turn between owners and agents, oldest first, each chat by one worker
only.

One writer at a time, so that two workers never look at the same chat.
"""

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
from holdfast.store.fairness import OWNERS_TOGETHER, TIMERS_TOGETHER, DueChat, DueOwner, Shares, asked_of, in_turn
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.transactions import Transaction, Transactor


class SqliteClaims(Claims):
    def __init__(self, transactor: Transactor, limits: Limits) -> None:
        super().__init__(limits)
        self._transactor = transactor

    async def claim_chats(self, wanted: ClaimWanted) -> list[Snapshot]:
        with self._unheard.asking(wanted.worker) as number:
            return await self._transactor.write(lambda transaction: self._claim(transaction, wanted, number))

    def _claim(self, transaction: Transaction, wanted: ClaimWanted, number: int) -> list[Snapshot]:
        worker = wanted.worker
        reach("claim.before")
        left_over = self._unheard.left_over(worker, number)
        if transaction.row(sql.LIVE_WORKER, worker) is None:
            self._unheard.forget(worker)
            raise LeaseLost(worker)
        if left_over:
            found = self._still_held(transaction, worker, [held for chats in left_over.values() for held in chats])
            self._unheard.settle(worker, number, left_over, found)
            if found:
                return found
        chosen = self._choose(transaction, wanted)
        if not chosen.chats:
            return []
        self._write(transaction, chosen)
        reach("claim.after")
        self._unheard.note(worker, number, chosen.claimed)
        transaction.tell(chosen.changes)
        return chosen.claimed

    def _still_held(self, transaction: Transaction, worker: str, chats: list[UnheardClaim]) -> list[Snapshot]:
        found = []
        for held in chats:
            snapshot = transaction.load(held.chat_id)
            if snapshot and (snapshot.chat.worker, snapshot.chat.claim_stamp) == (worker, held.claim_stamp):
                found.append(snapshot)
        return found

    def _choose(self, transaction: Transaction, wanted: ClaimWanted) -> Chosen:
        chosen = Chosen(wanted, self._limits)
        together = 0
        while True:
            due = self._due(transaction, chosen, together)
            for chat in in_turn(due, wanted.shares):
                if chosen.is_full:
                    break
                if not chosen.looks_at(chat):
                    continue
                change = self._decide(transaction, chat.id, wanted.worker)
                if change is not None and chosen.has_room(change):
                    self._take(transaction, wanted.worker, change, chosen)
            if not due or chosen.is_done:
                return chosen
            together = PASSED_TOGETHER  # a younger one may be hidden behind those that were passed

    def _due(self, transaction: Transaction, chosen: Chosen, together: int) -> list[DueChat]:
        now, passed = transaction.now, set(chosen.passed)
        found: list[DueChat] = []
        owners: list[DueOwner] = []
        for agent, room in chosen.rooms.items():
            if room <= 0:
                continue
            limit = max(room, together) + len(passed)
            rows = transaction.named_rows(sql.DUE_CHATS, agent=agent, now=now, limit=limit)
            found += [DueChat(*row[:4]) for row in rows]
            rung = sum(row[4] for row in rows)
            if len(rows) - rung == limit:
                owners += self._owners_ready(transaction, agent, chosen.shares)
            if rung == limit:
                owners += self._owners_rung(transaction, agent, chosen.shares)
        for agent, owner, room in asked_of(owners, found, chosen.left, chosen.shares):
            values = {"agent": agent, "owner": owner, "limit": room + len(passed)}
            found += [DueChat(*row[:4]) for row in transaction.named_rows(sql.DUE_CHATS_OF_OWNER, now=now, **values)]
        return [chat for chat in found if chat.id not in passed]

    def _owners_ready(self, transaction: Transaction, agent: str, shares: Shares) -> list[DueOwner]:
        """The next ones that have something to run."""
        values = {"agent": agent, "after": self._ring.ready.get(agent), "together": OWNERS_TOGETHER + shares.full}
        rows = transaction.named_rows(sql.OWNERS_READY, now=transaction.now, **values)
        return self._ring.passed(self._ring.ready, agent, map(DueOwner._make, rows))

    def _owners_rung(self, transaction: Transaction, agent: str, shares: Shares) -> list[DueOwner]:
        """Of the next ones that have a timer those that have one that rang."""
        values = {"agent": agent, "after": self._ring.timers.get(agent), "together": TIMERS_TOGETHER + shares.full}
        walked = map(DueOwner._make, transaction.named_rows(sql.OWNERS_TIMED, **values))
        passed = self._ring.passed(self._ring.timers, agent, walked)
        return [owner for owner in passed if owner.at <= transaction.now]

    def _decide(self, transaction: Transaction, chat_id: str, worker: str) -> Change | None:
        try:
            return claim(transaction.must_load(chat_id), worker, transaction.now, self._limits)
        except RecordError:
            self.unreadable += 1
            return None

    def _take(self, transaction: Transaction, worker: str, change: Change, chosen: Chosen) -> None:
        """Not one that reaches a chat that this code cannot read: the next claim finds it again."""
        if not change.reaches_others:
            chosen.take(change)
            chosen.unwritten.append(change)
            return
        self._write(transaction, chosen)
        assert change.before is not None
        try:
            changes = transaction.apply(change.before, (Claim(worker=worker),))
        except RecordError:
            self.unreadable += 1
            return
        chosen.take(change)
        made = decided(changes)
        transaction.write(made.writes)
        chosen.add(made.changes)

    def _write(self, transaction: Transaction, chosen: Chosen) -> None:
        if chosen.unwritten:
            made = decided(chosen.unwritten)
            transaction.write(made.writes)
            chosen.add(made.changes)
            chosen.unwritten = []
