"""The routes of webhooks: endpoints made, changed and removed, and what was sent to them."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.server import views
from holdfast.server.chats import PROBLEMS, as_json
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf
from holdfast.store.deliveries import Delivery
from holdfast.store.webhooks import OVERLAP_S, OVERLAP_S_MAX, Webhook

routes = Routes(prefix="/api", tags=["webhooks"], responses=PROBLEMS)

Kind = Literal["turn.ended", "turn.failed", "turn.waiting", "budget.reached", "schedule.skipped", "schedule.paused"]
Name = Annotated[str, Field(min_length=1, max_length=200, description="what it is for")]
Url = Annotated[str, Field(min_length=1, max_length=2_000, description="where events are posted to: https://…")]
Kinds = Annotated[list[Kind], Field(max_length=20, description="what it hears of; empty: of everything")]
Links = Annotated[
    bool,
    Field(
        description="what waits for a person comes with a link that answers it: whoever has the link can approve. "
        "Needs the scope `approve`"
    ),
]


class WebhookGiven(views.Given):
    name: Name
    url: Url
    owner: Annotated[
        str | None,
        Field(max_length=200, description="whose chats it hears of; null: your token's owner's, or else everybody's"),
    ] = None
    kinds: Kinds | None = None
    links: Links = False


class WebhookChanged(views.Given):
    name: Name | None = None
    url: Url | None = None
    kinds: Kinds | None = None
    links: Links | None = None


class RotationGiven(views.Given):
    overlap_s: Annotated[
        float, Field(ge=0, le=OVERLAP_S_MAX, description="how long the secret before signs as well")
    ] = OVERLAP_S


class ReplayGiven(views.Given):
    since: Annotated[int, Field(ge=0, description="of what happened since, in ms since 1970")] = 0


class WebhookShown(BaseModel):
    id: str
    name: str
    owner: str | None = Field(description="whose chats it hears of; null: everybody's")
    url: str
    kinds: list[str] = Field(description="empty: all")
    links: bool
    state: Literal["active", "disabled"]
    why: str = Field(description="it is disabled")
    source: Literal["made", "settings"]
    created_at: views.Ms
    created_by: str
    throttled_until: views.Ms = Field(description="nothing is sent to it before; 0: it is not throttled")
    old_until: views.Ms | None = Field(description="until when the secret before signs as well")


class WebhookMade(WebhookShown):
    secret: str = Field(description="that signs: it is shown here and never again")


class WebhookPage(BaseModel):
    webhooks: list[WebhookShown]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


class DeliveryShown(BaseModel):
    webhook_id: str
    id: str = Field(description="of the event: its `webhook-id`, the same however often it is sent")
    kind: str
    chat_id: str
    turn: int
    at: views.Ms
    data: dict[str, Any] = Field(description="as it is sent, without links")
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    next_at: views.Ms = Field(description="of one that is pending: when it is sent next")
    status: int | None = Field(description="of the last attempt; null: there was no answer")
    error: str
    ended_at: views.Ms | None


class DeliveryPage(BaseModel):
    deliveries: list[DeliveryShown]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


class Replayed(BaseModel):
    replayed: int


class LinksRevoked(BaseModel):
    revoked_at: views.Ms = Field(description="no link that was sent before answers anything")


def shown(hook: Webhook) -> dict[str, Any]:
    return {name: getattr(hook, name) for name in WebhookShown.model_fields}


def shown_delivery(delivery: Delivery) -> dict[str, Any]:
    own = {name: getattr(delivery, name, None) for name in DeliveryShown.model_fields}
    return own | {"id": delivery.notice_id, "data": msgspec.json.decode(delivery.data)}


@routes.post("/webhooks", scope="chat", status_code=201, response_model=WebhookMade)
async def create_webhook(app: AppOf, given: WebhookGiven) -> Response:
    """An endpoint that is told of what happens to chats of your owner. For those of everybody: a token without an
    owner, with the scope `operate`.
    """
    hook, secret = await app.webhooks.create(
        given.name, given.url, owner=given.owner, kinds=given.kinds or (), links=given.links
    )
    return as_json({**shown(hook), "secret": secret}, 201)


@routes.get("/webhooks", scope="read", response_model=WebhookPage)
async def list_webhooks(
    app: AppOf,
    before: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Newest first, without their secrets."""
    found = await app.webhooks.page(before=before, limit=limit)
    return as_json(
        {"webhooks": [shown(hook) for hook in found], "next": found[-1].id if len(found) == limit else None}
    )


@routes.post("/webhooks/revoke-links", scope="operate", all_owners=True, response_model=LinksRevoked)
async def revoke_links(app: AppOf) -> Response:
    """End every link to a call that was sent by now, of every owner. What is sent from now on has new ones."""
    return as_json({"revoked_at": await app.webhooks.revoke_links()})


@routes.get("/webhooks/{webhook_id}", scope="read", response_model=WebhookShown)
async def read_webhook(app: AppOf, webhook_id: str) -> Response:
    """One of them."""
    return as_json(shown(await app.webhooks.read(webhook_id)))


@routes.patch("/webhooks/{webhook_id}", scope="chat", response_model=WebhookShown)
async def change_webhook(app: AppOf, webhook_id: str, given: WebhookChanged) -> Response:
    """What is null stays as it is."""
    changed = await app.webhooks.change(
        webhook_id, name=given.name, url=given.url, kinds=given.kinds, links=given.links
    )
    return as_json(shown(changed))


@routes.delete("/webhooks/{webhook_id}", scope="chat", response_model=WebhookShown)
async def remove_webhook(app: AppOf, webhook_id: str) -> Response:
    """With all of its deliveries."""
    return as_json(shown(await app.webhooks.remove(webhook_id)))


@routes.post("/webhooks/{webhook_id}/enable", scope="chat", response_model=WebhookShown)
async def enable_webhook(app: AppOf, webhook_id: str) -> Response:
    """What waits for it is sent from now on; what happened while it was disabled was not told."""
    return as_json(shown(await app.webhooks.enable(webhook_id)))


@routes.post("/webhooks/{webhook_id}/disable", scope="chat", response_model=WebhookShown)
async def disable_webhook(app: AppOf, webhook_id: str) -> Response:
    """Nothing is sent to it, and it hears of nothing new; what waits for it stays."""
    return as_json(shown(await app.webhooks.disable(webhook_id)))


@routes.post("/webhooks/{webhook_id}/rotate", scope="chat", response_model=WebhookMade)
async def rotate_webhook(app: AppOf, webhook_id: str, given: RotationGiven) -> Response:
    """A new secret. The one before signs as well for a while, so that the receiver changes when it likes."""
    hook, secret = await app.webhooks.rotate(webhook_id, given.overlap_s)
    return as_json({**shown(hook), "secret": secret})


@routes.post("/webhooks/{webhook_id}/ping", scope="chat", status_code=202, response_model=DeliveryShown)
async def ping_webhook(app: AppOf, webhook_id: str) -> Response:
    """An event of the kind `ping`: what came of it is among the deliveries."""
    return as_json(shown_delivery(await app.webhooks.ping(webhook_id)), 202)


@routes.get("/webhooks/{webhook_id}/deliveries", scope="read", response_model=DeliveryPage)
async def list_deliveries(
    app: AppOf,
    webhook_id: str,
    state: Annotated[Literal["pending", "delivered", "failed"] | None, Query()] = None,
    before: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Newest first; they are kept for 30 days."""
    found = await app.webhooks.deliveries(webhook_id, state=state, before=before, limit=limit)
    last = found[-1].notice_id if len(found) == limit else None
    return as_json({"deliveries": [shown_delivery(delivery) for delivery in found], "next": last})


@routes.post("/webhooks/{webhook_id}/replay", scope="chat", status_code=202, response_model=Replayed)
async def replay_failed(app: AppOf, webhook_id: str, given: ReplayGiven) -> Response:
    """Send those again that failed, under the same ids; at most 10,000 at a time."""
    return as_json({"replayed": await app.webhooks.replay_failed(webhook_id, given.since)}, 202)


@routes.post(
    "/webhooks/{webhook_id}/deliveries/{event_id}/replay",
    scope="chat",
    status_code=202,
    response_model=DeliveryShown,
)
async def replay_delivery(app: AppOf, webhook_id: str, event_id: str) -> Response:
    """Send it again, whatever became of it, under the same id."""
    return as_json(shown_delivery(await app.webhooks.replay(webhook_id, event_id)), 202)
