"""Fairness between owners: in which order due chats are offered to a claim, and which owners it looks at.

The owner of whose chats the worker drives fewest comes first; between equals the chat that has waited longest. As
long as all that is due fits into what a claim reads of each agent, that is all. Where chats pile up, those of one
owner may be all that it reads. Then it also goes around the owners that have something due, a few at each claim, by
an index that finds the next owner without reading the chats of the last one. So what a claim costs depends on
neither how many chats wait nor how many owners do, and no owner waits behind another's pile.

No decision on a chat is taken here, and no SQL is known.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from holdfast.core.records import Frozen

OWNERS_TOGETHER = 32  # that a claim looks at where chats pile up
TIMERS_TOGETHER = 128  # the same where timers do: of these owners perhaps none has one that rang


class DueChat(NamedTuple):
    at: int  # since when
    id: str
    agent: str
    owner: str


class DueOwner(NamedTuple):
    at: int  # since when its oldest chat of this agent is due
    agent: str
    owner: str


class OwnerRoom(NamedTuple):
    """So many chats are asked for."""

    agent: str
    owner: str
    room: int


class Shares(Frozen):
    """What a worker has of each owner, and the most that it takes of one."""

    held: Mapping[str, int] = MappingProxyType({})
    chats_max: int | None = None

    def room(self, owner: str, taken: int = 0) -> bool:
        return self.chats_max is None or self.held.get(owner, 0) + taken < self.chats_max

    @property
    def full(self) -> int:
        """How many owners have no room."""
        return sum(not self.room(owner) for owner in self.held)


NO_SHARES = Shares()


class Ring:
    """Where a claim's walk over the owners goes on. Kept by each process for itself: it need not be exact."""

    def __init__(self) -> None:
        self.ready: dict[str, str] = {}  # by agent, the last owner that was looked at
        self.timers: dict[str, str] = {}

    def passed(self, place: dict[str, str], agent: str, walked: Iterable[DueOwner]) -> list[DueOwner]:
        """These were looked at, in this order."""
        owners = list(dict.fromkeys(walked))
        if owners:
            place[agent] = owners[-1].owner
        return owners


def in_turn(due: Iterable[DueChat], shares: Shares) -> list[DueChat]:
    """The n-th chat of each owner before the n+1st of any; chats that the worker drives already count. Among equals
    the oldest first.
    """
    owners: dict[str, dict[str, list[DueChat]]] = defaultdict(lambda: defaultdict(list))
    for chat in set(due):
        owners[chat.owner][chat.agent].append(chat)
    ranked = [
        (shares.held.get(owner, 0) + n, chat)
        for owner, agents in owners.items()
        for n, chat in enumerate(_in_turn_between_agents(agents.values()))
    ]
    if len(owners) > 1:
        ranked.sort()
    return [chat for _, chat in ranked]


def _in_turn_between_agents(due: Iterable[list[DueChat]]) -> list[DueChat]:
    """Round robin over the chats of each agent, oldest first. The agent whose oldest chat waited longest goes
    first, so that a small limit starves no agent.
    """
    ranks = itertools.zip_longest(*sorted(map(sorted, due)))
    return [chat for rank in ranks for chat in rank if chat is not None]


def asked_of(owners: Iterable[DueOwner], found: Sequence[DueChat], limit: int, shares: Shares) -> list[OwnerRoom]:
    """Of which owners a claim asks for chats beside those that it found, and for how many: an equal share of the
    limit of those that have fewest and waited longest.
    """
    known = {owner for owner in owners if shares.room(owner.owner)}
    there: Mapping[tuple[str, str], int] = _counted(found)
    together = len({owner.owner for owner in known} | {chat.owner for chat in found if shares.room(chat.owner)})
    share = -(-limit // max(1, together))
    wanted = sorted(known, key=lambda owner: (shares.held.get(owner.owner, 0), owner))[:limit]
    return [
        OwnerRoom(owner.agent, owner.owner, share)
        for owner in wanted
        if there.get((owner.agent, owner.owner), 0) < share
    ]


def _counted(found: Iterable[DueChat]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for chat in found:
        counts[chat.agent, chat.owner] += 1
    return counts
