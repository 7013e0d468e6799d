"""The routes of kept rules: what people said "always" to, listed and revoked. They are kept by an approval."""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.core.records import KeptRule
from holdfast.server import views
from holdfast.server.chats import PROBLEMS, as_json
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf

routes = Routes(prefix="/api", tags=["kept rules"], responses=PROBLEMS)


class KeptRuleShown(BaseModel):
    id: str
    rule: str
    scope: Literal["chat", "agent", "owner"]
    owner: str
    agent: str | None = Field(description="in whose chats it counts; null: in those of any")
    chat_id: str | None = Field(description="in which chat it counts; null: in any of its owner's")
    made_by: str = Field(description="who said `always`")
    made_at: views.Ms
    expires_at: views.Ms | None
    call_id: str = Field(description="that was approved with it")


class KeptRulePage(BaseModel):
    kept_rules: list[KeptRuleShown]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


def shown(rule: KeptRule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in KeptRuleShown.model_fields}


@routes.get("/kept-rules", scope="read", response_model=KeptRulePage)
async def list_kept_rules(
    app: AppOf,
    chat_id: Annotated[str | None, Query(max_length=512, description="only those for this chat")] = None,
    before: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Those in force, newest first."""
    found = await app.kept_rules(chat_id=chat_id, before=before, limit=limit)
    return as_json(
        {"kept_rules": [shown(rule) for rule in found], "next": found[-1].id if len(found) == limit else None}
    )


@routes.delete("/kept-rules/{rule_id}", scope="approve", response_model=KeptRuleShown)
async def revoke_kept_rule(app: AppOf, rule_id: str) -> Response:
    """From now on it counts nowhere: the next call that it would allow is asked about."""
    return as_json(shown(await app.revoke_kept_rule(rule_id)))
