"""A lease that is lost is lost once, noticed even if nobody can say so, and the worker goes on with another."""

import asyncio
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Raw

from holdfast.app import App
from holdfast.clock import SystemClock
from holdfast.core.records import State
from holdfast.ids import new_id
from holdfast.models.scripted import ScriptedModel
from holdfast.store import open_store
from holdfast.store.base import StoreOptions, WorkerInfo
from holdfast.worker.agents import Agent
from holdfast.worker.lease import LeaseKeeper
from tests.support.waiting import until


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
        assert {lease.worker for lease in await app.store.list_workers() if lease.expires_in_ms > 0} == {second}


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
        await app.store._end_lease(name)
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
        keeper = LeaseKeeper(store, info, SystemClock(), lost.set)
        keeper.start()
        with write_lock(path):
            assert await asyncio.get_running_loop().run_in_executor(None, lambda: lost.wait(20.0))
            assert not keeper.trusted()
            assert keeper.failed_renewals > 0
