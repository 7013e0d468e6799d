"""An exception in what users bring keeps its traceback: in the log, with the chat, turn, call and fence that it is
about; in the journal, for operators; never before a model.
"""

import logging
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast import Agent, App, Hook, tool
from holdfast.core.journal import Traced
from holdfast.log_context import ContextFilter, bound, logger
from holdfast.models.base import Request, StreamPart
from holdfast.testing import Call, ScriptedModel
from holdfast.tracebacks import BYTES_MAX, CAUSES_MAX, FRAMES_MAX, traceback_text
from tests.support.turns import QUICK, entries, rested

KEY = "hunter2-hunter2-hunter2"


def in_the_bank() -> None:
    raise KeyError(f"no account for {KEY}")


@tool
async def pay() -> str:
    """Pay."""
    logging.getLogger("bank").warning("the bank's own line")
    try:
        in_the_bank()
    except KeyError as error:
        raise ValueError("the bank said no") from error
    return ""


@tool
def pay_slowly() -> str:
    """Pay, in a thread."""
    logging.getLogger("bank").warning("the bank's own line")
    raise ValueError("the bank said no")


class Broken:
    name, provider, context_limit = "broken", "elsewhere", None

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart]:
        in_the_bank()
        yield  # type: ignore[misc]


@tool(isolation="process", environment=("BANK_API_KEY",))
def pay_elsewhere() -> str:
    """Pay, in a process of its own."""
    return pay_with(os.environ["BANK_API_KEY"])


def pay_with(key: str, deep: int = 40) -> str:
    if deep:
        return pay_with(key, deep - 1)
    raise ValueError(f"the bank said no to {key} " + "and no, " * 2_500)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_API_KEY", KEY)


def lines_of(caplog: pytest.LogCaptureFixture, action: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if getattr(record, "action", "") == action]


async def traces(chat: Any) -> list[Traced]:
    return [entry for entry in await entries(chat) if isinstance(entry, Traced)]


@pytest.mark.parametrize("made", [pay, pay_slowly], ids=["async", "sync"])
async def test_a_tool_that_raises_keeps_its_traceback_for_operators_and_the_model_gets_words(
    store_url: str, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(ContextFilter())  # as the commands' log has it
    model = ScriptedModel([Call(name=made.name)], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[made])])
    async with app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Done."
        (kept,) = await traces(chat)
        fence = (await chat.snapshot()).chat.fence
        call = (await chat.messages())[1].calls[0]
    assert (kept.source, kept.name, kept.error, kept.turn) == ("tool", made.name, "ValueError", 1)
    assert kept.call_id == call.call_id
    assert "in pay" in kept.text
    assert "the bank said no" in kept.text
    (line,) = lines_of(caplog, "call.raised")
    about = {"chat": chat.id, "agent": "a", "turn": 1, "fence": fence, "call": call.call_id, "tool": made.name}
    assert {name: line[name] for name in about} == about
    assert line["exc_text"] == kept.text
    own = [vars(record) for record in caplog.records if record.name == "bank"]
    assert [{name: line[name] for name in about} for line in own] == [about], "and so does what the tool logs"
    for request in model.requests:
        assert not any("Traceback" in str(message) or __file__ in str(message) for message in request.messages)


async def test_the_key_that_an_exception_quotes_is_neither_in_the_journal_nor_in_the_log(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(store_url, agents=[Agent("a", ScriptedModel([Call(name="pay")], "Done."), tools=[pay])])
    async with app.worker():
        chat = await app.create("a", "go")
        await rested(chat)
        (kept,) = await traces(chat)
    assert "[BANK_API_KEY]" in kept.text
    assert KEY not in kept.text
    (line,) = lines_of(caplog, "call.raised")
    assert KEY not in logging.Formatter().format(logging.makeLogRecord(line)), "by whatever formatter it is written"


async def test_a_tool_in_a_process_of_its_own_keeps_its_traceback_bounded_and_without_secrets(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel([Call(name="pay_elsewhere")], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[pay_elsewhere])])
    async with app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Done."
        (kept,) = await traces(chat)
        (failed,) = [event for event in (await chat.why()).troubles if event.what == "tool pay_elsewhere"]
    assert (kept.source, kept.name, kept.error) == ("tool", "pay_elsewhere", "ValueError")
    assert "in pay_with" in kept.text
    assert len(kept.text.encode()) < BYTES_MAX + 200
    assert failed.call_id == kept.call_id
    (line,) = lines_of(caplog, "call.raised")
    assert line["exc_text"] == kept.text
    assert KEY not in kept.text + logging.Formatter().format(logging.makeLogRecord(line))
    for request in model.requests:
        assert not any("Traceback" in str(message) or "pay_with" in str(message) for message in request.messages)


async def test_a_hook_and_a_model_that_raise_keep_theirs(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def guard(call: Any, context: Any) -> None:
        in_the_bank()

    hooks = [Hook("before_model", guard, name="guard")]
    app = App(store_url, agents=[Agent("a", Broken(), hooks=hooks, fallbacks=[ScriptedModel("Done.")])], retry=QUICK)
    async with app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Done."
        hooked, *broken = await traces(chat)
    assert (hooked.source, hooked.name, hooked.error) == ("hook", "guard", "KeyError")
    assert {(one.source, one.name) for one in broken} == {("model", "broken")}
    assert all("in in_the_bank" in one.text and KEY not in one.text for one in (hooked, *broken))
    assert lines_of(caplog, "hook_failed")[0]["chat"] == chat.id
    (line,) = lines_of(caplog, "model.fallback")
    assert (line["chat"], line["code"]) == (chat.id, "model_broke")
    assert "in in_the_bank" in line["exc_text"]


async def test_a_closed_guard_that_raises_fails_the_turn_and_its_trace_is_in_the_same_commit(store_url: str) -> None:
    async def guard(request: Any, context: Any) -> None:
        in_the_bank()

    agent = Agent("a", ScriptedModel("Never."), hooks=[Hook("before_model", guard, fails="closed")])
    app = App(store_url, agents=[agent])
    async with app.worker():
        chat = await app.create("a", "go")
        await rested(chat)
        told = [type(entry).__name__ for entry in await entries(chat)]
    assert told[-3:] == ["Traced", "TurnEnded", "ChatFailed"]


def test_a_traceback_is_bounded_in_frames_causes_and_bytes() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("at the bottom")

    def caught(n: int) -> ValueError:
        try:
            deep(n)
        except ValueError as error:
            return error
        raise AssertionError

    text = traceback_text(caught(300))
    assert text.count(", line ") <= FRAMES_MAX + 1
    assert text.endswith("ValueError: at the bottom")
    error = caught(0)
    for _ in range(50):
        after = caught(0)
        after.__cause__ = error
        error = after
    assert traceback_text(error).count("Traceback") == CAUSES_MAX
    huge = traceback_text(ValueError("x" * 1_000_000))
    assert len(huge.encode()) <= BYTES_MAX + 100


def test_an_exception_that_cannot_be_told_is_named() -> None:
    class Nasty(Exception):
        @property
        def __cause__(self) -> BaseException:
            raise RuntimeError("not even this")

        @__cause__.setter
        def __cause__(self, value: object) -> None:
            pass

    assert traceback_text(Nasty()).startswith("Nasty (its traceback cannot be told")


def test_what_is_bound_is_on_each_line_and_a_lines_own_field_stays(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("holdfast.kelp")
    with bound(lambda: {"chat": "chat_1", "turn": 2}), bound(lambda: {"call": "call_1"}):
        log.warning("inside")
        log.warning("its own", extra={"turn": 7})
    log.warning("outside")
    told = [tuple(vars(record).get(name) for name in ("chat", "turn", "call")) for record in caplog.records]
    assert told == [("chat_1", 2, "call_1"), ("chat_1", 7, "call_1"), (None, None, None)]
