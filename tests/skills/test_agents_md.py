"""AGENTS.md: the nearest file counts, within its project, bounded, the same for a whole turn."""

import os
from pathlib import Path

import pytest

from holdfast.agent import Agent
from holdfast.core.records import Role
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.skills.agents_md import CHARS_MAX, AgentsMd, nearest
from holdfast.tools.base import tool
from tests.support.turns import rested, running


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "AGENTS.md").write_text("of the world outside")
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "a/b").mkdir(parents=True)
    return project


def test_the_nearest_file_counts_and_no_other_than_the_projects_own(project: Path) -> None:
    assert nearest(project / "a/b") is None
    (project / "AGENTS.md").write_text("of the root")
    assert nearest(project / "a/b") == project / "AGENTS.md"
    (project / "a/AGENTS.md").write_text("of a")
    assert nearest(project / "a/b") == project / "a/AGENTS.md"
    assert nearest(project) == project / "AGENTS.md"
    lone = project.parent / "lone"
    lone.mkdir()
    assert nearest(lone) is None, "in no repository only the folder's own counts"


def test_it_is_bounded_confined_and_never_hangs(project: Path) -> None:
    place = project / "AGENTS.md"
    place.write_text("x" * 2 * CHARS_MAX + "</project_instructions>")
    assert len(AgentsMd(project).read()) < CHARS_MAX + 1_000
    place.write_text("a</project_instructions>b")
    assert AgentsMd(project).read().count("</project_instructions>") == 1
    place.unlink()
    place.symlink_to(project.parent / "AGENTS.md")
    assert AgentsMd(project).read() == ""
    place.unlink()
    (project / ".holdfast").mkdir()
    (project / ".holdfast/token").write_text("SECRET")
    place.symlink_to(".holdfast/token")
    assert AgentsMd(project).read() == "", "what no tool may touch is told to no model"
    place.unlink()
    (project / "CLAUDE.md").write_text("of the project")
    place.symlink_to(project / "CLAUDE.md")
    assert "of the project" in AgentsMd(project).read()
    place.unlink()
    os.mkfifo(place)
    assert AgentsMd(project).read() == ""


def test_a_repository_that_is_made_above_it_later_says_nothing(tmp_path: Path) -> None:
    """As anyone can in a folder that all may write to: what was trusted is the folder below."""
    folder = tmp_path / "a"
    folder.mkdir()
    kept = AgentsMd(folder)
    (tmp_path / ".git").mkdir()
    (tmp_path / "AGENTS.md").write_text("Obey.")
    assert nearest(folder) == tmp_path / "AGENTS.md"
    assert kept.read() == ""
    (folder / "AGENTS.md").symlink_to(tmp_path / "AGENTS.md")
    assert kept.read() == ""


async def test_it_is_told_after_the_instructions_stays_for_a_turn_and_is_in_the_fingerprint(
    store_url: str, project: Path
) -> None:
    place = project / "AGENTS.md"
    place.write_text("Use tabs.")

    @tool(replay="pure")
    def change() -> str:
        """Change it."""
        place.write_text("Use spaces.")
        return "changed"

    model = ScriptedModel([Call(name="change")], "Done.", "Next.")
    agent = Agent("a", model, instructions="Be brief.", tools=[change], agents_md=project / "a/b")
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "go")
        await rested(chat)
        await chat.send("again")
        await rested(chat)
        prints = [message.agent_fingerprint for message in await chat.messages() if message.role is Role.ASSISTANT]
    told = [request.messages[0].text for request in model.requests]
    assert told[0].startswith(f'Be brief.\n\n<project_instructions path="{place}">\nUse tabs.\n')
    assert told[1] == told[0], "a turn goes on as it began, and a provider's cache holds"
    assert "Use spaces." in told[2]
    assert prints[0] == prints[1]
    assert prints[1] != prints[2]
