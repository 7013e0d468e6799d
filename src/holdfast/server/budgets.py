"""The routes of budgets: what owners may use, set by operators, and who spent what."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from holdfast.core.codec import encode
from holdfast.errors import InvalidInput
from holdfast.owner_limits import OwnerLimits
from holdfast.server import views
from holdfast.server.chats import PROBLEMS, as_json
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf
from holdfast.store.budgets import USAGE_ROWS_MAX, Grouping, OwnerBudget, UsageTotal

routes = Routes(prefix="/api", tags=["budgets"], responses=PROBLEMS)

Day = Annotated[str | None, Query(pattern=r"^\d{4}-\d{2}-\d{2}$", description="such as `2026-11-17`")]
Owner = Annotated[str, Query(max_length=512, description="whose; empty: of chats that have no owner")]


class LimitsGiven(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: int | None = Field(default=None, ge=0, lt=1 << 60, description="in all; null: no limit")
    cost: float | None = Field(default=None, ge=0, lt=1e18, description="in all, in the currency of the prices")
    day_tokens: int | None = Field(default=None, ge=0, lt=1 << 60, description="on each calendar day")
    day_cost: float | None = Field(default=None, ge=0, lt=1e18)


class BudgetShown(LimitsGiven):
    owner: str
    set_by: str
    set_at: views.Ms


class BudgetPage(BaseModel):
    budgets: list[BudgetShown]
    next: str | None = Field(description="give it as `after` for the next page; null: there is none")


class UsageShown(BaseModel):
    owner: str
    agent: str
    model: str
    kind: str = Field(description="step, lost, stopped, summary, title, tool")
    day: str
    lines: int = Field(description="calls that cost something")
    tokens: int
    cost: float


class UsageList(BaseModel):
    usage: list[UsageShown] = Field(description="what was not asked for by `by` is empty")
    next: str | None = Field(description="give it as `after` for the next page; null: there is none")


def shown(budget: OwnerBudget) -> dict[str, Any]:
    limits = {name: getattr(budget.limits, name) for name in LimitsGiven.model_fields}
    return {"owner": budget.owner, **limits, "set_by": budget.set_by, "set_at": budget.set_at}


@routes.get("/usage", scope="read", response_model=UsageList)
async def usage(
    app: AppOf,
    by: Annotated[list[Grouping] | None, Query(description="as often as wanted; without it `day` and `kind`")] = None,
    owner: Annotated[str | None, Query(max_length=512, description="of this one; without it, of all you see")] = None,
    since: Day = None,
    until: Day = None,
    after: Annotated[str | None, Query(max_length=4_096, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=USAGE_ROWS_MAX)] = USAGE_ROWS_MAX,
) -> Response:
    """Who spent what: responses, lost attempts, summaries, titles and tools. An owner sees its own."""
    names = tuple(dict.fromkeys(by or ("day", "kind")))
    last = _last_of(names, after) if after is not None else None
    found = await app.usage(names, owner=owner, since=since, until=until, after=last, limit=limit)
    shown = [{name: getattr(line, name) for name in UsageShown.model_fields} for line in found]
    rest = encode([getattr(found[-1], name) for name in names]).decode() if len(found) == limit else None
    return as_json({"usage": shown, "next": rest})


def _last_of(names: Sequence[Grouping], after: str) -> UsageTotal:
    try:
        values = msgspec.json.decode(after, type=list[str])
        return msgspec.convert(dict(zip(names, values, strict=True)), UsageTotal)
    except (msgspec.DecodeError, ValueError):
        raise InvalidInput("after", "is not the `next` of a page with the same `by`") from None


@routes.get("/budgets", scope="read", response_model=BudgetPage)
async def list_budgets(
    app: AppOf,
    after: Annotated[str | None, Query(max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Those that were set at run time, by owner. An owner sees its own."""
    found = await app.budgets(after=after, limit=limit)
    rest = found[-1].owner if len(found) == limit else None
    return as_json({"budgets": [shown(budget) for budget in found], "next": rest})


@routes.post("/budgets", scope="operate", all_owners=True, response_model=BudgetShown)
async def set_budget(app: AppOf, given: LimitsGiven, owner: Owner = "") -> Response:
    """What this owner may use, in place of what was set before and of what the app says."""
    limits = OwnerLimits(**given.model_dump())
    return as_json(shown(await app.set_budget(owner, limits)))


@routes.delete("/budgets", scope="operate", all_owners=True, status_code=204, response_class=Response)
async def remove_budget(app: AppOf, owner: Owner = "") -> Response:
    """What the app says holds again."""
    await app.remove_budget(owner)
    return Response(status_code=204)
