"""`holdfast run --chat` without a question: what is there is followed, or done; and what is resumed is named."""

import json
import os
import signal
from collections.abc import Callable

from tests.cli.conftest import APP, Desk, Terminal


def killed_at_the_gate(desk: Desk) -> None:
    process = desk.start("run", "go", "--app", APP, "--agent", "gated")
    desk.wait_at_the_gate(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_turn_that_was_left_alone_is_driven_to_its_end_and_no_second_one_begins(desk: Desk) -> None:
    killed_at_the_gate(desk)
    desk.open_the_gate()
    done = desk.run("run", "--chat", "last", "--app", APP)
    assert (done.code, done.out) == (0, "You said: go\n"), done.err
    assert "✓ wait_at_the_gate()" in done.err
    shown = json.loads(desk.run("chats", "show", "last", "--app", APP, "--json").out)
    assert [message["role"] for message in shown["messages"]].count("user") == 1


def test_a_chat_that_rests_tells_its_last_answer_again_with_its_exit_code(desk: Desk) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    again = desk.run("run", "--chat", "last", "--app", APP)
    assert (again.code, again.out) == (0, "You said: hello\n")
    assert desk.run("run", "hello", "--app", APP, "--agent", "fails").code == 1
    failed = desk.run("run", "--chat", "last", "--app", APP)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.count("no such thing") == 1
    assert "to try again: holdfast chats retry chat_" in failed.err


def test_a_chat_that_still_waits_says_so_again_and_what_leads_on(desk: Desk) -> None:
    first = desk.run("run", "pay", "--app", APP, "--agent", "pays")
    again = desk.run("run", "--chat", "last", "--app", APP)
    assert (first.code, again.code, again.out) == (4, 4, "")
    for told in (first.err, again.err):
        assert "holdfast chats approve or deny chat_" in told
        assert f"then, to go on: holdfast run --app {APP} --chat chat_" in told


def test_what_a_chat_asks_is_shown_with_the_commands_that_answer_it_there(desk: Desk) -> None:
    assert desk.run("run", "pay", "--app", APP, "--agent", "pays").code == 4
    shown = desk.run("chats", "show", "last", "--app", APP).out.splitlines()
    approve, deny = (row.split()[1:] for row in shown if row.startswith("  holdfast chats "))
    assert (approve[1], deny[1]) == ("approve", "deny")
    assert desk.run(*approve).code == 0
    assert f"`holdfast chats show {approve[2]} --app {APP}` shows what is open" in desk.run(*deny).err


def test_without_a_chat_there_is_nothing_to_follow(desk: Desk) -> None:
    done = desk.run("run", "--app", APP, "--agent", "echo")
    assert done.code == 2
    assert "the text is empty" in done.err
    none = desk.run("run", "--app", APP, "--chat", "last")
    assert none.code == 2
    assert 'there is no chat yet: holdfast run "hello" makes one' in none.err


def test_words_in_a_pipe_are_said_to_the_chat(desk: Desk) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    done = desk.run("run", "--app", APP, "--chat", "last", given="from a pipe")
    assert (done.code, done.out) == (0, "You said: from a pipe\n")


def test_a_call_that_is_resumed_at_a_terminal_is_shown_with_its_arguments(
    desk: Desk, terminal: Callable[..., Terminal]
) -> None:
    assert desk.run("run", "pay", "--app", APP, "--agent", "pays").code == 4
    assert desk.run("chats", "approve", "last", "--app", APP).code == 0
    at = terminal("run", "and now?", "--chat", "last", "--app", APP)
    at.sees_like(r"✓[^\r\n]*pay[^\r\n]*amount=5")
    at.sees("Allow it?")  # of the second turn
    at.types("n")
    at.sees("You said: and now?")
    assert at.ends() == 0


def test_an_answer_in_a_pipe_has_no_escape_codes_whatever_the_terminal(desk: Desk) -> None:
    desk.environ |= {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    done = desk.run("run", "2 and 3?", "--app", APP, "--agent", "adds")
    assert done.code == 0
    assert "\x1b" not in done.out + done.err


def test_a_reader_that_closed_the_pipe_before_the_answer_is_no_error(desk: Desk) -> None:
    reads, writes = os.pipe()
    process = desk.start("run", "hello", "--app", APP, "--agent", "echo", stdout=writes)
    os.close(writes)
    os.close(reads)
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(30) == 0
    process.stderr.close()
