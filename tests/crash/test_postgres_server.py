"""PostgreSQL that dies under load, and answers of it that are lost: everything acknowledged is there, nothing twice.

Runs of the scenario share one store on a real server. After every blow each run's rows are what an undisturbed run
had at the same step, and the store goes on by itself: nobody opens it again.
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import State
from holdfast.errors import OwnershipLost, StoreUnavailable
from holdfast.store import open_store
from holdfast.store.records import Key, StoreOptions
from holdfast.system.clock import FakeClock
from tests.crash.judge import reopen_and_judge
from tests.crash.reference import Reference, play_undisturbed, portion
from tests.crash.writer import WRITER_S_MAX, read_log, start_writer
from tests.support.aftermath import Successor, find_faults
from tests.support.chats import Hand, call, history, new_chat, texts, user
from tests.support.leases import silence
from tests.support.looptime import LoopTime
from tests.support.postgres import PostgresServer
from tests.support.proxy import TcpProxy
from tests.support.rows import difference, read_rows
from tests.support.scale import FULL
from tests.support.scenario import STEPS, Run, Step, step_named
from tests.support.waiting import until

CROWD = tuple(f"{n}-" for n in range(6))
ALONE = "zq-"
SHARED_STEPS = [step for step in STEPS[1:] if not step.alone]
STEPS_IN_ALL = len(CROWD) * len(SHARED_STEPS)
MEANWHILE = 50  # steps that may be answered while the server is being killed

Death = Literal["immediate", "kill9"]
References = Callable[[tuple[str, ...]], dict[str, Reference]]


@pytest.fixture(scope="session")
def undisturbed(postgres_cluster: PostgresServer) -> References:
    known: dict[tuple[str, ...], dict[str, Reference]] = {}

    def undisturbed(prefixes: tuple[str, ...]) -> dict[str, Reference]:
        if prefixes not in known:
            postgres_cluster.start()
            known[prefixes] = asyncio.run(play_undisturbed(postgres_cluster.create_database(), prefixes))
        return known[prefixes]

    return undisturbed


@pytest.fixture
def crowd(undisturbed: References) -> dict[str, Reference]:
    return undisturbed(CROWD)


@pytest.fixture
def alone(undisturbed: References) -> Reference:
    return undisturbed((ALONE,))[ALONE]


# --- the server dies ------------------------------------------------------------------------------------------------


class Load:
    """Several runs at once. Each asks again until it is answered, and counts its answers."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.answered = dict.fromkeys((run.prefix for run in runs), 0)
        self.failures: list[StoreUnavailable] = []
        self.limit = 0  # no step is begun beyond it: a server that dies late must not find everything done
        self._moved = asyncio.Condition()

    async def play(self) -> None:
        await asyncio.gather(*(self._play(run) for run in self.runs))

    async def _play(self, run: Run) -> None:
        for step in SHARED_STEPS:
            await self.until(lambda: self.total < self.limit)
            await self._insist(run, step)
            self.answered[run.prefix] += 1
            await self._tell()

    async def allow(self, limit: int) -> None:
        self.limit = limit
        await self._tell()

    async def _insist(self, run: Run, step: Step) -> None:
        repeating = False
        while True:
            try:
                await run.play(step, repeating=repeating)
                return
            except StoreUnavailable as error:
                repeating = True
                self.failures.append(error)
                await self._tell()

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def until(self, what: Callable[[], bool]) -> None:
        async with self._moved:
            await self._moved.wait_for(what)

    @property
    def total(self) -> int:
        return sum(self.answered.values())


def die(server: PostgresServer, death: Death) -> None:
    if death == "kill9":
        server.kill9()
    else:
        server.stop("immediate")


@pytest.mark.parametrize(
    ("deadline_s", "death"),
    [(8.0, "immediate"), (0.9, "kill9"), *([(8.0, "kill9"), (0.9, "immediate")] if FULL else [])],
)
async def test_a_server_that_dies_under_load_loses_nothing_and_nothing_happens_twice(
    postgres_server: PostgresServer,
    postgres_url: str,
    clock: FakeClock,
    crowd: dict[str, Reference],
    death: Death,
    deadline_s: float,
) -> None:
    """With the usual deadline most callers notice nothing; with a short one they are told, and ask again."""
    async with open_store(postgres_url, StoreOptions(clock=clock, deadline_s=deadline_s)) as store:
        load = Load([Run(store, clock, postgres_url, prefix=prefix) for prefix in CROWD])
        playing = asyncio.create_task(load.play())
        for blow in (20, 90, 170):
            await load.allow(blow + MEANWHILE)
            await load.until(lambda blow=blow: load.total >= blow)  # type: ignore[misc]
            seen = len(load.failures)
            await asyncio.to_thread(die, postgres_server, death)
            answered = dict(load.answered)
            await load.allow(STEPS_IN_ALL)
            if deadline_s < 1:
                await load.until(lambda seen=seen: len(load.failures) > seen)  # type: ignore[misc]
            await asyncio.to_thread(postgres_server.start)
            found = await asyncio.to_thread(read_rows, postgres_url)
            for prefix, reference in crowd.items():
                states = [{}, *(reference.after(step.name) for step in SHARED_STEPS)]
                possible = states[answered[prefix] : load.answered[prefix] + 2]
                assert portion(found, prefix) in possible, f"run {prefix} lost an answered step, or has half of one"
        await playing
        assert load.total == STEPS_IN_ALL
        assert bool(load.failures) or deadline_s > 1
        found = read_rows(postgres_url)
        for run in load.runs:
            expected = crowd[run.prefix].after(SHARED_STEPS[-1].name)
            assert difference(portion(found, run.prefix), expected) == []
            run.close()
    async with open_store(postgres_url, StoreOptions(clock=clock)) as store:
        await silence(store, clock)
        await store.sweep()
        await Successor(store, clock).finish_everything()
        assert await find_faults(store) == []


# --- an answer is lost ----------------------------------------------------------------------------------------------


def marker(step: Step, prefix: str = ALONE) -> bytes:
    """What only the requests of this step's write contain: from there on, the end of the transaction is lost."""
    if step.kind in ("create", "client", "fork"):
        return f"{prefix}{step.name}".encode()  # its key
    if step.kind == "commit":
        return f"commit {prefix}{step.name}".encode()
    if step.kind == "lease":
        return f"{prefix}{'w2' if 'second' in step.name or 'retire' in step.name else 'w1'}".encode()
    if step.kind == "expire":
        return f"{prefix}w2".encode()
    if step.kind == "upkeep":
        return b"DELETE FROM receipts"
    if step.name == "delete_a_chat":
        return b"DELETE FROM chats"  # what is looked at before it names the chat, too
    chat = "child" if step.name == "claim_the_child" else "talk"
    return f"{prefix}{chat}".encode()


async def test_every_verb_whose_answer_is_lost_has_happened_once(
    postgres_url: str, postgres_proxy_url: str, postgres_proxy: TcpProxy, clock: FakeClock, alone: Reference
) -> None:
    """The commit is done, its answer is lost, the connection is gone; the store finds out by itself."""
    store = open_store(f"{postgres_proxy_url}?hints=off", StoreOptions(clock=clock))
    run = Run(store, clock, postgres_url, prefix=ALONE)
    for step in STEPS:
        lost = None
        if step.kind not in ("open", "refused", "sabotage"):
            lost = postgres_proxy.cut_before_next_answer(containing=marker(step))
        await run.play(step)
        assert lost is None or lost.sprung, f"{step.name}: no answer was lost"
        assert difference(portion(read_rows(postgres_url), ALONE), alone.after(step.name)) == [], step.name
    assert await find_faults(store) == []
    run.close()
    await store.close()


@pytest.mark.parametrize(
    "name",
    [
        "create_a_chat",
        "claim_two_chats",
        "queue_a_message",
        "stream_to_two_chats",
        "respond_with_calls",
        "finish_the_turn",
        "spawn_a_child_and_park",
        "end_the_child",
        "fork_a_running_chat",
        "edit_a_message",
        "delete_a_chat",
    ],
)
async def test_an_outcome_nobody_can_find_out_is_called_unknown_and_asking_again_later_makes_it_once(
    postgres_url: str,
    postgres_proxy_url: str,
    postgres_proxy: TcpProxy,
    clock: FakeClock,
    alone: Reference,
    name: str,
) -> None:
    """The answer is lost, and then the server is out of reach until the caller's deadline has passed."""
    loop_time = LoopTime()
    store = open_store(f"{postgres_proxy_url}?hints=off", StoreOptions(clock=clock))
    run = Run(store, clock, postgres_url, prefix=ALONE)
    unknown = step_named(name)
    for step in STEPS:
        if step is unknown:
            lost = postgres_proxy.cut_before_next_answer(containing=marker(step), then_hold=True)
            playing = asyncio.ensure_future(run.play(step))
            await until(lambda lost=lost: lost.sprung)  # type: ignore[misc]
            assert not playing.done()
            loop_time.advance(store.options.deadline_s)
            with pytest.raises(StoreUnavailable) as caught:
                await playing
            assert caught.value.outcome == "unknown"
            postgres_proxy.forward()
        # A claim is known by the store itself: the worker would not know which chats to ask for.
        await run.play(step, repeating=step is unknown and step.kind != "claim")
        assert difference(portion(read_rows(postgres_url), ALONE), alone.after(step.name)) == [], step.name
    run.close()
    await store.close()


@pytest.mark.parametrize(
    "name",
    [
        "create_another_chat",
        "queue_a_message",
        "start_a_call",
        "end_the_child",
        "edit_a_message",
    ],
)
def test_a_writer_killed_while_its_answer_is_on_the_way_has_written(
    postgres_url: str,
    postgres_proxy_url: str,
    postgres_proxy: TcpProxy,
    tmp_path: Path,
    undisturbed: References,
    name: str,
) -> None:
    """Between the points `commit.before` and `commit.after`: the server is done, the process never hears of it."""
    step, reference = step_named(name), undisturbed(("",))[""]
    lost = postgres_proxy.cut_before_next_answer(containing=marker(step, ""), then_hold=True)
    with start_writer(f"{postgres_proxy_url}?hints=off", tmp_path) as writer:
        assert lost.wait(WRITER_S_MAX)
        writer.kill()
        assert writer.wait(WRITER_S_MAX) == -signal.SIGKILL
    postgres_proxy.forward()
    log = read_log(tmp_path / "log")
    assert (log[-1].step, log[-1].answered) == (name, False)
    assert difference(read_rows(postgres_url), reference.after(name)) == []
    asyncio.run(reopen_and_judge(postgres_url, log, reference))


# --- a write arrives late -------------------------------------------------------------------------------------------


async def test_a_commit_that_arrives_after_its_worker_was_given_up_changes_nothing(
    postgres_url: str, postgres_proxy_url: str, postgres_proxy: TcpProxy, clock: FakeClock
) -> None:
    """A partition that heals: the network delivers what a worker sent long ago, when another one has its chat."""
    loop_time = LoopTime()
    cut_off = open_store(f"{postgres_proxy_url}?hints=off", StoreOptions(clock=clock))
    async with open_store(postgres_url, StoreOptions(clock=clock)) as store, cut_off:
        await store.create_chat(new_chat("hello", id="c1"))
        late = Hand(cut_off)
        await late.take("c1")
        await late.respond("let me pay", call("pay"))
        postgres_proxy.hold()
        finishing = asyncio.ensure_future(late.finish("pay", "paid, says who is late"))
        await until(lambda: cut_off.stats()["commits_in_flight"])
        loop_time.advance(cut_off.options.deadline_s)
        with pytest.raises(StoreUnavailable) as caught:
            await finishing
        assert caught.value.outcome == "unknown"
        assert await silence(store, clock) == {late.name: 1}
        successor = Hand(store)
        await successor.take("c1")
        await successor.end_turn("I do not know whether it was paid")
        after = read_rows(postgres_url)

        postgres_proxy.forward()
        with pytest.raises(OwnershipLost):
            await late.finish("pay", "paid, says who is late")
        assert read_rows(postgres_url) == after
        *_, unknown, last = texts(await history(store, "c1"))
        assert (unknown[:15], last) == ("Outcome unknown", "I do not know whether it was paid")
        late.close()
        successor.close()


async def test_a_message_that_arrives_after_it_was_sent_again_is_there_once(
    postgres_url: str, postgres_proxy_url: str, postgres_proxy: TcpProxy, clock: FakeClock
) -> None:
    cut_off = open_store(f"{postgres_proxy_url}?hints=off", StoreOptions(clock=clock))
    key, send = Key(principal="p", key="k"), cmd.Send(message=user("once"))
    loop_time = LoopTime()
    async with open_store(postgres_url, StoreOptions(clock=clock)) as store, cut_off:
        await store.create_chat(new_chat("hello", id="c1"))
        await cut_off.read_chat("c1")  # it has a connection, on which the message is under way
        postgres_proxy.hold()
        sending = asyncio.ensure_future(cut_off.submit("c1", send, key))
        await until(lambda: cut_off.stats()["tasks"])
        loop_time.advance(cut_off.options.deadline_s)
        with pytest.raises(StoreUnavailable):
            await sending
        answer = await store.submit("c1", send, key)
        after = read_rows(postgres_url)
        postgres_proxy.forward()
        assert await cut_off.submit("c1", send, key) == answer
        assert read_rows(postgres_url) == after
        assert [queued.id for queued in (await store.read_chat("c1")).queue] == [send.message.id]
        assert (await store.read_chat("c1")).chat.state is State.RUNNING
