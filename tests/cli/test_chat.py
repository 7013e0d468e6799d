"""`holdfast chat` at a real pseudo-terminal."""

import json
from collections.abc import Callable

import pytest

from tests.cli.conftest import ALT_ENTER, APP, CTRL_C, CTRL_D, Desk, Terminal

Opened = Callable[..., Terminal]


def said_by_the_user(desk: Desk, chat: str = "last") -> list[str]:
    shown = json.loads(desk.run("chats", "show", chat, "--app", APP, "--json").out)
    return ["".join(part["text"] for part in message["parts"]) for message in shown["messages"]
            if message["role"] == "user"]  # fmt: skip


def test_a_conversation_with_several_lines_a_fork_and_an_edit(desk: Desk, terminal: Opened) -> None:
    at = terminal("chat", "--app", APP, "--agent", "echo")
    at.sees("/help")
    at.types("hello")
    at.sees("You said: hello")
    at.presses("two" + ALT_ENTER + "lines\\\rand three\r")
    at.sees("and three")
    at.sees("You said: two")
    at.types("/fork")
    at.sees("now in chat_")
    at.types("/edit something else")
    at.sees("You said: something else")
    at.types("/new")
    at.sees("a new chat begins")
    at.types("afresh")
    at.sees("You said: afresh")
    at.types("/nonsense")
    at.sees("there is no /nonsense")
    at.types("/help")
    at.sees("/compact")
    at.presses(CTRL_D)
    assert at.ends() == 0
    newest, fork, first = [json.loads(line)["id"] for line in desk.run("chats", "list", "--json").out.splitlines()]
    assert said_by_the_user(desk, newest) == ["afresh"]
    assert said_by_the_user(desk, fork) == ["hello", "something else"]
    assert said_by_the_user(desk, first) == ["hello", "two\nlines\nand three"]
    assert "afresh" in (desk.folder / ".holdfast" / "history").read_text()


def test_one_can_type_while_it_works_queue_steer_and_stop(desk: Desk, terminal: Opened) -> None:
    at = terminal("chat", "--app", APP, "--agent", "gated")
    at.types("first")
    at.sees("at the gate")
    at.types("second")
    at.sees("queued: second")
    at.types("/queue")
    at.sees("1. second")
    at.types("/steer hurry")
    at.sees("goes into this turn, before its next step: hurry")
    desk.open_the_gate()
    at.sees("You said: hurry")
    at.sees("You said: second")
    at.types("/exit")
    assert at.ends() == 0
    assert said_by_the_user(desk) == ["first", "hurry", "second"]


def test_ctrl_c_once_stops_the_turn_and_twice_leaves(desk: Desk, terminal: Opened) -> None:
    at = terminal("chat", "--app", APP, "--agent", "talks")
    at.types("talk")
    at.sees("and on and on")
    at.presses(CTRL_C)
    at.sees("stopped")
    at.presses(CTRL_C)
    at.sees("Ctrl-C again")
    at.presses(CTRL_C)
    assert at.ends() == 130
    chat = json.loads(desk.run("chats", "show", "last", "--app", APP, "--json").out)
    assert (chat["state"], chat["cause"]) == ("idle", "user")


@pytest.mark.parametrize("first", [Terminal.interrupts, lambda at: at.presses(CTRL_C)], ids=["signal", "key"])
def test_ctrl_c_is_the_same_as_a_signal_and_as_a_key(terminal: Opened, first: Callable[[Terminal], None]) -> None:
    at = terminal("chat", "--app", APP, "--agent", "echo")
    at.sees("> ")
    first(at)
    at.sees("Ctrl-C again")
    if first is Terminal.interrupts:
        at.presses(CTRL_C)
    else:
        at.interrupts()
    assert at.ends() == 130


def test_an_approval_is_answered_on_the_line_that_one_types_on(desk: Desk, terminal: Opened) -> None:
    at = terminal("chat", "--app", APP, "--agent", "pays")
    at.types("pay")
    at.sees("allow it?")
    at.types("y")
    at.sees("paid 5")
    at.sees("You said: pay")
    at.presses(CTRL_D)
    assert at.ends() == 0
    again = terminal("chat", "--app", APP, "--chat", "last")
    again.sees("You said: pay")
    again.types("once more")
    again.sees("allow it?")
    again.types("not today")
    again.sees("denied")
    again.presses(CTRL_D)
    assert again.ends() == 0


def test_a_chat_without_anything_to_compact_says_so(desk: Desk, terminal: Opened) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0  # the turn is over, not only seen
    at = terminal("chat", "--app", APP, "--chat", "last")
    at.sees("You said: hello")
    at.types("/compact")
    at.sees("There was nothing to compact.")


def test_a_pipe_is_no_terminal(desk: Desk) -> None:
    done = desk.run("chat", "--app", APP, "--agent", "echo", given="hello")
    assert done.code == 2
    assert "needs a terminal" in done.err
