"""The commands on permissions, with their arguments and their help. What they do is in `commands/permissions.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

permissions = typer.Typer(help="What calls of tools may do.", no_args_is_help=True, rich_markup_mode=None)
AgentName = A[str | None, typer.Option("--agent", help="As this agent; without it, any.", metavar="NAME")]


@permissions.command("list")
def list_rules(
    agent: AgentName = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List the rules and the mode that are in force, whose they are, and what people said "always" to.

    Example: holdfast permissions list --agent reviewer
    """
    from holdfast.cli.commands import permissions

    carry_out(permissions.list_rules(Where(app, home, database), agent, json=json), quiet=True)


@permissions.command()
def revoke(
    rule: A[str, typer.Argument(help="Its id, as `list` shows it.", metavar="ID")],
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Take back an "always": the next call that the rule would allow is asked about.

    Example: holdfast permissions revoke rule_01k3
    """
    from holdfast.cli.commands import permissions

    carry_out(permissions.revoke(Where(app, home, database), rule, json=json), quiet=True)


@permissions.command()
def explain(
    text: A[str, typer.Argument(help="A command line, or an act such as 'write(src/x)'.", metavar="LINE")],
    agent: AgentName = None,
    json: Json = False,
    app: AppName = None,
) -> None:
    """Say what would become of a command line or an act in this folder, and by which rule. Nothing is run.

    Example: holdfast permissions explain "git push"
    """
    from holdfast.cli.commands import permissions

    permissions.explain(app, text, agent, json=json)
