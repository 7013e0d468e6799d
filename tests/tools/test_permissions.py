"""Rules on acts: a table of hostile lines, paths, hosts and calls under each mode, and each rule of the language."""

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.config import PermissionMode, Permissions
from holdfast.errors import ConfigError
from holdfast.tools.permissions import paths
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Run, Whereabouts, Write
from holdfast.tools.permissions.decision import ALLOWED, Decision
from holdfast.tools.permissions.examples import acts_in, check_permissions, explain
from holdfast.tools.permissions.rulebook import Rulebook, rulebook_of
from holdfast.tools.permissions.rules import rule_of
from holdfast.tools.shell.acts import acts_of
from tests.tools.hostile_program import CORPUS

RULES = (
    # those of the documentation
    "allow run(git status *)",
    "allow run(pytest *)",
    "ask run(git push *)",
    "deny run(sudo *)",
    "allow write(src/**)",
    "deny read(**/.env*)",
    "allow reach(*.python.org)",
    "allow call(github/get_*)",
    "deny write(**) for reviewer",
    # and more
    "deny reach(*.evil.example)",
    "deny reach(10.9.0.0/16:443)",
    "deny call(shop/refund*)",
    "ask call(shop/write_*)",
)
EXAMPLES = ("git status -sb -> allow", "git diff --output=x -> ask", "echo a > .git/config -> deny")
COLUMNS: tuple[tuple[PermissionMode, bool], ...] = (
    ("read", False),
    ("ask", False),
    ("edit", False),
    ("edit", True),
    ("unattended", False),
)
SIGNS = {"allow": "a", "ask": "?", "deny": "-"}


def cases() -> list[tuple[str, str]]:
    lines = (CORPUS / "permissions.txt").read_text(encoding="utf-8").splitlines()
    return [(line[:5], line[6:]) for line in lines if line and not line.startswith("# ")]


def test_the_table_is_as_large_as_it_is_said_to_be() -> None:
    texts = [text for _, text in cases()]
    assert len(set(texts)) == len(texts) >= 450


@pytest.mark.parametrize(("column", "mode", "sandboxed"), [(at, *both) for at, both in enumerate(COLUMNS)])
def test_every_line_path_host_and_call_of_the_table_gets_what_it_says(
    column: int, mode: PermissionMode, sandboxed: bool
) -> None:
    where = Whereabouts(looks=False, sandboxed=sandboxed)
    permissions = Permissions(mode=mode, rules=RULES)
    wrong = []
    for wanted, text in cases():
        decision = explain(text, permissions, where=where)
        if SIGNS[decision.ruling] != wanted[column]:
            wrong.append(f"{text}: {decision.ruling}, not {wanted[column]}, by {decision.by}: {decision.why}")
    assert wrong == []


def judged(
    line: str | Act,
    *rules: str,
    mode: PermissionMode | None = None,
    root: Path | str | None = ".",
    agent: str | None = None,
    confined: bool = False,
    sandboxed: bool = False,
) -> Decision:
    book = rulebook_of(Permissions(mode=mode, rules=rules), None, agent)
    acts = acts_in(line) if isinstance(line, str) else [line]
    place = None if root is None else str(root)
    return book.judge(acts, Whereabouts(root=place, confined=confined, sandboxed=sandboxed))


# --- rules and modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_all_rules_that_match_count_and_deny_beats_ask_beats_allow_in_any_order(order: tuple[int, ...]) -> None:
    rules = ["allow run(git status *)", "ask run(git *)", "deny run(* )"]
    assert judged("git status", *[rules[at] for at in order]).by == "rule deny run(* )"
    assert judged("git status", *[rules[at] for at in order if at != 2]).by == "rule ask run(git *)"


def test_a_call_is_as_careful_as_its_most_careful_act_and_names_all_that_are() -> None:
    acts: list[Act] = [Read(path="a"), Write(path="b"), Reach(address="x.org:443"), CallTool(tool="t")]
    decision = rulebook_of(Permissions(mode="ask"), None, None).judge(acts, Whereabouts())
    assert (decision.ruling, decision.acts) == ("ask", ("write(b)", "reach(x.org:443)", "call(t)"))
    assert decision.by_mode
    denied = rulebook_of(Permissions(rules=["deny call(t)"]), None, None).judge(acts, Whereabouts())
    assert (denied.ruling, denied.acts, denied.by_mode) == ("deny", ("call(t)",), False)


def test_where_nothing_is_set_tools_do_what_they_were_given_for_and_a_shell_asks() -> None:
    book = rulebook_of(None, None, "a")
    assert book.is_empty
    for act in (Read(path="a"), Write(path="a"), Reach(address="x.org:443"), CallTool(tool="t")):
        assert book.judge([act], Whereabouts()).ruling == "allow"
    for outside in (Read(path="../a-folder-beside"), Write(path="/a"), Run(argv=("ls",)), Run(argv=())):
        assert book.judge([outside], Whereabouts()).ruling == "ask"


def test_an_agents_own_mode_beats_that_of_the_settings_and_the_rules_of_both_count() -> None:
    both = Permissions(mode="edit", rules=["deny write(keep)"]), Permissions(mode="ask", rules=["allow write(mine)"])
    book = rulebook_of(*both, "a")
    assert book.mode == "ask"
    found = [book.judge([Write(path=path)], Whereabouts()).ruling for path in ("keep", "mine", "other")]
    assert found == ["deny", "allow", "ask"]
    assert rulebook_of(Permissions(mode="edit"), Permissions(rules=["deny call(x)"]), "a").mode == "edit"
    assert rulebook_of(None, Permissions(rules=["deny call(x)"]), "a").mode == "ask"


def test_a_rule_for_an_agent_is_for_that_one_with_any_model() -> None:
    rule = "deny write(**) for reviewer"
    for agent, ruling in (("reviewer", "deny"), ("reviewer@openai:x", "deny"), ("coder", "ask"), (None, "ask")):
        assert judged(Write(path="a"), rule, agent=agent).ruling == ruling


def test_a_rule_on_a_tools_name_is_for_the_whole_of_it_and_an_allow_of_the_name_allows_none_of_its_acts() -> None:
    acts = [Write(path="a")]
    book = rulebook_of(Permissions(mode="edit", rules=["deny call(write_file)"]), None, None)
    assert book.judge(acts, Whereabouts(), tool="write_file").by == "rule deny call(write_file)"
    book = rulebook_of(Permissions(mode="ask", rules=["allow call(write_file)"]), None, None)
    assert book.judge(acts, Whereabouts(), tool="write_file").ruling == "ask"


def test_a_tool_of_a_server_is_denied_by_the_name_that_the_model_calls_it_by_too() -> None:
    act = CallTool(server="shop", tool="refund")
    for rule in ("deny call(shop_refund)", "deny call(*)", "deny call(shop/*)", "deny call(*/refund)"):
        assert judged(act, rule).ruling == "deny"
    assert judged(act, "allow call(*)").ruling == "ask"
    assert judged(act, "allow call(shop_refund)").ruling == "ask"


def test_an_ask_where_no_person_is_there_is_a_deny_that_says_so() -> None:
    decision = judged("rm x", mode="unattended")
    assert decision.ruling == "deny"
    assert decision.refusal == (
        "Denied: run(rm x): no person is there to be asked, and no rule allows it. "
        "Go on without it, or do it in a way that is allowed."
    )
    assert judged("git push", "ask run(git push *)", mode="unattended").by == "rule ask run(git push *)"


def test_a_decision_has_words_for_a_person_and_for_the_model() -> None:
    asked = judged("git diff --output=x", "allow run(git diff *)")
    assert asked.question == (
        "Allow run(git diff --output=x)? It is not done unasked: `git diff --output=x` is not known to be harmless."
    )
    denied = judged("cat .env", "allow run(cat *)", "deny read(**/.env*)")
    assert denied.refusal.startswith(
        "Denied: read(.env): the rule `deny read(**/.env*)` says deny, which is about `.env`."
    )
    assert judged("ls", mode="read").refusal.startswith(
        "Denied: run(ls): no rule allows it, and the mode `read` is for reading in the root."
    )


def test_in_the_sandbox_a_program_that_nobody_read_runs_unless_it_could_get_around_a_rule() -> None:
    for line in ("make test", "make $(id)", "ls"):
        assert judged(line, mode="edit", sandboxed=True).ruling == "allow"
        assert judged(line, mode="edit").ruling == "ask"
    for rule in ("deny write(x)", "ask read(y)"):
        assert judged("make test", rule, mode="edit", sandboxed=True).why == (
            f"it might do what the rule `{rule}` is about"
        )
        assert judged("ls", rule, mode="edit", sandboxed=True).ruling == "allow"
    assert judged("make test", "deny run(sudo *)", mode="edit", sandboxed=True).ruling == "allow"
    assert judged("make $(id)", "deny run(sudo *)", mode="edit", sandboxed=True).ruling == "ask"


# --- what rules are made of ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("allow", "is no rule: write it like"),
        ("allow git status", "is no rule"),
        ("allow run(git status *", "is no rule"),
        ("alow run(ls)", "did you mean allow?"),
        ("allow rum(ls)", "did you mean run?"),
        ("deny execute(ls)", "known are run, read, write, reach, call"),
        ("allow run()", "a command is its words"),
        ("allow run('x)", "cannot be told apart"),
        ("allow run(git * --force)", "the last word"),
        ("allow run(pytest tests/*)", "a word by itself"),
        ("allow run(?)", "no allow is for a line that cannot be read"),
        ("allow run(npm *)", "of `npm` nothing is"),
        ("allow run(git push *)", "of `git push` nothing is: name the whole command"),
        ("allow run(sh)", "every program"),
        ("allow run(/bin/bash *)", "every program"),
        ("allow run(sh -c *)", "every program"),
        ("allow run(env *)", "every program"),
        ("allow run(env X=1 *)", "every program"),
        ("allow run(timeout 5 *)", "every program"),
        ("allow run(xargs *)", "every program"),
        ("allow run(sudo -n *)", "every program"),
        ("deny read()", "a path is below the root"),
        ("deny read(../x)", "a path is below the root"),
        ("deny read(~ann/x)", "a path is below the root"),
        ("allow reach()", "a host is a name"),
        ("allow reach(http://x)", "a host is a name"),
        ("allow reach(x:99999)", "99999 is no port"),
        ("allow reach(10.*)", "addresses are written as a network"),
        ("deny reach(192.168.*.*:80)", "addresses are written as a network"),
        ("allow call()", "a tool is its name"),
        ("allow call(a b)", "a tool is its name"),
        ("allow call(/x)", "a tool is its name"),
        ("allow run(" + "x" * 500 + ")", "more than 500 characters"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_quoted_and_says_what_to_write(rule: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_of(rule)
    assert rule[:80] in str(caught.value)
    assert words in str(caught.value)


def test_a_rule_is_written_as_people_write() -> None:
    for text in ("  deny   run( sudo * )  for  reviewer ", "deny run(sudo *) for reviewer"):
        rule = rule_of(text)
        assert (rule.ruling, rule.act, rule.agent) == ("deny", "run", "reviewer")
    assert judged("make test && ./run.sh", "allow run(make test)", "allow run(./run.sh)").ruling == "allow"
    assert "not known to be harmless" in judged("make test SHELL=./x", "allow run(make test)").why
    assert judged("git commit -m 'a b'", "allow run(git commit -m 'a b')").ruling == "allow"
    assert judged("git status -s", "allow run(git status)").ruling == "ask"
    assert judged("sudo systemctl status", "allow run(sudo systemctl status)").ruling == "allow"


@pytest.mark.parametrize("given", [{"rules": "allow run(ls)"}, {"examples": "x"}, {"rules": [1]}, {"mode": "yolo"}])
def test_permissions_are_lists_of_texts_and_a_mode(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="permissions"):
        Permissions(**given)  # type: ignore[arg-type]


def test_the_examples_of_the_documentation_hold() -> None:
    check_permissions(Permissions(mode="ask", rules=RULES, examples=EXAMPLES))


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("git push -> allow", "ask came out, by rule ask run(git push *): the rule `ask run(git push *)` says ask"),
        ("ls -> allow", "ask came out, by mode ask: no rule allows it"),
        ("git status", "is no example: write it like"),
        ("git status -> yes", "is no example"),
        ("-> allow", "is no example"),
    ],
)
def test_an_example_that_comes_out_otherwise_says_what_came_out(example: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_permissions(Permissions(mode="ask", rules=RULES, examples=[example]))
    assert example in str(caught.value)
    assert words in str(caught.value)


# --- where paths lead -----------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / ".env").write_text("KEY=1")
    (root / "notes").write_text("notes")
    (tmp_path / "outside").write_text("outside")
    (root / "link").symlink_to(".env")
    (root / "src/.env.local").write_text("KEY=2")  # has no other name
    (root / "alias").symlink_to("src/.env.local")
    (root / "src/out").symlink_to(tmp_path / "outside")
    (root / "src/up").symlink_to("../..")
    os.link(root / ".env", root / "hard")
    return root


DENIES_ENV = ("allow run(*)", "deny read(**/.env*)")


@pytest.mark.parametrize(
    "line",
    [
        "cat .env",
        "cat link",
        "cat alias",
        "cat hard",
        "cat .en*",
        "cat ./.en?",
        "cat < link",
        "cat src/up/root/.env",
        "cat src/../link",
        "grep -r KEY .",
        "grep -r KEY src ./",
        "cp link x",
        "cp hard x",
        "git show HEAD:link",
    ],
)
def test_a_file_that_is_denied_is_denied_by_every_name_that_leads_to_it(line: str, root: Path) -> None:
    assert judged(line, *DENIES_ENV, root=root).by == "rule deny read(**/.env*)"


def test_what_is_not_denied_is_read(root: Path) -> None:
    for line in ("cat notes", "grep -r x notes", "rg x src", "ls -la", "cat ./not*"):
        assert judged(line, *DENIES_ENV, root=root).ruling == "allow", line
    for line in ("rg -g .env x", "rg x .env"):
        assert judged(line, *DENIES_ENV, root=root).ruling == "deny", line


def test_a_folder_with_more_files_than_are_looked_through_is_asked_about(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "ENTRIES_MAX", 1)
    decision = judged("grep -r x .", "allow run(grep *)", "deny read(nothing)", root=root)
    assert (decision.ruling, decision.why) == ("ask", "more files lie there than can be looked through")
    assert judged("cat hard", *DENIES_ENV, root=root).ruling == "ask"
    assert judged("grep -r x .", "allow run(grep *)", root=root).ruling == "allow"


def test_an_allow_is_for_where_a_path_really_leads(root: Path) -> None:
    rule = "allow write(src/**)"
    for path, ruling in (
        ("src/new", "allow"),
        ("src/out", "ask"),
        ("src/up/x", "ask"),
        ("src/up/root/src/x", "allow"),
        ("SRC/new", "ask"),
        (f"{root}/src/new", "allow"),
    ):
        assert judged(Write(path=path), rule, root=root).ruling == ruling, path
    assert judged(Read(path="src/out"), mode="ask", root=root).ruling == "ask"
    assert judged(Read(path="/etc/hosts"), "allow read(/etc/hosts)", root=root).ruling == "allow"
    assert judged(Read(path="/etc/passwd"), "allow read(etc/**)", root=root).ruling == "ask"


def test_a_program_does_not_write_to_a_file_with_several_names_unasked(root: Path) -> None:
    assert "several names" in judged("echo x > hard", "allow run(echo *)", mode="edit", root=root).why
    assert judged(Write(path="hard"), mode="edit", root=root, confined=True).ruling == "allow"  # it is replaced
    assert judged("echo x > notes", "allow run(echo *)", mode="edit", root=root).ruling == "allow"


def test_what_is_no_plain_file_is_not_read_unasked(root: Path) -> None:
    os.mkfifo(root / "fifo")
    for rules in ((), ("allow read(**)",)):
        assert "no plain file" in judged(Read(path="fifo"), *rules, mode="edit", root=root).why


def test_a_tool_that_is_confined_is_told_so_and_no_person_is_asked_in_vain(root: Path) -> None:
    for path in ("../outside", "/etc/passwd", "src/out"):
        decision = judged(Read(path=path), mode="ask", root=root, confined=True)
        assert (decision.ruling, decision.by) == ("deny", "root")
    for address in ("127.0.0.1:80", "localhost:80", "metadata.google.internal:80", "x.org:22", "2130706433:80"):
        assert judged(Reach(address=address), mode="ask", confined=True) == ALLOWED, address  # it fails by itself
        assert judged(Reach(address=address), "deny reach(*)", confined=True).ruling == "deny", address
        assert judged(Reach(address=address), mode="ask").ruling == "ask", address
    named = ("allow reach(127.0.0.0/8:*)", "allow reach(localhost)", "allow reach(x.org:22)")
    for address in ("127.0.0.1:8000", "localhost:80", "x.org:22"):
        assert judged(Reach(address=address), *named, confined=True).by.startswith("rule allow"), address


def test_in_a_container_paths_are_judged_by_their_names() -> None:
    assert judged("cat notes", "allow run(cat *)", root=None).ruling == "allow"
    assert judged("cat /srv/.env", *DENIES_ENV, root=None).ruling == "deny"
    assert judged("echo x > notes", "allow run(echo *)", mode="edit", root=None).ruling == "ask"
    for line in ("echo x > notes", "cd a && echo x > *.txt", "make $(id)"):
        assert judged(line, mode="edit", root=None, sandboxed=True).ruling == "allow", line
    assert judged("cd a && echo x > y", "deny write(a/y)", mode="edit", root=None, sandboxed=True).ruling == "ask"
    assert judged("echo x > a/y", "deny write(a/y)", mode="edit", root=None, sandboxed=True).ruling == "deny"
    assert judged("git status", "allow run(git status *)", root=None).why == "its settings cannot be looked at"


def test_the_floor_is_beneath_every_rule(root: Path) -> None:
    every = ("allow run(*)", "allow read(**)", "allow write(**)", "allow read(/**)", "allow write(/**)")
    (root / ".ssh").mkdir()
    (root / ".ssh/id").write_text("key")
    (root / "plain").symlink_to(".ssh/id")
    for line in ("cat .ssh/id", "cat plain", "echo x > .git/config", "echo x > holdfast.toml", "echo x > .ssh/new"):
        assert judged(line, *every, mode="edit", root=root).by == "floor", line


# --- git --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2", "4"])
def test_git_shows_nothing_of_a_repository_that_keeps_a_file_that_is_denied(root: Path, version: str) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)

    git("init", "-q")
    (root / "src/.env-of-a-name-that-goes-on").write_text("x")
    git("add", "notes", "src/out")
    git("update-index", "--index-version", version)
    for line in ("git diff", "git grep x", "git log", "git status"):
        assert judged(line, *DENIES_ENV, root=root).ruling == "allow", line
    git("add", "-f", "src")
    for line in ("git diff", "git grep x", "git log -p", "git show"):
        assert judged(line, *DENIES_ENV, root=root).by == "rule deny read(**/.env*)", line
    assert judged("git status", *DENIES_ENV, root=root).ruling == "allow"


# --- what a fresh look got around --------------------------------------------------------------------------


def test_where_a_link_and_two_dots_lead_is_for_the_link_to_say(tmp_path: Path) -> None:
    """`..` of a text and `..` of the kernel are two things: `link/../secret` is beside what the link leads to."""
    (tmp_path / "out" / "folder").mkdir(parents=True)
    (tmp_path / "out" / "secret").write_text("s")
    root = tmp_path / "root"
    (root / "hidden" / "sub").mkdir(parents=True)
    (root / "hidden" / "key").write_text("k")
    (root / "link").symlink_to("../out/folder")
    (root / "within").symlink_to("hidden/sub")
    where = Whereabouts(root=str(root))
    modes: tuple[PermissionMode, ...] = ("read", "ask", "edit", "unattended")
    for mode in modes:
        book = Rulebook(["allow run(cat *)", "allow run(echo *)"], mode)
        for line in ("cat link/../secret", "cat < link/../secret", "cat li*/../secret", "echo x > link/../made"):
            assert book.judge(acts_of(line), where).ruling != "allow", (mode, line)
    denies = Rulebook(["allow run(cat *)", "deny read(hidden/**)"], "ask")
    assert denies.judge(acts_of("cat within/../key"), where).ruling == "deny"


def test_a_program_that_only_starts_another_hides_nothing() -> None:
    book = Rulebook(["deny run(rm *)"], "edit")
    for line in ("rm x", "ionice rm x", "taskset 1 rm x", "setpriv --reuid 0 rm x", "strace rm x"):
        assert book.judge(acts_of(line), Whereabouts(sandboxed=True)).ruling == "deny", line


def test_what_cannot_be_judged_is_denied_where_something_is() -> None:
    assert Rulebook(mode="read").is_strict
    assert Rulebook(["deny read(x)"], "ask").is_strict
    assert not Rulebook(["ask read(x)"], "ask").is_strict


def test_a_name_whose_address_may_be_allowed_is_judged_on_any_port() -> None:
    """Else the tool would reach it without any person asked: it finds the address allowed."""
    confined = Whereabouts(confined=True)
    book = Rulebook(["allow reach(127.0.0.1:8000)"], "ask")
    assert book.judge([Reach(address="evil.example.org:8000")], confined).ruling == "ask"
    assert book.judge([Reach(address="evil.example.org:8001")], confined).ruling == "allow", "the tool refuses it"
