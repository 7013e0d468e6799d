"""Health says so when no write works, also where reads do and nobody renews a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest

from holdfast import App
from holdfast.errors import StoreError, StoreFull
from holdfast.health.checks import judge
from holdfast.server.http import http_app
from holdfast.server.listening import listen, url_of
from holdfast.server.serve import Serving
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.store.tokens import new_secret
from holdfast.store.write_probe import PROOF_S, Pulse
from holdfast.system.clock import FakeClock
from tests.support.chats import new_chat
from tests.support.fixtures import FailingStore
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually, until

TOKEN = "t" * 32


@asynccontextmanager
async def serving_without_a_worker(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with app:
        listener = listen("127.0.0.1", 0)
        serving = Serving(app, http_app(app, token=TOKEN), listener, None)
        await serving.start()
        async with httpx.AsyncClient(base_url=url_of(listener), trust_env=False, timeout=30) as client:
            yield client
        await serving.stop()


async def test_a_server_without_a_worker_is_unhealthy_while_no_write_works_and_well_again_after(
    failing_store: FailingStore,
) -> None:
    """SQLite: a process that is frozen with the write lock. PostgreSQL: a server that has gone silent."""
    clock = FakeClock()
    app = App(failing_store.url, options=StoreOptions(clock=clock, deadline_s=failing_store.deadline_s))
    async with serving_without_a_worker(app) as client:
        pulse = app.store.pulse
        await until(lambda: pulse.age_s is not None)
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        with failing_store.outage():
            clock.advance(int(PROOF_S * 1000))
            await pulse.beat()
            clock.advance(5_000)
            health = await client.get("/health")
            told = health.json()
            assert (health.status_code, told["status"], told["reasons"]) == (503, "unhealthy", ["no_writes"])
            assert "diagnostics" not in told
            stranger = await client.get("/health", headers={"Authorization": f"Bearer {new_secret()[1]}"})
            assert stranger.json() == told, "no answer waits for a store that is away"
            admin = await client.get("/health", headers={"Authorization": f"Bearer {TOKEN}"})
            figures = admin.json()["diagnostics"]
            assert figures["writes_failing_s"] >= figures["writes_failing_s_max"] == 5.0
            assert figures["write_proved_s"] >= figures["write_proved_s_max"] == PROOF_S
        await eventually(lambda: _is_well(client))


async def _is_well(client: httpx.AsyncClient) -> bool:
    return bool((await client.get("/health")).json()["status"] == "ok")


async def test_the_log_says_when_writes_work_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    full = [StoreFull("no room left")]

    async def write() -> None:
        if full:
            raise full[0]

    pulse = Pulse(clock, write)
    for _ in range(2):
        await pulse.beat()
    clock.advance(3_000)
    full.clear()
    for _ in range(2):
        await pulse.beat()
    told = [vars(record) for record in caplog.records]
    assert [line["action"] for line in told] == ["store.no_writes", "store.writes_again"]
    assert told[1]["after_s"] == 3.0


async def test_a_synchronous_standby_that_is_gone_is_told_though_reads_answer(
    postgres_server: PostgresServer, postgres_url: str, clock: FakeClock
) -> None:
    options = StoreOptions(clock=clock, deadline_s=2.0)
    async with open_store(postgres_url, options) as store:
        await store.pulse.beat()
        assert store.pulse.failing_s == 0
        administrator = postgres_server._administrator()
        try:
            administrator.execute("ALTER SYSTEM SET synchronous_standby_names = 'gone'")
            administrator.execute("SELECT pg_reload_conf()")
            await eventually(lambda: _fails(store))
            assert await store.list_chats() == []
            clock.advance(5_000)
            assert store.pulse.failing_s >= 5
            assert "no_writes" in _reasons(store)
        finally:
            administrator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            administrator.execute("SELECT pg_reload_conf()")
        await eventually(lambda: _works(store))
        assert _reasons(store) == []


async def _fails(store: Store) -> bool:
    await store.pulse.beat()
    return store.pulse.error is not None


async def _works(store: Store) -> bool:
    return not await _fails(store)


def _reasons(store: Store) -> list[str]:
    class View:
        workers = ()

        def __init__(self) -> None:
            self.store = store

    return judge([View()])[1]  # type: ignore[list-item]


async def test_a_clients_write_that_fails_makes_us_look_at_once(
    failing_store: FailingStore, clock: FakeClock
) -> None:
    """And not when the next proof is due: it never is, for the clock stands still."""
    async with open_store(failing_store.url, StoreOptions(clock=clock, deadline_s=failing_store.deadline_s)) as store:
        keeping = asyncio.create_task(store.pulse.run_forever())
        await until(lambda: store.pulse.age_s is not None)
        with failing_store.outage():
            with pytest.raises(StoreError):
                await store.create_chat(new_chat("hello"))
            await until(lambda: store.pulse.error is not None)
        await until(lambda: store.pulse.error is None)
        keeping.cancel()


async def test_what_tells_is_a_write_that_waits_for_no_chat(store: Store) -> None:
    """A chat that somebody keeps locked is no reason to take a process from service."""
    await store.pulse.beat()
    store.pulse.doubt()
    assert (store.pulse.failing_s, _reasons(store)) == (0, [])
    store.pulse.failed(0, StoreError("a renewal"))
    assert _reasons(store) != []
    store.pulse.proved()
    assert _reasons(store) == []


async def test_a_lease_that_is_renewed_is_proof_enough(store_url: str) -> None:
    app = App(store_url, options=StoreOptions(lease_ttl_ms=2_000))
    async with app, app.worker() as worker:
        await until(lambda: app.store.pulse.age_s is not None)
        proofs = app.store.pulse.proofs
        keeper = worker._keeper
        assert keeper is not None
        renewals = keeper.renewals
        await until(lambda: keeper.renewals >= renewals + 2)
        assert app.store.pulse.proofs == proofs
