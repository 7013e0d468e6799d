"""`holdfast skills`: what an agent has, a skill as the model reads it, what is wrong with files. Nothing is run."""

import sys

import msgspec
import typer

from holdfast.cli.app_choice import UsageError, make_app, pick_agent
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, print_listing
from holdfast.cli.words import line
from holdfast.core.codec import storable
from holdfast.safe_text import safe
from holdfast.skills.shelf import Catalogue, Skills, SkillShelf
from holdfast.skills.skill import Skill


def list_skills(name: str | None, agent: str | None, *, json: bool) -> None:
    found = _of(name, agent)
    if json:
        write_line(msgspec.json.encode({"skills": [_told(skill) for skill in found.skills.values()]}))
    else:
        print_listing(("skill", "from", "called by", "description"), [_row(skill) for skill in found.skills.values()])
        if not found.skills:
            print("this agent has no skills", file=sys.stderr)
    _tell(found)


def show(name: str | None, agent: str | None, skill: str, arguments: str) -> None:
    """Raises UsageError."""
    found = _of(name, agent).skills
    if skill not in found:
        raise UsageError(f"there is no skill {skill!r}; this agent has: {', '.join(found) or 'none'}")
    print(safe(found[skill].text(arguments)))


def check(path: str) -> None:
    """Raises ConfigError."""
    found = SkillShelf([Skills(path)]).look()
    for skill in found.skills.values():
        print(f"{line(skill.name)}: {len(skill.warnings) or 'no'} warning{'' if len(skill.warnings) == 1 else 's'}")
    _tell(found)
    if not found.skills and not found.problems:
        raise UsageError(f"there is no SKILL.md in {path}, or in a folder there")
    if found.problems:
        raise typer.Exit(1)


def _of(name: str | None, agent: str | None) -> Catalogue:
    app = make_app(name)
    chosen = app.agents[agent] if agent in app.agents else app.agents[pick_agent(app, agent)]
    return chosen.shelf.look() if chosen.shelf is not None else Catalogue()


def _tell(found: Catalogue) -> None:
    for problem in found.problems:
        print(line(problem, 500), file=sys.stderr)


def _row(skill: Skill) -> tuple[Field, ...]:
    return (
        Field(shown=line(skill.name, 64)),
        Field(shown=line(skill.origin, 40), plain=skill.origin),
        Field(shown=", ".join(_called_by(skill))),
        Field(shown=line(skill.description, 200), plain=skill.description),
    )


def _called_by(skill: Skill) -> list[str]:
    return [who for who, may in (("model", skill.by_model), ("people", skill.by_people)) if may]


def _told(skill: Skill) -> dict[str, object]:
    return {
        "name": skill.name,
        "description": skill.description,
        "from": skill.origin,
        "folder": storable(skill.folder),
        "called_by": _called_by(skill),
        "argument_hint": skill.argument_hint,
        "forks": skill.forks,
        "warnings": skill.warnings,
    }
