"""What owners may use: settings of budgets that several chats draw on. Plain data, for settings and core alike."""

from collections.abc import Mapping

from msgspec import Struct

SLICE_TOKENS = 8_192
KEEP_DAYS = 400


class OwnerLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the chats of one owner may use together, in all and on each calendar day. None: no limit.

    >>> OwnerLimits(day_tokens=2_000_000, day_cost=20.0).needs_prices
    True

    Costs are in the currency of the models' prices.
    """

    tokens: int | None = None
    cost: float | None = None
    day_tokens: int | None = None
    day_cost: float | None = None

    @property
    def is_set(self) -> bool:
        return any(limit is not None for limit in (self.tokens, self.cost, self.day_tokens, self.day_cost))

    @property
    def needs_prices(self) -> bool:
        return self.cost is not None or self.day_cost is not None

    @property
    def problem(self) -> str | None:
        for name in ("tokens", "cost", "day_tokens", "day_cost"):
            limit = getattr(self, name)
            if limit is not None and not 0 <= limit < 1 << 60:
                return f"{name} is nothing or more, not {limit}"
        return None


class Budgets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What owners may use, as the app has it: each of them (`each`), and some by name. What a person sets for one at
    run time stands in place of it.

    >>> Budgets(each=OwnerLimits(day_tokens=1_000_000), owners={"ann": OwnerLimits(day_cost=50.0)}).zone
    'UTC'

    A day is a calendar day of `zone`, by the store's clock. `slice_tokens` is what is reserved for an answer of which
    nobody says how long it may be (`Settings(max_tokens=…)`). Sums of days are kept for `keep_days`.
    """

    each: OwnerLimits | None = None
    owners: Mapping[str, OwnerLimits] = {}
    zone: str = "UTC"
    slice_tokens: int = SLICE_TOKENS
    keep_days: int = KEEP_DAYS

    def of(self, owner: str) -> OwnerLimits | None:
        limits = self.owners.get(owner, self.each)
        return limits if limits is not None and limits.is_set else None

    @property
    def all_limits(self) -> tuple[OwnerLimits, ...]:
        return (*(() if self.each is None else (self.each,)), *self.owners.values())
