"""What there is: workers and settings."""

import os
import sys
from typing import Any

import msgspec
from msgspec.structs import asdict

from holdfast.cli.app_choice import list_from_app, opened
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import PLAIN_CHARS_MAX, Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.trust import is_trusted
from holdfast.cli.words import ago, line
from holdfast.config import FILE, NAMES, Retention, explain_config, load_config
from holdfast.core.instants import iso
from holdfast.core.records import Lease
from holdfast.jwt_issuer import JwtIssuer
from holdfast.store.driver_watch import is_live
from holdfast.urls import shown_url

LEASE_FIELDS = ("worker", "pid", "started_at", "renewed_at", "ttl_ms", "ended", "info")


async def list_workers(where: Where, *, json: bool) -> None:
    async with opened(list_from_app(where)) as app:
        leases = await app.store.list_workers()
    if json:
        for lease in leases:
            fields = {name: getattr(lease, name) for name in LEASE_FIELDS}
            write_line(msgspec.json.encode({**fields, "live": is_live(lease)}))
        return
    if not (live := [lease for lease in leases if is_live(lease)]):
        print("no workers: chats wait until one comes (holdfast serve, holdfast worker)")
        return
    heads = ("worker", "host", "pid", "started", "renewed", "chats", "agents")
    print_listing(heads, [_row(lease) for lease in live])


def _row(lease: Lease) -> Row:
    info = msgspec.json.decode(lease.info)
    held, held_max = info.get("chats", "?"), info.get("chats_max", "?")
    host, agents = str(info.get("hostname", "?")), ", ".join(info.get("agents", []))
    return (
        Field(shown=lease.worker),
        Field(shown=line(host, 30), plain=host),
        Field(shown=str(lease.pid)),
        Field(shown=ago(lease.started_at), plain=iso(lease.started_at)),
        Field(shown=ago(lease.renewed_at), plain=iso(lease.renewed_at)),
        Field(shown=f"{held} of {held_max}", plain=f"{held}/{held_max}"),
        Field(shown=line(agents, 200), plain=agents),
    )


def show_config(home: str | None, database: str | None, *, json: bool) -> None:
    file = None
    if not is_trusted():
        file = os.devnull
        print(f"holdfast: {FILE} is not trusted, and is not counted here; `holdfast trust` lets it be used",
              file=sys.stderr)  # fmt: skip
    config = load_config(file, home=home, database=database)
    sources = explain_config(file, home=home, database=database)
    rows = [(name, _shown(name, getattr(config, name)), sources[name]) for name in NAMES]
    if json:
        write_line(msgspec.json.encode([dict(zip(("name", "value", "source"), row, strict=True)) for row in rows]))
        return
    print_listing(("setting", "value", "from"), [_setting(*row) for row in rows])


def _setting(name: str, value: Any, source: str) -> Row:
    style = "dim" if source == "default" else ""
    shown = ", ".join(value) if isinstance(value, tuple) else str(value)
    return tuple(Field(shown=line(text, PLAIN_CHARS_MAX), style=style) for text in (name, shown, source))


def _shown(name: str, value: Any) -> Any:
    """As it may be seen: of tool servers the names alone, their variables and headers hold keys."""
    if name == "mcp":
        return tuple(server.name for server in value)
    if isinstance(value, Retention):
        return tuple(f"{key}={days:g}" for key, days in asdict(value).items() if days is not None)
    if isinstance(value, JwtIssuer):
        return (f"issuer={value.issuer}", f"audience={value.audience}")
    if isinstance(value, dict):
        return tuple(value)
    return shown_url(value) if name == "database" or (isinstance(value, str) and "://" in value) else value
