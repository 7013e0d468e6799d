"""What a request asks of the machine, as literal figures: who adds to one of them changes it here. They are counts,
not times, so that a busy machine changes none of them. For readers, see `test_feeds.py`.
"""

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from starlette.routing import Match

from holdfast import Agent, App
from holdfast.server.guarded import GuardedRoute
from holdfast.server.http import http_app
from holdfast.store.records import StoreOptions
from holdfast.testing import ScriptedModel
from tests.support.asked import asking
from tests.support.services import end_services

TOKEN = "a-token-of-the-admin"
TURNS = 20
SOME = TURNS // 2  # what came between a ring and a look: none of it goes by turns
SLOW_CLOCKS = StoreOptions(lease_ttl_ms=3_600_000, poll_interval_s=600.0)


@asynccontextmanager
async def served(url: str, home: Path) -> AsyncIterator[tuple[App, FastAPI, httpx.AsyncClient]]:
    agent = Agent("a", ScriptedModel(after="echo"))
    app = App(url, [agent], options=SLOW_CLOCKS, poll_s=600.0, home=str(home))
    api = http_app(app, token=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    transport = httpx.ASGITransport(app=api)
    async with (
        app.worker(grace_s=0.0) as worker,
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=60) as client,
    ):
        await end_services(worker, but=("Worker._claim_forever",))
        yield app, api, client


async def test_a_turn_over_http_is_eight_looks_at_the_store(store_url: str, tmp_path: Path) -> None:
    """The message, the claim, two reads of the worker and its commit; two looks of who waits, and the turn as it is
    read. On PostgreSQL the commit is not counted, and a claim is two.
    """
    async with served(store_url, tmp_path) as (app, _, client):
        made = await client.post("/api/chats", json={"agent": "a", "message": "Go on."})
        chat = f"/api/chats/{made.json()['id']}"

        async def turn() -> None:
            (await client.post(f"{chat}/messages", json={"message": "Go on."})).raise_for_status()
            assert (await client.get(f"{chat}/turn?wait_s=30")).json()["state"] == "done"

        for _ in range(3):
            await turn()
        with asking(app.store) as asked:
            for _ in range(TURNS):
                await turn()
        assert asked.count <= 8 * TURNS + SOME


async def test_a_new_chat_that_is_streamed_is_thirteen_looks_at_the_store(store_url: str, tmp_path: Path) -> None:
    """Or fewer: what is told at once is read at once."""
    async with served(store_url, tmp_path) as (app, _, client):

        async def turn() -> None:
            made = await client.post("/api/chats", json={"agent": "a", "message": "Go on."})
            told = await client.get(f"/api/chats/{made.json()['id']}/events?follow=false")
            assert "event: end" in told.text

        for _ in range(3):
            await turn()
        with asking(app.store) as asked:
            for _ in range(TURNS):
                await turn()
        assert asked.count <= 13 * TURNS + SOME


def _calls(dependant: Dependant) -> Iterator[Any]:
    yield dependant.call
    for below in dependant.dependencies:
        yield from _calls(below)


async def test_no_route_and_nothing_that_one_asks_for_runs_in_a_thread(tmp_path: Path) -> None:
    """FastAPI runs functions that are not async in a thread: each cost more than the rest of its request."""
    api = http_app(App(f"sqlite:///{tmp_path}/a.db", home=str(tmp_path)), token=TOKEN)
    ours = [route for route in api.router.routes if isinstance(route, GuardedRoute)]
    assert len(ours) > 100
    in_threads = {call for route in ours for call in _calls(route.dependant) if not inspect.iscoroutinefunction(call)}
    assert not in_threads


async def test_a_request_tries_the_patterns_of_few_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred. Most are passed over by how their paths begin and end; none is asked twice."""
    api = http_app(App(f"sqlite:///{tmp_path}/a.db", home=str(tmp_path)), token=TOKEN)
    tried: Counter[str] = Counter()
    real = GuardedRoute.__mro__[1].matches  # type: ignore[attr-defined]

    def matches(route: GuardedRoute, scope: Any) -> tuple[Match, Any]:
        tried[route.path] += 1
        found: tuple[Match, Any] = real(route, scope)
        return found

    monkeypatch.setattr(GuardedRoute.__mro__[1], "matches", matches)
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1"}
    transport = httpx.ASGITransport(app=api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        assert (await client.get("/v1/models")).status_code == 200
    assert tried["/v1/models"] == 1
    assert tried.total() <= 5
