"""The routes of tokens: made, listed and revoked. No token makes one that may do more than itself, or for longer."""

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.principals import Scope
from holdfast.server import views
from holdfast.server.chats import PROBLEMS, as_json
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf, TokenAsked
from holdfast.store.tokens import Token

routes = Routes(prefix="/api", tags=["tokens"], responses=PROBLEMS)

TTL_S_MAX = 10 * 365 * 24 * 3600


class TokenGiven(views.Given):
    name: Annotated[str, Field(min_length=1, max_length=200, description="what it is for; it stands in audit lines")]
    owner: Annotated[
        str | None,
        Field(max_length=200, description="whose chats it sees; null: your token's owner, if it has one"),
    ] = None
    scopes: Annotated[list[Scope] | None, Field(max_length=10, description="of those that yours has")] = None
    chat: Annotated[
        str | None, Field(max_length=512, description="for this chat and its sub-agents' alone, as for a browser")
    ] = None
    ttl_s: Annotated[
        int | None, Field(ge=1, le=TTL_S_MAX, description="how long it is valid; an hour where it is for one chat")
    ] = None


class TokenShown(BaseModel):
    id: str
    name: str
    owner: str | None
    scopes: list[str]
    chat: str | None
    created_at: views.Ms
    created_by: str
    expires_at: views.Ms | None
    revoked_at: views.Ms | None = Field(description="also where one that it was made with was revoked")


class TokenMade(TokenShown):
    token: str = Field(description="the secret: it is shown here and never again")


class TokenPage(BaseModel):
    tokens: list[TokenShown]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


def shown(token: Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in TokenShown.model_fields} | {"scopes": sorted(token.scopes)}


@routes.post("/tokens", scope="read", status_code=201, response_model=TokenMade)
async def create_token(app: AppOf, given: TokenGiven) -> Response:
    """For one chat, as a browser needs it, any token may make one; any other needs the scope `operate`. It ends with
    the token that it was made with.
    """
    scopes = frozenset(given.scopes) if given.scopes is not None else None
    asked = TokenAsked(name=given.name, owner=given.owner, scopes=scopes, chat=given.chat, ttl_s=given.ttl_s)
    token, secret = await app.create_token(asked)
    return as_json({**shown(token), "token": secret}, 201)


@routes.get("/tokens", scope="operate", response_model=TokenPage)
async def list_tokens(
    app: AppOf,
    before: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Newest first, without their secrets."""
    found = await app.tokens(before=before, limit=limit)
    return as_json(
        {"tokens": [shown(token) for token in found], "next": found[-1].id if len(found) == limit else None}
    )


@routes.delete("/tokens/{token_id}", scope="operate", response_model=TokenShown)
async def revoke_token(app: AppOf, token_id: str) -> Response:
    """From now on it is none, and neither are those that were made with it; their open streams end within seconds."""
    return as_json(shown(await app.revoke_token(token_id)))
