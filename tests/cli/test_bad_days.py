"""What a person meets at the terminal when something else is wrong: the database, a key, the end of a pipe."""

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Agent, App
from tests.cli.conftest import APP, Desk, Terminal
from tests.support.postgres import PostgresServer


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.timeout(120)
def test_a_database_that_goes_away_in_mid_turn_is_waited_for(desk: Desk, own_server: PostgresServer) -> None:
    url = own_server.create_database()
    asked = desk.start("run", "hello", "--app", APP, "--agent", "gated", "--database", url)
    try:
        assert asked.stderr is not None
        desk.wait_at_the_gate(asked)
        own_server.stop()
        while "waiting for it" not in (said := asked.stderr.readline()):
            assert said, "it ended"
        own_server.start()
        desk.open_the_gate()
        out, err = asked.communicate(timeout=60)
    finally:
        asked.kill()
        asked.wait()
    assert (asked.returncode, out) == (0, "You said: hello\n"), err


@pytest.mark.parametrize("command", [("run", "hello"), ("chats", "list")])
def test_who_waits_for_a_database_that_does_not_answer_is_told(desk: Desk, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        port = silent.getsockname()[1]
        waiting = desk.start(*command, "--database", f"postgresql://ann@127.0.0.1:{port}/chats")
        assert waiting.stderr is not None
        said = waiting.stderr.readline()
        waiting.kill()
        waiting.communicate()
    assert said == f"holdfast: waiting for database 'chats' at 127.0.0.1:{port}\n"


KEYED = """
from holdfast import Agent, App
app = App(agents=[Agent("keyed", "openai:gpt-5"), Agent("echo", "scripted")])
"""


async def left_behind(desk: Desk) -> str:
    """A chat that is due, of an agent whose key is not set here."""
    (desk.folder / "keyed.py").write_text(KEYED)
    (desk.folder / ".holdfast").mkdir()
    async with App(f"sqlite:///{desk.folder}/.holdfast/holdfast.db", agents=[Agent("keyed", "openai:gpt-5")]) as app:
        return (await app.create("keyed", "hello")).id


@pytest.mark.parametrize(
    ("model", "says"), [("openai:gpt-5", "set the environment variable OPENAI_API_KEY"), ("opnai:x", "did you mean")]
)
def test_a_model_that_cannot_be_used_is_said_before_a_chat_is_made(desk: Desk, model: str, says: str) -> None:
    done = desk.run("run", "hello", "--model", model)
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert desk.run("chats", "list", "--json").out == ""


def test_a_chat_whose_key_is_not_set_here_is_left_to_workers_that_have_it(desk: Desk) -> None:
    chat_id = asyncio.run(left_behind(desk))
    assert desk.run("run", "hello", "--app", "keyed:app", "--agent", "echo").code == 0
    states = [json.loads(line) for line in desk.run("chats", "list", "--json").out.splitlines()]
    assert {chat["id"]: chat["state"] for chat in states}[chat_id] == "running"


def test_a_worker_without_the_key_says_so_in_one_line(desk: Desk) -> None:
    asyncio.run(left_behind(desk))
    worker = desk.start("worker", "keyed:app")
    assert worker.stderr is not None
    said: list[str] = []
    while not said or "runner_failed" not in said[-1]:
        said.append(worker.stderr.readline())
        assert said[-1], said
    worker.send_signal(signal.SIGTERM)
    _, rest = worker.communicate(timeout=60)
    assert "OPENAI_API_KEY" in said[-1]
    assert "Traceback" not in "".join(said) + rest


@pytest.mark.parametrize(("closed", "code"), [(0, 2), (1, 0), (2, 0)])
def test_a_standard_stream_that_was_closed_is_an_empty_one(desk: Desk, closed: int, code: int) -> None:
    question = ["hello"] if closed else []
    command = desk.command("run", *question, "--app", APP, "--agent", "echo")
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}>&-', "sh", *command],
        cwd=desk.folder, env=desk.environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stdout == ("You said: hello\n" if closed == 2 else "")
    assert done.stderr == ("" if closed else "holdfast: there is nothing to say: the text is empty\n")


def test_what_the_locale_cannot_show_is_escaped(desk: Desk) -> None:
    desk.environ |= {"PYTHONIOENCODING": "ascii"}
    done = desk.run("run", "kelp \N{SQUID}", "--app", APP, "--agent", "echo")
    assert (done.code, done.out) == (0, "You said: kelp \\U0001f991\n")


def test_what_a_c_locale_cannot_show_is_escaped(desk: Desk) -> None:
    desk.environ |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = desk.run("doctor")
    assert done.code == 0, done.err
    assert done.out.startswith("\\u2713 python")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", [("run", "hello", "--app", APP, "--agent", "echo"), ("config", "show")])
def test_an_output_without_room_is_said_in_one_line(desk: Desk, command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        asked = desk.start(*command, stdout=full)
        _, err = asked.communicate(timeout=60)
    assert (asked.returncode, err) == (1, "holdfast: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("command", [("chats", "list"), ("config", "show"), ("version",)])
def test_a_reader_who_left_is_no_reason_to_complain(desk: Desk, command: tuple[str, ...]) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as pipe:
        asked = desk.start(*command, stdout=pipe)
    _, err = asked.communicate(timeout=60)
    assert (asked.returncode, err) == (0, "")


def test_a_followed_chat_cannot_write_to_the_terminal_what_it_likes(
    desk: Desk, terminal: Callable[..., Terminal]
) -> None:
    assert desk.run("run", "hello", "--app", APP, "--agent", "evil").code == 0
    tail = terminal("chats", "tail", "last", "--app", APP)
    tail.sees("after")
    assert "\x1b]0;owned" not in tail.seen.getvalue()
    assert "\x1b[2J" not in tail.seen.getvalue()


def test_who_follows_a_chat_that_nobody_drives_is_told_so_and_ends_when_nobody_reads(desk: Desk) -> None:
    (desk.folder / ".holdfast").mkdir()

    async def leave_behind() -> None:
        async with App(agents=[Agent("echo", "scripted")], home=str(desk.folder / ".holdfast")) as app:
            await app.create("echo", "nobody hears me")

    asyncio.run(leave_behind())
    tail = desk.start("chats", "tail", "last")
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline() == "> nobody hears me\n"
        assert tail.stdout.readline().startswith("no worker drives this chat now; `holdfast serve`")
        tail.stdout.close()
        assert tail.wait(30) == 0
        assert tail.stderr is not None
        assert tail.stderr.read() == ""
    finally:
        tail.kill()
        tail.wait()
        assert tail.stderr is not None
        tail.stderr.close()


def test_a_token_that_is_none_is_found(desk: Desk) -> None:
    (desk.folder / ".holdfast").mkdir(mode=0o700)
    (desk.folder / ".holdfast" / "token").write_text("")
    done = desk.run("doctor")
    assert done.code == 1
    assert "token_unreadable: .holdfast/token holds no token" in done.out


NAMED = """
from holdfast import Agent, App
app = App(agents=[Agent("ke\\x1b[2Jlp", "scripted")])
"""


def test_no_name_of_an_agent_reaches_the_terminal_as_a_command(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    (desk.folder / "named.py").write_text(NAMED)
    assert desk.run("run", "hello", "--app", "named:app").code == 0
    for command in (("chats", "show", "last"), ("chats", "list"), ("run", "x", "--app", "named:app", "--agent", "y")):
        at = terminal(*command)
        at.sees("ke[2Jlp")
        at.ends()
        assert "\x1b[2J" not in at.seen.getvalue()


def test_it_goes_by_its_name_however_it_was_started(desk: Desk) -> None:
    assert desk.run("--help").out.startswith("Usage: holdfast ")


def test_a_question_that_no_store_takes_leaves_no_chat_behind(desk: Desk) -> None:
    done = desk.run("run", "-", "--app", APP, "--agent", "echo", given="bi\0nary")
    assert (done.code, done.err) == (1, "holdfast: the question: has a NUL character at position 2; remove it\n")
    assert desk.run("chats", "list", "--json").out == ""


def test_what_is_said_to_go_on_leads_to_the_same_app_and_says_what_is_asked(desk: Desk) -> None:
    waits = desk.run("run", "pay", "--app", APP, "--agent", "pays")
    assert "pay(amount=5)" in waits.err
    assert f"approve or deny chat_{waits.err.split('chat_')[1].split()[0]} --app {APP}" in waits.err
    assert f"holdfast run --app {APP} --chat chat_" in waits.err


FAMILY = """
from holdfast import Agent, App, agent_tools
from holdfast.testing import Call, ScriptedModel
spawns = ScriptedModel([Call(name="spawn_agent", arguments={"agent": "child", "task": "help"})], after="echo")
app = App(agents=[Agent("boss", spawns, tools=agent_tools(["child"])), Agent("child", "scripted")])
"""


def test_the_last_chat_is_the_one_that_a_person_began(desk: Desk) -> None:
    (desk.folder / "family.py").write_text(FAMILY)
    desk.run("run", "go", "--app", "family:app", "--agent", "boss")
    assert {json.loads(row)["agent"] for row in desk.run("chats", "list", "--json").out.splitlines()} == {
        "boss",
        "child",
    }
    assert desk.run("chats", "show", "last").out.split()[1] == "boss"


@pytest.mark.timeout(120)
def test_a_database_that_takes_nothing_is_no_silence(desk: Desk) -> None:
    desk.environ |= {"HOLDFAST_STORE_DEADLINE_S": "3.5"}  # longer than a machine may stand still meanwhile
    asked = desk.start("run", "hello", "--app", APP, "--agent", "gated")
    try:
        assert asked.stderr is not None
        desk.wait_at_the_gate(asked)
        with closing(sqlite3.connect(desk.folder / ".holdfast" / "holdfast.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            # Other reasons may come before this one, and stay beside it.
            while not re.search("it stands still: .*store_unavailable", said := asked.stderr.readline()):
                assert said, "it ended"
        desk.open_the_gate()
        out, err = asked.communicate(timeout=60)
    finally:
        asked.kill()
        asked.communicate()
    assert (asked.returncode, out) == (0, "You said: hello\n"), err


def test_a_reader_who_leaves_early_is_no_trouble(desk: Desk) -> None:
    """`holdfast chats show last | head -1`: what it prints waits in a buffer, and then nobody is there."""
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    read, write = os.pipe()
    os.close(read)
    show = [sys.executable, "-m", "holdfast", "chats", "show", "last"]
    environ = {**desk.environ, "PYTHONUNBUFFERED": ""}  # empty is off
    with os.fdopen(write, "wb") as nobody:
        done = subprocess.run(show, cwd=desk.folder, env=environ, timeout=60, stdout=nobody, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
