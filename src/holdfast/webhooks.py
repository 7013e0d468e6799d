"""Endpoints as a program has them: `app.webhooks`. What the settings declare is brought into the store here, too."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.config import Config
from holdfast.errors import ConfigError, InvalidInput, RefusedError
from holdfast.redaction import Secrets
from holdfast.store.contract import Store
from holdfast.store.deliveries import Delivery, DeliveryState
from holdfast.store.notify.bell import WEBHOOKS
from holdfast.store.webhooks import OVERLAP_S, NewWebhook, Webhook
from holdfast.worker.webhook_targets import WebhookTargets


class AppWebhooks:
    """Of one app. Each verb is one transaction or safe to repeat, and raises as the store's verbs do."""

    def __init__(self, store: Store, config: Config, secrets: Secrets) -> None:
        self._store = store
        self._config = config
        self._secrets = secrets
        self._targets = WebhookTargets(config.webhook_reach)

    def check_declared(self) -> None:
        """Raises ConfigError for an endpoint of the settings that cannot be meant."""
        for declared in self._config.webhooks:
            try:
                self._targets.check(declared.url)
                NewWebhook(name=declared.name, url=declared.url, kinds=tuple(declared.kinds)).check()
            except InvalidInput as error:
                raise ConfigError(f"webhooks.{declared.name}: {error}") from None

    async def declare(self) -> None:
        """What the settings declare, as they do. Raises ConfigError for a secret that is missing or none."""
        for declared in self._config.webhooks:
            secret = declared.secret()
            self._secrets.add(f"secret of webhook {declared.name}", secret)
            new = NewWebhook(
                name=declared.name,
                url=declared.url,
                owner=declared.owner,
                kinds=tuple(declared.kinds),
                links=declared.links,
                secret=secret,
                source="settings",
            )
            try:
                await self._store.webhooks.declare(new)
            except InvalidInput as error:
                variable = f"{declared.secret_env}: " if error.field == "secret" else ""
                raise ConfigError(f"webhooks.{declared.name}: {variable}{error}") from None

    async def create(
        self,
        name: str,
        url: str,
        *,
        owner: str | None = None,
        kinds: Sequence[str] = (),
        links: bool = False,
        secret: str | None = None,
        created_by: str = "",
    ) -> tuple[Webhook, str]:
        """An endpoint, and its secret, which is shown here and never again. `owner` None: it hears of everybody's
        chats. `kinds` empty: of all kinds. `links`: what waits for a person comes with a link that answers it.
        Raises InvalidInput, LimitReached.
        """
        self._targets.check(url)
        new = NewWebhook(
            name=name,
            url=url,
            owner=owner,
            kinds=tuple(kinds),
            links=links,
            secret=secret,
            created_by=created_by,
        )
        made = await self._store.webhooks.create(new)
        self._ring()
        return made

    async def page(self, *, owner: str | None = None, before: str | None = None, limit: int = 100) -> list[Webhook]:
        """Newest first, of every owner or of one: `before` is the id of the last one of the page before."""
        return await self._store.webhooks.page(owner=owner, before=before, limit=limit)

    async def read(self, webhook_id: str) -> Webhook:
        """Raises NotFound."""
        return await self._store.webhooks.read(webhook_id)

    async def change(
        self,
        webhook_id: str,
        *,
        name: str | None = None,
        url: str | None = None,
        kinds: Sequence[str] | None = None,
        links: bool | None = None,
    ) -> Webhook:
        """What is None stays as it is. Raises NotFound, InvalidInput, RefusedError for one of the settings."""
        known = await self._made(webhook_id, "change")
        if url is not None:
            self._targets.check(url)
        return await self._store.webhooks.change(
            replace(
                known,
                name=known.name if name is None else name,
                url=known.url if url is None else url,
                kinds=known.kinds if kinds is None else tuple(kinds),
                links=known.links if links is None else links,
            )
        )

    async def enable(self, webhook_id: str) -> Webhook:
        """What waits for it is sent from now on. Raises NotFound."""
        enabled = await self._store.webhooks.enable(webhook_id)
        self._ring()
        return enabled

    async def disable(self, webhook_id: str, why: str = "a person disabled it") -> Webhook:
        """Nothing is sent to it and it hears of nothing new; what waits for it stays. Raises NotFound."""
        return await self._store.webhooks.disable(webhook_id, why)

    async def rotate(self, webhook_id: str, *, overlap_s: float = OVERLAP_S) -> str:
        """A new secret, which is shown here and never again. The one before signs as well, for so long. Raises
        NotFound, RefusedError for one of the settings.
        """
        await self._made(webhook_id, "rotate")
        return await self._store.webhooks.rotate(webhook_id, overlap_s=overlap_s)

    async def remove(self, webhook_id: str) -> Webhook:
        """With all of its deliveries. Raises NotFound."""
        gone = await self._store.webhooks.remove(webhook_id)
        await self._store.deliveries.forget(webhook_id)
        return gone

    async def ping(self, webhook_id: str) -> Delivery:
        """Sends it an event that says nothing: `delivery` tells what came of it. Raises NotFound, RefusedError."""
        await self._active(webhook_id, "ping")
        pinged = await self._store.deliveries.ping(webhook_id)
        self._ring()
        return pinged

    async def deliveries(
        self, webhook_id: str, *, state: DeliveryState | None = None, before: str | None = None, limit: int = 100
    ) -> list[Delivery]:
        """Newest first: `before` is the notice's id of the last one of the page before. Kept for 30 days."""
        return await self._store.deliveries.page(webhook_id, state=state, before=before, limit=limit)

    async def delivery(self, webhook_id: str, notice_id: str) -> Delivery:
        """Raises NotFound."""
        return await self._store.deliveries.read(webhook_id, notice_id)

    async def replay(self, webhook_id: str, notice_id: str) -> Delivery:
        """Sends it again, under the same id. Raises NotFound, RefusedError for an endpoint that is disabled."""
        await self._active(webhook_id, "replay")
        replayed = await self._store.deliveries.replay(webhook_id, notice_id)
        self._ring()
        return replayed

    async def replay_failed(self, webhook_id: str, *, since_ms: int = 0) -> int:
        """Sends those again that failed, of what happened since; at most 10,000 at a time. How many. Raises NotFound,
        RefusedError for an endpoint that is disabled.
        """
        await self._active(webhook_id, "replay")
        count = await self._store.deliveries.replay_failed(webhook_id, since_ms)
        self._ring()
        return count

    async def revoke_links(self) -> int:
        """No link that was sent before the instant that it returns answers anything, whoever got it."""
        await self._store.link_keys.revoke_all()
        return self._store.now_ms()

    def _ring(self) -> None:
        """A worker of this process looks now; the others within seconds."""
        self._store.bell.ring((WEBHOOKS,))

    async def _active(self, webhook_id: str, command: str) -> Webhook:
        known = await self.read(webhook_id)
        if known.state != "active":
            words = f"the endpoint is disabled ({known.why}): enable it first"
            raise RefusedError(words, reason="state", state=known.state, command=command)
        return known

    async def _made(self, webhook_id: str, command: str) -> Webhook:
        known = await self.read(webhook_id)
        if known.source == "settings":
            words = f"the endpoint is declared as [webhooks.{known.name}] in the settings: change it there"
            raise RefusedError(words, reason="state", state=known.state, command=command)
        return known
