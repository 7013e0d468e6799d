"""Budgets that several chats draw on: what bounds a call, and whether it may begin.

What a call will cost is not known before it is made. So it reserves an estimate first, and what it took is settled
when it is over. `judge` decides on one account: a call begins if its estimate fits beside what is spent and what is
reserved. What is left in the end is smaller than an estimate, and goes to one call alone: one that finds no other
reservation begins in any case, as long as the limit is not reached. So nothing of a budget is left that no call could
use, and it is exceeded by what one call took beyond the rest that it was given, if estimates are not too low.
"""

from collections.abc import Sequence
from enum import StrEnum

from holdfast.core.decide import Budget
from holdfast.core.records import ChatRecord, Frozen, Purse
from holdfast.owner_limits import OwnerLimits


class Ceiling(Frozen):
    """A limit on an account. `chat_id`: what this chat has in its own row counts as well, in one turn or in all."""

    account: str
    words: str  # what it is, for people
    tokens: int | None = None
    cost: float | None = None
    day: str | None = None
    chat_id: str = ""
    turn: int = 0  # 0: in all of its turns


class Standing(Frozen):
    """Of one account, at one moment."""

    tokens: int = 0
    cost: float = 0.0
    reserved_tokens: int = 0
    reserved_cost: float = 0.0
    reservations: int = 0


class Estimate(Frozen):
    """What a call may take."""

    tokens: int = 0
    cost: float = 0.0


NOTHING = Estimate()
ROUNDING = 1e-9  # of a limit on the cost: ten times 0.1 is a little less than 1


class Reached(Frozen):
    """No call begins: `detail` names the budget, the figure and the limit."""

    detail: str


class BudgetLeft(Frozen):
    """Of all limits that apply, what the tightest leaves. None: no limit; less than nothing is nothing."""

    tokens: int | None = None
    cost: float | None = None

    def less(self, tokens: int, cost: float) -> "BudgetLeft":
        """What is left when so much more is spent."""
        return BudgetLeft(
            tokens=None if self.tokens is None else max(0, self.tokens - tokens),
            cost=None if self.cost is None else max(0.0, self.cost - cost),
        )

    def shared(self, count: int) -> "BudgetLeft":
        """Of so many, what each may take."""
        count = max(count, 1)
        return BudgetLeft(
            tokens=None if self.tokens is None else self.tokens // count,
            cost=None if self.cost is None else self.cost / count,
        )


class Verdict(StrEnum):
    BEGIN = "begin"
    WAIT = "wait"  # what is left is reserved by calls under way, which may not need all of it


def judge(ceiling: Ceiling, standing: Standing, wanted: Estimate) -> Verdict | Reached:
    if ceiling.tokens is not None and standing.tokens >= ceiling.tokens:
        return Reached(detail=f"{ceiling.words}: {standing.tokens:,} of {ceiling.tokens:,} tokens")
    if ceiling.cost is not None and standing.cost >= ceiling.cost * (1 - ROUNDING):
        return Reached(detail=f"{ceiling.words}: {standing.cost:.4f} of {ceiling.cost:g}")
    if not standing.reservations:
        return Verdict.BEGIN
    tokens = standing.tokens + standing.reserved_tokens + wanted.tokens
    cost = standing.cost + standing.reserved_cost + wanted.cost
    fits = (ceiling.tokens is None or tokens <= ceiling.tokens) and (ceiling.cost is None or cost <= ceiling.cost)
    return Verdict.BEGIN if fits else Verdict.WAIT


def left_of(ceiling: Ceiling, standing: Standing) -> BudgetLeft:
    """What calls under way have reserved is theirs."""
    return _left(
        (ceiling.tokens, standing.tokens + standing.reserved_tokens),
        (ceiling.cost, standing.cost + standing.reserved_cost),
    )


def left_in_row(chat: ChatRecord, budget: Budget) -> BudgetLeft:
    """Of the limits whose figures are in the chat's own row."""
    found = [
        _left((budget.tokens, chat.turn_tokens), (budget.cost, chat.turn_cost)),
        _left((budget.chat_tokens, chat.chat_tokens), (budget.chat_cost, chat.chat_cost)),
    ]
    if chat.root_id is None:
        found.append(_left((budget.family_tokens, chat.chat_tokens), (budget.family_cost, chat.chat_cost)))
    return least(found)


def least(of: Sequence[BudgetLeft]) -> BudgetLeft:
    tokens = [left.tokens for left in of if left.tokens is not None]
    costs = [left.cost for left in of if left.cost is not None]
    return BudgetLeft(tokens=min(tokens, default=None), cost=min(costs, default=None))


def _left(tokens: tuple[int | None, int], cost: tuple[float | None, float]) -> BudgetLeft:
    """Of a limit, and what is gone of it."""
    return BudgetLeft(
        tokens=None if tokens[0] is None else max(0, tokens[0] - tokens[1]),
        cost=None if cost[0] is None else max(0.0, cost[0] - cost[1]),
    )


def owner_account(owner: str) -> str:
    return f"owner:{owner}"


def day_account(owner: str, day: str) -> str:
    return f"day:{day}:{owner}"


def chat_account(chat_id: str, life: int, turn: int) -> str:
    """What the chats below this one spend: until it begins another turn than this, or (turn 0) ever."""
    return f"{'turn' if turn else 'family'}:{turn}:{life}:{chat_id}"


def owner_ceilings(owner: str, day: str, limits: OwnerLimits) -> list[Ceiling]:
    found = []
    if limits.tokens is not None or limits.cost is not None:
        words = f"budget of owner {owner!r}"
        found.append(Ceiling(account=owner_account(owner), words=words, tokens=limits.tokens, cost=limits.cost))
    if limits.day_tokens is not None or limits.day_cost is not None:
        found.append(
            Ceiling(
                account=day_account(owner, day),
                words=f"budget of owner {owner!r} for {day}",
                tokens=limits.day_tokens,
                cost=limits.day_cost,
                day=day,
            )
        )
    return found


def own_ceilings(chat: ChatRecord, budget: Budget) -> tuple[Ceiling, ...]:
    """Of a chat whose sub-agents draw on its limits, too. One without any has its own row for them."""
    if not chat.spawned:
        return ()
    limits = [(chat.turn, budget.tokens, budget.cost, "turn")]
    if chat.root_id is None:
        limits.append((0, budget.family_tokens, budget.family_cost, "family"))
    return tuple(
        Ceiling(
            account=chat_account(chat.id, chat.life, turn),
            words=f"budget of the {name}, with sub-agents",
            tokens=tokens,
            cost=cost,
            chat_id=chat.id,
            turn=turn,
        )
        for turn, tokens, cost, name in limits
        if tokens is not None or cost is not None
    )


def purses_below(chat: ChatRecord, budget: Budget) -> tuple[Purse, ...]:
    """The limits that bound a sub-agent of this chat."""
    own = []
    if chat.root_id is None and (budget.family_tokens is not None or budget.family_cost is not None):
        own.append(Purse(chat_id=chat.id, tokens=budget.family_tokens, cost=budget.family_cost, family=True))
    if budget.tokens is not None or budget.cost is not None:
        own.append(Purse(chat_id=chat.id, tokens=budget.tokens, cost=budget.cost))
    return (*chat.purses, *own)
