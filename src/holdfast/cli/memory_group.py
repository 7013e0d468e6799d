"""The commands on memory, with their arguments and their help. What they do is in `commands/memory.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

memory = typer.Typer(help="What agents remember.", no_args_is_help=True, rich_markup_mode=None)
OfOwner = A[str | None, typer.Option("--owner", help="Of this owner; '' is nobody.", metavar="OWNER")]
WhoseOwner = A[str, typer.Option("--owner", help="Whose; without it, of chats that nobody owns.", metavar="OWNER")]
OfAgent = A[str | None, typer.Option("--agent", help="Of this agent.", metavar="NAME")]
Id = A[str, typer.Argument(help="As `list` shows it.", metavar="ID")]


@memory.command("list")
def list_memory(
    owner: OfOwner = None,
    agent: OfAgent = None,
    every: A[bool, typer.Option("--all", help="Also what was replaced or forgotten.")] = False,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List blocks, facts, episodes, and edits that wait for a person.

    Example: holdfast memory list --owner ann
    """
    from holdfast.cli.commands import memory

    carry_out(memory.list_memory(Where(app, home, database), owner, agent, every=every, json=json), quiet=True)


@memory.command()
def show(id: Id, json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Show one, with where it came from; of a block its versions, too.

    Example: holdfast memory show mem_01k3
    """
    from holdfast.cli.commands import memory

    carry_out(memory.show(Where(app, home, database), id, json=json), quiet=True)


@memory.command()
def edit(
    id: Id,
    text: A[str, typer.Argument(help="What it is to say; - reads standard input.", metavar="TEXT")],
    version: A[int | None, typer.Option(help="Of a block: the one you have read.", min=0)] = None,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Put another text in place of a block's or a fact's. A block that was edited since you read it stays as it is.

    Example: holdfast memory edit block_01k3 "Prefers short answers." --version 3
    """
    from holdfast.cli.commands import memory

    carry_out(memory.edit(Where(app, home, database), id, text, version), quiet=True)


@memory.command()
def accept(id: Id, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Say that you looked at what was written down after content from outside was read: it counts from now on.

    Example: holdfast memory accept mem_01k3
    """
    from holdfast.cli.commands import memory

    carry_out(memory.accept(Where(app, home, database), id), quiet=True)


@memory.command()
def forget(id: Id, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Delete a fact, an episode, a proposal or a block, for good.

    Example: holdfast memory forget mem_01k3
    """
    from holdfast.cli.commands import memory

    carry_out(memory.forget(Where(app, home, database), id), quiet=True)


@memory.command()
def search(
    query: A[str, typer.Argument(help="Words.", metavar="QUERY")],
    owner: WhoseOwner = "",
    agent: OfAgent = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Search facts, episodes and past chats of an owner.

    Example: holdfast memory search "refund of order 7" --owner ann
    """
    from holdfast.cli.commands import memory

    carry_out(memory.search(Where(app, home, database), query, owner, agent, json=json), quiet=True)


@memory.command()
def export(
    owner: OfOwner = None,
    agent: OfAgent = None,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Write blocks, facts, episodes and proposals to standard output, as lines of JSON.

    Example: holdfast memory export --owner ann > memory.jsonl
    """
    from holdfast.cli.commands import memory

    carry_out(memory.export(Where(app, home, database), owner, agent), quiet=True)
