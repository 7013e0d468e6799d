"""`holdfast run` at a terminal: a real pseudo-terminal, real keys."""

import io
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.terminal.live_screen import LiveTerminal
from tests.cli.conftest import APP, CTRL_C, CTRL_D, CTRL_Z, Desk, Terminal

Opened = Callable[..., Terminal]


def last(desk: Desk) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(desk.run("chats", "show", "last", "--app", APP, "--json").out)
    return found


def test_markdown_is_drawn_and_tools_are_shown_with_the_time_they_took(terminal: Opened) -> None:
    at = terminal("run", "2 and 3?", "--app", APP, "--agent", "adds")
    at.sees("Let me add.")
    at.sees("✓")
    at.sees_like(r"add\(a=2, b=3\)  \d+\.\d s")
    at.sees("The sum")
    assert at.ends() == 0
    assert "**five**" not in at.seen.getvalue()
    assert "# The sum" not in at.seen.getvalue()


def test_what_a_running_tool_says_is_shown_while_it_runs(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "go", "--app", APP, "--agent", "gated")
    at.sees("wait_at_the_gate()")
    at.sees("at the gate")
    desk.open_the_gate()
    at.sees("You said: go")
    assert at.ends() == 0


def test_an_approval_is_asked_for_and_given(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "pay", "--app", APP, "--agent", "pays")
    at.sees("pay(amount=5)")
    at.sees("Allow it?")
    at.types("y")
    at.sees("paid 5")
    assert at.ends() == 0


def test_an_approval_is_denied_with_words_that_reach_the_model(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "pay", "--app", APP, "--agent", "pays")
    at.sees("Allow it?")
    at.types("use the test account")
    at.sees("denied")
    assert at.ends() == 0
    results = [
        part for message in last(desk)["messages"] for part in message["parts"] if part["kind"] == "tool_result"
    ]
    assert "use the test account" in results[0]["content"]
    assert results[0]["synthetic"] == "denied"


def test_an_approval_that_is_left_open_exits_with_4(terminal: Opened) -> None:
    at = terminal("run", "pay", "--app", APP, "--agent", "pays")
    at.sees("Allow it?")
    at.presses(CTRL_D)
    assert at.ends() == 4


def test_a_prompt_goes_away_when_somebody_else_answers(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "pay", "--app", APP, "--agent", "pays")
    at.sees("Allow it?")
    assert desk.run("chats", "approve", "last", "--app", APP).code == 0
    at.sees("paid 5")
    assert at.ends() == 0


def test_a_question_is_answered_at_the_terminal(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "help me", "--app", APP, "--agent", "asks")
    at.sees("Which colour?")
    at.types("blue")
    at.sees("Thank you.")
    assert at.ends() == 0
    assert "blue" in json.dumps(last(desk)["messages"])


def test_ctrl_c_stops_the_turn_and_keeps_what_was_said(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "talk", "--app", APP, "--agent", "talks")
    at.sees("and on and on")
    at.presses(CTRL_C)
    at.sees("stopped")
    assert at.ends() == 3
    chat = last(desk)
    assert (chat["state"], chat["cause"]) == ("idle", "user")
    assert chat["messages"][-1]["parts"][0]["text"].startswith("and on and on")
    assert chat["messages"][-1]["stopped"] == "user"


def test_ctrl_c_at_a_question_stops_the_turn(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "pay", "--app", APP, "--agent", "pays")
    at.sees("Allow it?")
    at.presses(CTRL_C)
    assert at.ends() == 3
    assert last(desk)["cause"] == "user"


def test_ctrl_c_twice_leaves_at_once_with_the_cursor_shown(terminal: Opened) -> None:
    at = terminal("run", "hang", "--app", "tests.cli.patient:app", "--agent", "hangs")
    at.sees("hang()")
    at.presses(CTRL_C)
    at.sees("once more leaves at once")
    at.presses(CTRL_C)
    assert at.ends() == 130
    assert at.seen.getvalue().rindex("\x1b[?25h") > at.seen.getvalue().rindex("\x1b[?25l")


def test_a_tool_that_hears_nothing_holds_up_neither_the_stop_nor_the_exit(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "hang", "--app", APP, "--agent", "hangs")
    at.sees("hang()")
    at.presses(CTRL_C)
    assert at.ends() == 3
    assert last(desk)["state"] == "idle"


def test_nothing_that_a_model_says_reaches_the_terminal_as_a_command(terminal: Opened) -> None:
    at = terminal("run", "hello", "--app", APP, "--agent", "evil")
    at.sees("before ")
    assert at.ends() == 0
    assert "\x1b]" not in at.seen.getvalue(), "no title of the window, and no link that hides where it leads"
    assert "\x1b[2J" not in at.seen.getvalue()
    assert "https://evil.example/" in at.seen.getvalue()


def test_a_chat_is_deleted_only_if_this_very_one_is_meant(desk: Desk, terminal: Opened) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    chat_id = last(desk)["id"]
    for keys, code in (("\x03", 1), ("n\r", 1), ("y\r", 0)):
        assert last(desk)["id"] == chat_id
        at = terminal("chats", "delete", "last")
        at.sees(f"Delete {chat_id} (echo) for good?")
        at.presses(keys)
        assert at.ends() == code
    assert desk.run("chats", "list").out == ""


@pytest.fixture
def shell(desk: Desk) -> Iterator[Terminal]:
    """A shell with job control, which a session's first process does not have without one."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    desk.environ |= {"PS1": "ready$ ", "HISTFILE": ""}
    at = Terminal(["bash", "--norc", "-i"], desk.folder, desk.environ, 100)
    with closing(at):
        at.sees("ready$ ")
        yield at


def cursor_is_shown(at: Terminal) -> bool:
    seen = at.seen.getvalue()
    return seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")


def test_ctrl_z_gives_the_shell_its_cursor_and_fg_goes_on(desk: Desk, shell: Terminal) -> None:
    shell.types(shlex.join(desk.command("run", "talk", "--app", APP, "--agent", "talks")))
    shell.sees("and on and on")
    shell.presses(CTRL_Z)
    shell.sees("Stopped")
    shell.sees("ready$ ")
    assert cursor_is_shown(shell)
    shell.types("fg")
    shell.sees("\x1b[?25l")
    shell.sees("and on and on")
    shell.presses(CTRL_C)
    shell.sees("stopped")
    shell.sees("ready$ ")
    assert cursor_is_shown(shell)
    assert last(desk)["cause"] == "user"


@pytest.mark.parametrize(
    ("command", "sees", "then"), [(("chat",), "/help", CTRL_D), (("run", "pay"), "Allow it?", CTRL_D)]
)
def test_ctrl_z_works_where_something_is_typed(
    desk: Desk, shell: Terminal, command: tuple[str, ...], sees: str, then: str
) -> None:
    shell.types(shlex.join(desk.command(*command, "--app", APP, "--agent", "pays")))
    shell.sees(sees)
    shell.presses(CTRL_Z)
    shell.sees("Stopped")
    shell.sees("ready$ ")
    shell.types("fg")
    shell.sees("> " if command == ("chat",) else "Allow it?")
    shell.presses(then)
    shell.sees("ready$ ")


async def test_what_is_printed_for_good_is_not_drawn_below_itself() -> None:
    out = io.StringIO()
    with LiveTerminal(Console(file=out, force_terminal=True, width=40, height=20)) as live:
        live.screen.text("kelp")
        live.redraw()
        live.screen.answered()
    assert out.getvalue().count("kelp") == 2, "once while it was written, and once for good"


async def test_no_line_that_is_drawn_is_padded_to_the_edge_of_the_window() -> None:
    out = io.StringIO()
    with LiveTerminal(Console(file=out, force_terminal=True, width=40, height=20)) as live:
        live.screen.text("kelp")
        live.redraw()
        assert out.getvalue().endswith("kelp")
