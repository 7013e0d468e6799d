"""Claims: which due chats a worker takes. Oldest first, in turn between agents, each chat by one worker only.

One writer at a time, so that two workers never look at the same chat. What a claim took whose answer was lost is
looked at first the next time (`store/unheard_claims.py`).
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from holdfast.core.change import Change
from holdfast.core.commands import Claim
from holdfast.core.limits import Limits
from holdfast.core.records import Snapshot
from holdfast.errors import LeaseLost, RecordError
from holdfast.faults import reach
from holdfast.store.claims import Claims, claim, in_turn, is_suspect
from holdfast.store.decisions import decided
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.transactions import Transaction
from holdfast.store.sqlite.transactor import Transactor


class SqliteClaims(Claims):
    def __init__(self, transactor: Transactor, limits: Limits) -> None:
        super().__init__(limits)
        self._transactor = transactor

    async def claim_chats(self, worker: str, agents: Mapping[str, int], limit: int, suspects: int) -> list[Snapshot]:
        def work(transaction: Transaction) -> list[Snapshot]:
            reach("claim.before")
            self._check_lease(transaction, worker)
            if found := self._claimed_unheard(transaction, worker, number):
                return found
            chats, changes = self._claim_due(transaction, worker, agents, limit, suspects)
            # A waiting chat whose timers rang may still have to wait for an answer: that is not a claim.
            claimed = [snapshot for snapshot in chats if snapshot.chat.worker == worker]
            self._unheard.note(worker, number, claimed)
            transaction.tell(changes)
            reach("claim.after")
            return claimed

        with self._unheard.asking(worker) as number:
            return await self._transactor.write(work)

    def _check_lease(self, transaction: Transaction, worker: str) -> None:
        if transaction.row(sql.LIVE_WORKER, worker) is None:
            self._unheard.forget(worker)
            raise LeaseLost(worker)

    def _claimed_unheard(self, transaction: Transaction, worker: str, number: int) -> list[Snapshot]:
        """What an earlier claim took, whose caller had given up."""
        found = []
        if left_over := self._unheard.left_over(worker, number):
            for held in chain.from_iterable(left_over.values()):
                snapshot = transaction.load(held.chat_id)
                chat = snapshot.chat if snapshot is not None else None
                if snapshot and chat and (chat.worker, chat.claim_stamp) == (worker, held.claim_stamp):
                    found.append(snapshot)
            self._unheard.settle(worker, number, left_over, found)
        return found

    def _claim_due(
        self, transaction: Transaction, worker: str, agents: Mapping[str, int], limit: int, suspects: int
    ) -> tuple[list[Snapshot], list[Change]]:
        """The chats it takes, as they are after it, and all that changes by that."""
        now = transaction.now
        room = {agent: min(count, limit) for agent, count in agents.items() if count > 0}
        claimed: dict[str, Snapshot] = {}
        changes: list[Change] = []
        passed_over: set[str] = set()
        looking = True
        while looking and len(claimed) < limit:
            looking = False
            # The agent whose oldest chat waited longest goes first, so that a small limit starves no agent.
            due = sorted(
                transaction.rows(sql.DUE_CHATS, agent, now, count + len(passed_over)) for agent, count in room.items()
            )
            for chat_id in in_turn([[chat_id for _, chat_id in chats] for chats in due]):
                if len(claimed) >= limit:
                    break
                if chat_id in passed_over:
                    continue
                snapshot = self._read(transaction, chat_id)
                change = claim(snapshot, worker, now, self._limits) if snapshot is not None else None
                suspect = change is not None and is_suspect(change.after, self._limits)
                if change is None or (suspect and suspects == 0):
                    passed_over.add(chat_id)
                    looking = True  # a younger one may have been hidden behind it
                elif room[change.after.chat.agent] > 0:
                    if not (made := self._take(transaction, worker, change)):
                        passed_over.add(chat_id)
                        looking = True
                        continue
                    changes += made
                    room[change.after.chat.agent] -= 1
                    suspects -= suspect
                    claimed[chat_id] = made[0].after
                    # Another one's claim may tell the chat at the top of their family something.
                    claimed |= {other.after.chat.id: other.after for other in made if other.after.chat.id in claimed}
        return list(claimed.values()), changes

    def _take(self, transaction: Transaction, worker: str, change: Change) -> Sequence[Change]:
        """With what it means for others; nothing, where this code cannot read one of them."""
        made: tuple[Change, ...] = (change,)
        if change.reaches_others:
            assert change.before is not None
            try:
                made = transaction.apply(change.before, (Claim(worker=worker),))
            except RecordError:
                self.unreadable += 1
                return ()
        ready = decided(made)
        transaction.write(ready.writes)
        return ready.changes

    def _read(self, transaction: Transaction, chat_id: str) -> Snapshot | None:
        try:
            return transaction.must_load(chat_id)
        except RecordError:
            self.unreadable += 1
            return None
