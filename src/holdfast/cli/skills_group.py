"""The commands on skills, with their arguments and their help. What they do is in `commands/skills.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.options import AppName, Json

skills = typer.Typer(help="Instructions that agents load.", no_args_is_help=True, rich_markup_mode=None)
AgentName = A[str | None, typer.Option("--agent", help="Of this agent.", metavar="NAME")]


@skills.command("list")
def list_skills(agent: AgentName = None, json: Json = False, app: AppName = None) -> None:
    """List the skills of an agent, where they come from, and what is wrong with them.

    Example: holdfast skills list
    """
    from holdfast.cli.commands import skills

    skills.list_skills(app, agent, json=json)


@skills.command()
def show(
    name: A[str, typer.Argument(help="As `list` shows it.", metavar="NAME")],
    arguments: A[str, typer.Argument(help="What it is called with.")] = "",
    agent: AgentName = None,
    app: AppName = None,
) -> None:
    """Print a skill as the model reads it.

    Example: holdfast skills show review "the last commit"
    """
    from holdfast.cli.commands import skills

    skills.show(app, agent, name, arguments)


@skills.command()
def check(path: A[str, typer.Argument(help="A skill, or a folder of skills.", metavar="PATH")]) -> None:
    """Say what is wrong with skills, and what in them is not heeded. Ends with exit code 1 if there is anything.

    Example: holdfast skills check .agents/skills
    """
    from holdfast.cli.commands import skills

    skills.check(path)
