"""What a model, a tool or a person wrote moves no cursor and fills no clipboard, in a pipe and at a terminal."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Agent, App, ToolContext, tool
from holdfast.cli.logs import JsonLogLines, Lines
from holdfast.safe_text import safe_json
from holdfast.testing import Call, Fail, Say, ScriptedModel
from tests.cli.conftest import APP, Desk, Done

Quick = Callable[..., Done]
# The clipboard, the title, the colour; with a one-byte CSI; what reverses text.
EVIL = "a\x1b]52;c;ZXZpbA==\x07b\x1b]0;owned\x1b\\c\x9b31md\u202ee\x7ff\rg"
CONTROLS = {"\x1b", "\x07", "\x9b", "\u202e", "\x7f", "\r", "\x08"}


@tool(replay="pure")
async def speak(context: ToolContext, words: str) -> str:
    """Speak."""
    context.progress(EVIL)
    return EVIL


def evil_chats(folder: Path) -> list[str]:
    async def work() -> list[str]:
        agents = [
            Agent(
                "speaks",
                ScriptedModel([Say(text=EVIL), Call(name="speak", arguments={"words": EVIL})], EVIL),
                tools=[speak],
            ),
            Agent("fails", ScriptedModel([Fail(status=400, message=EVIL)])),
        ]
        app = App(agents=agents, home=str(folder / ".holdfast"))
        async with app, app.worker(poll_s=0.1):
            chats = [await app.create(agent.name, EVIL) for agent in agents]
            for chat in chats:
                await chat.wait(20.0)
                await chat.rename(EVIL)
        return [chat.id for chat in chats]

    return asyncio.run(work())


def test_no_command_passes_a_control_sequence_on_to_a_pipe(quick: Quick, tmp_path: Path) -> None:
    speaks, fails = evil_chats(tmp_path)
    for command in (
        *(("chats", "tail", chat_id) for chat_id in (speaks, fails)),
        *(("chats", "show", chat_id) for chat_id in (speaks, fails)),
        ("chats", "list"),
        ("chats", "show", speaks, "--json"),
        ("chats", "tail", speaks, "--json"),
        ("chats", "list", "--json"),
        ("chats", "list", "--state", EVIL),
        ("chats", "show", EVIL),
        ("chats", "approve", speaks, "--call", EVIL),
        ("doctor",),
        ("workers",),
    ):
        done = quick(*command)
        assert not CONTROLS & set(done.out + done.err), command
    found = json.loads(quick("chats", "show", speaks, "--json").out)
    assert found["messages"][0]["parts"][0]["text"] == EVIL, "JSON has every character"


def test_an_answer_in_a_pipe_holds_no_control_sequence(desk: Desk) -> None:
    done = desk.run("run", "hello", "--app", APP, "--agent", "evil")
    assert done.code == 0
    assert not CONTROLS & set(done.out + done.err)
    assert "before" in done.out


@pytest.mark.parametrize("formatter", [Lines(), JsonLogLines()])
def test_a_log_line_is_one_line_and_obeyed_by_no_terminal(formatter: logging.Formatter) -> None:
    record = logging.makeLogRecord({"msg": f"a server said {EVIL}\n12:00:00 error made.up: no", "server": EVIL})
    line = formatter.format(record)
    assert not CONTROLS & set(line)
    assert len(line.splitlines()) == 1


def test_json_that_is_made_safe_means_the_same() -> None:
    value = {EVIL: [EVIL, "é", "kelp"]}
    text = json.dumps(value, ensure_ascii=False).encode()
    assert json.loads(safe_json(text)) == value
    assert not CONTROLS & set(safe_json(text).decode())
