"""Child processes of tools: one way to start them, and one way to be rid of them. Real processes, real signals."""

import asyncio
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.errors import OutcomeUnknown, ToolFailed
from holdfast.system import processes
from holdfast.system.capture import Kept
from holdfast.system.cover import ProcessSpec
from holdfast.system.guard_process import look_at
from holdfast.worker.guard import Guard
from tests.support.deaths import Mortal
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")


async def run(
    command: str, guard: Guard | None = None, deadline_s: float = 60.0, bytes_max: int = 1_000
) -> processes.Ended:
    return await processes.run(["sh", "-c", command], children=guard, deadline_s=deadline_s, bytes_max=bytes_max)


def spec(argv: list[str]) -> ProcessSpec:
    return ProcessSpec(argv, processes.environment())


async def test_a_command_says_what_it_said_and_how_it_ended(guard: Guard) -> None:
    done = await run("echo out; echo err >&2; exit 3", guard)
    assert done == processes.Ended(returncode=3, output="out\nerr\n", timed_out=False)


async def test_it_has_nothing_to_read_and_no_terminal(guard: Guard) -> None:
    done = await run("cat; (: </dev/tty) 2>/dev/null || echo none", guard)
    assert (done.returncode, done.output) == (0, "none\n")


async def test_its_environment_holds_no_secret_and_no_relative_path(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PYTHONPATH", "x")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("PATH", f".::bin:{os.environ['PATH']}")
    done = await run("env", guard)
    names = {line.partition("=")[0] for line in done.output.splitlines()}
    assert "sk-secret" not in done.output
    assert {"PATH", "LC_TIME", "HOLDFAST_MARK", "HOLDFAST_CHILD"} <= names
    allowed = {*processes.INHERITED, "LC_TIME", "LC_ALL", "LC_CTYPE", "HOLDFAST_MARK", "HOLDFAST_CHILD", "PWD", "_"}
    assert names <= allowed | {"OLDPWD", "SHLVL"}
    (path,) = [line for line in done.output.splitlines() if line.startswith("PATH=")]
    assert all(folder.startswith("/") for folder in path.removeprefix("PATH=").split(":"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process takes")
async def test_what_a_group_takes_is_told_with_what_its_processes_share(guard: Guard) -> None:
    # Piece by piece: what is written must not be as large in each of the two.
    shared = "m = mmap.mmap(-1, 96 << 20); os.fork(); [m.write(b'x' * (1 << 20)) for _ in range(96)]; signal.pause()"
    child = processes.start(spec([sys.executable, "-c", f"import mmap, os, signal; {shared}"]), children=guard)

    async def takes_it() -> bool:
        return await child.memory_bytes() > 96 << 20

    await eventually(takes_it)
    assert await child.memory_bytes() < 2 * (96 << 20), "what two of them share counts once"
    await child.end()


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a program tells of processes, which none can be begun for"
)
async def test_where_no_descriptor_is_left_what_is_deaf_to_term_is_killed_and_nothing_is_taken_for_gone(
    guard: Guard, tmp_path: Path
) -> None:
    """The look at all processes failed, or showed none: what ran was never killed, or left behind as gone."""
    there = tmp_path / "there"
    deaf = f"trap '' TERM; setsid sh -c 'trap \"\" TERM; touch {there}; sleep 1000' & wait"
    child = processes.start(spec(["sh", "-c", deaf]), children=guard)
    await until(there.exists)
    with no_more_files():
        assert await child.memory_bytes() == 0
        ending = asyncio.ensure_future(child.end())
        await child.exited()
        assert not await ending, "what is left of it was not seen"
    assert await child.end()
    assert child.returncode == -signal.SIGKILL


async def test_what_a_command_leaves_behind_ends_with_it(guard: Guard) -> None:
    """In its group, in a session of its own, deaf to TERM or not."""
    done = await run("sleep 1000 & setsid sleep 1000 & (trap '' TERM; exec sleep 1000) & echo done", guard)
    assert (done.returncode, done.output) == (0, "done\n")


async def test_a_deaf_member_that_cleared_its_environment_is_found_by_its_group(guard: Guard, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    deaf = f"env -i sh -c 'trap \"\" TERM; echo $$ > {path}; while :; do sleep 1; done'"
    child = processes.start(spec(["sh", "-c", f"{deaf} & wait"]), children=guard)
    await until(lambda: path.exists() and path.read_text().endswith("\n"))
    with Mortal(int(path.read_text())) as member:
        assert await child.end()
        assert member.dead


async def test_two_commands_at_once_do_not_end_each_others_processes(guard: Guard, tmp_path: Path) -> None:
    """The guard's mark is the same for both, so escapees are told apart by a mark of their own."""
    other = processes.start(spec(["sh", "-c", f"setsid sleep 1000 & echo $! > {tmp_path}/pid; wait"]), children=guard)
    try:
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
        with Mortal(int((tmp_path / "pid").read_text())) as escapee:
            await run("setsid sleep 1000 & echo done", guard)
            assert not escapee.dead
            assert await other.end()
            assert escapee.dead
    finally:
        await other.end()


async def test_a_process_that_closes_its_output_is_waited_for(guard: Guard, tmp_path: Path) -> None:
    done = await run(f"exec >&- 2>&-; while ! [ -e {tmp_path}/go ]; do touch {tmp_path}/go; done; exit 5", guard)
    assert done.returncode == 5


async def test_an_output_that_a_late_member_holds_costs_a_moment_only(guard: Guard) -> None:
    done = await run("(trap '' TERM; exec sleep 1000) & echo quick", guard, deadline_s=1000)
    assert (done.output, done.timed_out) == ("quick\n", False)


async def test_a_child_is_reaped_and_nothing_of_it_is_kept() -> None:
    await run("true")
    process = psutil.Process()
    files, threads, children = process.num_fds(), threading.active_count(), set(process.children())
    for _ in range(20):
        await run("echo x; setsid true &")
    with pytest.raises(FileNotFoundError):
        await processes.run(["/no/such"], children=None, deadline_s=1, bytes_max=10)
    assert process.num_fds() <= files
    assert threading.active_count() <= threads
    assert set(process.children()) <= children
    await until(lambda: not processes._endings)  # a task leaves it one turn after its end


async def test_no_child_is_left_if_the_guard_takes_none_any_more() -> None:
    before = set(psutil.Process().children())  # a database of other tests may be among them
    stopped = Guard()
    stopped.start()
    stopped.stop()
    with pytest.raises(OutcomeUnknown, match="ended as soon as it was started: the guard is stopped"):
        await run("sleep 1000", stopped)
    assert set(psutil.Process().children()) <= before


async def test_a_caller_that_is_cancelled_twice_leaves_nobody(guard: Guard) -> None:
    task = asyncio.ensure_future(run("trap '' TERM; echo up; sleep 1000", guard))
    await until(lambda: guard.group_count)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    await until(lambda: not guard.group_count)


async def test_a_stopped_process_is_ended_too(guard: Guard) -> None:
    child = processes.start(spec(["sleep", "1000"]), children=guard)
    os.kill(child.pid, signal.SIGSTOP)
    await until(lambda: (seen := look_at(child.pid)) is not None and seen.stopped)
    assert await child.end()
    assert child.returncode == -signal.SIGTERM, "it heard of it"


async def test_time_in_which_this_process_stood_still_is_not_waited_for_in_vain(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was suspended: when it goes on every timer is due, and what only needs its turn looks late."""
    monkeypatch.setattr(processes, "FREE_S", 1.0)
    child = processes.start(spec(["sleep", "1000"]), children=guard)
    asyncio.get_running_loop().call_soon(time.sleep, 1.2)
    assert await child.end()
    assert child.returncode == -signal.SIGTERM


async def test_where_there_are_no_pidfds_a_child_is_watched_all_the_same(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    done = await run("echo x; sleep 1000 & exit 4", guard)
    assert (done.returncode, done.output) == (4, "x\n")


def test_what_is_kept_is_head_and_tail_however_it_comes() -> None:
    whole = bytes(range(65, 91)) * 400
    for size in (1, 7, 1_000, 100_000):
        kept = Kept(100)
        for at in range(0, len(whole), size):
            kept.add(whole[at : at + size])
            assert len(kept._tail) <= 200
        head, tail = whole[:50].decode(), whole[-50:].decode()
        assert kept.text == f"{head}\n[… {len(whole) - 100:,} bytes left out …]\n{tail}"


def test_what_fits_is_kept_whole() -> None:
    kept = Kept(8)
    for piece in ("é".encode()[:1], "é".encode()[1:], b"abcd", "é".encode()):
        kept.add(piece)
    assert kept.text == "éabcdé"


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (-11, "a signal: segmentation fault (SIGSEGV)"),
        (-9, "a signal: killed (SIGKILL), perhaps by the system for want of memory"),
    ],
)
def test_a_signal_is_told_in_words(returncode: int, words: str) -> None:
    assert processes.cause_of(returncode) == words
    assert processes.cause_of(-200) == "a signal: number 200"
    assert processes.cause_of(-40)


def test_a_child_is_the_leader_of_its_session(guard: Guard) -> None:
    async def main() -> None:
        child = processes.start(spec(["sleep", "1000"]), children=guard)
        assert os.getsid(child.pid) == child.pid == os.getpgid(child.pid)
        assert guard.group_count == 1
        assert await child.end()

    asyncio.run(main())


async def test_one_process_too_many_is_refused_before_it_starts(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CHILDREN_MAX", 1)
    child = processes.start(spec(["sleep", "1000"]), children=guard)
    with pytest.raises(ToolFailed, match="1 processes of tools are running, which is the limit"):
        await run("echo no", guard)
    assert await child.end()
    assert (await run("echo yes", guard)).output == "yes\n"
    assert processes.running_children() == 0
