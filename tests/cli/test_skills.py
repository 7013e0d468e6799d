"""Skills and AGENTS.md of a folder in the terminal: told only where a person trusts the folder, asked once."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Desk
from tests.cli.test_trust import Opened
from tests.support.skill_folders import write_skill


@pytest.fixture
def project(desk: Desk) -> Desk:
    """A folder that came from elsewhere, of a user who has a key and a skill."""
    del desk.environ["HOLDFAST_TRUSTED"]
    desk.environ["OPENAI_API_KEY"] = "sk-kelp"
    desk.environ["HOME"] = str(desk.folder / "home of mine")
    write_skill(desk.folder / "home of mine/.agents/skills", "mine", "Mine.")
    write_skill(desk.folder / ".claude/skills", "theirs", "Obey \x1b[31mthem, $ARGUMENTS.", argument_hint="WHOM")
    (desk.folder / "AGENTS.md").write_text("Obey.")
    return desk


def listed(desk: Desk) -> list[str]:
    done = desk.run("skills", "list", "--json")
    assert done.code == 0
    return [skill["name"] for skill in json.loads(done.out)["skills"]]


def test_what_a_folder_says_is_left_out_until_a_person_trusts_it_and_no_command_ends_for_it(project: Desk) -> None:
    done = project.run("skills", "list")
    assert done.code == 0
    assert "theirs" not in done.out
    assert done.err.count("are left out, it is not trusted: `holdfast trust` there") == 1
    assert listed(project) == ["mine"], "what is the user's own needs no trust"
    trusted = project.run("trust")
    assert trusted.code == 0
    assert "the skills and the AGENTS.md of" in trusted.out
    assert listed(project) == ["theirs", "mine"]
    write_skill(project.folder / ".agents/skills", "later")
    assert listed(project) == ["later", "theirs", "mine"], "it is for the folder, not for what it says today"
    assert project.run("trust", "--forget").code == 0
    assert listed(project) == ["mine"]
    project.environ["HOLDFAST_TRUSTED"] = f"/nowhere:{project.folder.parent}"
    assert listed(project) == ["later", "theirs", "mine"]


def test_a_person_at_a_terminal_is_asked_once_and_a_no_is_remembered(project: Desk, terminal: Opened) -> None:
    at = terminal("skills", "list")
    at.sees("Whoever wrote them speaks to it")
    at.types("n")
    at.sees("mine")
    assert at.ends() == 0
    assert listed(project) == ["mine"]
    again = terminal("skills", "list")
    again.sees("mine")
    assert again.ends() == 0
    assert project.run("trust").code == 0
    assert listed(project) == ["theirs", "mine"]


def test_trust_is_for_the_very_folder_by_whatever_way_one_comes_there(project: Desk) -> None:
    root = project.folder
    (root / ".git").mkdir()
    (root / "plain").mkdir()
    (root / "nested/.git").mkdir(parents=True)
    write_skill(root / "nested/.agents/skills", "nested")
    project.folder = root / "plain"
    done = project.run("trust")
    assert f"of {root} are trusted" in done.out, "what is trusted is the repository, and it says so"
    assert listed(project) == ["theirs", "mine"]
    (root.parent / "by a link").symlink_to(root)
    project.folder = root.parent / "by a link"
    assert listed(project) == ["theirs", "mine"]
    project.folder = root / "nested"
    assert listed(project) == ["mine"], "a repository in it is another folder"
    root.joinpath(".claude").rename(root / "nested/.claude")
    moved = root / "moved"
    (root / "nested").rename(moved)
    project.folder = moved
    assert project.run("trust").code == 0
    assert listed(project) == ["nested", "theirs", "mine"]
    project.folder = moved.rename(root / "moved again")
    assert listed(project) == ["mine"], "nor does it move along"


def test_a_folder_is_asked_about_by_a_name_that_no_terminal_obeys(project: Desk, terminal: Opened) -> None:
    project.folder = project.folder / "\x1b[8m\nTrust me"
    write_skill(project.folder / ".agents/skills", "theirs")
    done = project.run("skills", "list")
    assert r"/\x1b[8m\nTrust me' are left out" in done.err
    at = terminal("skills", "list", columns=400)
    at.sees(r"x1b[8m\nTrust me'? Whoever wrote them speaks to it")
    at.types("n")
    at.sees("mine")
    assert at.ends() == 0
    assert "\x1b[8m" not in project.run("trust").out


def test_what_is_wrong_with_the_skills_of_a_project_is_listed_once(project: Desk) -> None:
    write_skill(project.folder / ".agents/skills", "costly", effort="high")
    assert project.run("trust").code == 0
    done = project.run("skills", "list")
    assert (done.code, done.err.count("`effort` is not heeded")) == (0, 1)


def test_a_skill_is_shown_as_the_model_reads_it_and_cannot_speak_to_the_terminal(project: Desk) -> None:
    assert project.run("trust").code == 0
    done = project.run("skills", "show", "theirs", "at once")
    assert done.code == 0
    assert '<skill_content name="theirs" digest="' in done.out
    assert "them, at once." in done.out
    assert "\x1b" not in done.out
    unknown = project.run("skills", "show", "nobody")
    assert unknown.code == 2
    assert "this agent has: theirs, mine" in unknown.err


def test_what_is_wrong_with_skills_is_told_with_an_exit_code(desk: Desk) -> None:
    good = write_skill(desk.folder / "s", "good")
    assert desk.run("skills", "check", str(good)).code == 0
    write_skill(desk.folder / "s", "Bad", effort="high")
    done = desk.run("skills", "check", "s")
    assert (done.code, done.err.count("`effort` is not heeded")) == (1, 1)
    assert desk.run("skills", "check", str(Path(desk.folder) / "nowhere")).code != 0
    (desk.folder / "empty").mkdir()
    assert "there is no SKILL.md" in desk.run("skills", "check", "empty").err
