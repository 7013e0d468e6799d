"""The shell tool: whatever a command does, its caller is free in time, is told in words, and nobody is left."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.agent import Agent
from holdfast.config import Permissions
from holdfast.core.records import Cause, State, ToolResult
from holdfast.errors import ConfigError
from holdfast.events import CallProgress
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.system import processes
from holdfast.tools.base import Tool
from holdfast.tools.context import ToolContext
from holdfast.tools.shell import tool as shell
from holdfast.tools.shell.tool import shell_tool
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import Body, Returned, SyncPool
from tests.support.deaths import Mortal
from tests.support.programs import Program
from tests.support.turns import rested, running
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")

BOUND_S = 60.0
GROWTH_BYTES_MAX = 48 << 20  # of 1 GB; a megabyte is kept, and a pipe's worth is under way

# Each says something when it is up.
HARD = {
    "a pipeline": "echo up; sleep 30 | cat",
    "fifty sleepers": "for n in $(seq 50); do sleep 30 & done; echo up; wait",
    "an escapee": "setsid sh -c 'echo up; exec sleep 30' & wait",
    "an escapee whose parent is gone": "(setsid sh -c 'echo up; exec sleep 30' &); sleep 30",
    "deaf to TERM": "trap '' TERM; echo up; while :; do sleep 1; done",
    "a flood of a gigabyte": "head -c 1G /dev/zero; sleep 30",
    "a flood without end": "yes",
    "closes its output": "echo up; exec >&- 2>&-; sleep 30",
}


class Trial:
    """A body of the shell tool, and what its clients hear."""

    def __init__(self, made: Tool, guard: Guard, pool: SyncPool) -> None:
        self.heard = asyncio.Event()
        self.said = ""
        context = ToolContext(call_id="call", children=guard, say=self._hear)
        self.body = Body(made, "call", context, set())
        self._pool = pool

    def _hear(self, text: str) -> None:
        self.said = (self.said + text)[:1_000]
        self.heard.set()

    async def run(self, command: str) -> Returned | None:
        return await self.body.run(json.dumps({"command": command}), self._pool.run)


@pytest.fixture
def trial(tmp_path: Path, guard: Guard, pool: SyncPool, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trial]:
    monkeypatch.setattr(shell, "OWN_END_S", 60.0)  # on a machine that stands still it takes longer to end itself

    def make(**options: object) -> Trial:
        return Trial(shell_tool(root=tmp_path, **options), guard, pool)  # type: ignore[arg-type]

    return make


async def test_a_command_that_begins_with_a_dash_is_no_option_of_the_shell(trial: Callable[..., Trial]) -> None:
    for bash in (False, True):
        returned = await trial(bash=bash).run("-c 'echo no'")
        assert returned is not None
        assert returned.content.endswith("[exit code 127]")
        assert "not found" in returned.content
    inside = await trial(through=("env",)).run("-c 'echo no'")
    assert inside is not None
    assert inside.content.endswith("[exit code 127]")


async def test_what_cannot_even_be_started_is_told_with_what_to_do(
    trial: Callable[..., Trial], tmp_path: Path
) -> None:
    long = await trial().run(f"echo {'x' * 200_000}")
    text = "Nothing was run: 200,005 bytes are too long for a command line. Use a file."
    assert long == Returned(content=text, error=True)
    orphaned = trial()
    tmp_path.rmdir()
    gone = await orphaned.run("echo hello")
    tmp_path.mkdir()
    assert gone == Returned(content=f"Nothing was run: the folder {tmp_path} is not there any more.", error=True)


async def highest_memory(work: "asyncio.Future[Any]") -> int:
    """While the work lasts: sampled, so it sees what stays for more than a few milliseconds."""
    process = psutil.Process()
    highest = 0
    while not work.done():
        highest = max(highest, process.memory_info().rss)
        await asyncio.wait((work,), timeout=0.005)
    return highest


@pytest.mark.parametrize("kind", HARD)
async def test_a_stop_frees_the_caller_in_time_and_leaves_nobody(
    kind: str, trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "a pipeline":
        monkeypatch.setattr(processes, "TERM_S", 1000.0)  # no KILL ever comes
    case = trial()
    before = psutil.Process().memory_info().rss
    work = asyncio.ensure_future(case.run(HARD[kind]))
    memory = asyncio.ensure_future(highest_memory(work))
    await case.heard.wait()
    began = time.monotonic()
    case.body.cancel(Cause.USER)
    assert await work is None, "what it returned because it was cancelled is not its result"
    took_s = time.monotonic() - began
    print(f"{kind}: free {took_s:.3f} s after the stop")  # noqa: T201  a figure, for who asks for it
    assert not case.body.abandoned, "it was over within the three seconds that a body has"
    if kind == "a pipeline":
        await until(lambda: not processes._endings)
    assert await memory - before < GROWTH_BYTES_MAX


async def test_a_model_may_give_a_shorter_deadline_and_no_longer_one(
    tmp_path: Path, guard: Guard, pool: SyncPool
) -> None:
    made = shell_tool(root=tmp_path, deadline_s=50.0)
    for timeout_s, got in ((0.2, "[timed out after 0.2 s; it was ended]"), (51, "less than or equal to 50")):
        body = Body(made, "call", ToolContext(call_id="call", children=guard), set())
        arguments = json.dumps({"command": "sleep 300", "timeout_s": timeout_s})
        returned = await body.run(arguments, pool.run)
        assert isinstance(returned, Returned)
        assert got in returned.content


@pytest.mark.parametrize("kind", HARD)
async def test_a_deadline_ends_it_tells_so_and_leaves_nobody(kind: str, trial: Callable[..., Trial]) -> None:
    case = trial(deadline_s=1.0)
    before = psutil.Process().memory_info().rss
    work = asyncio.ensure_future(case.run(HARD[kind]))
    memory = asyncio.ensure_future(highest_memory(work))
    began = time.monotonic()
    returned = await work
    print(f"{kind}: free {time.monotonic() - began - 1:.3f} s after the deadline")  # noqa: T201
    assert returned is not None
    assert returned.error
    assert returned.content.endswith("[timed out after 1 s; it was ended]")
    assert "SIG" not in returned.content
    assert not case.body.abandoned
    assert await memory - before < GROWTH_BYTES_MAX


async def test_a_gigabyte_is_read_to_its_end_and_head_and_tail_are_kept(trial: Callable[..., Trial]) -> None:
    case = trial(output_bytes_max=1_000)
    before = psutil.Process().memory_info().rss
    work = asyncio.ensure_future(case.run("echo head; head -c 1G /dev/zero | tr '\\0' x; echo; echo tail"))
    memory = asyncio.ensure_future(highest_memory(work))
    returned = await work
    assert returned is not None
    assert returned.content.startswith("head\nxxx")
    assert returned.content.endswith("xxx\ntail\n[exit code 0]")
    assert "[… 1,073,740,835 bytes left out …]" in returned.content
    assert len(returned.content) < 1_200
    assert await memory - before < GROWTH_BYTES_MAX


async def test_a_flood_leaves_the_loop_to_others(trial: Callable[..., Trial]) -> None:
    """What is meant is a turn for everybody, counted, not a latency: that is the machine's."""
    case = trial()
    work = asyncio.ensure_future(case.run("yes"))
    await case.heard.wait()
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert not work.done()
    case.body.cancel(Cause.USER)
    await work


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("true", "[exit code 0]"),
        ("echo x; exit 3", "x\n[exit code 3]"),
        ("printf x", "x\n[exit code 0]"),
        ("kill -SEGV $$", "[ended by a signal: segmentation fault (SIGSEGV)]"),
        ("kill -KILL $$", "[ended by a signal: killed (SIGKILL), perhaps by the system for want of memory]"),
        (
            "{ sh -c 'kill -TERM $$'; } 2>/dev/null; exit $?",
            "[exit code 143, as after a signal: terminated (SIGTERM)]",
        ),
        ("no-such-program-here 2>/dev/null", "[exit code 127]"),
    ],
)
async def test_how_a_command_ended_is_told(command: str, end: str, trial: Callable[..., Trial]) -> None:
    returned = await trial().run(command)
    assert returned is not None
    assert (returned.content, returned.error) == (end, False)


async def test_it_runs_in_its_root_with_the_environment_it_was_given(
    trial: Callable[..., Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    returned = await trial(environment={"GREETING": "hello"}).run('pwd; echo "$GREETING $DATABASE_PASSWORD."')
    assert returned == Returned(content=f"{tmp_path}\nhello .\n[exit code 0]")


async def test_bash_runs_what_is_bash(trial: Callable[..., Trial]) -> None:
    returned = await trial(bash=True).run("x=(1 2 3); echo ${x[@]}")
    assert returned == Returned(content="1 2 3\n[exit code 0]")


async def test_a_nul_in_the_command_is_the_tools_error(trial: Callable[..., Trial]) -> None:
    returned = await trial().run("echo \x00")
    assert returned is not None
    assert returned.error


def test_a_root_that_does_not_exist_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        shell_tool(root=tmp_path / "no")


# --- in a chat ---------------------------------------------------------------------------------------


async def test_a_stop_of_the_chat_ends_the_command_and_says_cancelled(store_url: str, tmp_path: Path) -> None:
    command = f"sh -c 'echo $$ > {tmp_path}/pid; echo started; exec sleep 1000' | cat"
    model = ScriptedModel([Call(name="shell", arguments={"command": command})], "Done.")
    async with running(
        store_url,
        Agent("a", model, tools=[shell_tool(root=tmp_path, contained=True)], permissions=Permissions(mode="edit")),
    ) as (app, _):
        chat = await app.create("a", "go")
        async for update in chat.stream():
            if isinstance(update, CallProgress) and "started" in update.call.progress:
                break
        with Mortal(int((tmp_path / "pid").read_text())) as sleeper:
            await chat.stop()
            assert await rested(chat) is State.IDLE
            assert sleeper.dead
        (result,) = [p for m in await chat.messages() for p in m.parts if isinstance(p, ToolResult)]
        assert result.content.startswith("Cancelled while it ran: stopped by the user.")


async def test_when_the_worker_is_killed_the_guard_leaves_no_process(tmp_path: Path) -> None:
    """A pipeline, fifty sleepers, an escapee and one that ignores TERM, of one command."""
    pids = tmp_path / "pids"
    command = (
        f"say() {{ sh -c 'echo $PPID' >> {pids}; }}; "
        f"for n in $(seq 50); do sleep 1000 & echo $! >> {pids}; done; "
        f"setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & "
        f"(trap '' TERM; say; while :; do sleep 1; done) & "
        f"echo $$ >> {pids}; sleep 1000 | cat"
    )
    with Program("tests.tools.shelled", f"sqlite:///{tmp_path}/holdfast.db", str(tmp_path), command) as program:
        await until(lambda: pids.exists() and len(pids.read_text().splitlines()) == 53, BOUND_S)
        mortals = [Mortal(int(line)) for line in pids.read_text().splitlines()]
        assert not any(mortal.dead for mortal in mortals)
        program.process.kill()
        survivors = [mortal.pid for mortal in mortals if not mortal.dies_within(BOUND_S)]
        for mortal in mortals:
            with mortal:
                if mortal.pid in survivors:
                    os.kill(mortal.pid, signal.SIGKILL)
        assert survivors == []


# --- through an exec ---------------------------------------------------------------------------------

EXEC = """
import os, subprocess, sys
# As `docker exec`: the command is not our child in any way that a signal to us would reach, and knows nothing of our
# environment. We only pass its output on, and its exit code.
name, *command = sys.argv[1:]
process = subprocess.Popen(command, start_new_session=True, env={"PATH": os.environ["PATH"], "CONTAINER": name})
sys.exit(process.wait())
"""


@pytest.fixture
def through(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "exec.py").write_text(EXEC)
    return sys.executable, str(tmp_path / "exec.py"), "box"


async def test_a_command_can_run_through_an_exec(trial: Callable[..., Trial], through: tuple[str, ...]) -> None:
    case = trial(through=through, environment={"GREETING": "it's me"})
    returned = await case.run('echo "$CONTAINER: $GREETING"; basename "$PWD"; exit 7')
    assert returned is not None
    assert returned.content.startswith("box: it's me\n")
    assert returned.content.endswith("[exit code 7]")


@pytest.mark.parametrize("how", ["stop", "deadline"])
async def test_what_runs_behind_an_exec_is_ended_by_its_mark(
    how: str,
    trial: Callable[..., Trial],
    through: tuple[str, ...],
    tmp_path: Path,
    expire: Callable[[float], None],
) -> None:
    case = trial(through=through, deadline_s=999.0)
    command = f"sleep 1000 & echo $! > {tmp_path}/pid; echo up; wait"
    work = asyncio.ensure_future(case.run(command))
    await case.heard.wait()
    with Mortal(int((tmp_path / "pid").read_text())) as sleeper:
        try:
            if how == "stop":
                case.body.cancel(Cause.USER)
                assert await work is None
            else:
                expire(999.0)
                returned = await work
                assert returned is not None
                assert returned.content.endswith("[timed out after 999 s; it was ended]")
            assert not case.body.abandoned
            assert sleeper.dies_within(BOUND_S)
        finally:
            if not sleeper.dead:
                os.kill(sleeper.pid, signal.SIGKILL)


def test_who_ends_it_in_there_looks_closely_only_at_those_that_carry_its_mark(tmp_path: Path) -> None:
    """Two programs for each process of a busy host took ten seconds for three hundred, which nobody waits."""
    (tmp_path / "tr").write_text(f'#!/bin/sh\necho x >> {tmp_path}/looks\nexec {shutil.which("tr")} "$@"\n')
    (tmp_path / "tr").chmod(0o700)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for mark, looks in (("MARK=nobody's", False), ("MARK=ours", True)):
        with subprocess.Popen(["sleep", "1000"], env={**env, "MARK": "ours"}) as marked:
            try:
                subprocess.run(["sh", "-c", shell._END_INSIDE, "sh", mark], env=env, check=True, timeout=BOUND_S)
            finally:
                marked.kill()
        assert (tmp_path / "looks").exists() is looks
        assert marked.returncode == (-signal.SIGTERM if looks else -signal.SIGKILL)
