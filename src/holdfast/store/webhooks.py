"""Endpoints as the database has them: who is told of what happens, where, and the secrets that sign it.

A secret is shown when it is made and never again, but it stands in its row: what signs has to know it. No verb but
`signing` reads it. While one takes over from another both sign, so that a receiver changes when it likes.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.core.codec import check_text
from holdfast.core.deliveries import SECRET_BYTES, WAIT_S_MAX, key_of, secret_of
from holdfast.core.notices import NOTICE_KINDS, NoticeKind
from holdfast.core.records import Frozen
from holdfast.errors import InvalidInput, LimitReached, NotFound
from holdfast.ids import new_id
from holdfast.store.budgets import StepRunner, Steps
from holdfast.store.checks import page_size
from holdfast.store.rows import Row
from holdfast.store.statements import marked

WEBHOOKS_MAX = 20  # of one owner, and of those without one; what the settings declare does not count
OVERLAP_S = 24 * 3600.0
OVERLAP_S_MAX = 30 * 24 * 3600.0
NAME_CHARS_MAX = 200
URL_CHARS_MAX = 2_000

WebhookState = Literal["active", "disabled"]
WebhookSource = Literal["made", "settings"]

COLUMNS: tuple[str, ...] = (
    *("id", "owner", "name", "url", "kinds", "links", "state", "why", "source"),
    *("created_at", "created_by", "throttled_until", "old_until"),
)


class Webhook(Frozen):
    """An endpoint, without its secret. `owner` None: it hears of everybody's chats."""

    id: str
    owner: str | None
    name: str
    url: str
    kinds: tuple[NoticeKind, ...]  # empty: all
    links: bool  # what waits for a person comes with a link that answers it
    state: WebhookState
    why: str  # it is disabled
    source: WebhookSource
    created_at: int
    created_by: str
    throttled_until: int  # nothing is sent to it before
    old_until: int | None  # until then the secret before signs as well


class NewWebhook(Frozen):
    """What an endpoint is to be. `id` and `secret` are drawn where they are not given."""

    name: str
    url: str
    owner: str | None = None
    kinds: tuple[str, ...] = ()
    links: bool = False
    created_by: str = ""
    secret: str | None = None
    id: str | None = None
    source: WebhookSource = "made"

    def check(self) -> None:
        """Raises InvalidInput. Where it may lead is not known here: `webhooks.py` of the app says that."""
        check_webhook_text(self.name, self.url)
        check_kinds(self.kinds)
        check_text("owner", self.owner or "", bytes_max=1024)
        if self.secret is not None:
            check_secret(self.secret)


def check_webhook_text(name: str, url: str) -> None:
    check_text("name", name, bytes_max=NAME_CHARS_MAX)
    check_text("url", url, bytes_max=URL_CHARS_MAX)
    if not name.strip():
        raise InvalidInput("name", "says what the endpoint is for")


def check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in NOTICE_KINDS:
            raise InvalidInput("kinds", f"holds {kind!r}; there are {', '.join(NOTICE_KINDS)}")


def check_secret(secret: str) -> None:
    if key_of(secret) is None:
        raise InvalidInput("secret", "is `whsec_` and the base64 of 24 to 64 random bytes")


def new_secret() -> str:
    return secret_of(os.urandom(SECRET_BYTES))


def webhook_of(row: Row) -> Webhook:
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    return Webhook(**values | {"kinds": tuple(values["kinds"].split()), "links": bool(values["links"])})


def _kept(kinds: Sequence[str]) -> str:
    """With a blank on either side of each: `store/notices.py` looks for one like that."""
    chosen = dict.fromkeys(kinds)
    return f" {' '.join(chosen)} " if chosen else ""


# -- statements. Each store's module `sql` makes its own of them: `{}` is where a value goes.

_SHOWN = ", ".join(COLUMNS)
_SELECT = f"SELECT {_SHOWN} FROM webhooks WHERE"

# Nothing where there are as many as there may be.
_INSERT = f"""
INSERT INTO webhooks (id, owner, name, url, kinds, links, state, secret, source, created_at, created_by)
SELECT {{id}}, {{owner}}, {{name}}, {{url}}, {{kinds}}, {{links}}, 'active', {{secret}}, 'made', {{at}}, {{by}}
WHERE (SELECT count(*) FROM webhooks WHERE source = 'made' AND owner IS NOT DISTINCT FROM {{owner}}) < {{limit}}
ON CONFLICT (id) DO NOTHING RETURNING {_SHOWN}
"""

_INSERTED = ("id", "owner", "name", "url", "kinds", "links", "secret", "at", "by", "limit")

# A secret that is another one takes over from the one before. An owner that is another one would get what was told of
# the one before: then nothing is changed.
_DECLARE = f"""
INSERT INTO webhooks (id, owner, name, url, kinds, links, state, secret, source, created_at, created_by)
VALUES ({{}}, {{}}, {{}}, {{}}, {{}}, {{}}, 'active', {{}}, 'settings', {{}}, '')
ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, url = excluded.url, kinds = excluded.kinds,
    links = excluded.links, secret = excluded.secret,
    old_secret = CASE WHEN webhooks.secret = excluded.secret THEN webhooks.old_secret ELSE webhooks.secret END,
    old_until = CASE WHEN webhooks.secret = excluded.secret THEN webhooks.old_until ELSE {{}} END,
    throttled_until = CASE WHEN webhooks.url = excluded.url THEN webhooks.throttled_until ELSE 0 END
WHERE webhooks.owner IS NOT DISTINCT FROM excluded.owner
RETURNING {_SHOWN}
"""

_LISTED = (
    f"{_SELECT} (CAST({{}} AS TEXT) IS NULL OR owner = {{}}) "
    "AND (CAST({} AS TEXT) IS NULL OR id < {}) ORDER BY id DESC LIMIT {}"
)

# What one address asked for, another did not.
_CHANGE = (
    "UPDATE webhooks SET name = {}, throttled_until = CASE WHEN url = {} THEN throttled_until ELSE 0 END, url = {}, "
    f"kinds = {{}}, links = {{}} WHERE id = {{}} RETURNING {_SHOWN}"
)

_SWITCH = (
    f"UPDATE webhooks SET state = {{}}, why = {{}}, throttled_until = 0 WHERE id = {{}} AND state <> {{}} "
    f"RETURNING {_SHOWN}"
)

# By who found out that nothing gets to that address any more. What was taken meanwhile proves the contrary.
_GIVE_UP = f"""
UPDATE webhooks SET state = 'disabled', why = {{}} WHERE id = {{}} AND url = {{}} AND state = 'active'
AND NOT EXISTS (
    SELECT 1 FROM deliveries WHERE webhook_id = webhooks.id AND state = 'delivered' AND ended_at >= {{}}
) RETURNING {_SHOWN}
"""

# Of two answers the one that asks for the longer wait counts. What lies further ahead than any wait does not: the
# clock was set back.
_THROTTLE = (
    "UPDATE webhooks SET throttled_until = {} WHERE id = {} AND url = {} "
    "AND (throttled_until < {} OR throttled_until > {}) RETURNING id"
)

_ROTATE = (
    "UPDATE webhooks SET old_secret = CASE WHEN secret = {} THEN old_secret ELSE secret END, "
    "old_until = CASE WHEN secret = {} THEN old_until ELSE {} END, secret = {} "
    f"WHERE id = {{}} RETURNING {_SHOWN}"
)


class WebhookStatements(NamedTuple):
    """The statements on endpoints, with one store's marks."""

    lock: str | None  # for who counts an owner's; None where no other writes meanwhile
    insert: str
    declare: str
    read: str
    listed: str
    change: str
    switch: str
    give_up: str
    throttle: str
    rotate: str
    signing: str
    remove: str
    forget: str


def webhook_statements(mark: str, named: Callable[[str], str], *, lock: str | None) -> WebhookStatements:
    """`mark` is where a value goes, `named` where one with a name does."""
    return WebhookStatements(
        lock=lock,
        insert=_INSERT.format(**{name: named(name) for name in _INSERTED}),
        declare=marked(_DECLARE, mark),
        read=marked(f"{_SELECT} id = {{}}", mark),
        listed=marked(_LISTED, mark),
        change=marked(_CHANGE, mark),
        switch=marked(_SWITCH, mark),
        give_up=marked(_GIVE_UP, mark),
        throttle=marked(_THROTTLE, mark),
        rotate=marked(_ROTATE, mark),
        signing=marked(
            "SELECT secret, CASE WHEN old_until > {} THEN old_secret END FROM webhooks WHERE id = {}", mark
        ),
        remove=marked(f"DELETE FROM webhooks WHERE id = {{}} RETURNING {_SHOWN}", mark),
        forget=marked("DELETE FROM webhooks WHERE owner = {} RETURNING id", mark),
    )


def _inserting(sql: WebhookStatements, values: dict[str, Any]) -> Steps[list[Row]]:
    """Those that come at the same moment are counted one after the other."""
    if sql.lock is not None:
        yield sql.lock, {"owner": values["owner"] or ""}
    return (yield sql.insert, values)


class Webhooks:
    """Of one store. Each verb is one transaction, and raises as the store's verbs do."""

    def __init__(self, runner: StepRunner, statements: WebhookStatements, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._sql = statements
        self._now_ms = now_ms

    async def create(self, new: NewWebhook) -> tuple[Webhook, str]:
        """The endpoint and its secret, which no verb shows again. Raises InvalidInput, LimitReached."""
        new.check()
        secret, hook_id = new.secret or new_secret(), new.id or new_id("hook")
        values = {
            "id": hook_id,
            "owner": new.owner,
            "name": new.name,
            "url": new.url,
            "kinds": _kept(new.kinds),
            "links": new.links,
            "secret": secret,
            "at": self._now_ms(),
            "by": new.created_by,
            "limit": WEBHOOKS_MAX,
        }
        made = await self._runner.run_steps(lambda: _inserting(self._sql, values))
        if made:
            return webhook_of(made[0]), secret
        try:  # its first statement got through, and the answer did not
            return await self.read(hook_id), secret
        except NotFound:
            raise LimitReached("webhooks of an owner", WEBHOOKS_MAX + 1, WEBHOOKS_MAX, "remove one") from None

    async def declare(self, new: NewWebhook) -> Webhook:
        """As the settings have it, under an id of its name. Safe to repeat: what is as it was stays as it is, and one
        that was disabled stays so. Raises InvalidInput, also for another owner than it has.
        """
        new.check()
        assert new.secret is not None
        values = (declared_id(new.name), new.owner, new.name, new.url, _kept(new.kinds), new.links, new.secret)
        now_ms = self._now_ms()
        made = await self._runner.write_alone(self._sql.declare, *values, now_ms, now_ms + int(OVERLAP_S * 1000))
        if not made:
            words = f"is another one than it had: give it another name, or remove {declared_id(new.name)} first"
            raise InvalidInput("owner", words)
        return webhook_of(made[0])

    async def read(self, webhook_id: str) -> Webhook:
        """Raises NotFound."""
        return self._one(await self._runner.rows(self._sql.read, webhook_id), webhook_id)

    async def page(self, *, owner: str | None = None, before: str | None = None, limit: int = 100) -> list[Webhook]:
        """Newest first: `before` is the id of the last one of the page before. `owner`: of that one only."""
        values = (owner, owner, before, before, page_size(limit))
        return [webhook_of(row) for row in await self._runner.rows(self._sql.listed, *values)]

    async def change(self, hook: Webhook) -> Webhook:
        """Name, URL, kinds and links as they are here. Safe to repeat. Raises NotFound, InvalidInput."""
        check_webhook_text(hook.name, hook.url)
        check_kinds(hook.kinds)
        values = (hook.name, hook.url, hook.url, _kept(hook.kinds), hook.links, hook.id)
        return self._one(await self._runner.write_alone(self._sql.change, *values), hook.id)

    async def enable(self, webhook_id: str) -> Webhook:
        """What waits for it is sent from now on. Safe to repeat. Raises NotFound."""
        return await self._switch(webhook_id, "active", "")

    async def disable(self, webhook_id: str, why: str) -> Webhook:
        """Nothing is sent to it, and it hears of nothing new; what waits for it stays. Raises NotFound."""
        return await self._switch(webhook_id, "disabled", why)

    async def _switch(self, webhook_id: str, state: WebhookState, why: str) -> Webhook:
        await self._runner.write_alone(self._sql.switch, state, why, webhook_id, state)
        return await self.read(webhook_id)

    async def give_up(self, hook: Webhook, why: str, since_ms: int) -> bool:
        """Disable it, unless it took something since that instant or has another URL by now. Whether it is disabled
        now by this.
        """
        return bool(await self._runner.write_alone(self._sql.give_up, why, hook.id, hook.url, since_ms))

    async def throttle(self, hook: Webhook, until_ms: int) -> None:
        """Nothing is sent to this URL of it before. A longer wait that it asked for stays."""
        far_ms = until_ms + int(WAIT_S_MAX * 1000)
        await self._runner.write_alone(self._sql.throttle, until_ms, hook.id, hook.url, until_ms, far_ms)

    async def rotate(self, webhook_id: str, *, overlap_s: float = OVERLAP_S, secret: str | None = None) -> str:
        """A new secret, or this one; the one before signs as well for so long. Raises NotFound, InvalidInput."""
        if not 0 <= overlap_s <= OVERLAP_S_MAX:
            raise InvalidInput("overlap_s", f"is from 0 to {OVERLAP_S_MAX:,.0f}")
        if secret is not None:
            check_secret(secret)
        secret = secret or new_secret()
        until_ms = self._now_ms() + int(overlap_s * 1000)
        made = await self._runner.write_alone(self._sql.rotate, secret, secret, until_ms, secret, webhook_id)
        self._one(made, webhook_id)
        return secret

    async def signing(self, webhook_id: str) -> list[str]:
        """The secrets that sign now, the newest first. Raises NotFound."""
        found = await self._runner.rows(self._sql.signing, self._now_ms(), webhook_id)
        if not found:
            raise NotFound("webhook", webhook_id)
        return [secret for secret in found[0] if secret]

    async def remove(self, webhook_id: str) -> Webhook:
        """It hears of nothing from now on. What is left of its deliveries: `Deliveries.forget`. Raises NotFound."""
        return self._one(await self._runner.forget(self._sql.remove, webhook_id), webhook_id)

    async def forget(self, owner: str) -> list[str]:
        """All of an owner. Returns their ids."""
        return [id for (id,) in await self._runner.forget(self._sql.forget, owner)]

    def _one(self, found: list[Row], webhook_id: str) -> Webhook:
        if not found:
            raise NotFound("webhook", webhook_id)
        return webhook_of(found[0])


def declared_id(name: str) -> str:
    return f"hook_settings_{name}"
