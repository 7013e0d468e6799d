"""A loop that stands still is seen, told of with its stack, and ended at the hard limit; one that slept is not."""

import asyncio
import faulthandler
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.records import State
from holdfast.store.records import StoreOptions
from holdfast.system.clock import SystemClock
from holdfast.tools.base import Tool, tool
from holdfast.worker.watchdog import STALLS_KEPT, LoopStall, Watchdog, last_words
from tests.support.programs import Program
from tests.support.waiting import eventually, until
from tests.worker.lone import make_agent

BOUND_S = 30.0
LIMIT_S = 3.0  # for a loop that stands still


def quick() -> Tool:
    async def work() -> str:
        """Do it."""
        return "done elsewhere"

    made: Tool = tool(replay="pure", name="work")(work)
    return made


@pytest.fixture
async def bystander(store_url: str) -> AsyncIterator[App]:
    """Another process's worker would use this app: the same store, the same agent, a tool that is quick."""
    async with App(store_url, [make_agent(quick())], options=StoreOptions(lease_ttl_ms=2_000)) as app:
        yield app


async def hear(program: Program) -> str:
    return await asyncio.get_running_loop().run_in_executor(None, program.hear)


async def figures(program: Program) -> dict[str, Any]:
    """A worker that lost its lease to a machine that stood still takes its chat up again, and says so in between."""
    program.say("figures")
    while not (line := await hear(program)).startswith("{"):
        assert line, "it ended"
    found: dict[str, Any] = json.loads(line)
    return found


async def results(app: App, chat_id: str) -> list[str]:
    return [message.parts[0].content for message in await app.chat(chat_id).messages() if message.role == "tool"]  # type: ignore[union-attr]


async def taken_over(app: App, chat: Chat) -> bool:
    """Its worker looks for the dead every few seconds; nobody waits for that."""
    await app.store.sweep()
    return await chat.state() is State.IDLE


# --- whole processes --------------------------------------------------------------------------------


async def test_a_callback_that_blocks_the_loop_beyond_the_ttl_costs_no_lease_and_is_recorded(
    store_url: str, bystander: App
) -> None:
    with Program("tests.worker.lone", store_url, "block", "5000", "60") as program:
        assert await hear(program) == "ready"
        chat = await bystander.create("lone", "go")
        assert await hear(program) == "block"
        before = (await bystander.store.list_workers())[0].worker
        async with bystander.worker(poll_s=0.2) as other:
            assert await chat.wait(BOUND_S) is State.IDLE
            assert other.running_chats == []
        assert await results(bystander, chat.id) == ["block"], "nobody else ran it"
        seen = await figures(program)
        assert seen["name"] == before, "the lease is the same"
        assert seen["count"] == len(seen["stalls"])
        assert seen["longest_ms"] >= 1_000
        # A machine that stands still for a second is a stall, too, but nobody's.
        (stall,) = [stall for stall in seen["stalls"] if "time.sleep(5.5)" in stall["stack"]]
        assert not stall["frozen"]
        (told,) = seen["health"]["apps"][0]["workers"]
        assert (told["worker"], told["loop_stalls"]) == (before, seen["count"])
        assert any("time.sleep(5.5)" in each["stack"] for each in told["last_stalls"])
        program.process.stdin.close()  # type: ignore[union-attr]
        assert program.process.wait(BOUND_S) == 0


@pytest.mark.parametrize(("kind", "culprit"), [("seize", "in match"), ("hang", "in work")])
async def test_past_the_hard_limit_the_process_ends_with_its_stacks_and_the_chat_goes_on_elsewhere(
    store_url: str, bystander: App, kind: str, culprit: str
) -> None:
    with Program("tests.worker.lone", store_url, kind, "30000", "2", errors=True) as program:
        assert await hear(program) == "ready"
        chat = await bystander.create("lone", "go")
        assert await hear(program) == kind
        loop = asyncio.get_running_loop()
        _, errors = await loop.run_in_executor(None, lambda: program.process.communicate(timeout=BOUND_S))
        assert program.process.returncode == signal.SIGXCPU
        assert culprit in errors
        assert "holdfast/worker/watchdog.py" in errors, "all threads, not only the one"
        async with bystander.worker(poll_s=0.2):
            await eventually(lambda: taken_over(bystander, chat))
        assert await results(bystander, chat.id) == ["done elsewhere"]


async def test_a_process_that_was_stopped_beyond_ttl_and_hard_limit_drops_what_it_lost_and_goes_on(
    store_url: str, bystander: App
) -> None:
    with Program("tests.worker.lone", store_url, "wait", "3000", str(LIMIT_S)) as program:
        assert await hear(program) == "ready"
        lost = await bystander.create("lone", "go")
        assert await hear(program) == "wait"
        before = (await figures(program))["name"]
        os.kill(program.pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        async with bystander.worker(poll_s=0.2):
            await eventually(lambda: taken_over(bystander, lost))  # when the lease ran out
        assert await results(bystander, lost.id) == ["done elsewhere"]
        await until(lambda: time.monotonic() > stopped_at + LIMIT_S)
        os.kill(program.pid, signal.SIGCONT)

        # It is on its feet again as a new worker. The chat that it takes now waits in its tool.
        await bystander.create("lone", "go")
        assert await hear(program) == "wait"
        seen = await figures(program)
        assert seen["name"] != before
        assert any(stall["frozen"] for stall in seen["stalls"])
        assert program.process.poll() is None
        assert await results(bystander, lost.id) == ["done elsewhere"]


# --- the parts --------------------------------------------------------------------------------------


class Ledger:
    def __init__(self) -> None:
        self.beats = 0
        self.rests = 0

    def beat(self) -> None:
        self.beats += 1

    def rest(self) -> None:
        self.rests += 1


@pytest.fixture
async def ledger() -> Ledger:
    return Ledger()


def stall_until(seen: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + BOUND_S
    while not seen():
        assert time.monotonic() < give_up_at, "nobody noticed"
        time.sleep(0.01)


def ours(dog: Watchdog) -> list[LoopStall]:
    """A machine that stands still for a second is a stall, too, but nobody's."""
    return [stall for stall in dog.stalls if "stall_until" in stall.stack and not stall.frozen]


async def test_a_stall_is_recorded_with_the_stack_of_what_blocks_and_beats_stay_away_meanwhile(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    dog = Watchdog(SystemClock(), ledger.beat, ledger.rest)
    dog.start()
    try:
        await until(lambda: ledger.beats)
        beats = ledger.beats
        with caplog.at_level(logging.WARNING, "holdfast.watchdog"):
            stall_until(lambda: ours(dog))
            assert ledger.beats <= beats + 1, "one answer may have been on its way"
            (stall,) = ours(dog)
            assert stall.lasted_ms is None, "it is shown while it lasts"
            assert dog.stall_count == len(dog.stalls)
            assert min(dog.lag_ms, dog.longest_stall_ms) >= 1_000
            await until(lambda: ours(dog)[0].lasted_ms)
    finally:
        dog.stop()
    thread = dog._thread
    assert thread is not None
    await until(lambda: not thread.is_alive())
    assert ledger.rests == 1
    (stall,) = ours(dog)
    assert dog.longest_stall_ms == max(each.lasted_ms or 0 for each in dog.stalls)
    told = [record for record in caplog.records if record.name == "holdfast.watchdog"]
    assert {record.action for record in told} == {"loop_stalled"}  # type: ignore[attr-defined]


async def test_only_the_last_stalls_are_kept_and_all_are_counted(ledger: Ledger) -> None:
    dog = Watchdog(SystemClock(), ledger.beat, ledger.rest)
    for n in range(STALLS_KEPT + 5):
        dog._take_answer(2.0 + n)
    assert len(dog.stalls) == STALLS_KEPT
    assert (dog.stall_count, dog.longest_stall_ms) == (STALLS_KEPT + 5, (2 + STALLS_KEPT + 4) * 1000)


def test_a_loop_between_two_runs_is_not_watched(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()

    async def make() -> Watchdog:
        return Watchdog(SystemClock(), ledger.beat, ledger.rest)

    loop = asyncio.new_event_loop()
    dog = loop.run_until_complete(make())
    dog._ask(time.monotonic() - 100.0)
    dog.look()
    assert (ledger.rests, [stall for stall in dog.stalls if not stall.frozen]) == (1, [])
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    dog._ask(time.monotonic())
    dog.look()
    assert (ledger.beats, ledger.rests, [stall for stall in dog.stalls if not stall.frozen]) == (0, 2, [])


async def test_somebody_elses_handler_is_left_alone_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def theirs(*_: object) -> None: ...

    signal.signal(signal.SIGXCPU, theirs)
    try:
        last_words.install()
        assert signal.getsignal(signal.SIGXCPU) is theirs
        assert [record.action for record in caplog.records] == ["last_words_not_installed"]  # type: ignore[attr-defined]
        last_words.remove()
        assert signal.getsignal(signal.SIGXCPU) is theirs
    finally:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def handled(signum: int) -> bool:
    """By this process's own handler, as the kernel sees it."""
    with open("/proc/self/status") as status:  # noqa: PTH123
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << signum - 1)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only /proc tells who handles a signal")  # noqa: PTH110
def test_the_last_words_stay_until_the_last_worker_of_the_process_is_gone() -> None:
    assert not handled(signal.SIGXCPU)
    last_words.install()
    last_words.install()
    last_words.remove()
    assert handled(signal.SIGXCPU)
    last_words.remove()
    assert not handled(signal.SIGXCPU)
    registered: bool = faulthandler.unregister(signal.SIGXCPU)  # type: ignore[func-returns-value, assignment]
    assert not registered, "so that the next one can register"
