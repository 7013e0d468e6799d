"""Several processes on one port: what a client, an operator and a service manager see of them, for real."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.cli.supervisor.supervisor import START_S
from holdfast.system.siblings import YIELD_S
from tests.server.supervised_program import run_supervised
from tests.support.servers import Seen, ServerProcess, all_seen, created, ended, reading, server
from tests.support.waiting import eventually, until

Facts = dict[str, Any]


@contextmanager
def several(
    store_url: str, home: Path, processes: int = 2, start_s: float = START_S, yield_s: float = YIELD_S, **options: Any
) -> Iterator[ServerProcess]:
    begin = partial(run_supervised, processes=processes, start_s=start_s, yield_s=yield_s)
    with server(store_url, home, begin=begin, **options) as running:
        yield running


async def all_ready(running: ServerProcess) -> None:
    await until(lambda: any("processes are ready" in line for line in running.said))


async def health(running: ServerProcess) -> Facts:
    """As one who has the admin's token; over a connection of its own, which any of them may take."""
    async with running.client() as client:
        found: Facts = (await client.get("/health")).json()
        return found


async def pids(running: ServerProcess) -> list[int]:
    return [process["pid"] for process in (await health(running))["processes"]]


def children(running: ServerProcess) -> list[int]:
    """By the operating system, without the guards, and without those that have ended."""
    found = psutil.Process(running.process.pid).children()
    return [child.pid for child in found if (words := words_of(child)) and "guard_process" not in words]


def words_of(process: Any) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def is_there(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_each_of_two_processes_answers_on_one_port_and_tells_of_both(store_url: str, tmp_path: Path) -> None:
    with several(store_url, tmp_path / "home") as running:
        await all_ready(running)
        answered: dict[int, Facts] = {}

        async def ask() -> bool:
            found = await health(running)
            answered[found["process"]["pid"]] = found
            return len(answered) == 2

        await eventually(ask)
        for found in answered.values():
            assert found["status"] == "ok"
            assert found["reasons"] == []
            assert {process["pid"] for process in found["processes"]} == set(answered)
            assert [process["number"] for process in found["processes"]] == [1, 2]
            assert len(found["apps"]) == 2
        async with httpx.AsyncClient(base_url=running.url, trust_env=False) as stranger:
            public = (await stranger.get("/health")).json()
            assert set(public) == {"status", "reasons", "version", "processes"}
            assert [set(process) for process in public["processes"]] == [{"number", "state", "status", "reasons"}] * 2
        async with running.client() as client:
            figures = (await client.get("/metrics")).text
        for line in ('holdfast_processes{state="ready"} 2.0', "holdfast_process_restarts_total 0.0"):
            assert line in figures
        for process in ("1", "2"):
            assert f'holdfast_status{{process="{process}",status="ok"}} 1.0' in figures
            assert f'holdfast_server_connections{{process="{process}"}}' in figures


async def test_a_process_that_hangs_costs_a_moment_and_is_named(tmp_path: Path) -> None:
    with several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home", worker=False) as running:
        await all_ready(running)
        hung = (await pids(running))[1]
        os.kill(hung, signal.SIGSTOP)
        try:

            async def is_named() -> bool:
                try:
                    async with running.client() as client:
                        found = (await client.get("/health", timeout=5.0)).json()
                except httpx.TimeoutException:  # the one that hangs took the connection
                    return False
                assert found["status"] == "degraded"
                assert found["reasons"] == ["processes_missing", "process_silent"]
                return bool([process["status"] for process in found["processes"]] == ["ok", "silent"])

            await eventually(is_named)
        finally:
            os.kill(hung, signal.SIGCONT)


async def test_a_reader_whose_process_is_killed_goes_on_at_the_same_port_and_misses_nothing(
    store_url: str, tmp_path: Path
) -> None:
    with several(store_url, tmp_path / "home") as running:
        await all_ready(running)
        chat_id = ""
        seen: list[Seen] = []
        killed = False
        while not (seen and seen[-1].event == "end"):
            after = next((event.id for event in reversed(seen) if event.id), None)
            async with running.client() as client:
                server_pid = (await client.get("/health")).json()["process"]["pid"]  # of this connection
                chat_id = chat_id or await created(client, "storyteller", "Tell me.")  # told while it is read
                try:
                    async with reading(client, chat_id, after) as events:
                        async for event in events:
                            seen.append(event)
                            if event.event == "delta" and not killed:
                                killed = True
                                os.kill(server_pid, signal.SIGKILL)
                except httpx.TransportError:
                    continue
        assert killed
        async with running.client() as client:
            whole = await all_seen(client, chat_id)
            found = await ended(client, chat_id)
        assert found["state"] == "idle"
        assert committed(seen) == committed(whole)
        assert len(committed(whole)) > 4
        await until(lambda: any("was ended by SIGKILL; another is started" in line for line in running.said))
        await eventually(lambda: _has_ready(running, 2))
        assert (await health(running))["supervisor"]["restarts"] == 1


def committed(seen: list[Seen]) -> list[tuple[str, Facts]]:
    """What the journal tells, without what is streamed or said of the stream itself."""
    passing = {"delta", "live", "place", "reconnect", "end"}
    return [(event.event, event.data) for event in seen if event.event not in passing]


async def _has_ready(running: ServerProcess, count: int) -> bool:
    states = [process["state"] for process in (await health(running))["processes"]]
    return states == ["ready"] * count


async def test_chats_that_come_to_one_process_are_shared_out_between_all(store_url: str, tmp_path: Path) -> None:
    """On a machine of any speed: each leaves a chat to another for as long as that one takes to come to it."""
    with several(store_url, tmp_path / "home", processes=3, yield_s=60.0) as running:
        await all_ready(running)
        async with running.client() as client:  # one connection, and so one process that hears of them first
            chats = [await created(client, "thinker", "Think.") for _ in range(12)]

            async def driven() -> list[int]:
                found = (await client.get("/health")).json()
                return [worker["chats"] for app in found["apps"] for worker in app["workers"]]

            async def all_driven() -> bool:
                return sum(await driven()) == len(chats)

            await eventually(all_driven)
            spread = await driven()
        assert len(spread) == 3
        assert min(spread) >= 2, spread


async def test_a_rolling_restart_under_load_refuses_no_connection_and_loses_no_turn(
    store_url: str, tmp_path: Path
) -> None:
    with several(store_url, tmp_path / "home") as running:
        await all_ready(running)
        before = set(await pids(running))
        rolled = asyncio.Event()
        chats: list[str] = []

        async def load() -> None:
            while not rolled.is_set():
                async with running.client() as client:  # a connection of its own each time: a refused one raises
                    chats.append(await created(client, "echo", "hello"))

        loading = [asyncio.create_task(load()) for _ in range(2)]
        running.process.send_signal(signal.SIGHUP)

        async def is_rolled() -> bool:
            assert not any(task.done() for task in loading)
            states = (await health(running))["processes"]
            return len(states) == 2 and not before & {process["pid"] for process in states}

        await eventually(is_rolled)
        rolled.set()
        await asyncio.gather(*loading)
        assert len(set(children(running))) == 2
        async with running.client() as client:
            for chat_id in chats:
                assert (await ended(client, chat_id))["state"] == "idle"
        assert (await health(running))["supervisor"]["restarts"] == 0
        assert running.stop() == 0


async def test_one_signal_drains_all_and_a_service_manager_may_tell_each_of_them_too(tmp_path: Path) -> None:
    """As with systemd's default KillMode, or Ctrl-C in a terminal: none of them takes it for the second signal."""
    with several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as running:
        await all_ready(running)
        told = await pids(running)
        async with running.client() as client:
            chat_id = await created(client, "storyteller", "Tell me.")
            async with reading(client, chat_id) as events:
                async for event in events:
                    if event.event == "delta":
                        break
        for pid in (*told, running.process.pid, *told):
            os.kill(pid, signal.SIGINT)
        assert await asyncio.to_thread(running.process.wait, 30.0) == 0
        assert not any(is_there(pid) for pid in told)
        await until(lambda: sum("drained in" in line for line in running.said) == 3)  # each of two, and all


async def test_a_second_signal_ends_all_of_them_now(tmp_path: Path) -> None:
    with several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as running:
        await all_ready(running)
        told = await pids(running)
        for pid in told:  # they cannot drain
            os.kill(pid, signal.SIGSTOP)
        running.process.send_signal(signal.SIGTERM)
        await until(lambda: any("draining 2 processes" in line for line in running.said))
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.process.wait, 30.0) == 128 + signal.SIGTERM
        await until(lambda: not any(is_there(pid) for pid in told))


async def test_who_connects_while_processes_still_drain_is_refused_and_does_not_wait_for_the_last_of_them(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    with several(f"sqlite:///{tmp_path}/holdfast.db", home) as running:
        await all_ready(running)
        (home / "stay-1").touch()
        running.process.send_signal(signal.SIGTERM)
        await until(lambda: sum(f": process {n}: drained in" in line for line in running.said for n in (1, 2)) == 2)
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect(("127.0.0.1", running.port))
        assert running.process.poll() is None
        (home / "stay-1").unlink()
        assert await asyncio.to_thread(running.process.wait, 30.0) == 0


async def test_a_signal_that_reaches_one_which_has_just_drained_does_no_harm(tmp_path: Path) -> None:
    """A terminal and the supervisor each tell it, and the second one may come when it is about to leave."""
    home = tmp_path / "home"
    with several(f"sqlite:///{tmp_path}/holdfast.db", home) as running:
        await all_ready(running)
        (home / "stay-1").touch()
        first = (await pids(running))[0]
        running.process.send_signal(signal.SIGTERM)
        await until((home / "drained-1").exists)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(first, number)
        (home / "stay-1").unlink()
        assert await asyncio.to_thread(running.process.wait, 30.0) == 0


async def test_processes_that_take_requests_for_longer_than_the_grace_are_given_that_time(tmp_path: Path) -> None:
    """Else the supervisor ended them by SIGKILL while a load balancer still sent them requests."""
    settings = {"HOLDFAST_LAME_DUCK_S": "77"}
    with several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home", settings=settings) as running:
        await all_ready(running)
        running.process.send_signal(signal.SIGTERM)
        await until(lambda: any("SIGTERM: draining 2 processes" in line for line in running.said))
        assert any("draining 2 processes, at most 77 s" in line for line in running.said)
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.process.wait, 30.0) == 128 + signal.SIGTERM


async def test_when_the_supervisor_is_killed_its_processes_go_and_free_the_port(tmp_path: Path) -> None:
    with several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as running:
        await all_ready(running)
        told = await pids(running)
        running.kill()
        await until(lambda: not any(is_there(pid) for pid in told))
        with socket.socket() as next_one:
            next_one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            next_one.bind(("127.0.0.1", running.port))
            next_one.listen()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the descriptors of another process")
async def test_a_program_that_a_process_starts_gets_none_of_its_sockets(tmp_path: Path) -> None:
    """It would keep the port for as long as it runs, and could take connections."""
    with several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as running:
        await all_ready(running)
        for pid in await pids(running):
            kept, handed_on = sockets_of(pid)
            assert kept
            assert not handed_on


def sockets_of(pid: int) -> tuple[list[str], list[str]]:
    """Those that a program started by this process would not have, and those that it would."""
    found: tuple[list[str], list[str]] = ([], [])
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # just closed
            if int(fd.name) > 2 and (name := str(fd.readlink())).startswith("socket:"):
                words = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().split()
                found[not int(words[words.index("flags:") + 1], 8) & os.O_CLOEXEC].append(name)
    return found


def test_what_keeps_the_first_process_from_starting_is_said_once_and_ends_the_command(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(AssertionError, match="cannot listen on") as refused,
            several(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home", port=port),
        ):
            pass
        assert str(refused.value).count("cannot listen on") == 1
