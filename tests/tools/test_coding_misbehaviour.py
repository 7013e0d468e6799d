"""Coding programs that do what they should not: figures that cannot be, words that sound like an error, events that
are no text, more than one result, more than anybody can read. And models that ask for more than they may.
"""

import asyncio
import json
import shutil
import socket
from typing import Any

import pytest

from holdfast import CodingProgram, EventRule, coding_agent
from holdfast.core.budgets import BudgetLeft
from holdfast.tools.coding_agents.events import TEXT_CHARS_MAX, Events
from holdfast.tools.coding_agents.programs import CLAUDE, CODEX, GEMINI
from holdfast.tools.coding_agents.sessions import session_id
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import SyncPool
from tests.support.waiting import until
from tests.tools.coded import KINDS, Caller, CodingBench, speaker, times_spoken

BOUND_S = 60.0
NO_SESSION = "No conversation found with session ID: 7"


@pytest.fixture
def bench(tmp_path: Any) -> CodingBench:
    return CodingBench(tmp_path)


@pytest.fixture
def call(guard: Guard, pool: SyncPool) -> Caller:
    return Caller(guard, pool)


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def result(text: str = "Done.", **more: Any) -> dict[str, Any]:
    figures = {"total_cost_usd": 0.25, "modelUsage": {"m": {"inputTokens": 7, "outputTokens": 3}}}
    return {"type": "result", "subtype": "success", "is_error": False, "result": text, **figures, **more}


# --- words that are not what they sound like ----------------------------------------------------------


async def test_an_answer_that_quotes_an_error_is_an_answer(call: Caller, bench: CodingBench) -> None:
    """It was asked about a log, say. Neither is its work done again, nor is its session given up."""
    quoted = "The log says: Session ID 7 is already in use."
    made = speaker(bench, CLAUDE, lines(result(quoted)), lines(result(f"And: {NO_SESSION}")))
    assert (await call(made, "call_1")).content.startswith(quoted)
    assert times_spoken(bench) == 1
    goes_on = await call(made, "call_2", session="latest")
    assert not goes_on.error
    assert goes_on.content.startswith(f"And: {NO_SESSION}")
    assert times_spoken(bench) == 2


async def test_an_error_that_quotes_another_in_its_answer_is_not_that_one(call: Caller, bench: CodingBench) -> None:
    flagged = result(f"I read that {NO_SESSION}", is_error=True)
    made = speaker(bench, CLAUDE, lines(result()), lines(flagged))
    await call(made, "call_1")
    told = await call(made, "call_2", session="latest")
    assert told.content.startswith("claude failed: I read that No conversation")


# --- sessions that are gone ---------------------------------------------------------------------------


def kept(call: Caller, made: Any, **more: Any) -> None:
    own = session_id(call.body(made, "call_1").context)
    session = {"name": "claude-1", "program": "claude", "id": own, "call": "call_1", "host": socket.gethostname()}
    call.kept["coding:claude:claude-1"] = json.dumps({**session, **more})


async def test_a_session_that_was_to_go_on_and_is_gone_is_not_begun_anew(call: Caller, bench: CodingBench) -> None:
    """Its worker was lost, too: what it knew is nowhere, and a new one would work without it."""
    bench.plan("success")
    made = bench.tool("claude")
    kept(call, made)
    returned = await call(made, "call_1", session="claude-1")
    assert returned.error
    assert "It was not started again." in returned.content
    assert [run["resumes"] for run in bench.runs] == [True]


async def test_a_session_that_has_acted_and_is_gone_is_not_begun_anew(call: Caller, bench: CodingBench) -> None:
    """A host that comes back under its name, without the files in its home folder."""
    bench.plan("lost", "success")
    made = bench.tool("claude")
    assert (await call(made)).unknown
    shutil.rmtree(bench.folder / "sessions")
    returned = await call(made)
    assert returned.error
    assert "It was not started again." in returned.content
    assert [run["resumes"] for run in bench.runs] == [False, True]


# --- events that are no text --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b"caf\xe9 \xff", "caf\ufffd \ufffd"),
        (rb"cut \ud83d here", "cut \ufffd here"),
        (rb"\ude00 and \\ud83d and \ud83d\ude00", "\ufffd and \\ud83d and \U0001f600"),
        (rb"a \u0000 b", "a \x00 b"),
    ],
)
def test_a_result_that_is_not_quite_text_is_read_as_near_as_can_be(raw: bytes, read: str) -> None:
    """Programs cut what they quote without a look at characters. A result that is lost would be asked for again."""
    events = Events(CLAUDE)
    events.hear(json.dumps(result("HERE")).encode().replace(b"HERE", raw) + b"\n")
    assert (events.last, events.unread) == (True, 0)
    assert events.text == read


def test_an_id_that_is_none_is_not_taken() -> None:
    events = Events(CODEX)
    for wrong in ("a\nb", "a\x00", "x" * 201, "\x1b[2J", "two words", "-o/tmp/x", {"id": 7}):
        events.hear(lines({"type": "thread.started", "thread_id": wrong}))
    assert (events.session, events.began) == ("", True)
    events.hear(lines({"type": "thread.started", "thread_id": "0199-ab_c.d"}))
    assert events.session == "0199-ab_c.d"


# --- figures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"total_cost_usd": 1e308, "modelUsage": {"a": {"inputTokens": 1e308}, "b": {"inputTokens": 1e308}}},
        {"total_cost_usd": 10**30, "modelUsage": {"a": {"inputTokens": 10**30}}},
        {"total_cost_usd": -4, "modelUsage": {"a": {"inputTokens": -4}}},
        {"total_cost_usd": "4", "modelUsage": {"a": {"inputTokens": True}}},
        {"total_cost_usd": None, "modelUsage": []},
    ],
)
async def test_figures_that_cannot_be_are_not_counted_and_the_answer_is_taken(
    call: Caller, bench: CodingBench, wrong: dict[str, Any]
) -> None:
    made = speaker(bench, CLAUDE, lines(result(**wrong)), lines(result()))
    returned = await call(made)
    assert returned.content == "Done.\n\n[session speaker-1]"
    assert call.spent == (0, 0.0)
    await call(made, "call_2", session="latest")
    assert call.spent == (10, 0.25)


async def test_of_two_results_the_last_is_the_answer_and_all_is_counted(call: Caller, bench: CodingBench) -> None:
    more = {"total_cost_usd": 0.75, "modelUsage": {"m": {"inputTokens": 30}}}
    told = lines(result("First.")), lines(result("Third.", **more))
    made = speaker(bench, CLAUDE, *told, grace_s=BOUND_S)
    pause = bench.folder / "speaker" / "wait.0"
    pause.touch()
    (bench.folder / "speaker" / "more.0").write_bytes(lines(result("Second.", **more)))
    work = asyncio.create_task(call(made))
    await until(lambda: '"tokens":10' in call.kept.get("coding:speaker:speaker-1", ""))
    pause.unlink()
    assert (await work).content == "Second.\n\n[session speaker-1, 30 tokens, 0.7500]"
    assert call.spent == (30, 0.75)
    await call(made, "call_2", session="latest")
    assert call.spent == (0, 0.0), "it told what it had told before"


# --- more than anybody can read -------------------------------------------------------------------------


def test_of_a_long_answer_in_small_pieces_the_end_is_kept() -> None:
    events, piece = Events(GEMINI), "é" * 1_000
    said = lines({"type": "message", "role": "assistant", "content": piece, "delta": True})
    for _ in range(3 * TEXT_CHARS_MAX // 1_000 // 100):
        events.hear(said * 100)
        assert sum(map(len, events._said)) <= 2 * TEXT_CHARS_MAX + len(piece)
    events.hear(lines({"type": "message", "role": "assistant", "content": "The end.", "delta": True}))
    assert len(events.text) == TEXT_CHARS_MAX
    assert events.text.endswith("éThe end.")
    events.hear(lines({"type": "tool_use", "tool_name": "x"}))
    assert events.text == "", "that was not its answer"


def test_a_line_in_small_pieces_is_read_as_one() -> None:
    events = Events(CLAUDE)
    for byte in lines(result("It is all there."), result("And this.")):
        events.hear(bytes([byte]))
    assert (events.text, events.unread) == ("And this.", 0)


# --- a model that asks for more than it may -------------------------------------------------------------


@pytest.mark.parametrize(
    "allowed",
    [
        "Bash(echo 'a) Bash Read(x')",
        "Bash(echo 'a),WebFetch,Bash(echo b')",
        "Bash(echo a) Bash",
        "Bash(echo a),Bash",
        "Bash(echo $(id))",
    ],
)
def test_a_bracket_does_not_smuggle_in_another_tool(bench: CodingBench, allowed: str) -> None:
    """Claude takes a list, with commas or blanks between, and ends an element at its bracket: to a shell, the first
    of these is one harmless word.
    """
    made = bench.tool("claude")
    book = Rulebook(mode="edit", rules=["allow run(claude edit)", "allow run(echo *)"])

    def ruling(word: str) -> str:
        return book.judge(made.acts_of({"task": "x", "allow": [word]}), made.whereabouts, "claude").ruling

    assert ruling("Bash(echo 'a b')") == "allow"
    assert ruling(allowed) == "ask"


@pytest.mark.parametrize("word", ["--dangerously-skip-permissions", "-p", "", " --mcp-config=x", "\n--x"])
async def test_what_is_allowed_is_no_option_of_the_program(call: Caller, bench: CodingBench, word: str) -> None:
    bench.plan("success")
    returned = await call(bench.tool("claude"), allow=["Bash(npm test)", word])
    assert returned.error
    assert "names no tool" in returned.content
    assert bench.runs == []


async def test_each_gap_of_a_word_is_filled_and_none_in_what_it_is_filled_with(
    call: Caller, bench: CodingBench
) -> None:
    script = bench.bin / "echoes"
    script.write_text('#!/bin/sh\nprintf \'{"kind":"end","text":"%s"}\\n\' "$1"\n')
    script.chmod(0o755)
    program = CodingProgram(
        name="echoes",
        command=(str(script),),
        start=("{session}/{model}/{task}/{other}",),
        model=(),
        events=(EventRule(when={"kind": "end"}, last=True, text="text"),),
    )
    made = coding_agent(program, root=bench.root, environment={"PATH": bench.path})
    own = session_id(call.body(made, "call_1").context)
    returned = await call(made, task="say {session} and {task}")
    assert returned.content.startswith(f"{own}//say {{session}} and {{task}}/{{other}}")


async def test_a_folder_that_is_gone_is_told_so(call: Caller, bench: CodingBench) -> None:
    bench.plan("success")
    made = bench.tool("claude")
    bench.root.rmdir()
    returned = await call(made)
    assert returned.content == f"Nothing was run: the folder {bench.root} is not there any more."


# --- what is left of a budget ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (BudgetLeft(), []),
        (BudgetLeft(tokens=7), []),
        (BudgetLeft(cost=0.5), ["--max-budget-usd", "0.500000"]),
        (BudgetLeft(cost=1e-9), ["--max-budget-usd", "0.000001"]),
    ],
)
async def test_a_program_that_bounds_its_cost_is_told_what_is_left(
    call: Caller, bench: CodingBench, left: BudgetLeft, words: list[str]
) -> None:
    bench.plan("success")
    call.left = left
    assert not (await call(bench.tool("claude"))).error
    given = bench.runs[0]["arguments"]
    at = given.index("--max-budget-usd") if "--max-budget-usd" in given else len(given)
    assert given[at : at + 2] == words
    assert given.index("--") > at - bool(not words) * len(given), "before the task"
    assert not (await call(bench.tool("codex"), "call_2")).error, "which has no such option"


@pytest.mark.parametrize("left", [BudgetLeft(cost=0.0), BudgetLeft(tokens=0)])
async def test_nothing_is_run_where_nothing_is_left(call: Caller, bench: CodingBench, left: BudgetLeft) -> None:
    bench.plan("success")
    call.left = left
    for number, kind in enumerate(KINDS):
        assert (await call(bench.tool(kind), f"call_{number}")).content.startswith(
            "Nothing was run: of the budget no"
        )
    assert bench.runs == []
