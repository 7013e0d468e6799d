"""The commands on budgets, with their arguments and their help. What they do is in `commands/budgets.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

budgets = typer.Typer(help="What owners may use.", no_args_is_help=True, rich_markup_mode=None)
Owner = A[str, typer.Argument(help="Whose; '' are chats that nobody owns.", metavar="OWNER")]


@budgets.command("list")
def list_budgets(json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """List what was set for owners, and what the app says for the others.

    Example: holdfast budgets list
    """
    from holdfast.cli.commands import budgets

    carry_out(budgets.list_budgets(Where(app, home, database), json=json), quiet=True)


@budgets.command("set")
def set_budget(
    owner: Owner,
    tokens: A[int | None, typer.Option("--tokens", help="In all.", metavar="N")] = None,
    cost: A[float | None, typer.Option("--cost", help="In all.", metavar="AMOUNT")] = None,
    day_tokens: A[int | None, typer.Option("--day-tokens", help="On each day.", metavar="N")] = None,
    day_cost: A[float | None, typer.Option("--day-cost", help="On each day.", metavar="AMOUNT")] = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Set what an owner may use, in place of what was set before. What is not named has no limit.

    Example: holdfast budgets set ann --day-tokens 2000000
    """
    from holdfast.cli.commands import budgets

    limits = {"tokens": tokens, "cost": cost, "day_tokens": day_tokens, "day_cost": day_cost}
    carry_out(budgets.set_budget(Where(app, home, database), owner, limits, json=json), quiet=True)


@budgets.command("remove")
def remove_budget(owner: Owner, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Remove what was set for an owner: what the app says holds again.

    Example: holdfast budgets remove ann
    """
    from holdfast.cli.commands import budgets

    carry_out(budgets.remove_budget(Where(app, home, database), owner), quiet=True)
