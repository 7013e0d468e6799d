"""The commands on owners, with their arguments and their help. What they do is in `commands/transfer.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

owners = typer.Typer(help="Owners of chats: list, export, delete.", no_args_is_help=True, rich_markup_mode=None)

Owner = A[str, typer.Argument(help="Whose chats; '' are those that nobody owns.", metavar="OWNER")]


@owners.command("list")
def list_owners(json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """List owners, each with the number of its chats.

    Example: holdfast owners list
    """
    from holdfast.cli.commands import transfer

    carry_out(transfer.list_owners(Where(app, home, database), json=json), quiet=True)


@owners.command()
def export(
    owner: Owner,
    folder: A[str, typer.Argument(help="Where to; it is made if need be.", metavar="FOLDER")],
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Write all chats of an owner as files, one for each, with those that it spawned.

    Example: holdfast owners export acme ./acme
    """
    from holdfast.cli.commands import transfer

    carry_out(transfer.export_owner(Where(app, home, database), owner, folder), quiet=True)


@owners.command()
def delete(
    owner: Owner,
    stop: A[bool, typer.Option("--stop", help="Stop the chats that run or wait.")] = False,
    yes: A[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Delete all chats of an owner for good. Ended half-way, the same command goes on.

    Example: holdfast owners delete acme --stop --yes
    """
    from holdfast.cli.commands import transfer

    carry_out(transfer.delete_owner(Where(app, home, database), owner, stop=stop, ask=not yes), quiet=True)
