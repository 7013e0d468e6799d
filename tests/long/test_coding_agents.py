"""The real Claude Code, Codex and Gemini CLI as tools, against a local provider that speaks their formats.

What each case ended as is told in one table: the program, the case, and what the call came to.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.budgets import BudgetLeft
from holdfast.core.journal import CallChanged, Noted
from holdfast.core.records import CallState, State, ToolResult
from holdfast.system import processes
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import SyncPool
from tests.clients.install import NotInstalled
from tests.long.coding_agent_worker import TASK, make_app
from tests.support.coding_programs import NAMES, coding_programs, real_agent, versions, write_call
from tests.support.coding_provider import CodingProvider, Refusal, Script, Silence, Words, coding_provider, in_turn
from tests.support.programs import Program
from tests.support.speakers import Call
from tests.support.tallies import Tell
from tests.support.turns import entries
from tests.support.waiting import eventually, until
from tests.tools.coded import Caller

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has"),
]

WAIT_S = 120.0
INTERRUPTED = "You were interrupted while you worked on the task below"
ONCE: Sequence[dict[str, Any]] = ({"task": TASK},)
programs = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    try:
        coding_programs()
    except NotInstalled as error:
        pytest.skip(f"the coding programs: {error}")


class Trial:
    """One call of a program in a chat."""

    def __init__(self, name: str, app: App, chat: Chat, provider: CodingProvider, folder: Path, url: str) -> None:
        self.name, self.app, self.chat, self.provider, self.folder = name, app, chat, provider, folder
        self.url = url

    async def rested(self) -> State:
        return await self.chat.wait(WAIT_S)

    async def at_work(self) -> int:
        """The leader of the program's process group, which waits for its provider."""
        await until(self.provider.silent.is_set, WAIT_S)
        (child,) = processes._children
        return child.pid

    async def results(self) -> list[ToolResult]:
        parts = [part for message in await self.chat.messages() for part in message.parts]
        return [part for part in parts if isinstance(part, ToolResult)]

    async def result(self) -> ToolResult:
        (found,) = await self.results()
        return found

    async def reruns(self) -> list[str]:
        told = await entries(self.chat)
        changes = [entry for entry in told if isinstance(entry, CallChanged) and entry.state is CallState.PLANNED]
        return [entry.detail or "" for entry in changes]

    async def spent(self) -> tuple[int, float]:
        told = [entry for entry in await entries(self.chat) if isinstance(entry, Noted)]
        return sum(entry.tokens for entry in told), round(sum(entry.cost for entry in told), 6)


@asynccontextmanager
async def trial(
    name: str, tmp_path: Path, script: Script, *, worker: bool = True, calls: Sequence[dict[str, Any]] = ONCE
) -> AsyncIterator[Trial]:
    (tmp_path / "store").mkdir()
    url = f"sqlite:///{tmp_path / 'store' / 'holdfast.db'}"
    with coding_provider(script) as provider:
        async with make_app(url, tmp_path, name, provider.url, calls) as app:
            chat = await app.create("lead", "go")
            made = Trial(name, app, chat, provider, tmp_path, url)
            if not worker:
                yield made
                return
            async with app.worker(poll_s=0.5):
                yield made


@pytest.fixture
def ends_as(tell: Tell) -> Callable[[str, str, str], None]:
    return lambda name, case, came_to: tell(f"{name} {versions()[name]} | {case} | {came_to}")


Ends = Callable[[str, str, str], None]


def first(text: str) -> str:
    return text.strip().partition("\n")[0][:160]


@programs
async def test_success(name: str, tmp_path: Path, ends_as: Ends) -> None:
    script = in_turn(Words("I write.", (write_call(name, tmp_path / "work"),)), Words("It is made."))
    async with trial(name, tmp_path, script) as one:
        assert await one.rested() is State.IDLE
        result, spent = await one.result(), await one.spent()
    assert (tmp_path / "work" / "made.txt").read_text() == "made\n"
    assert not result.error
    assert result.content.startswith("It is made.\n\n[session ")
    assert spent[0] >= 14
    assert bool(spent[1]) == (name == "claude")
    ends_as(name, "success", f"success: {first(result.content)} {spent[0]} tokens, {spent[1]:g}")


@programs
async def test_empty_success(name: str, tmp_path: Path, ends_as: Ends) -> None:
    async with trial(name, tmp_path, in_turn(Words())) as one:
        assert await one.rested() is State.IDLE
        result, spent = await one.result(), await one.spent()
    assert spent[0] >= 10
    assert result.error == (name == "gemini"), "it calls an empty answer an error"
    wanted = (
        "gemini failed: The model returned an empty" if name == "gemini" else "It ended without an error and said"
    )
    assert result.content.startswith(wanted)
    kind = "error" if result.error else "success with a placeholder"
    ends_as(name, "empty success", f"{kind}: {first(result.content)}")


@programs
async def test_provider_error(name: str, tmp_path: Path, ends_as: Ends) -> None:
    async with trial(name, tmp_path, in_turn(Refusal())) as one:
        assert await one.rested() is State.IDLE
        result = await one.result()
    assert result.error
    assert result.content.startswith(f"{name} failed: ")
    assert "the provider says no" in result.content
    ends_as(name, "provider error", f"error: {first(result.content)}")


@programs
@pytest.mark.parametrize(("case", "signum"), [("killed", signal.SIGKILL), ("lost result", signal.SIGINT)])
async def test_a_run_without_a_result(
    name: str, case: str, signum: signal.Signals, tmp_path: Path, ends_as: Ends
) -> None:
    """The call runs again, which resumes the session: it is told that it was interrupted."""
    async with trial(name, tmp_path, in_turn(Silence())) as one:
        pid = await one.at_work()
        one.provider.script = in_turn(Words("It is made, after all."))
        os.killpg(pid, signum)
        assert await one.rested() is State.IDLE
        result, reruns = await one.result(), await one.reruns()
        assert result.content.startswith("It is made, after all."), result.content
        assert INTERRUPTED in one.provider.asked[-1]
        assert TASK in one.provider.asked[-1]
    (why,) = reruns
    assert f"{name} gave no result" in why
    how = why.partition("(")[2].partition(")")[0]
    ends_as(name, case, f"lost result ({how}), resumed: success")


@programs
async def test_stop(name: str, tmp_path: Path, ends_as: Ends) -> None:
    async with trial(name, tmp_path, in_turn(Silence())) as one:
        await one.at_work()
        await one.chat.stop()
        assert await one.rested() is State.IDLE
        result = await one.result()
        await until(lambda: not processes._children and not processes._endings, WAIT_S)
        kept = (await one.chat.snapshot()).chat.keepsakes
    assert result.content.startswith("Cancelled while it ran")
    assert f"{name}-1" in kept
    ends_as(name, "stop", f"cancelled: {first(result.content)} Its session is kept, no process is left.")


@programs
async def test_resume_after_a_kill_of_the_worker(name: str, tmp_path: Path, ends_as: Ends) -> None:
    async with trial(name, tmp_path, in_turn(Silence()), worker=False) as one:
        arguments = (one.url, str(tmp_path), name, one.provider.url)
        with Program("tests.long.coding_agent_worker", *arguments) as program:
            await until(one.provider.silent.is_set, WAIT_S)

            async def known() -> bool:
                return '\\"id\\":\\"\\"' not in (await one.chat.snapshot()).chat.keepsakes

            await eventually(known, WAIT_S)  # codex tells its id before it asks its provider
            program.process.kill()
            program.process.wait()
        one.provider.script = in_turn(Words("I write.", (write_call(name, tmp_path / "work"),)), Words("It is made."))
        async with one.app.worker(poll_s=0.5):
            assert await one.rested() is State.IDLE
        result = await one.result()
        asked = one.provider.asked
    assert result.content.startswith("It is made.\n\n[session "), result.content
    assert (tmp_path / "work" / "made.txt").read_text() == "made\n"
    assert sum(INTERRUPTED in said for said in asked) >= 1
    assert INTERRUPTED not in asked[0]
    ends_as(name, "kill -9 of the worker", f"resumed by a successor: {first(result.content)}")


@programs
async def test_figures_are_the_runs_own_when_a_session_goes_on(name: str, tmp_path: Path, ends_as: Ends) -> None:
    """Two runs of one session that cost its provider the same count the same."""
    async with trial(
        name, tmp_path, in_turn(Words("Yes.")), calls=(*ONCE, {"task": "Again.", "session": "latest"})
    ) as one:
        assert await one.rested() is State.IDLE
        told = [entry for entry in await entries(one.chat) if isinstance(entry, Noted) and entry.topic == "spent"]
    first_run, second_run = ((entry.tokens, round(entry.cost, 9)) for entry in told)
    assert first_run == second_run
    ends_as(name, "a second run of the session", f"{first_run[0]} and {second_run[0]} tokens, {second_run[1]:g} each")


async def test_claude_ends_itself_at_what_is_left_of_the_budget(tmp_path: Path, ends_as: Ends) -> None:
    """A session that would never end: it asks for one more file with each answer."""
    script = in_turn(Words("I write.", (write_call("claude", tmp_path / "work"),)))
    left = BudgetLeft(cost=0.0004)
    guard, pool = Guard(), SyncPool()
    guard.start()
    try:
        with coding_provider(script) as provider:
            call = Caller(guard, pool)
            call.left = left
            told = await call(real_agent("claude", tmp_path, provider.url))
            asked = len(provider.asked)
    finally:
        pool.stop()
        guard.stop()
    assert told.error
    assert told.content.startswith("claude failed: Reached maximum budget ($0.0004)")
    assert 0.0004 <= call.spent[1] <= 2 * 0.0004
    ends_as("claude", "a budget of 0.0004", f"error after {asked} requests: {first(told.content)} {call.spent[1]:g}")


async def test_what_claude_would_ask_is_asked_of_a_person_of_ours(tmp_path: Path, ends_as: Ends) -> None:
    """Denied in the first run, told to the model, and done in the second, which waited for an approval."""
    git = Call("Bash", (json.dumps({"command": "git init sub", "description": "make it"}),))
    again = {"task": "Do it now.", "session": "claude-1", "allow": ["Bash(git init sub)"]}
    script = in_turn(Words("I try.", (git,)), Words("I may not."))
    async with trial("claude", tmp_path, script, calls=(*ONCE, again)) as one:
        assert await one.rested() is State.WAITING
        (denied,) = await one.results()
        assert "It was not allowed: " in denied.content
        assert "git init sub" in denied.content
        assert not (tmp_path / "work" / "sub").exists()
        (asked,) = await one.chat.open_calls()
        one.provider.script = lambda said, results: Words("I try.", (git,)) if results < 2 else Words("It is done.")
        await asked.approve(by="anna")
        assert await one.rested() is State.IDLE
        _, done = await one.results()
    assert done.content.startswith("It is done.\n\n[session claude-1")
    assert (tmp_path / "work" / "sub" / ".git").is_dir()
    ends_as(
        "claude", "a permission question", f"asked of a person ({first(asked.record.question or '')}), then success"
    )
