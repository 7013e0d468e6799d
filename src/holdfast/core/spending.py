"""What was spent, and on whose account: the records that commands bring, commits write and sweeps fold.

Whatever costs makes a line in the commit that tells of it. A line belongs to the chat's owner and a day; below a chat
whose limits bound its sub-agents, too, it is also entered in the accounts of those limits.
"""

from enum import StrEnum

from holdfast.core.records import Frozen

TOKENS_MAX = 1 << 40  # of one call: no sum of them is more than a database holds
COST_MAX = 1e12


class SpendingKind(StrEnum):
    STEP = "step"  # a response
    LOST = "lost"  # an attempt that came to nothing
    STOPPED = "stopped"  # an attempt that a stop or a shutdown cut off
    SUMMARY = "summary"
    TITLE = "title"
    EPISODE = "episode"  # what a chat was about, for its agent's memory
    TOOL = "tool"  # a call whose body says what it took, such as another agent's program


class Spent(Frozen):
    """What one model took."""

    model: str
    tokens: int = 0
    cost: float = 0.0


class Bill(Frozen):
    """What a command that costs says of it beside its figures: when, on which accounts, and by which reservations.

    `parts` tell the models apart where there were several; their sum is the command's figures. The reservations are
    settled by the commit: what was reserved is free again, and what was spent counts instead.
    """

    day: str = ""  # as `2026-11-17`; empty: that of the commit, in UTC
    accounts: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    parts: tuple[Spent, ...] = ()


NO_BILL = Bill()


class SpendingLine(Frozen):
    kind: SpendingKind
    model: str
    tokens: int
    cost: float
    day: str
    accounts: tuple[str, ...] = ()
