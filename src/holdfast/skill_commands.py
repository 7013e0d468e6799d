"""Skills as slash commands: a person calls one with `/name arguments`.

Its text is taken as it is when the message is accepted. One that runs in a chat of its own is begun by the model: the
message says so, and its first response is asked to call the tool.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.agent import Agent
from holdfast.core.records import Expansion
from holdfast.core.skill_texts import SKILL_SOURCE, SKILL_TOOL, skill_in
from holdfast.errors import SlashCommandFailed
from holdfast.skills.tools import ARGUMENTS_CHARS_MAX
from holdfast.slash_commands import Expanded, SlashCommand, expansion


class SkillCommands:
    """A source of slash commands: the skills that people may call."""

    async def slash_commands(self, agent: Agent[Any]) -> Sequence[SlashCommand]:
        if agent.shelf is None:
            return []
        catalogue = await agent.shelf.catalogue()
        return [
            SlashCommand(
                name=skill.name,
                description=skill.description,
                argument_hint=skill.argument_hint,
                source="skill",
            )
            for skill in catalogue.skills.values()
            if skill.by_people
        ]

    async def expand(self, agent: Agent[Any], name: str, arguments: str) -> Expanded | None:
        if agent.shelf is None:
            return None
        skill = (await agent.shelf.catalogue()).skills.get(name)
        if skill is None or not skill.by_people:
            return None
        if len(arguments) > ARGUMENTS_CHARS_MAX:
            raise SlashCommandFailed(name, f"a skill takes up to {ARGUMENTS_CHARS_MAX:,} characters after its name")
        if skill.forks:
            words = (
                f"The user calls the skill {name}, which runs in a chat of its own. Call the tool `{SKILL_TOOL}` with"
                f" the name {name!r} and, word for word, what follows `/{name}` as its arguments. Then tell the user"
                " what came of it."
            )
            return Expanded(parts=(expansion(name, "skill", words),), tool_choice=SKILL_TOOL)
        text = skill.text(arguments)
        made = skill_in(text)
        assert made is not None
        return Expanded(parts=(Expansion(name=name, source=SKILL_SOURCE, text=text, digest=made.digest),))
