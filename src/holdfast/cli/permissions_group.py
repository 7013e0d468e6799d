"""The commands on permissions, with their arguments and their help. What they do is in `commands/permissions.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.options import AppName, Json

permissions = typer.Typer(help="What calls of tools may do.", no_args_is_help=True, rich_markup_mode=None)
AgentName = A[str | None, typer.Option("--agent", help="As this agent; without it, any.", metavar="NAME")]


@permissions.command("list")
def list_rules(agent: AgentName = None, json: Json = False, app: AppName = None) -> None:
    """List the rules and the mode that are in force, and whose they are.

    Example: holdfast permissions list --agent reviewer
    """
    from holdfast.cli.commands import permissions

    permissions.list_rules(app, agent, json=json)


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
