"""The commands on MCP servers, with their arguments and their help. What they do is in `commands/mcp.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

mcp = typer.Typer(
    help="Tool servers (MCP): which there are, logins to them, how they are.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Server = A[str, typer.Argument(help="Its name, as `list` shows it.", metavar="NAME")]


@mcp.command("list")
def list_servers(
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List the servers that are declared, and which of them have a login. Connects to none.

    Example: holdfast mcp list
    """
    from holdfast.cli.commands import mcp

    carry_out(mcp.list_servers(Where(app, home, database), json=json), quiet=True)


@mcp.command()
def status(
    server: A[str | None, typer.Argument(help="Only this one.", metavar="[NAME]")] = None,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Connect to the servers as a worker would, and say what came of it; exit code 1 if one is not there.

    Example: holdfast mcp status tracker
    """
    from holdfast.cli.commands import mcp

    carry_out(mcp.status(Where(app, home, database), server), quiet=True)


@mcp.command()
def login(
    server: Server,
    scope: A[
        list[str] | None, typer.Option("--scope", help="What to ask for, beside what the last login has; repeatable.")
    ] = None,
    browser: A[bool, typer.Option("--browser/--no-browser", help="Open the link in a browser here.")] = True,
    wait: A[float, typer.Option(min=1, max=3600, help="Seconds to wait for you.", metavar="SECONDS")] = 300,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Log in to a server by OAuth: prints a link, and waits for the browser to come back.

    The browser comes back to this machine (127.0.0.1). If it runs on another one, it shows an error there: copy the
    address that it shows, and paste it here. Workers that use the same home take the login within seconds.

    Example: holdfast mcp login tracker
    """
    from holdfast.cli.commands import mcp_login

    wanted = mcp_login.Wanted(
        server=server, scopes=tuple(" ".join(scope or ()).split()), browser=browser, wait_s=wait
    )
    carry_out(mcp_login.login(Where(app, home, database), wanted), quiet=True)


@mcp.command()
def logout(
    server: Server,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Forget the login to a server, and have its tokens revoked where the authorization server takes that.

    Example: holdfast mcp logout tracker
    """
    from holdfast.cli.commands import mcp_login

    carry_out(mcp_login.logout(Where(app, home, database), server), quiet=True)
