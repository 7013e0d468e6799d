"""The commands on tokens, with their arguments and their help. What they do is in `commands/tokens.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

tokens = typer.Typer(help="Who may use the server, and for what.", no_args_is_help=True, rich_markup_mode=None)


@tokens.command()
def create(
    name: A[str, typer.Argument(help="What it is for; it stands in audit lines.")],
    owner: A[str | None, typer.Option(help="Whose chats it sees; without it, those of every owner.")] = None,
    scope: A[
        list[str] | None,
        typer.Option(help="read, chat, approve, operate or work; repeatable (default: read, chat, approve)."),
    ] = None,
    chat: A[str | None, typer.Option(help="For this chat alone.", metavar="ID")] = None,
    ttl: A[str | None, typer.Option(help="How long it is valid, such as 30d or 12h (default: for ever).")] = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Make a token and print it: this once, it is stored nowhere.

    Example: holdfast tokens create "ann's laptop" --owner ann --ttl 30d
    """
    from holdfast.cli.commands import tokens

    asked = tokens.Wanted(name=name, owner=owner, scopes=tuple(scope or ()), chat=chat, ttl=ttl)
    carry_out(tokens.create(Where(app, home, database), asked, json=json), quiet=True)


@tokens.command("list")
def list_tokens(
    owner: A[str | None, typer.Option(help="Only this owner's.")] = None,
    limit: A[int, typer.Option(min=1, max=500, help="How many at most.")] = 100,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List tokens, newest first, without their secrets.

    Example: holdfast tokens list --owner ann
    """
    from holdfast.cli.commands import tokens

    carry_out(tokens.list_tokens(Where(app, home, database), owner, limit, json=json), quiet=True)


@tokens.command()
def revoke(
    token: A[str, typer.Argument(help="Its id, as `list` shows it.", metavar="ID")],
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """End a token, and those that were made with it; open streams end within ten seconds.

    Example: holdfast tokens revoke tok_01k3
    """
    from holdfast.cli.commands import tokens

    carry_out(tokens.revoke(Where(app, home, database), token, json=json), quiet=True)


@tokens.command()
def rotate(app: AppName = None, home: Home = None) -> None:
    """Replace the admin token of the home: running servers know the new one within seconds, and the old one ends.

    Example: holdfast tokens rotate
    """
    from holdfast.cli.commands import tokens

    tokens.rotate(Where(app, home, None))
