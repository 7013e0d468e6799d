"""Coding agents as tools, with stand-ins that say what the programs were recorded to say."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, AgentLimits, App, CodingProgram, ModelFacts, Permissions, Price, coding_agent
from holdfast.core.records import Cause, State
from holdfast.errors import ConfigError
from holdfast.events import CallProgress
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.base import Tool
from holdfast.tools.coding_agents.events import LINE_BYTES_MAX, Events
from holdfast.tools.coding_agents.programs import CLAUDE, KNOWN
from holdfast.tools.coding_agents.sessions import session_id
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import SyncPool
from tests.support.deaths import Mortal
from tests.support.programs import Program
from tests.support.turns import rested, running, said
from tests.support.waiting import eventually, until
from tests.tools.coded import KINDS, Caller, CodingBench
from tests.tools.coding_worker import RULES, make_app

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")

BOUND_S = 60.0
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def bench(tmp_path: Path) -> CodingBench:
    return CodingBench(tmp_path)


@pytest.fixture
def call(guard: Guard, pool: SyncPool) -> Caller:
    return Caller(guard, pool)


# --- what a run comes to -----------------------------------------------------------------------------


@kinds
async def test_a_run_ends_with_its_report_its_session_and_what_it_spent(
    call: Caller, bench: CodingBench, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_SECRET", "no")
    monkeypatch.setenv(KNOWN[kind].inherited[0], "a key of its own")
    bench.plan("success")
    returned = await call(bench.tool(kind))
    assert not returned.error
    assert returned.untrusted, "it may have read the web"
    words = ("10 tokens, 0.2500" if kind == "claude" else "10 tokens",)
    assert returned.content == f"Done: mend it\n\n[session {kind}-1, {words[0]}]"
    assert call.spent == (10, 0.25 if kind == "claude" else 0.0)
    (run,) = bench.runs
    assert run["cwd"] == str(bench.root)
    assert KNOWN[kind].inherited[0] in run["names"]
    assert "OPENAI_ORG_SECRET" not in run["names"]
    assert set(KNOWN[kind].environment) <= set(run["names"]), "no telemetry, no updates"
    progress = "".join(call.progress)
    assert f"[{kind}-1]\n" in progress
    assert "I look." in progress
    assert "→ " in progress
    kept = json.loads(call.kept[f"coding:{kind}:{kind}-1"])
    assert (kept["id"], kept["call"]) == (run["session"], "call_1")
    if KNOWN[kind].chooses_session:
        assert run["session"] == session_id(call.body(bench.tool(kind), "call_1").context)


@kinds
async def test_a_run_that_says_nothing_is_a_success_with_words_of_ours(
    call: Caller, bench: CodingBench, kind: str
) -> None:
    bench.plan("empty")
    returned = await call(bench.tool(kind))
    if kind == "codex":  # its last message was its answer: it said it before it was done
        assert returned.content.startswith("I look.")
    else:
        assert returned.content.startswith("It ended without an error and said nothing.")
    assert not returned.error
    assert call.spent[0] == 10


@kinds
async def test_an_error_is_told_in_the_programs_words(call: Caller, bench: CodingBench, kind: str) -> None:
    bench.plan("error")
    returned = await call(bench.tool(kind))
    assert returned.error
    assert not returned.unknown
    assert returned.content.startswith(f"{kind} failed: the provider says no\n\n[session {kind}-1")


@kinds
@pytest.mark.parametrize("case", ["killed", "lost"])
async def test_a_run_without_a_result_is_unknown_and_its_rerun_resumes(
    call: Caller, bench: CodingBench, kind: str, case: str
) -> None:
    bench.plan(case, "success")
    made = bench.tool(kind)
    returned = await call(made)
    assert returned.unknown
    assert returned.content.startswith(f"{kind} gave no result: no last event: what it did is not known")
    again = await call(made)
    first, second = bench.runs
    assert (first["resumes"], second["resumes"]) == (False, True)
    assert first["session"] == second["session"]
    assert second["task"].startswith("You were interrupted while you worked on the task below")
    assert second["task"].endswith("mend it")
    assert again.content.startswith("Done: You were interrupted")


@kinds
async def test_a_program_that_stays_after_its_result_is_ended_and_its_result_taken(
    call: Caller, bench: CodingBench, kind: str
) -> None:
    bench.plan("stays")
    returned = await call(bench.tool(kind, grace_s=0.05))
    assert returned.content.startswith("Done: mend it")
    assert not returned.error


async def test_a_program_that_is_late_is_ended_and_what_is_known_is_told(call: Caller, bench: CodingBench) -> None:
    bench.plan("hangs", "success")
    made = bench.tool("gemini", deadline_s=1.0)
    returned = await call(made)
    assert returned.error
    assert not returned.unknown, "it would not be run again by itself"
    assert returned.content.startswith("Timed out after 1 s; it was ended.")
    assert "[session gemini-1]" in returned.content


@kinds
async def test_a_stop_ends_the_process_group_and_a_rerun_resumes(call: Caller, bench: CodingBench, kind: str) -> None:
    bench.plan("deaf" if kind == "claude" else "hangs", "success")
    made = bench.tool(kind)
    body = call.body(made, "call_1")
    work = asyncio.create_task(body.run(json.dumps({"task": "mend it"}), call.pool.run))
    await until(bench.begun.exists)
    await until(lambda: bench.runs[0]["session"] in "".join(call.kept.values()))  # codex has to tell it first
    with Mortal(bench.runs[0]["pid"]) as program:
        body.cancel(Cause.SHUTDOWN)
        assert await work is None
        assert not body.abandoned
        assert program.dies_within(BOUND_S), "one of them ignores SIGTERM"
    assert (await call(made)).content.startswith("Done: You were interrupted")
    assert [run["resumes"] for run in bench.runs] == [False, True]


async def test_a_gigabyte_is_read_without_being_kept(call: Caller, bench: CodingBench) -> None:
    bench.plan("flood")
    returned = await call(bench.tool("claude", {"FLOOD_MEBIBYTES": "32"}))
    assert returned.content.startswith("Done: mend it")


def test_a_line_that_is_too_long_is_dropped_and_the_next_one_read() -> None:
    events = Events(CLAUDE)
    for _ in range(3):
        events.hear(b'{"x": "' + b"x" * (LINE_BYTES_MAX // 2))
    events.hear(b'"}\n')
    events.hear(b'not json\n{"type": "result", "subtype": "success", "is_error": false, ')
    events.hear('"result": "é"}'.encode())
    assert not events.last
    events.end()
    assert (events.last, events.flagged, events.unread) == (True, False, 2)


def test_lines_for_people_steer_no_terminal() -> None:
    events = Events(CLAUDE)
    block = {"type": "tool_use", "name": "Bash", "input": {"command": "\x1b]0;x\x07 \u202e rm\nls"}}
    events.hear(
        json.dumps({"type": "assistant", "message": {"content": [block, {"type": "text"}, 7]}}).encode() + b"\n"
    )
    (line,) = events.take_news().splitlines()
    assert line.startswith("→ Bash ")
    assert not {"\x1b", "\x07", "\u202e"} & set(line)


# --- sessions ----------------------------------------------------------------------------------------


@kinds
async def test_a_model_goes_on_with_a_session_by_its_name_and_pays_the_difference(
    call: Caller, bench: CodingBench, kind: str
) -> None:
    bench.plan("success")
    made = bench.tool(kind)
    await call(made, "call_1")
    await call(made, "call_2")
    third = await call(made, "call_3", session=f"{kind}-1", task="and test it")
    assert third.content.startswith("Done: and test it\n\n[session ")
    assert call.spent[0] == 10, "the figures of claude and codex are the session's"
    fourth = await call(made, "call_4", session="latest")
    assert f"[session {kind}-1," in fourth.content
    sessions = [run["session"] for run in bench.runs]
    assert sessions[2] == sessions[3] == sessions[0] != sessions[1]
    assert [run["resumes"] for run in bench.runs] == [False, False, True, True]
    wrong = await call(made, "call_5", session="s9")
    assert wrong.error
    assert f"Known: {kind}-2, {kind}-1." in wrong.content
    assert len(bench.runs) == 4


@pytest.mark.parametrize("kind", ["claude", "gemini"])
async def test_a_session_that_never_began_is_started_with_its_id_on_the_host_where_it_would_be(
    call: Caller, bench: CodingBench, kind: str
) -> None:
    """The worker was killed after the keepsake was durable, and before the program wrote anything."""
    bench.plan("success")
    made = bench.tool(kind)
    own = session_id(call.body(made, "call_1").context)
    session = {"name": f"{kind}-1", "program": kind, "id": own, "call": "call_1", "host": socket.gethostname()}
    call.kept[f"coding:{kind}:{kind}-1"] = json.dumps(session)
    returned = await call(made)
    assert not returned.error
    assert [(run["resumes"], run["session"]) for run in bench.runs] == [(True, own), (False, own)]
    call.kept[f"coding:{kind}:{kind}-1"] = json.dumps({**session, "call": "call_2", "id": "x", "host": "elsewhere"})
    returned = await call(made, "call_2")
    assert returned.error
    assert "it began on elsewhere" in returned.content
    assert len(bench.runs) == 3, "not started again"


async def test_a_thread_whose_id_was_never_known_is_not_started_again(call: Caller, bench: CodingBench) -> None:
    bench.plan("success")
    session = {"name": "codex-1", "program": "codex", "id": "", "call": "call_1", "host": "elsewhere"}
    call.kept["coding:codex:codex-1"] = json.dumps(session)
    returned = await call(bench.tool("codex"))
    assert returned.error
    assert "interrupted on elsewhere before the id of its session was known" in returned.content
    assert bench.runs == []


async def test_the_id_of_a_thread_is_kept_before_anything_else_is_heard(call: Caller, bench: CodingBench) -> None:
    bench.plan("hangs")
    body = call.body(bench.tool("codex"), "call_1")
    work = asyncio.create_task(body.run(json.dumps({"task": "mend it"}), call.pool.run))
    await until(bench.begun.exists)
    await until(lambda: bench.runs[0]["session"] in call.kept["coding:codex:codex-1"])
    body.cancel(Cause.USER)
    await work


@pytest.mark.parametrize("kind", ["claude", "gemini"])
async def test_an_id_that_is_taken_is_resumed_and_not_begun_twice(
    call: Caller, bench: CodingBench, kind: str
) -> None:
    """The database went back to before the keepsake; the program did not."""
    bench.plan("lost", "success")
    made = bench.tool(kind)
    await call(made)
    call.kept.clear()
    returned = await call(made)
    assert [run["resumes"] for run in bench.runs] == [False, False, True]
    assert returned.content.startswith("Done: You were interrupted")


async def test_two_calls_at_once_have_sessions_of_their_own_and_one_is_not_shared(
    call: Caller, bench: CodingBench
) -> None:
    bench.plan("success")
    made = bench.tool("claude")
    both = await asyncio.gather(call(made, "call_1"), call(made, "call_2"))
    assert {"claude-1", "claude-2"} == {one.content.partition("[session ")[2].partition(",")[0] for one in both}
    bench.plan("hangs")
    body = call.body(made, "call_3")
    arguments = json.dumps({"task": "mend it", "session": "claude-1"})
    work = asyncio.create_task(body.run(arguments, call.pool.run))
    await until(bench.begun.exists)
    other = await call(made, "call_4", session="claude-1")
    assert other.content.startswith("claude-1 is at work for another call")
    body.cancel(Cause.USER)
    await work


# --- permissions, and what is missing ----------------------------------------------------------------


async def test_what_it_was_denied_is_told_and_can_be_allowed_with_a_persons_word(
    call: Caller, bench: CodingBench
) -> None:
    bench.plan("denied", "success")
    made = bench.tool("claude")
    returned = await call(made)
    assert 'It was not allowed: {"tool_name":"Bash","tool_input":{"command":"npm test"}}.' in returned.content
    assert "name them in `allow`, with this session" in returned.content
    await call(made, "call_2", session="claude-1", allow=["Bash(npm test)"])
    words = bench.runs[1]["arguments"]
    at = words.index("--allowedTools")
    assert words[at + 1] == "Bash(npm test)"
    book = Rulebook(mode="edit", rules=["allow run(claude edit)"])
    judged = [
        book.judge(made.acts_of({"task": "x", **more}), made.whereabouts, "claude").ruling
        for more in ({}, {"allow": ["Bash(npm test)"]}, {"allow": ["Bash(git *)"]}, {"allow": ["WebFetch"]})
    ]
    assert judged == ["allow", "ask", "ask", "ask"]


def test_modes_and_rules_decide_whether_it_runs(bench: CodingBench) -> None:
    edit, read = bench.tool("codex"), bench.tool("codex", access="read", name="look")

    def ruling(made: Tool, mode: Any, *rules: str) -> str:
        return Rulebook(mode=mode, rules=list(rules)).judge(made.acts_of({"task": "x"}), made.whereabouts).ruling

    assert [ruling(edit, mode) for mode in ("read", "ask", "edit")] == ["deny", "ask", "ask"]
    assert ruling(read, "read") == "deny"
    assert ruling(edit, "edit", "allow run(codex edit)") == "allow"
    assert ruling(read, "edit", "allow run(codex edit)") == "ask"
    assert ruling(read, "ask", "allow run(codex read)") == "allow"
    assert ruling(edit, "ask", "allow run(codex edit)") == "ask", "it writes"
    assert ruling(edit, "edit", "allow run(codex edit)", "deny write(**)") == "deny"


async def test_access_model_and_options_are_words_of_its_command_line(call: Caller, bench: CodingBench) -> None:
    bench.plan("success")
    await call(bench.tool("codex", access="read", model="gpt-x", options=["--ignore-rules"]))
    made = bench.tool("codex", access="read")
    await call(made, "call_2", session="codex-1")
    started, resumed = (run["arguments"] for run in bench.runs)
    assert started[:6] == ["exec", "-c", 'sandbox_mode="read-only"', "-m", "gpt-x", "--ignore-rules"]
    assert resumed[:4] == ["exec", "resume", "-c", 'sandbox_mode="read-only"'], "or it would write"


async def test_a_program_that_is_missing_too_old_or_not_logged_in_says_what_to_do(
    call: Caller, bench: CodingBench, tmp_path: Path
) -> None:
    gone = coding_agent("gemini", root=bench.root, environment={"PATH": str(tmp_path)})
    assert "Install it: npm install -g @google/gemini-cli" in (await call(gone)).content
    bench.plan("version 1.9.9")
    old = await call(bench.tool("claude"))
    assert old.content.startswith(
        "claude is 1.9.9, and 2.1 or newer is needed. Install it: npm install -g @anthropic"
    )
    bench.plan("no login")
    for n, kind in enumerate(KINDS):
        told = (await call(bench.tool(kind), f"call_{n}")).content
        assert told.startswith(f"{kind} is not logged in on {socket.gethostname()}: run `{kind}"), told
    assert call.kept.keys() == {f"coding:{kind}:{kind}-1" for kind in KINDS}


def test_what_cannot_be_is_refused_when_it_is_declared(bench: CodingBench, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no coding program 'cursor' that is known: claude, codex, gemini"):
        coding_agent("cursor", root=tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        coding_agent("claude", root=tmp_path / "none")
    plain = CodingProgram(name="plain", command=("sh",), start=("{task}",), events=())
    with pytest.raises(ConfigError, match="plain takes no model"):
        coding_agent(plain, root=tmp_path, model="m")
    with pytest.raises(ConfigError, match="access is 'write'; claude has read, edit, all"):
        coding_agent("claude", root=tmp_path, access="write")  # type: ignore[arg-type]


# --- through a worker --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["claude", "codex"])
async def test_after_a_kill_of_the_worker_the_session_is_resumed_and_its_program_gone(
    store_url: str, bench: CodingBench, kind: str
) -> None:
    bench.plan("hangs", "success")
    app = make_app(store_url, bench.folder, kind)
    async with app:
        chat = await app.create("coder", "go")
        with Program("tests.tools.coding_worker", store_url, str(bench.folder), kind) as program:
            await until(bench.begun.exists)
            if kind == "codex":

                async def known() -> bool:
                    return bench.runs[0]["session"] in (await chat.snapshot()).chat.keepsakes

                await eventually(known)
            with Mortal(bench.runs[0]["pid"]) as coder:
                program.process.kill()
                program.process.wait()
                async with app.worker(poll_s=0.5):
                    assert await rested(chat) is State.IDLE
                assert coder.dies_within(BOUND_S)
        first, second = bench.runs
        assert (first["session"], False, True) == (second["session"], first["resumes"], second["resumes"])
        told = [text for role, text in said(await chat.messages()) if role == "tool"]
        assert len(told) == 1
        assert told[0].startswith("Done: You were interrupted")


async def test_a_stop_keeps_the_session_for_the_next_turn_and_what_it_does_is_seen(
    store_url: str, bench: CodingBench
) -> None:
    bench.plan("hangs", "success")
    calls = [Call(name="claude", arguments={"task": "mend it"})]
    later = [Call(name="claude", arguments={"task": "go on", "session": "latest"})]
    model = ScriptedModel(calls, later, "Mended.")
    agent = Agent("coder", model, tools=[bench.tool("claude")], permissions=Permissions(mode="edit", rules=RULES))
    async with running(store_url, agent) as (app, _):
        chat = await app.create("coder", "go")
        seen = ""
        async for update in chat.stream():
            if isinstance(update, CallProgress):
                seen += update.text
                if "→ Bash" in seen:
                    break
        with Mortal(bench.runs[0]["pid"]) as coder:
            await chat.stop()
            assert await rested(chat) is State.IDLE
            assert coder.dies_within(BOUND_S)
        await chat.send("and now?")
        assert await rested(chat) is State.IDLE
        results = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert results[0].startswith("Cancelled while it ran")
    assert results[1].startswith("Done: go on\n\n[session claude-1")
    assert bench.runs[1]["resumes"]


async def test_what_it_spends_ends_a_turn_at_its_budget(tmp_path: Path, bench: CodingBench) -> None:
    bench.plan("success")
    model = ScriptedModel([Call(name="claude", arguments={"task": "mend it"})], "Never.")
    agent = Agent(
        "coder",
        model,
        tools=[bench.tool("claude")],
        permissions=Permissions(mode="edit", rules=RULES),
        limits=AgentLimits(cost=0.2),
    )
    facts = {model.name: ModelFacts(price=Price(input=0, output=0))}
    app = App(f"sqlite:///{tmp_path / 'x.db'}", agents=[agent], models=facts)
    async with app, app.worker():
        chat = await app.create("coder", "go")
        assert await rested(chat) is State.IDLE
        snapshot = await chat.snapshot()
    assert (snapshot.chat.cause, snapshot.chat.turn_cost) == (Cause.BUDGET, 0.25)
