"""Claims, as both stores make them: which of the chats that are offered a worker takes, and those whose answer no
caller heard. In which order they are offered is said in `fairness.py`.

A worker whose claim was cancelled, timed out or lost its connection may hold chats that it does not know of, and its
lease keeps them from every other worker. So what a claim takes is noted (`Unheard`) before it is committed, and
forgotten when the caller has it in hand. What is left over belongs to callers who are gone: the worker's next claim
looks at that first.
"""

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from holdfast.core.apply import apply
from holdfast.core.change import Change, Refused
from holdfast.core.commands import Claim
from holdfast.core.limits import Limits
from holdfast.core.records import Frozen, Snapshot
from holdfast.store.fairness import NO_SHARES, DueChat, Ring, Shares

# Where chats that this code cannot read stand in front, so many are looked at together.
PASSED_TOGETHER = 100


class Claims(ABC):
    """Of one store."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unheard = Unheard()
        self._ring = Ring()
        self.unreadable = 0  # chats passed over because newer code wrote them

    @abstractmethod
    async def claim_chats(self, wanted: "ClaimWanted") -> list[Snapshot]:
        """See `Store.claim_chats`."""


class ClaimWanted(Frozen):
    worker: str
    rooms: dict[str, int]  # by agent
    limit: int
    suspects: int  # at most so many of them
    shares: Shares


def claim_wanted(
    worker: str, agents: Mapping[str, int], limit: int, suspects: int | None = None, shares: Shares = NO_SHARES
) -> ClaimWanted:
    rooms = {agent: min(room, limit) for agent, room in agents.items() if room > 0 and limit > 0}
    suspects = limit if suspects is None else suspects
    return ClaimWanted(worker=worker, rooms=rooms, limit=limit, suspects=suspects, shares=shares)


class Chosen:
    """What a claim takes. Most of it is written together; what reaches other chats is written at once."""

    def __init__(self, wanted: ClaimWanted, limits: Limits) -> None:
        self._wanted = wanted
        self._limits = limits
        self._suspects = wanted.suspects
        self._taken: Counter[str] = Counter()  # by owner
        self._turned_away = 0
        self.rooms = dict(wanted.rooms)  # that are left
        self.passed: list[str] = []  # chats that were looked at, be they taken or not
        self.chats: dict[str, Snapshot] = {}  # by id, as they are after it, once it is written
        self.changes: list[Change] = []  # that are written
        self.unwritten: list[Change] = []
        self.reached: set[str] = set()  # others, which are not what they were when this claim read them

    @property
    def is_full(self) -> bool:
        return len(self.chats) >= self._wanted.limit

    @property
    def is_done(self) -> bool:
        """There is no room, or no younger one can be hidden behind one that was passed over. Behind one whose owner
        has its share there may be others: the walk over the owners finds those.
        """
        passed = len(self.passed) - self._turned_away
        return self.is_full or not any(self.rooms.values()) or passed == len(self.chats)

    @property
    def left(self) -> int:
        return self._wanted.limit - len(self.chats)

    @property
    def shares(self) -> Shares:
        return self._wanted.shares

    def looks_at(self, chat: DueChat) -> bool:
        """Not at one whose owner has its share."""
        self.passed.append(chat.id)
        if self.shares.room(chat.owner, self._taken[chat.owner]):
            return True
        self._turned_away += 1
        return False

    def has_room(self, change: Change) -> bool:
        suspect = is_suspect(change.after, self._limits)
        return self.rooms.get(change.after.chat.agent, 0) > 0 and not (suspect and self._suspects == 0)

    def take(self, change: Change) -> None:
        self._taken[change.after.chat.owner] += 1
        self.rooms[change.after.chat.agent] -= 1
        self._suspects -= is_suspect(change.after, self._limits)
        self.chats[change.after.chat.id] = change.after

    def add(self, changes: Sequence[Change]) -> None:
        """Those that were written."""
        self.changes += changes
        for change in changes:
            chat_id = change.after.chat.id
            if chat_id in self.chats:
                self.chats[chat_id] = change.after
            else:
                self.reached.add(chat_id)

    @property
    def claimed(self) -> list[Snapshot]:
        """A waiting chat whose timers rang may still have to wait for an answer: that is not a claim."""
        return [snapshot for snapshot in self.chats.values() if snapshot.chat.worker == self._wanted.worker]


def claim(snapshot: Snapshot, worker: str, now: int, limits: Limits) -> Change | None:
    """None: this chat cannot be claimed."""
    change = apply(snapshot, Claim(worker=worker), now, limits)
    return None if isinstance(change, Refused) else change


def is_suspect(snapshot: Snapshot, limits: Limits) -> bool:
    """It lost so many workers in a row that it is better held alone."""
    return snapshot.chat.unclean >= limits.suspect_claims_min


# --- claims that no caller heard of ---------------------------------------------------------------------------------


class UnheardClaim(Struct, frozen=True):
    chat_id: str
    claim_stamp: int  # a worker may claim a chat again under the same fence, where the database lost the first


LeftOver = dict[int, list[UnheardClaim]]  # by claim


class Unheard:
    """Notes may be made in another thread than claims are asked for."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._asking: set[int] = set()
        self._noted: dict[str, LeftOver] = {}  # by worker

    @contextmanager
    def asking(self, worker: str) -> Iterator[int]:
        """Around a claim, which gets a number. Leaving it without an error says that the answer was heard."""
        number = next(self._numbers)
        self._asking.add(number)
        try:
            yield number
            self._noted.get(worker, {}).pop(number, None)
        finally:
            self._asking.discard(number)

    def note(self, worker: str, number: int, snapshots: Iterable[Snapshot]) -> None:
        """What this claim is about to hand over."""
        held = [UnheardClaim(snapshot.chat.id, snapshot.chat.claim_stamp) for snapshot in snapshots]
        if held:
            self._noted.setdefault(worker, {})[number] = held

    def left_over(self, worker: str, number: int | None = None) -> LeftOver:
        """What earlier claims, and earlier tries of this one, may have taken, and no caller knows of."""
        noted = list(self._noted.get(worker, {}).items())
        return {other: held for other, held in noted if other == number or other not in self._asking}

    def settle(self, worker: str, number: int, left_over: LeftOver, snapshots: Iterable[Snapshot]) -> None:
        """Of what was left over these are really held, and this claim hands them over."""
        for other in left_over:
            self._noted.get(worker, {}).pop(other, None)
        self.note(worker, number, snapshots)

    def forget(self, worker: str) -> None:
        """Its lease is over: the sweep that ends a lease takes back what it held."""
        self._noted.pop(worker, None)
