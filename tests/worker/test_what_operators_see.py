"""Each way to fail, and what the log, `chat.why()` and the metrics say of it: each names the cause.

The rows are those of the table in docs/operating.md, "When something fails".
"""

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Agent, App, Hook, McpServer, ModelDeadlines, Veto, diagnostics, tool
from holdfast.core.records import State
from holdfast.health.prometheus import prometheus
from holdfast.testing import Call, Fail, Finish, Hold, ScriptedModel
from tests.support.turns import QUICK, rested

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


@tool
async def raises() -> str:
    """Raise."""
    raise ValueError("off the rock")


@tool(deadline_s=0.2)
async def hangs() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return ""


@tool(isolation="process")
def killed() -> str:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


async def deny(call: Any, context: Any) -> Veto:
    return Veto(reason="not on Sundays")


async def loops(request: Any, context: Any) -> None:
    await asyncio.Event().wait()


def calling(made: Any, **more: Any) -> Agent:
    return Agent("a", ScriptedModel([Call(name=made.name)], "Done."), tools=[made], **more)


def refusing(status: int, words: str) -> Agent:
    return Agent("a", ScriptedModel([Fail(status=status, message=words)], name="m"))


SLOW = ModelDeadlines(first_byte_s=0.2, silence_s=0.2)
AWAY = McpServer(name="files", command="/no/such/program", connect_s=2.0)
# By the row's name: the agent; the action of the log line, and words in it; words of `why`; a figure that counted it.
CASES: dict[str, tuple[Callable[[], Agent], str, str, str, str]] = {
    "a tool raises": (lambda: calling(raises), "call.raised", "off the rock", "off the rock", 'outcome="raised"'),
    "a tool hangs": (lambda: calling(hangs), "call.timed_out", "Timed out", "Timed out", 'outcome="timed_out"'),
    "a tool is killed": (lambda: calling(killed), "call.unknown", "SIGKILL", "SIGKILL", 'outcome="unknown"'),
    "a tool is denied": (
        lambda: calling(pay, hooks=[Hook("before_tool", deny)]),
        "call.denied", "not on Sundays", "not on Sundays", 'outcome="denied"',
    ),
    "a model refuses the key": (
        lambda: refusing(401, "no such key"), "turn.failed", "no such key", "no such key", 'cause="authentication"',
    ),
    "a model is out of credit": (
        lambda: refusing(402, "pay first"), "turn.failed", "pay first", "pay first", 'cause="payment"',
    ),
    "a model refuses to answer": (
        lambda: Agent("a", ScriptedModel(["I will not.", Finish(reason="refused")], name="m")),
        "model.unfinished", "filter of its provider", "filter of its provider", 'finish="refused"',
    ),
    "a model stalls": (
        lambda: Agent("a", ScriptedModel([Hold(name="h")], name="m"), deadlines=SLOW),
        "turn.failed", "first_byte_s", "first_byte_s", 'cause="timeout"',
    ),
    "a hook loops": (
        lambda: Agent(
            "a", ScriptedModel("No."), hooks=[Hook("before_model", loops, deadline_s=0.2, fails="closed", name="g")]
        ),
        "turn.failed", "hook g gave no answer", "hook g gave no answer", 'cause="hook_failed"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
async def test_the_log_why_and_the_metrics_name_the_cause(
    store_url: str, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, action, words, why, figure = CASES[case]
    caplog.set_level(logging.INFO, logger="holdfast")
    async with App(store_url, agents=[made()], retry=QUICK) as app, app.worker():
        chat = await app.create("a", "go")
        await rested(chat)
        found = await chat.why()
        told = prometheus(diagnostics(detailed=True)).decode()
    lines = [vars(record) for record in caplog.records if getattr(record, "action", "") == action]
    assert len(lines) == 1
    assert words in f"{lines[0].get('error', '')} {lines[0].get('exc_text', '')}"
    assert lines[0]["chat"] == chat.id
    said = " ".join([found.words, *(trouble.error for trouble in found.troubles)])
    assert why in said
    assert re.search(
        rf"^holdfast_(turns|calls|steps)_total\{{[^}}]*{re.escape(figure)}[^}}]*\}} 1\.0$", told, re.MULTILINE
    )


async def test_what_a_person_denies_is_named_by_log_why_and_metrics(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    asking = replace(pay, needs_approval=True)
    async with App(store_url, agents=[calling(asking)]) as app, app.worker():
        chat = await app.create("a", "go")
        await rested(chat)
        (call,) = await chat.open_calls()
        await call.deny("not today", by="ada")
        while await chat.state() is not State.IDLE:
            await rested(chat)
        found = await chat.why()
        told = prometheus(diagnostics(detailed=True)).decode()
    (line,) = [vars(record) for record in caplog.records if getattr(record, "action", "") == "call.denied"]
    assert (line["chat"], line["call"], line["by"]) == (chat.id, call.id, "ada")
    assert any("not today" in trouble.error for trouble in found.troubles)
    assert re.search(r'^holdfast_calls_total\{[^}]*outcome="denied"[^}]*\} 1\.0$', told, re.MULTILINE)


async def test_a_hook_that_loops_and_may_is_named_by_log_why_and_metrics(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Hook("before_tool", loops, deadline_s=0.05, name="g")
    async with App(store_url, agents=[calling(pay, hooks=[hook])]) as app, app.worker():
        chat = await app.create("a", "go")
        await rested(chat)
        found = await chat.why()
        told = prometheus(diagnostics(detailed=True)).decode()
    (line,) = [vars(record) for record in caplog.records if getattr(record, "action", "") == "hook_hung"]
    assert (line["hook"], line["chat"]) == ("hook g", chat.id)
    (trouble,) = found.troubles
    assert (trouble.what, trouble.error) == ("hook g", "TimeoutError: hook g gave no answer within 0.05 s")
    assert re.search(r"^holdfast_worker_hooks_failed_total\{[^}]*\} 1\.0$", told, re.MULTILINE)
    assert 'holdfast_reason{reason="hooks_suspended"} 1.0' in told


async def test_a_tool_server_that_is_missing_is_named_by_log_why_and_health(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel([Call(name=f"{AWAY.prefix}read")], "Done.")
    async with App(store_url, agents=[Agent("a", model, tools=[AWAY])]) as app, app.worker():
        chat = await app.create("a", "go")
        await rested(chat)
        found = await chat.why()
        told = prometheus(diagnostics(detailed=True)).decode()
    lines = [vars(record) for record in caplog.records if getattr(record, "action", "") == "mcp_failed"]
    assert lines
    assert any("MCP server 'files'" in trouble.error for trouble in found.troubles)
    assert 'holdfast_reason{reason="mcp_server_away"} 1.0' in told


def test_the_table_of_the_page_has_these_rows() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## When something fails")[2].partition("\n## ")[0]
    rows = {row.split("|")[1].strip(): row for row in page.splitlines() if row.startswith("| a ")}
    assert set(CASES) <= set(rows)
    for name, (_, action, _, _, figure) in CASES.items():
        assert f"`{action}`" in rows[name]
        assert f"`{figure}`" in rows[name]
