"""The plan: written whole by the model, in the journal, shown as a list."""

import io
import json
from typing import Any

import pytest
from rich.console import Console, RenderableType

from holdfast.agent import Agent
from holdfast.cli.terminal.journal_reader import Reader
from holdfast.cli.terminal.live_screen import TerminalScreen
from holdfast.cli.terminal.screen import PlainScreen, Screen
from holdfast.core.records import Replay, State
from holdfast.errors import ToolFailed
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.base import call_tool
from holdfast.tools.context import ToolContext
from holdfast.tools.plan import PlanItem, plan_of, plan_tool
from tests.support.turns import rested, running

ITEMS = [
    {"text": "Read the code", "state": "done"},
    {"text": "Write \x1b[31mthe\ntests", "state": "in_progress"},
    {"text": "Ship it"},
    {"text": "Rewrite it", "state": "dropped"},
]
LINES = ["✓ Read the code", "▶ Write", "☐ Ship it", "– Rewrite it"]


async def call(arguments: dict[str, Any]) -> str:
    async def never(work: object) -> None: ...

    return (await call_tool(plan_tool(), json.dumps(arguments), ToolContext(), never)).text


async def test_a_plan_comes_back_as_a_list_and_can_be_made_again() -> None:
    assert plan_tool().replay is Replay.PURE
    got = (await call({"items": ITEMS})).split("\n")
    assert [each[: len(line)] for each, line in zip(got, LINES, strict=True)] == LINES


@pytest.mark.parametrize(
    "items",
    [[], [{"text": "x"}] * 51, [{"text": " "}], [{"text": "x" * 301}], [{"text": "x", "state": "perhaps"}], "x"],
)
async def test_what_is_no_plan_is_refused_and_shown_as_none(items: Any) -> None:
    with pytest.raises(ToolFailed):
        await call({"items": items})
    assert plan_of("plan", json.dumps({"items": items})) is None


@pytest.mark.parametrize(
    ("name", "arguments"), [("other", '{"items":[{"text":"x"}]}'), ("plan", "{"), ("plan", "[]")]
)
def test_another_call_holds_no_plan(name: str, arguments: str) -> None:
    assert plan_of(name, arguments) is None


def test_a_plan_is_found_in_the_arguments_of_its_call() -> None:
    assert plan_of("plan", '{"items":[{"text":"x","state":"done"}]}') == [PlanItem("x", "done")]


async def test_the_terminal_shows_a_plan_as_a_list_and_nothing_that_moves_its_cursor(store_url: str) -> None:
    model = ScriptedModel([Call(name="plan", arguments={"items": ITEMS})], "Go.")
    printed: list[RenderableType] = []
    err = io.StringIO()
    async with running(store_url, Agent("planner", model, tools=[plan_tool()])) as (app, _):
        chat = await app.create("planner", "go")
        assert await rested(chat) is State.IDLE
        entries = (await app.store.read_journal(chat.id, limit=1_000)).items
    screens: list[Screen] = [PlainScreen(io.StringIO(), err), TerminalScreen(printed.append)]
    for screen in screens:
        reader = Reader(screen)
        for item in entries:
            reader.take(item)
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    for each in printed:
        console.print(each)
    assert isinstance(console.file, io.StringIO)
    for shown in (err.getvalue(), console.file.getvalue()):
        assert all(line in shown for line in LINES)
        assert "\x1b" not in shown
        assert "plan(" not in shown.replace("· plan(", "")
