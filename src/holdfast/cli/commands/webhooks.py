"""`holdfast webhooks`: endpoints made, listed, changed and removed in the database, and what was sent to them."""

from typing import NamedTuple, get_args

import msgspec

from holdfast.cli.app_choice import UsageError, app_of_data, app_with_data, list_from_app, opened
from holdfast.cli.commands.prune import days_of
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.words import ago, line
from holdfast.core.instants import iso
from holdfast.errors import InvalidInput
from holdfast.store.deliveries import Delivery, DeliveryState
from holdfast.store.webhooks import Webhook

DAY_S = 86_400


class Wanted(NamedTuple):
    """What `webhooks add` was told."""

    name: str
    url: str
    owner: str | None
    kinds: tuple[str, ...]
    links: bool


class Changes(NamedTuple):
    """What `webhooks change` was told."""

    name: str | None
    url: str | None
    kinds: tuple[str, ...] | None
    links: bool | None


async def add(where: Where, wanted: Wanted, *, json: bool) -> None:
    async with opened(app_of_data(where)) as app:
        try:
            hook, secret = await app.webhooks.create(
                wanted.name,
                wanted.url,
                owner=wanted.owner,
                kinds=wanted.kinds,
                links=wanted.links,
                created_by="command line",
            )
        except InvalidInput as error:
            raise UsageError(str(error)) from error
    if json:
        write_line(msgspec.json.encode({**msgspec.structs.asdict(hook), "secret": secret}))
    else:
        print(f"{hook.id}\n{secret}")


async def list_webhooks(where: Where, owner: str | None, limit: int, *, json: bool) -> None:
    async with opened(list_from_app(where)) as app:
        found = await app.webhooks.page(owner=owner, limit=limit)
    if json:
        for hook in found:
            write_line(msgspec.json.encode(hook))
    elif found:
        print_listing(
            ("webhook", "name", "owner", "url", "kinds", "links", "state", "made"), [_row(hook) for hook in found]
        )
    else:
        print("no webhooks: `holdfast webhooks add` makes one")


async def change(where: Where, webhook_id: str, changes: Changes, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        try:
            hook = await app.webhooks.change(webhook_id, **changes._asdict())
        except InvalidInput as error:
            raise UsageError(str(error)) from error
    _say(hook, f"{hook.id} is changed", json=json)


async def enable(where: Where, webhook_id: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        hook = await app.webhooks.enable(webhook_id)
    _say(hook, f"{hook.id} is active", json=json)


async def disable(where: Where, webhook_id: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        hook = await app.webhooks.disable(webhook_id, "a person disabled it by the command line")
    _say(hook, f"{hook.id} is disabled", json=json)


async def rotate(where: Where, webhook_id: str, overlap: str, *, json: bool) -> None:
    overlap_s = days_of("--overlap", overlap) * DAY_S
    async with opened(app_with_data(where)) as app:
        try:
            secret = await app.webhooks.rotate(webhook_id, overlap_s=overlap_s)
        except InvalidInput as error:
            raise UsageError(str(error)) from error
    if json:
        write_line(msgspec.json.encode({"id": webhook_id, "secret": secret}))
    else:
        print(secret)


async def remove(where: Where, webhook_id: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        hook = await app.webhooks.remove(webhook_id)
    _say(hook, f"{hook.id} is removed", json=json)


async def ping(where: Where, webhook_id: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        delivery = await app.webhooks.ping(webhook_id)
    if json:
        write_line(msgspec.json.encode(delivery))
    else:
        print(f"{delivery.notice_id} is due: `holdfast webhooks deliveries {webhook_id}` shows what came of it")


async def revoke_links(where: Where, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        revoked_at = await app.webhooks.revoke_links()
    if json:
        write_line(msgspec.json.encode({"revoked_at": revoked_at}))
    else:
        print("no link that was sent by now answers anything")


async def deliveries(where: Where, webhook_id: str, state: str | None, limit: int, *, json: bool) -> None:
    states = get_args(DeliveryState)
    if state is not None and state not in states:
        raise UsageError(f"--state is {', '.join(states)}, not {state!r}")
    async with opened(list_from_app(where)) as app:
        await app.webhooks.read(webhook_id)
        found = await app.webhooks.deliveries(webhook_id, state=state, limit=limit)  # type: ignore[arg-type]
    if json:
        for delivery in found:
            write_line(msgspec.json.encode(delivery))
    elif found:
        heads = ("event", "kind", "chat", "happened", "state", "attempts", "status", "next", "error")
        print_listing(heads, [_delivery_row(delivery) for delivery in found])
    else:
        print("nothing was sent to it")


async def replay(where: Where, webhook_id: str, event: str | None, since: str | None, *, json: bool) -> None:
    if event is not None and since is not None:
        raise UsageError("give an event, or --since for all that failed")
    async with opened(app_with_data(where)) as app:
        if event is not None:
            await app.webhooks.replay(webhook_id, event)
            count = 1
        else:
            since_ms = 0
            if since is not None:
                since_ms = app.store.now_ms() - int(days_of("--since", since) * DAY_S * 1000)
            count = await app.webhooks.replay_failed(webhook_id, since_ms=since_ms)
    if json:
        write_line(msgspec.json.encode({"replayed": count}))
    else:
        print(f"{count} to be sent again")


def _say(hook: Webhook, words: str, *, json: bool) -> None:
    if json:
        write_line(msgspec.json.encode(hook))
    else:
        print(words)


def _row(hook: Webhook) -> Row:
    return (
        Field(shown=hook.id),
        Field(shown=line(hook.name, 40), plain=hook.name),
        Field(shown=line(hook.owner or "", 40), plain=hook.owner or ""),
        Field(shown=line(hook.url, 80), plain=hook.url),
        Field(shown=" ".join(hook.kinds) or "all"),
        Field(shown="yes" if hook.links else ""),
        Field(shown=line(f"{hook.state} {hook.why}".strip(), 120), plain=f"{hook.state} {hook.why}".strip()),
        Field(shown=ago(hook.created_at), plain=iso(hook.created_at)),
    )


def _delivery_row(delivery: Delivery) -> Row:
    waits = delivery.state == "pending"
    return (
        Field(shown=delivery.notice_id),
        Field(shown=delivery.kind),
        Field(shown=delivery.chat_id),
        Field(shown=ago(delivery.at), plain=iso(delivery.at)),
        Field(shown=delivery.state),
        Field(shown=str(delivery.attempts)),
        Field(shown="" if delivery.status is None else str(delivery.status)),
        Field(shown=iso(delivery.next_at) if waits else ""),
        Field(shown=line(delivery.error, 120), plain=delivery.error),
    )
