"""`allowed-tools` and `disallowed-tools`: what they cover, and that they only narrow."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.core.skill_texts import ActiveSkill, skill_in
from holdfast.skills.allowed_tools import Narrowing, entry_of, listed_tools
from holdfast.skills.skill import SkillRefused, read_skill
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Run, Whereabouts, Write
from holdfast.tools.shell.acts import acts_of
from tests.support.skill_folders import write_skill


def judged(
    tool: str, acts: Sequence[Act], tmp_path: Path, allowed: str | None = None, disallowed: str | None = None
) -> str:
    skill = ActiveSkill(name="s", digest="", text="", allowed=allowed, disallowed=disallowed)
    decision = Narrowing([skill]).judge(tool, acts, Whereabouts(root=str(tmp_path)))
    return "goes" if decision is None else decision.ruling


@pytest.mark.parametrize(
    ("allowed", "goes", "denied"),
    [
        ("Bash", ["git status", "rm x > y"], []),
        ("Bash(git status *)", ["git status -sb"], ["git push", "rm x", "git status; rm x", "git status > out.txt"]),
        ("Bash(git status:*)", ["git status"], ["git stash"]),
        ("Bash(ls *), Write", ["ls -l > out.txt"], ["cat x"]),
        ("Read", [], ["git status", "cat x"]),
        ("shell", ["rm -rf ."], []),
        ("", [], ["ls"]),
        ("Bash(", [], ["ls"]),
    ],
)
def test_commands(allowed: str, goes: list[str], denied: list[str], tmp_path: Path) -> None:
    for line in goes:
        assert judged("shell", acts_of(line), tmp_path, allowed) == "goes", line
    for line in denied:
        assert judged("shell", acts_of(line), tmp_path, allowed) == "deny", line


def test_files_hosts_and_tools_of_servers(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("")
    source, other = Write(path="src/a.py"), Write(path="other.py")
    assert judged("edit_file", [Read(path="src/a.py"), source], tmp_path, "Edit") == "goes"
    assert judged("edit_file", [source], tmp_path, "Edit(src/**)") == "goes"
    assert judged("edit_file", [other], tmp_path, "Edit(src/**) Read") == "deny"
    assert judged("edit_file", [source], tmp_path, "Read Grep") == "deny"
    read = Read(path="src/a.py")
    assert judged("edit_file", [read, source], tmp_path, "Edit(src/**)") == "goes", "what is edited is read"
    assert judged("apply_patch", [read, source, Read(path="other.py"), other], tmp_path, "Edit(src/**)") == "deny"
    assert judged("read_file", [read], tmp_path, "Write Edit(src/**)") == "deny", "and nothing else is"
    assert judged("fetch", [Reach(address="example.org:443")], tmp_path, "WebFetch(domain:example.org)") == "goes"
    assert judged("fetch", [Reach(address="evil.org:443")], tmp_path, "WebFetch(domain:example.org)") == "deny"
    issue = CallTool(server="github", tool="get_issue")
    assert judged("github_get_issue", [issue], tmp_path, "mcp__github__get_issue") == "goes"
    assert judged("github_get_issue", [issue], tmp_path, "mcp__github") == "goes"
    assert judged("github_get_issue", [issue], tmp_path, "mcp__gitlab Bash Read Write") == "deny"
    assert judged("refund", [CallTool(tool="refund")], tmp_path, "refund") == "goes"
    assert judged("refund", [CallTool(tool="refund")], tmp_path, "Refund Bash") == "deny"
    assert judged("ask_user", [], tmp_path, "") == "goes", "what does nothing needs no leave"
    assert judged("shell", [Run(argv=(), line="$(x)")], tmp_path, "Bash(git *)") == "deny", "what cannot be read"


def test_disallowed_tools_take_away_and_several_skills_each_count(tmp_path: Path) -> None:
    assert judged("shell", acts_of("rm x"), tmp_path, None, "Bash(rm *)") == "deny"
    assert judged("shell", acts_of("ls"), tmp_path, None, "Bash(rm *)") == "goes"
    assert judged("shell", acts_of("ls"), tmp_path, "Bash", "shell") == "deny"
    assert judged("edit_file", [Write(path="x")], tmp_path, "Edit", "Write") == "deny"
    wide = ActiveSkill(name="wide", digest="", text="", allowed="Bash Read Write")
    tight = ActiveSkill(name="tight", digest="", text="", allowed="Read")
    decision = Narrowing([wide, tight]).judge("shell", acts_of("ls"), Whereabouts(root=str(tmp_path)))
    assert decision is not None
    assert decision.note == "deny by allowed-tools of the skill tight"
    assert not Narrowing([ActiveSkill(name="n", digest="", text="")])


def test_lists_are_read_as_people_write_them() -> None:
    assert listed_tools("Read, Grep Bash(git add:*)  Bash(npm run test, x)") == (
        "Read", "Grep", "Bash(git add:*)", "Bash(npm run test, x)"
    )  # fmt: skip
    assert listed_tools(["Bash(git *)", "Read"]) == ("Bash(git *)", "Read")
    assert entry_of("Bash(*)") == entry_of("Bash")
    assert entry_of("Frobnicate(x)") == entry_of("???")


@pytest.mark.parametrize(
    "beside", ["Foo(", f"Edit({'a' * 400})", 'Bash(echo "(")', "Read Foo(", "Bash(a))((b)", ")", "Bash(it's)"]
)
@pytest.mark.parametrize("key", ["allowed_tools", "disallowed_tools"])
def test_an_entry_that_means_nothing_takes_none_behind_it_along(tmp_path: Path, key: str, beside: str) -> None:
    quoted = beside.replace("'", "''")
    skill = read_skill(write_skill(tmp_path, "s", **{key: f"\n  - '{quoted}'\n  - Bash\n  - refund"}), "x")
    found = skill_in(skill.text(""))
    assert found is not None
    narrowing, where = Narrowing([found]), Whereabouts(root=str(tmp_path))
    for name, acts in (("shell", acts_of("ls")), ("refund", [CallTool(tool="refund")])):
        assert (narrowing.judge(name, acts, where) is None) == (key == "allowed_tools"), name


def test_no_list_says_more_than_it_does(tmp_path: Path) -> None:
    many = " ".join(f"tool_{n}" for n in range(101))
    with pytest.raises(SkillRefused, match="has more than 100 entries"):
        read_skill(write_skill(tmp_path, "a", disallowed_tools=many), "x")
    skill = read_skill(write_skill(tmp_path, "b", allowed_tools=many), "x")
    assert skill.allowed is not None
    assert len(skill.allowed) == 100
    assert "more than 100 entries" in skill.warnings[0]
    skill = read_skill(write_skill(tmp_path, "c", disallowed_tools="browse_* * mcp__github__*"), "x")
    assert [warning.partition(" of")[0] for warning in skill.warnings] == ["`browse_*`", "`*`"]


def test_a_tool_of_ones_own_is_meant_by_its_name_whatever_else_has_that_name(tmp_path: Path) -> None:
    own = [CallTool(tool="Bash")]
    assert judged("Bash", own, tmp_path, None, "Bash") == "deny"
    assert judged("Bash", own, tmp_path, "Bash") == "goes"
    assert judged("Bash", own, tmp_path, "Bash(git *)") == "deny"
