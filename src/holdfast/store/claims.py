"""Claims, as both stores decide them: what a claim does to a chat, and in which order chats are offered."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from holdfast.core.apply import apply
from holdfast.core.change import Change, Refused
from holdfast.core.commands import Claim
from holdfast.core.limits import Limits
from holdfast.core.records import Snapshot
from holdfast.store.unheard_claims import Unheard


class Claims(ABC):
    """Of one store."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unheard = Unheard()
        self.unreadable = 0  # chats passed over because newer code wrote them

    @abstractmethod
    async def claim_chats(self, worker: str, agents: Mapping[str, int], limit: int, suspects: int) -> list[Snapshot]:
        """See `Store.claim_chats`."""


def claim(snapshot: Snapshot, worker: str, now: int, limits: Limits) -> Change | None:
    """None: this chat cannot be claimed."""
    change = apply(snapshot, Claim(worker=worker), now, limits)
    return None if isinstance(change, Refused) else change


def is_suspect(snapshot: Snapshot, limits: Limits) -> bool:
    """It lost so many workers in a row that it is better held alone."""
    return snapshot.chat.unclean >= limits.suspect_claims_min


def in_turn(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    """Round robin: the first of each list, then the second of each."""
    for rank in range(max(map(len, lists), default=0)):
        for items in lists:
            if rank < len(items):
                yield items[rank]
