"""Endpoints as one principal has them: its owner's, or everybody's for those who see all. What others have is not
there.

Who may see is asked for `read`, who changes for `chat`. An endpoint that is told of everybody's chats is an
operator's. One that gets links to approvals hands the right to approve to whoever reads them: it needs `approve`,
however little of it is changed.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.errors import NotFound
from holdfast.principals import Principal
from holdfast.server.audit import WebhookChange, tell_links_revoked, tell_webhook
from holdfast.server.owned_store import OwnedStore, need, need_no_limit
from holdfast.store.deliveries import Delivery, DeliveryState
from holdfast.store.webhooks import Webhook
from holdfast.webhooks import AppWebhooks


class OwnedWebhooks:
    """For one request. Raises as `AppWebhooks` does, NotFound also for what is another owner's, and Forbidden."""

    def __init__(self, webhooks: AppWebhooks, store: OwnedStore, principal: Principal, address: str) -> None:
        self._webhooks = webhooks
        self._owned = store
        self._principal = principal
        self._address = address

    async def create(
        self, name: str, url: str, *, owner: str | None, kinds: Sequence[str], links: bool
    ) -> tuple[Webhook, str]:
        need_no_limit(self._principal)
        owner = self._owned.owner_for(owner or None)
        self._check(owner, links=links)
        hook, secret = await self._webhooks.create(
            name, url, owner=owner, kinds=kinds, links=links, created_by=self._principal.name
        )
        self._audit("audit.webhook_made", hook)
        return hook, secret

    async def page(self, *, before: str | None, limit: int) -> list[Webhook]:
        need_no_limit(self._principal)
        return await self._webhooks.page(owner=self._principal.owner, before=before, limit=limit)

    async def read(self, webhook_id: str) -> Webhook:
        need_no_limit(self._principal)
        known = await self._webhooks.read(webhook_id)
        if self._principal.owner is not None and known.owner != self._principal.owner:
            raise NotFound("webhook", webhook_id)
        return known

    async def change(
        self,
        webhook_id: str,
        *,
        name: str | None,
        url: str | None,
        kinds: Sequence[str] | None,
        links: bool | None,
    ) -> Webhook:
        await self._changeable(webhook_id, links=bool(links))
        changed = await self._webhooks.change(webhook_id, name=name, url=url, kinds=kinds, links=links)
        self._audit("audit.webhook_changed", changed)
        return changed

    async def enable(self, webhook_id: str) -> Webhook:
        await self._changeable(webhook_id)
        changed = await self._webhooks.enable(webhook_id)
        self._audit("audit.webhook_changed", changed)
        return changed

    async def disable(self, webhook_id: str) -> Webhook:
        await self._changeable(webhook_id)
        changed = await self._webhooks.disable(webhook_id, f"{self._principal.name} disabled it")
        self._audit("audit.webhook_changed", changed)
        return changed

    async def rotate(self, webhook_id: str, overlap_s: float) -> tuple[Webhook, str]:
        await self._changeable(webhook_id)
        secret = await self._webhooks.rotate(webhook_id, overlap_s=overlap_s)
        changed = await self._webhooks.read(webhook_id)
        self._audit("audit.webhook_changed", changed)
        return changed, secret

    async def remove(self, webhook_id: str) -> Webhook:
        await self._changeable(webhook_id)
        gone = await self._webhooks.remove(webhook_id)
        self._audit("audit.webhook_removed", gone)
        return gone

    async def ping(self, webhook_id: str) -> Delivery:
        await self._changeable(webhook_id)
        return await self._webhooks.ping(webhook_id)

    async def deliveries(
        self, webhook_id: str, *, state: DeliveryState | None, before: str | None, limit: int
    ) -> list[Delivery]:
        await self.read(webhook_id)
        return await self._webhooks.deliveries(webhook_id, state=state, before=before, limit=limit)

    async def replay(self, webhook_id: str, notice_id: str) -> Delivery:
        await self._changeable(webhook_id)
        return await self._webhooks.replay(webhook_id, notice_id)

    async def replay_failed(self, webhook_id: str, since_ms: int) -> int:
        await self._changeable(webhook_id)
        return await self._webhooks.replay_failed(webhook_id, since_ms=since_ms)

    async def revoke_links(self) -> int:
        """Of every owner: the route asks for who may."""
        revoked_at = await self._webhooks.revoke_links()
        tell_links_revoked(principal=self._principal.name, client=self._address)
        return revoked_at

    async def _changeable(self, webhook_id: str, *, links: bool = False) -> Webhook:
        known = await self.read(webhook_id)
        self._check(known.owner, links=links or known.links)
        return known

    def _check(self, owner: str | None, *, links: bool) -> None:
        if owner is None:
            need(self._principal, "operate")
        if links:
            need(self._principal, "approve")

    def _audit(self, action: WebhookChange, hook: Webhook) -> None:
        about: dict[str, Any] = {"webhook": hook.id, "owner": hook.owner}
        tell_webhook(action, principal=self._principal.name, client=self._address, **about)
