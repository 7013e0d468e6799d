"""One of several processes while it starts: what all are told then, and one that does not get ready."""

import asyncio
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from holdfast.cli.supervisor.child import Child, Process, Slots
from holdfast.system.supervised import Handed
from tests.server.test_processes import all_ready, children, health, is_there, pids, several
from tests.support.servers import ServerProcess
from tests.support.waiting import eventually, until


@contextmanager
def second_held(folder: Path, **options: Any) -> Iterator[tuple[ServerProcess, Path]]:
    """Two, of which the second one is started and does not become ready."""
    home = folder / "home"
    home.mkdir()
    hold = home / "hold-2"
    hold.touch()
    with several(f"sqlite:///{folder}/holdfast.db", home, **options) as running:
        yield running, hold


async def started(running: ServerProcess, known: set[int]) -> int:
    """The one that is not known yet."""
    await until(lambda: set(children(running)) - known)
    return (set(children(running)) - known).pop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_one_starts_drains_the_others_and_all_is_well(
    tmp_path: Path, number: signal.Signals
) -> None:
    with second_held(tmp_path) as (running, _):
        starting = await started(running, set(await pids_ready(running)))
        running.process.send_signal(number)
        assert await asyncio.to_thread(running.process.wait, 30.0) == 0
        assert not is_there(starting)
        await until(lambda: any("process 1: drained in" in line for line in running.said))


async def test_ctrl_c_that_ends_one_as_it_starts_is_no_second_signal_for_the_others(tmp_path: Path) -> None:
    """A terminal tells all of them, and the supervisor may see that one has ended before it hears why."""
    with second_held(tmp_path) as (running, _):
        os.kill(await started(running, set(await pids_ready(running))), signal.SIGINT)
        await until(lambda: any("was ended by SIGINT" in line for line in running.said))
        running.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(running.process.wait, 30.0) == 0
        assert not any("again" in line for line in running.said)
        await until(lambda: any("process 1: drained in" in line for line in running.said))


async def test_one_that_is_killed_when_all_start_for_the_first_time_is_started_again_beside_the_first(
    tmp_path: Path,
) -> None:
    """As when there is not enough memory for the second one at that moment."""
    with second_held(tmp_path) as (running, hold):
        (first,) = await pids_ready(running)
        killed = await started(running, {first})
        os.kill(killed, signal.SIGKILL)
        again = await started(running, {first, killed})
        hold.unlink()
        await all_ready(running)
        assert set(await pids(running)) == {first, again}
        assert (await health(running))["supervisor"]["restarts"] == 1


async def test_one_that_does_not_become_ready_when_all_start_for_the_first_time_is_ended_and_another_is_started(
    tmp_path: Path,
) -> None:
    with second_held(tmp_path, start_s=5.0, worker=False) as (running, hold):
        (first,) = await pids_ready(running)
        hung = await started(running, {first})
        await until(lambda: any(f"(pid {hung}) does not become ready" in line for line in running.said))
        hold.unlink()
        await all_ready(running)
        assert first in await pids(running)


async def test_one_that_starts_beside_others_keeps_the_time_that_it_was_given_when_they_are_ready(
    tmp_path: Path,
) -> None:
    """They had the processor until then: the last of many was ended as soon as the others were done."""
    home = tmp_path / "home"
    start_s = 5.0
    with several(f"sqlite:///{tmp_path}/holdfast.db", home, processes=3, start_s=start_s, worker=False) as running:
        await all_ready(running)
        before = await pids(running)
        for number in (2, 3):
            (home / f"hold-{number}").touch()
        for pid in before[1:]:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: len(set(children(running)) - set(before)) == 2)
        for_one_alone_s = time.monotonic() + start_s
        await until(lambda: time.monotonic() > for_one_alone_s)
        (home / "hold-2").unlink()
        await eventually(lambda: has_ready(running, 2))
        (home / "hold-3").unlink()
        await eventually(lambda: has_ready(running, 3))
        assert not any("does not become ready" in line for line in running.said)


async def test_a_first_process_is_replaced_though_the_second_was_never_ready(tmp_path: Path) -> None:
    """Its program may be what is to be mended."""
    with second_held(tmp_path, worker=False) as (running, hold):
        (first,) = await pids_ready(running)
        await started(running, {first})
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: any("process 1" in line and "is replaced by 3" in line for line in running.said))
        await until(lambda: not is_there(first))
        hold.unlink()
        await eventually(lambda: has_ready(running, 2))


async def test_one_that_writes_to_its_line_what_is_no_message_is_ended_alone(tmp_path: Path) -> None:
    """What runs in it is code of users, which may write to a descriptor that is not theirs."""
    with second_held(tmp_path, worker=False) as (running, hold):
        (first,) = await pids_ready(running)
        babbling = await started(running, {first})
        (hold.parent / "babble-2").touch()
        hold.unlink()
        await until(lambda: not (hold.parent / "babble-2").exists())
        os.kill(babbling, signal.SIGKILL)  # as the supervisor does after a while
        await all_ready(running)
        now = await pids(running)
        assert first in now
        assert babbling not in now


async def pids_ready(running: ServerProcess) -> list[int]:
    """Of the first one, when it is alone."""
    async with running.client() as client:
        found = (await client.get("/health")).json()
    return [process["pid"] for process in found["processes"] if process["state"] == "ready"]


async def test_one_that_does_not_become_ready_is_ended_and_another_is_started(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with several(f"sqlite:///{tmp_path}/holdfast.db", home, start_s=5.0, worker=False) as running:
        await all_ready(running)
        first, second = await pids(running)
        (home / "hold-2").touch()
        os.kill(second, signal.SIGKILL)
        hung = await started(running, {first, second})
        await until(lambda: any(f"(pid {hung}) does not become ready" in line for line in running.said))
        (home / "hold-2").unlink()
        await eventually(lambda: has_ready(running, 2))
        assert not is_there(hung)


async def has_ready(running: ServerProcess, count: int) -> bool:
    return len(await pids_ready(running)) == count


async def test_one_that_still_starts_when_all_are_to_be_replaced_is_replaced_when_it_is_ready(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with several(f"sqlite:///{tmp_path}/holdfast.db", home, worker=False) as running:
        await all_ready(running)
        first, second = await pids(running)
        (home / "hold-2").touch()
        os.kill(second, signal.SIGKILL)
        slow = await started(running, {first, second})
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: any("process 1" in line and "is replaced by 3" in line for line in running.said))
        await until(lambda: not is_there(first))
        (home / "hold-2").unlink()

        async def is_replaced() -> bool:
            return not is_there(slow) and await has_ready(running, 2)

        await eventually(is_replaced)


def test_more_processes_than_there_are_descriptors_for_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"100 processes take more open files .*ulimit -n"),
        several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home", processes=100, files_max=128),
    ):
        pass


def test_a_process_that_cannot_be_started_leaves_its_place_to_the_next() -> None:
    def start(_: Handed) -> Process:
        raise OSError("no more of them")

    with TemporaryFile() as memory, closing(Slots(2, memory.fileno())) as slots:
        with pytest.raises(OSError, match="no more of them"):
            Child(start, slots, first=False)
        with no_more_files(), pytest.raises(OSError, match="Too many open files"):
            Child(start, slots, first=False)
        assert [slots.take(), slots.take()] == [0, 1]


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
