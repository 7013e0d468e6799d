"""`holdfast mcp list` and `status`: tool servers as they are declared, and as they are."""

import time

import msgspec

from holdfast.app import App
from holdfast.cli.app_choice import UsageError, make_app
from holdfast.cli.commands.findings import Finding
from holdfast.cli.commands.probes import try_servers
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, print_listing
from holdfast.cli.options import Where
from holdfast.cli.words import line
from holdfast.core.instants import iso
from holdfast.errors import HoldfastError
from holdfast.mcp_servers import McpServer
from holdfast.tools.mcp.logins import Login, LoginFile


async def list_servers(where: Where, *, json: bool) -> None:
    app = make_app(where.app, home=where.home, database=where.database)
    found = [(server, *_login(app.config.home, server)) for server in servers_of(app)]
    if json:
        for server, state, login in found:
            told = {"server": server.name, "transport": server.transport, "place": server.place, "login": state}
            times = {"made_at": login.made_at, "expires_at": login.expires_at, "scope": login.scope} if login else {}
            write_line(msgspec.json.encode({**told, **times}))
    elif found:
        rows = [
            [
                Field(shown=text)
                for text in (server.name, server.transport, state, _made(login), line(server.place, 200))
            ]
            for server, state, login in found
        ]
        print_listing(("server", "transport", "login", "made", "place"), rows)
    else:
        print("no MCP servers: docs/how-to/mcp.md says how to declare one")


async def status(where: Where, name: str | None) -> int:
    app = make_app(where.app, home=where.home, database=where.database)
    servers = [server_of(app, name)] if name is not None else servers_of(app)
    found = await try_servers(servers, app.config.home)
    for finding in found:
        print(_told(finding))
    if not servers:
        print("no MCP servers: docs/how-to/mcp.md says how to declare one")
    return 1 if any(finding.wrong for finding in found) else 0


def servers_of(app: App) -> list[McpServer]:
    given = [server for agent in app.agents.values() for server in agent.servers]
    return sorted({server.name: server for server in (*given, *app.config.mcp)}.values(), key=lambda one: one.name)


def server_of(app: App, name: str) -> McpServer:
    """Raises UsageError."""
    known = {server.name: server for server in servers_of(app)}
    if name not in known:
        raise UsageError(f"there is no MCP server {name!r}; declared are: {', '.join(known) or 'none'}")
    return known[name]


def _login(home: str, server: McpServer) -> tuple[str, Login | None]:
    """Without asking the server: one that needs none has none, and so may one that does."""
    if not server.takes_login:
        return ("by its headers" if server.url else "-"), None
    try:
        login = LoginFile(home, server.name).read()
    except HoldfastError:
        return "damaged: log in again", None
    if login is None or login.url != server.url:
        return "none", None
    if login.refused:
        return "refused: log in again", login
    over = login.expires_at is not None and login.expires_at <= time.time_ns() // 1_000_000
    return ("over: log in again" if over and login.refresh is None else "yes"), login


def _made(login: Login | None) -> str:
    return "" if login is None else iso(login.made_at)


def _told(finding: Finding) -> str:
    advice = f"\n  {finding.advice}" if finding.wrong and finding.advice else ""
    return f"{finding.code}: {finding.detail}{advice}"
