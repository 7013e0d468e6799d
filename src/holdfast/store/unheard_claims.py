"""Claims whose answer no caller heard.

A worker whose claim was cancelled, timed out or lost its connection may hold chats that it does not know of, and its
lease keeps them from every other worker. So what a claim takes is noted here before it is committed, and forgotten
when the caller has it in hand. What is left over belongs to callers who are gone: the worker's next claim looks at
that first. Notes may be made in another thread than claims are asked for.
"""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from holdfast.core.records import Snapshot


class UnheardClaim(Struct, frozen=True):
    chat_id: str
    claim_stamp: int  # a worker may claim a chat again under the same fence, where the database lost the first


LeftOver = dict[int, list[UnheardClaim]]  # by claim


class Unheard:
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
