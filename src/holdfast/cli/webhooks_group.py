"""The commands on webhooks, with their arguments and their help. What they do is in `commands/webhooks.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

webhooks = typer.Typer(
    help="Endpoints that are told of what happens, and what was sent to them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Hook = A[str, typer.Argument(help="Its id, as `list` shows it.", metavar="ID")]
KindOption = A[
    list[str] | None,
    typer.Option("--kind", help="What it hears of, such as turn.ended; repeatable (default: everything)."),
]


@webhooks.command("add")
def add(
    name: A[str, typer.Argument(help="What it is for.")],
    url: A[str, typer.Argument(help="Where events are posted to: https://…", metavar="URL")],
    owner: A[str | None, typer.Option(help="Whose chats it hears of; without it, everybody's.")] = None,
    kind: KindOption = None,
    links: A[
        bool, typer.Option("--links", help="With links that answer calls: whoever has one can approve.")
    ] = False,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Add an endpoint and print its secret: this once, it is not shown again.

    Example: holdfast webhooks add ops https://ops.example/holdfast --kind turn.failed
    """
    from holdfast.cli.commands import webhooks

    wanted = webhooks.Wanted(name=name, url=url, owner=owner, kinds=tuple(kind or ()), links=links)
    carry_out(webhooks.add(Where(app, home, database), wanted, json=json), quiet=True)


@webhooks.command("list")
def list_webhooks(
    owner: A[str | None, typer.Option(help="Only this owner's.")] = None,
    limit: A[int, typer.Option(min=1, max=500, help="How many at most.")] = 100,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List endpoints, newest first, without their secrets.

    Example: holdfast webhooks list
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.list_webhooks(Where(app, home, database), owner, limit, json=json), quiet=True)


@webhooks.command()
def change(
    hook: Hook,
    name: A[str | None, typer.Option(help="Another name.")] = None,
    url: A[str | None, typer.Option(help="Another address.")] = None,
    kind: KindOption = None,
    links: A[bool | None, typer.Option("--links/--no-links", help="With links that answer calls, or not.")] = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Change an endpoint; what is not named stays as it is.

    Example: holdfast webhooks change hook_01k3 --url https://ops.example/new
    """
    from holdfast.cli.commands import webhooks

    changes = webhooks.Changes(name=name, url=url, kinds=tuple(kind) if kind else None, links=links)
    carry_out(webhooks.change(Where(app, home, database), hook, changes, json=json), quiet=True)


@webhooks.command()
def enable(hook: Hook, json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Send to an endpoint again, beginning with what waits for it.

    Example: holdfast webhooks enable hook_01k3
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.enable(Where(app, home, database), hook, json=json), quiet=True)


@webhooks.command()
def disable(
    hook: Hook, json: Json = False, app: AppName = None, home: Home = None, database: Database = None
) -> None:
    """Send nothing to an endpoint, and tell it of nothing new; what waits for it stays.

    Example: holdfast webhooks disable hook_01k3
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.disable(Where(app, home, database), hook, json=json), quiet=True)


@webhooks.command()
def rotate(
    hook: Hook,
    overlap: A[str, typer.Option(help="How long the secret before signs as well, such as 12h or 7d.")] = "24h",
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Make a new secret and print it: this once. The one before signs as well for a while.

    Example: holdfast webhooks rotate hook_01k3 --overlap 7d
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.rotate(Where(app, home, database), hook, overlap, json=json), quiet=True)


@webhooks.command()
def remove(hook: Hook, json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Remove an endpoint with all of its deliveries.

    Example: holdfast webhooks remove hook_01k3
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.remove(Where(app, home, database), hook, json=json), quiet=True)


@webhooks.command()
def ping(hook: Hook, json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Send an endpoint an event that says nothing; a running worker sends it.

    Example: holdfast webhooks ping hook_01k3
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.ping(Where(app, home, database), hook, json=json), quiet=True)


@webhooks.command("revoke-links")
def revoke_links(json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """End every link to a call that was sent by now, of every owner.

    Example: holdfast webhooks revoke-links
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.revoke_links(Where(app, home, database), json=json), quiet=True)


@webhooks.command()
def deliveries(
    hook: Hook,
    state: A[str | None, typer.Option(help="Only those that are pending, delivered or failed.")] = None,
    limit: A[int, typer.Option(min=1, max=500, help="How many at most.")] = 50,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List what was sent to an endpoint, newest first, and what came of it.

    Example: holdfast webhooks deliveries hook_01k3 --state failed
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.deliveries(Where(app, home, database), hook, state, limit, json=json), quiet=True)


@webhooks.command()
def replay(
    hook: Hook,
    event: A[str | None, typer.Argument(help="One event; without it, all that failed.", metavar="EVENT")] = None,
    since: A[str | None, typer.Option(help="Of what happened in the last 2h or 7d.")] = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Send one event again, or all that failed, under the same ids.

    Example: holdfast webhooks replay hook_01k3 --since 2d
    """
    from holdfast.cli.commands import webhooks

    carry_out(webhooks.replay(Where(app, home, database), hook, event, since, json=json), quiet=True)
