"""A lease that is lost is lost once, noticed even if nobody can say so, and the worker goes on with another."""

import asyncio
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from msgspec import Raw

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.records import LeaseEnd, State
from holdfast.ids import new_id
from holdfast.models.scripted import Hold, Say, ScriptedModel
from holdfast.store import open_store
from holdfast.store.records import StoreOptions, WorkerInfo
from holdfast.system.clock import SystemClock
from holdfast.worker.lease import LeaseKeeper
from tests.support.chats import Hand, new_chat
from tests.support.fixtures import FailingStore
from tests.support.freezing import end_lease, freeze
from tests.support.programs import Program
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually, until


async def test_a_lease_that_was_lost_is_lost_once_and_the_worker_goes_on_with_another(store_url: str) -> None:
    app = App(store_url, [Agent("a", ScriptedModel("Hello."))])
    async with app, app.worker(poll_s=0.2) as worker:
        name, keeper = worker.name, worker._keeper
        line = app.store.lease_line()
        line.retire(name)
        line.close()
        await until(lambda: worker.name != name and worker._keeper is not None and worker._keeper.trusted())
        second, current = worker.name, worker._keeper
        assert keeper is not None
        assert not keeper.trusted()
        worker._lease_lost(keeper)  # the other one who noticed
        await asyncio.sleep(0)
        assert (worker.name, worker._keeper) == (second, current)
        chat = await app.create("a", "hi")
        assert await chat.wait(20.0) is State.IDLE
        assert {lease.worker for lease in await app.store.list_workers() if lease.ended is None} == {second}


async def test_a_worker_comes_back_though_the_system_has_no_thread_for_its_lease_at_first(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps it from a new lease: a worker that gave that up would live on and do nothing."""
    start = threading.Thread.start
    refused: list[str] = []

    def refuse_twice(thread: threading.Thread) -> None:
        if thread.name == "holdfast-lease" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    app = App(store_url, [Agent("a", ScriptedModel("Hello."))])
    async with app, app.worker(poll_s=0.2) as worker:
        services, name = list(worker._services), worker.name
        monkeypatch.setattr(threading.Thread, "start", refuse_twice)
        await app.store.recovery.end_lease(name, LeaseEnd.SILENT)
        chat = await app.create("a", "hi")
        assert await chat.wait(20.0) is State.IDLE
        assert len(refused) == 2
        await until(lambda: worker._services == services)  # what is done is not kept


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Another process in a long write transaction looks like this."""
    with Path(f"{path}.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_trust_that_runs_out_while_the_store_does_not_answer_is_noticed_in_time(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    options = StoreOptions(lease_ttl_ms=1_500, deadline_s=1.0)
    async with open_store(f"sqlite:///{path}", options) as store:
        lost = threading.Event()
        info = WorkerInfo(worker=new_id("worker"), host="", pid=os.getpid(), lock_path=None, info=Raw(b"{}"))
        keeper = LeaseKeeper(store, info, SystemClock(), lost.set, lost.set)
        keeper.start()
        with write_lock(path):
            assert await asyncio.get_running_loop().run_in_executor(None, lambda: lost.wait(20.0))
            assert not keeper.trusted()
            assert keeper.failed_renewals > 0
        keeper.stop(5.0)


async def test_a_worker_whose_trust_ran_out_goes_on_under_its_id_and_nobody_is_counted_dead(
    failing_store: FailingStore,
) -> None:
    """The store was away for longer than trust lasts. Nobody could end the lease meanwhile, so it is still ours."""
    model = ScriptedModel([Hold(name="gate"), Say(text="Done.")])
    agent = Agent("a", model)
    app = App(failing_store.url, [agent], options=StoreOptions(lease_ttl_ms=2_000, deadline_s=1.0))
    watching = App(failing_store.steady_url, [agent])
    async with watching, app, app.worker(poll_s=0.2) as worker:
        name = worker.name
        chat = await watching.create("a", "go")
        await model.reached("gate")
        with failing_store.outage():
            await until(lambda: worker.trust_left_ms == 0)
            await until(lambda: not worker.running_chats)
        await until(lambda: worker.trust_left_ms > 0)
        model.resume("gate")
        assert await chat.wait(30.0) is State.IDLE
        assert worker.name == name
        assert (await chat.snapshot()).chat.unclean == 0
        assert [lease.worker for lease in await watching.store.list_workers()] == [name]


async def test_what_runs_is_ended_when_trust_runs_out_and_not_when_the_renewal_gives_up(
    postgres_proxy_url: str, postgres_proxy: TcpProxy
) -> None:
    """A renewal may hang for longer than the margin, and so may a runner's look: others may own the chat then."""
    model = ScriptedModel([Hold(name="gate")])
    app = App(postgres_proxy_url, [Agent("a", model)], options=StoreOptions(lease_ttl_ms=2_000))
    async with app, app.worker(poll_s=0.2) as worker:
        await app.create("a", "go")
        await model.reached("gate")
        keeper = worker._keeper
        assert keeper is not None
        postgres_proxy.swallow()
        await until(lambda: not worker.running_chats)
        assert (keeper.trusted(), keeper.doubts) == (False, 0)
        postgres_proxy.cut()  # nobody waits for answers to what was swallowed
        postgres_proxy.forward()


async def test_a_worker_that_was_taken_for_dead_says_that_it_lives(store_url: str) -> None:
    """A real process, really frozen; others saw it silent for its TTL and took its chat."""
    async with App(store_url, [Agent("lone", ScriptedModel([Hold(name="gate")]))]) as app:
        with Program("tests.worker.lone", store_url, "wait", "600000", "60") as program:
            assert await hear(program) == "ready"
            chat = await app.create("lone", "go")
            assert await hear(program) == "wait"
            freeze(program.pid, store_url)
            end_lease(program.pid, store_url)
            await app.store.sweep()
            lost = (await chat.snapshot()).chat
            assert (lost.worker, lost.unclean) == (None, 1)
            hand = Hand(app.store)
            await app.store.claim_chats(hand.name, {"lone": 1}, 1)
            os.kill(program.pid, signal.SIGCONT)
            await eventually(lambda: _is_clean(app, chat.id))
            found = (await chat.snapshot()).chat
            assert (found.worker, found.silent) == (hand.name, "")


async def test_a_worker_that_is_taken_for_dead_while_it_drains_says_that_it_lives(store_url: str) -> None:
    model = ScriptedModel([Hold(name="gate")])
    app = App(store_url, [Agent("a", model)], options=StoreOptions(lease_ttl_ms=4_000))
    async with app:
        async with app.worker(poll_s=0.2) as worker:
            chat = await app.create("a", "go")
            await model.reached("gate")
            draining = asyncio.ensure_future(worker.stop(grace_s=60.0))
            await until(lambda: worker.draining)
            await app.store.recovery.end_lease(worker.name, LeaseEnd.SILENT)
            await app.store.expire_workers()
            await draining  # it may say so before a look could show that it was counted
        found = (await chat.snapshot()).chat
        assert (found.state, found.worker, found.unclean, found.silent) == (State.RUNNING, None, 0, "")


async def test_a_worker_that_stops_before_it_could_come_back_says_that_it_lives(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused = threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "holdfast-lease":
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    model = ScriptedModel([Hold(name="gate")])
    app = App(store_url, [Agent("a", model)], options=StoreOptions(lease_ttl_ms=4_000))
    async with app:
        async with app.worker(poll_s=0.2) as worker:
            chat = await app.create("a", "go")
            await model.reached("gate")
            monkeypatch.setattr(threading.Thread, "start", refuse)
            await app.store.recovery.end_lease(worker.name, LeaseEnd.SILENT)
            await app.store.expire_workers()
            await until(refused.is_set)
        assert (await chat.snapshot()).chat.unclean == 0


async def test_a_chat_that_somebody_keeps_locked_keeps_no_silent_lease(postgres_url: str) -> None:
    """Taking it back takes as long as a store call may, again and again. Whoever looked no more often would see no
    number stand for a whole TTL."""
    options = StoreOptions(lease_ttl_ms=1_500, deadline_s=1.0)
    app = App(postgres_url, [Agent("a", ScriptedModel("Hello."))], options=options)
    async with app:
        gone, silent = Hand(app.store), Hand(app.store)
        await app.store.create_chat(new_chat(id="c1"))
        await gone.take("c1")
        gone.line.retire(gone.name)

        async def is_ended() -> bool:
            leases = await app.store.list_workers()
            return silent.name not in {lease.worker for lease in leases if lease.ended is None}

        with psycopg.connect(postgres_url) as foreign:
            foreign.execute("SELECT 1 FROM chats WHERE id = 'c1' FOR UPDATE")
            async with app.worker(poll_s=0.2):
                await eventually(is_ended)
                assert (await app.store.read_chat("c1")).chat.worker == gone.name


async def test_a_chat_that_was_locked_while_another_was_claimed_is_not_left_to_the_next_poll(
    postgres_url: str,
) -> None:
    """Its claim passes over it, and who lets go of a row rings nobody."""
    model = ScriptedModel(Hold(name="here"), after="echo")
    async with App(postgres_url, [Agent("slow", model), Agent("echo", ScriptedModel(after="echo"))]) as app:
        locked = await app.create("echo", "Y")
        with psycopg.connect(postgres_url) as foreign:
            foreign.execute("SELECT 1 FROM chats WHERE id = %s FOR UPDATE", (locked.id,))
            await app.create("slow", "X")
            async with app.worker(poll_s=100.0) as worker:
                await until(lambda: worker.claims_taken == 1)
                foreign.rollback()
                assert (await locked.turn(timeout_s=30)).state == "done"
                model.resume("here")


async def _is_clean(app: App, chat_id: str) -> bool:
    return (await app.store.read_chat(chat_id)).chat.unclean == 0


async def hear(program: Program) -> str:
    return await asyncio.get_running_loop().run_in_executor(None, program.hear)
