"""`holdfast tokens`: made, listed and revoked in the database; the admin's, in its file."""

from typing import NamedTuple

import msgspec

from holdfast.cli.app_choice import UsageError, app_of_data, app_with_data, list_from_app, opened
from holdfast.cli.commands.prune import days_of
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.words import ago, line
from holdfast.core.instants import iso
from holdfast.errors import InvalidInput, NotFound
from holdfast.principals import OWN_SCOPES
from holdfast.server.access import rotate_token
from holdfast.store.tokens import COLUMNS, NewToken, Token


class Wanted(NamedTuple):
    """What `tokens create` was told."""

    name: str
    owner: str | None
    scopes: tuple[str, ...]
    chat: str | None
    ttl: str | None


async def create(where: Where, wanted: Wanted, *, json: bool) -> None:
    async with opened(app_of_data(where)) as app:
        now_ms = app.store.now_ms()
        if wanted.chat is not None and await app.store.read_owner(wanted.chat) is None:
            raise NotFound("chat", wanted.chat)
        new = NewToken(
            name=wanted.name,
            owner=wanted.owner,
            scopes=frozenset(wanted.scopes) or OWN_SCOPES,
            chat=wanted.chat,
            expires_at=now_ms + int(days_of("--ttl", wanted.ttl) * 86_400_000) if wanted.ttl is not None else None,
            created_by="command line",
        )
        try:
            token, secret = await app.store.tokens.create(new)
        except InvalidInput as error:
            raise UsageError(str(error)) from error
    if json:
        write_line(msgspec.json.encode({**_fields(token), "token": secret}))
    else:
        print(secret)


async def list_tokens(where: Where, owner: str | None, limit: int, *, json: bool) -> None:
    async with opened(list_from_app(where)) as app:
        found = await app.store.tokens.page(owner=owner, limit=limit)
        now_ms = app.store.now_ms()
    if json:
        for token in found:
            write_line(msgspec.json.encode(_fields(token)))
        return
    if not found:
        print("no tokens: the admin token is in the file `token` of the home")
        return
    heads = ("token", "name", "owner", "scopes", "chat", "made", "state")
    print_listing(heads, [_row(token, now_ms) for token in found])


async def revoke(where: Where, token_id: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        token = await app.store.tokens.revoke(token_id)
    if json:
        write_line(msgspec.json.encode(_fields(token)))
    else:
        print(f"{token.id} is revoked")


def rotate(where: Where) -> None:
    config = app_of_data(where).config
    rotate_token(config.home)
    print(f"the admin token in {config.home} is a new one; `holdfast login` shows its link")


def _fields(token: Token) -> dict[str, object]:
    return {name: getattr(token, name) for name in COLUMNS} | {"scopes": sorted(token.scopes)}


def _row(token: Token, now_ms: int) -> Row:
    ends = "" if token.expires_at is None else f"until {iso(token.expires_at)}"
    return (
        Field(shown=token.id),
        Field(shown=line(token.name, 40), plain=token.name),
        Field(shown=line(token.owner or "", 40), plain=token.owner or ""),
        Field(shown=" ".join(sorted(token.scopes))),
        Field(shown=token.chat or ""),
        Field(shown=ago(token.created_at), plain=iso(token.created_at)),
        Field(shown=token.ended(now_ms) or ends),
    )
