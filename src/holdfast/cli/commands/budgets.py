"""`holdfast budgets` and `holdfast usage`: what owners may use, and who spent what."""

import getpass
import sys
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.cli.app_choice import UsageError, app_with_data, opened
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.words import ago, line
from holdfast.core.instants import iso
from holdfast.owner_limits import OwnerLimits
from holdfast.store.budgets import GROUPINGS, Grouping, OwnerBudget, UsageTotal
from holdfast.store.checks import is_day

PAGE = 500


async def list_budgets(where: Where, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        found: list[OwnerBudget] = []
        while page := await app.budgets(after=found[-1].owner if found else None, limit=PAGE):
            found += page
        said = app.config.budgets
    if json:
        write_line(msgspec.json.encode({"budgets": found, "app": said}))
        return
    rows = [_row(budget.owner, budget.limits, line(budget.set_by, 40), budget.set_at) for budget in found]
    rows += [_row(owner, limits, "the app", None) for owner, limits in sorted(said.owners.items())]
    if said.each is not None:
        rows.append(_row("each", said.each, "the app", None))
    print_listing(("owner", "tokens", "cost", "tokens a day", "cost a day", "by", "set"), rows)


def _row(owner: str, limits: OwnerLimits, by: str, set_at: int | None) -> Row:
    return (
        Field(shown=line(owner, 40), plain=owner),
        *(Field(shown=_amount(limit)) for limit in (limits.tokens, limits.cost, limits.day_tokens, limits.day_cost)),
        Field(shown=by),
        Field(shown=ago(set_at), plain=iso(set_at)) if set_at is not None else Field(shown=""),
    )


def _amount(limit: float | None) -> str:
    return "" if limit is None else f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


async def set_budget(where: Where, owner: str, limits: Mapping[str, int | float | None], *, json: bool) -> None:
    if all(limit is None for limit in limits.values()):
        raise UsageError("name a limit: --tokens, --cost, --day-tokens or --day-cost (or `holdfast budgets remove`)")
    async with opened(app_with_data(where)) as app:
        budget = await app.set_budget(owner, msgspec.convert(limits, OwnerLimits), by=getpass.getuser())
        unchecked = budget.limits.needs_prices and not app.agents
    if unchecked:
        told = "whether each model has a price, without which a limit on the cost bounds nothing, --app checks"
        print(f"holdfast: {told}", file=sys.stderr)
    if json:
        write_line(msgspec.json.encode(budget))
    else:
        print(f"set for {line(owner, 80)!r}: workers heed it within seconds")


async def remove_budget(where: Where, owner: str) -> None:
    async with opened(app_with_data(where)) as app:
        await app.remove_budget(owner)
    print(f"removed for {line(owner, 80)!r}")


async def usage(
    where: Where, owner: str | None, day: str | None, since: str | None, by: Sequence[str], *, json: bool
) -> None:
    names = _groupings(by)
    for given in (day, since):
        if given is not None and not is_day(given):
            raise UsageError(f"{given!r} is no day: write it as 2026-11-17")
    async with opened(app_with_data(where)) as app:
        found: list[UsageTotal] = []
        while page := await app.usage(
            names, owner=owner, since=day or since, until=day, after=found[-1] if found else None
        ):
            found += page
    if json:
        write_line(msgspec.json.encode(found))
        return
    print_listing((*names, "calls", "tokens", "cost"), [_usage_row(names, total) for total in found])


def _groupings(by: Sequence[str]) -> tuple[Grouping, ...]:
    names = [name for given in by for name in given.split(",")] or ["day", "kind"]
    for name in names:
        if name not in GROUPINGS:
            raise UsageError(f"--by {name}: it can be {', '.join(GROUPINGS)}")
    return msgspec.convert(names, tuple[Grouping, ...])


def _usage_row(names: Sequence[Grouping], total: UsageTotal) -> Row:
    keys = [Field(shown=line(getattr(total, name), 60), plain=getattr(total, name)) for name in names]
    figures = (f"{total.lines:,}", f"{total.tokens:,}", f"{total.cost:.4f}")
    plain = (str(total.lines), str(total.tokens), str(total.cost))
    return (*keys, *(Field(shown=shown, plain=text) for shown, text in zip(figures, plain, strict=True)))
