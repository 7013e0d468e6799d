"""Nobody allows what they cannot see: what is shown of a call, and when a plain yes is taken."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.app import App
from holdfast.cli.terminal.approval import ApprovalView, Document
from holdfast.cli.terminal.questions import answer, prompt_of, view_of
from holdfast.safe_text import revealed
from holdfast.store.open_calls import OpenCallRecord
from tests.cli.conftest import APP, CTRL_D, Desk, Terminal
from tests.cli.desk import SCRIPT
from tests.support.chats import history, texts
from tests.support.kept import PAY, asking

Opened = Callable[..., Terminal]


def asked(arguments: object, *, whole: bool = True) -> OpenCallRecord:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return OpenCallRecord(
        chat_id="chat_1", agent="a", call_id="call_1", name="shell", kind="approval", question="Run it?",
        arguments=text, whole=whole, digest="d", expires_at=None,
    )  # fmt: skip


def shown_by_and_by(view: ApprovalView) -> str:
    pages = [view.opening()]
    while view.hides:
        pages.append(view.more())
    return "\n".join(pages)


def test_a_short_call_is_told_in_one_line_and_hides_nothing() -> None:
    view = ApprovalView(asked({"command": "ls -l", "n": 3}))
    assert view.opening() == "shell(command='ls -l', n=3)\nRun it?"
    assert not view.hides


def test_a_long_call_shows_head_and_tail_and_says_how_much_is_hidden_until_all_was_shown() -> None:
    view = ApprovalView(asked({"command": SCRIPT}), columns=80, rows=30)
    first = view.opening()
    assert "echo 0 of many" in first
    assert "echo 99 more" in first
    assert "PAYLOAD" not in first
    assert re.search(r"… 18\d lines, [\d,]+ characters hidden …", first)
    assert view.hides
    assert "v shows them" in view.refusal()
    rest = shown_by_and_by(view)
    assert "PAYLOAD" in rest
    for line in SCRIPT.splitlines():
        assert line in first + rest


def test_the_name_of_an_argument_is_no_hiding_place() -> None:
    view = ApprovalView(asked({"command": "x" * 200, "harmless\nPAYLOAD": "y"}))
    assert "harmless\\nPAYLOAD: y" in shown_by_and_by(view)


def test_one_very_long_line_is_no_hiding_place() -> None:
    view = ApprovalView(asked({"command": "true " + "x" * 50_000 + " PAYLOAD " + "y" * 50_000}), columns=80, rows=30)
    assert view.hides
    assert "PAYLOAD" not in view.opening()
    assert "PAYLOAD" in shown_by_and_by(view).replace("\n", "")


@pytest.mark.parametrize(
    "hidden", ["\x1b[8m", "\u202e", "\u200b", "\u2066", "\x9b", "\r", "\u3164", "\U000e0041", "\u2028"]
)
def test_what_could_not_be_seen_is_shown_as_an_escape_and_counted(hidden: str) -> None:
    for command in (f"ls {hidden}rm", f"ls {hidden}rm\nls"):
        shown = "\n".join(Document(asked({"command": command})).all_lines)
        assert hidden not in shown
        assert re.search(r"\\(x|u|U|r)", shown)
        assert "(1 character that could not be seen: shown as escapes)" in shown


def test_gaps_and_blank_lines_push_nothing_out_of_sight() -> None:
    view = ApprovalView(asked({"command": "ls" + " " * 5_000 + "\n" * 5_000 + "PAYLOAD"}), columns=80, rows=30)
    assert not view.hides
    assert "[5000 spaces]" in view.opening()
    assert "[4999 blank lines]" in view.opening()
    assert "PAYLOAD" in view.opening()


def test_arguments_that_two_readers_could_read_in_two_ways_are_shown_as_they_are() -> None:
    shown = ApprovalView(asked('{"command": "ls", "command": "rm -rf ."}')).opening()
    assert '{"command": "ls", "command": "rm -rf ."}' in shown
    assert "not json" in ApprovalView(asked("not json")).opening()
    assert ApprovalView(asked("[" * 5_000 + "]" * 5_000)).opening()


def test_an_excerpt_is_never_taken_for_the_whole() -> None:
    view = ApprovalView(asked({"command": "ls"}, whole=False))
    assert view.hides
    assert "excerpt" in view.opening()
    assert "only an excerpt" in view.refusal()


@given(st.text(st.characters(codec=None), max_size=200))
def test_nothing_invisible_is_left_and_nothing_visible_is_lost(text: str) -> None:
    shown = "".join(revealed(text).lines)
    assert all(char.isprintable() for char in shown)
    seen = [char for char in text if char not in " \n\t\\[]" and not revealed(char).escapes]
    left = iter(shown)
    assert all(any(char == other for other in left) for char in seen), "in order"


def test_a_plain_yes_is_refused_while_something_is_hidden(desk: Desk, terminal: Opened) -> None:
    at = terminal("run", "go", "--app", APP, "--agent", "runs")
    at.sees("characters hidden")
    at.sees("v shows the rest")
    at.types("y")
    at.sees("not allowed yet")
    at.sees("v shows the rest")
    for _ in range(20):
        at.types("v")
        if "that was all of it" in at.sees_one_of("more …", "that was all of it"):
            break
    at.sees("Allow it? [y/n")
    at.types("y")
    at.sees(f"ran {len(SCRIPT)} characters")
    assert at.ends() == 0
    assert "PAYLOAD" in at.seen.getvalue()


def test_a_plain_yes_is_refused_in_a_conversation_too(desk: Desk, terminal: Opened) -> None:
    at = terminal("chat", "--app", APP, "--agent", "runs")
    at.types("go")
    at.sees("characters hidden")
    at.sees("v shows the rest")
    at.types("y")
    at.sees("not allowed yet")
    for _ in range(20):
        at.types("v")
        if "that was all of it" in at.sees_one_of("more …", "that was all of it"):
            break
    at.sees("allow it? y/n")
    at.types("y")
    at.sees(f"ran {len(SCRIPT)} characters")
    at.presses(CTRL_D)
    assert at.ends() == 0


def test_a_command_allows_a_long_call_only_by_the_digest_of_what_was_shown(desk: Desk) -> None:
    waits = desk.run("run", "go", "--app", APP, "--agent", "runs")
    assert waits.code == 4
    assert "PAYLOAD" not in waits.err
    assert "holdfast chats show chat_" in waits.err
    refused = desk.run("chats", "approve", "last", "--app", APP)
    assert refused.code == 2
    command = re.search(r"`holdfast (chats show \S+ --call \S+ --app \S+)`", refused.err)
    assert command is not None
    assert command.group(1) in desk.run("chats", "show", "last", "--app", APP).out
    whole = desk.run(*command.group(1).split())
    assert all(line in whole.out for line in SCRIPT.splitlines())
    approve = next(line for line in whole.out.splitlines() if line.startswith("holdfast chats approve"))
    wrong = desk.run(*approve.split()[1:-1], "0" * 20)
    assert (wrong.code, "has other arguments" in wrong.err) == (1, True)
    assert desk.run(*approve.split()[1:]).code == 0
    assert json.loads(desk.run("chats", "show", "last", "--json").out)["asked"] == []


def test_any_call_of_the_history_is_shown_whole(desk: Desk) -> None:
    assert desk.run("run", "2 and 3?", "--app", APP, "--agent", "adds").code == 0
    shown = json.loads(desk.run("chats", "show", "last", "--json").out)
    call_id = next(part["call_id"] for message in shown["messages"] for part in message["parts"] if "call_id" in part)
    assert desk.run("chats", "show", "last", "--call", call_id).out == "add(a=2, b=3)\n\n5\n"
    assert desk.run("chats", "show", "last", "--call", "call_none").code == 2


# --- always -----------------------------------------------------------------------------------------------------


async def test_always_shows_what_would_be_kept_before_it_is_said(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/holdfast.db")
    async with app:
        chat_id, call_id = await asking(app.store, PAY)
        view = await view_of(app, await app.store.read_open_call(chat_id, call_id))
        assert view.opening().splitlines()[-1] == f"(always: {PAY})"
        assert "a for always" in prompt_of(view)
        for words in ("a", "always", " Always "):
            assert PAY in (await answer(app, view, words) or "")
        assert await app.kept_rules() == []
        assert await answer(app, view, "always chat") is None
        (rule,) = await app.kept_rules()
        assert (rule.rule, rule.chat_id, rule.made_by) == (PAY, chat_id, "terminal")


async def test_where_always_is_not_offered_it_says_so_and_other_words_are_a_denial(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/holdfast.db")
    async with app:
        chat_id, call_id = await asking(app.store)
        view = await view_of(app, await app.store.read_open_call(chat_id, call_id))
        assert "always" not in prompt_of(view) + view.opening()
        for words in ("a", "always owner"):
            assert "not offered" in (await answer(app, view, words) or "")
        assert await answer(app, view, "always use the test account") is None
        assert '"always use the test account"' in texts(await history(app.store, chat_id))[-1]
