"""A worker process and its signals: real ones, sent to a real process."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.journal import TurnEnded
from holdfast.core.records import State
from holdfast.worker import stacks
from holdfast.worker.process import run_until_told
from tests.support.forks import fork_module
from tests.support.postgres import PostgresServer
from tests.support.turns import entries, rested, said
from tests.support.waiting import eventually, until
from tests.worker.serving import AGENTS

STOP_S = (
    30.0  # what a busy machine may take for what should take none; far less than what would have to be waited for
)


class Process:
    def __init__(self, url: str, grace_s: float, environment: dict[str, str]) -> None:
        self._process = fork_module(
            *("tests.worker.serving", url, str(grace_s)),
            environ=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def hears(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def is_told(self) -> str:
        """The next line on its standard error."""
        assert self._process.stderr is not None
        return self._process.stderr.readline().strip()

    def gets(self, number: int) -> None:
        self._process.send_signal(number)

    def ends(self, within_s: float) -> tuple[int, str]:
        """Its exit code and what it said on standard error."""
        _, said = self._process.communicate(timeout=within_s)
        return self._process.wait(), said

    def kill(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


@contextmanager
def process(url: str, grace_s: float, **environment: str) -> Iterator[Process]:
    made = Process(url, grace_s, environment)
    try:
        yield made
    finally:
        made.kill()


@asynccontextmanager
async def asked(url: str, agent: str) -> AsyncIterator[tuple[App, Chat]]:
    app = App(url, agents=AGENTS)
    async with app:
        yield app, await app.create(agent, "go")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_step_finish_and_hands_the_chat_over(store_url: str, number: signal.Signals) -> None:
    async with asked(store_url, "wait 0.5") as (app, chat):
        with process(store_url, 30) as worker:
            assert worker.hears() == "running"
            worker.gets(number)
            code, told = worker.ends(30)
        assert code == 0
        assert f"holdfast: {number.name}: draining, at most 30 s; once more to leave at once" in told
        assert "holdfast: drained in " in told
        assert ("tool", "waited") in said(await chat.messages()), "the step was finished"
        snapshot = await chat.snapshot()
        assert (snapshot.chat.worker, snapshot.chat.cause) == (None, None)
        assert all(lease.ended is not None for lease in await app.store.list_workers())
        async with app.worker():
            assert await rested(chat) is State.IDLE
        assert [entry.cause for entry in await entries(chat) if isinstance(entry, TurnEnded)] == [None]


async def test_a_step_beyond_the_grace_is_cut_and_goes_on_elsewhere(store_url: str) -> None:
    async with asked(store_url, "wait 60") as (_, chat):
        with process(store_url, 0.2) as worker:
            assert worker.hears() == "running"
            worker.gets(signal.SIGTERM)
            code, _ = worker.ends(STOP_S)
        assert code == 0
        snapshot = await chat.snapshot()
        assert (snapshot.chat.state, snapshot.chat.worker) == (State.RUNNING, None)
        assert [call.state for call in snapshot.calls] == ["started"], (
            "whoever comes next decides by its replay class"
        )


async def test_a_tool_that_ignores_its_cancellation_does_not_keep_the_process(store_url: str) -> None:
    """Not in the drain, and not after it, where `asyncio.run` waits for every task that it knows."""
    async with asked(store_url, "ignore 60") as (_, chat):
        with process(store_url, 0.2) as worker:
            assert worker.hears() == "running"
            worker.gets(signal.SIGTERM)
            code, told = worker.ends(STOP_S + 10)
        assert (code, "Traceback" in told) == (0, False), told
        assert (await chat.snapshot()).chat.worker is None


async def test_the_second_signal_leaves_at_once_even_if_the_loop_hangs(store_url: str) -> None:
    async with asked(store_url, "block 60") as (_, chat):
        with process(store_url, 30) as worker:
            assert worker.hears() == "running"
            worker.gets(signal.SIGTERM)  # the loop cannot hear it
            worker.gets(signal.SIGINT)
            code, told = worker.ends(STOP_S)
        assert code in (128 + signal.SIGINT, 128 + signal.SIGTERM)  # whichever the kernel delivers last
        assert " again: leaving now" in told
        assert (await chat.snapshot()).chat.state is State.RUNNING


async def test_the_second_signal_leaves_at_once(store_url: str) -> None:
    async with asked(store_url, "wait 60") as (app, chat):
        with process(store_url, 60) as worker:
            assert worker.hears() == "running"
            worker.gets(signal.SIGINT)
            assert "draining" in worker.is_told()
            worker.gets(signal.SIGINT)
            code, told = worker.ends(STOP_S)
        assert code == 128 + signal.SIGINT
        assert "SIGINT again: leaving now; what is left over goes on elsewhere" in told

        async def found_dead() -> bool:
            await app.store.sweep()
            return (await chat.snapshot()).chat.worker is None

        await eventually(found_dead)  # as soon as its guard is done
        assert (await chat.snapshot()).chat.state is State.RUNNING


@pytest.mark.parametrize("agent", ["wait 60", "block 60"])
async def test_sigusr1_shows_all_threads_and_all_tasks_and_the_process_goes_on(store_url: str, agent: str) -> None:
    """Also when the loop, and with it the main thread, hangs."""
    async with asked(store_url, agent):
        with process(store_url, 0.2) as worker:
            assert worker.hears() == "running"
            worker.gets(signal.SIGUSR1)
            told = [worker.is_told()]
            while not told[-1].endswith("in _claim_forever"):  # which is a task
                told.append(worker.is_told())
                assert told[-1], "it ended"
            text = "\n".join(told)
            assert "holdfast-signals:" in text, "a thread by its name"
            assert "worker/lease.py" in text, "where a thread is"
            assert ("in block" in text) == (agent == "block 60"), "where the main thread is"
            worker.gets(signal.SIGTERM)
            if agent == "block 60":
                worker.gets(signal.SIGINT)  # the first one is for the loop
            code, _ = worker.ends(STOP_S)
        assert code in ((0,) if agent == "wait 60" else (128 + signal.SIGINT, 128 + signal.SIGTERM))


async def test_a_flood_of_sigusr1_that_nobody_reads_the_answers_of_leaves_the_process_all_right(
    store_url: str,
) -> None:
    async with asked(store_url, "wait 0.5") as (_, chat):
        with process(store_url, 30) as worker:
            assert worker.hears() == "running"
            for _ in range(300):
                worker.gets(signal.SIGUSR1)
            assert await rested(chat) is State.IDLE
            worker.gets(signal.SIGTERM)
            code, _ = worker.ends(30)
        assert code == 0


async def test_a_programs_own_sigusr1_is_left_alone() -> None:
    def theirs(*_: object) -> None: ...

    class Service:
        async def start(self) -> None:
            assert signal.getsignal(signal.SIGUSR1) is theirs
            signal.raise_signal(signal.SIGTERM)

        async def stop(self) -> None: ...

        def waiting_for(self) -> str:
            return "nothing"

    signal.signal(signal.SIGUSR1, theirs)
    try:
        await run_until_told(Service(), 1.0, lambda _: None)
        assert signal.getsignal(signal.SIGUSR1) is theirs
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


class NeverUp:
    async def start(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None: ...

    def waiting_for(self) -> str:
        return "nothing"


async def test_a_signal_is_heard_from_the_moment_on_in_which_it_no_longer_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install, told = signal.signal, list[str]()

    def install_and_send(number: signal.Signals, handler: Any) -> Any:
        before = install(number, handler)
        if number is signal.SIGTERM:
            monkeypatch.undo()
            signal.raise_signal(number)
        return before

    monkeypatch.setattr(signal, "signal", install_and_send)
    async with asyncio.timeout(STOP_S):
        await run_until_told(NeverUp(), 1.0, told.append)
    assert told == ["SIGTERM: left before it had started"]


async def test_a_worker_that_starts_while_its_database_restarts_waits_for_it(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    async with asked(postgres_url, "wait 0.5") as (_, chat):
        postgres_server.stop()
        with process(postgres_url, 30) as worker:
            assert "cannot be reached" in (told := worker.is_told())
            assert re.search(r"waiting for it, at most (5\d|60) s", told), told
            postgres_server.start()
            assert worker.hears() == "running"
            worker.gets(signal.SIGTERM)
            assert worker.ends(30)[0] == 0
        assert ("tool", "waited") in said(await chat.messages())


async def test_a_worker_does_not_wait_forever_for_its_database(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    postgres_server.stop()
    with process(postgres_url, 30, HOLDFAST_STORE_WAIT_S="0.5") as worker:
        code, told = worker.ends(STOP_S)
    assert (code, "StoreUnavailable" in told.splitlines()[-1]) == (1, True), told


async def test_a_worker_whose_database_goes_before_it_has_registered_waits_for_it(
    postgres_url: str, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with asked(postgres_url, "wait 0.5") as (app, chat):
        postgres_server.stop()
        worker = app.new_worker()
        starting = asyncio.create_task(worker.start())
        await until(lambda: "registration failed" in caplog.text)
        assert not starting.done()
        postgres_server.start()
        await starting
        assert await rested(chat) is State.IDLE
        await worker.stop()


async def test_a_signal_ends_a_worker_that_still_waits_for_its_database(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    told: list[str] = []
    async with App(postgres_url) as app:
        postgres_server.stop()
        running = asyncio.create_task(run_until_told(app.new_worker(), 30, told.append))
        await asyncio.sleep(0)  # it listens from its first step on
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(STOP_S):
            await running
    assert told == ["SIGTERM: left before it had started"]


async def test_a_list_of_tasks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "TASKS_MAX", 3)
    gate = asyncio.Event()
    tasks = [asyncio.create_task(gate.wait()) for _ in range(10)]
    text = stacks.of_tasks(asyncio.get_running_loop())
    assert text.startswith("11 asyncio tasks\n")
    assert text.endswith("… and 8 more\n")
    gate.set()
    await asyncio.gather(*tasks)
