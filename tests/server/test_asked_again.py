"""Whom the mounting program lets in without an end is let in for an hour: then the program is asked again."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from starlette.requests import Request

from holdfast import App, Principal
from holdfast.principals import SCOPES
from holdfast.server.http import http_app
from tests.server.program import make_app
from tests.support.waiting import eventually, until

HOUR_MS = 3_600_000


class Program:
    """One that mounts the API, and knows its users by a header."""

    def __init__(self, app: App) -> None:
        self.users = {"ann"}
        self.ends_at: int | None = None
        self.api = http_app(app, token="admin-token-of-this-test", authenticate=self.authenticate)

    def authenticate(self, request: Request) -> Principal | None:
        name = request.headers.get("x-user", "")
        known = Principal(name=name, owner=name, scopes=SCOPES, expires_at=self.ends_at) if name else None
        return known if name in self.users else None

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.api)
        headers = {"x-user": name}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as user:
            yield user

    async def asks_again(self, answer: "asyncio.Future[httpx.Response]") -> httpx.Response:
        """Looks at those who stay, as it does every few seconds, until this one is answered."""

        async def is_answered() -> bool:
            await self.api.state.grants.look()
            return answer.done()

        await eventually(is_answered)
        return await answer


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = make_app(f"sqlite:///{tmp_path}/holdfast.db", str(tmp_path))
    async with app.worker():
        yield app


@pytest.fixture
def hour_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.grants.ASK_AGAIN_S", 0.0)


def ids_of(text: str) -> list[str]:
    return re.findall(r"^id: (\S+)$", text, re.MULTILINE)


@pytest.mark.usefixtures("hour_is_over")
async def test_a_stream_ends_when_the_program_is_to_be_asked_again_and_goes_on_where_it_was(app: App) -> None:
    program = Program(app)
    chat = await app.create("echo", "hello", owner="ann")
    await chat.wait(30.0)
    async with program.user("ann") as ann:
        path = f"/api/chats/{chat.id}/events"
        stream = asyncio.ensure_future(ann.get(path, params={"follow": "true"}))
        text = (await program.asks_again(stream)).text
        assert text.endswith("event: reconnect\nretry: 500\ndata: {}\n\n")
        seen = ids_of(text)  # as far as it came
        await chat.send("more")
        await chat.wait(30.0)
        rest = (await ann.get(path, headers={"Last-Event-ID": seen[-1]} if seen else {})).text
        assert seen + ids_of(rest) == ids_of((await ann.get(path)).text)
        stream = asyncio.ensure_future(ann.get(path, params={"follow": "true"}))
        await until(lambda: program.api.state.streams.shares.count == 1)
        program.users.clear()
        await program.asks_again(stream)
        assert (await ann.get(path)).status_code == 401


@pytest.mark.usefixtures("hour_is_over")
async def test_one_that_waits_for_a_turn_is_told_how_it_stands_when_the_program_is_to_be_asked_again(
    app: App,
) -> None:
    program = Program(app)
    chat = await app.create("thinker", "hello", owner="ann")
    async with program.user("ann") as ann:
        turn = asyncio.ensure_future(ann.get(f"/api/chats/{chat.id}/turn", params={"wait_s": 30}))
        answer = await program.asks_again(turn)
        assert (answer.status_code, answer.json()["state"]) == (200, "running")
    await chat.stop()


@pytest.mark.usefixtures("hour_is_over")
async def test_one_whose_end_the_program_said_stays_until_then(app: App) -> None:
    program = Program(app)
    program.ends_at = app.store.now_ms() + HOUR_MS
    chat = await app.create("thinker", "hello", owner="ann")
    async with program.user("ann") as ann:
        stream = asyncio.ensure_future(ann.get(f"/api/chats/{chat.id}/events"))
        await until(lambda: program.api.state.streams.shares.count == 1)
        await program.api.state.grants.look()
        await chat.stop()
        assert "event: end" in (await stream).text


@pytest.mark.parametrize("own_end_ms", [None, 30 * 24 * HOUR_MS, HOUR_MS // 2])
async def test_a_token_that_such_a_principal_makes_lives_for_an_hour_at_most(
    app: App, own_end_ms: int | None
) -> None:
    program = Program(app)
    program.ends_at = app.store.now_ms() + own_end_ms if own_end_ms is not None else None
    chat = await app.create("echo", owner="ann")
    async with program.user("ann") as ann:
        for asked in ({"chat": chat.id, "ttl_s": 10**8}, {"chat": chat.id}, {"scopes": ["operate"]}):
            made: dict[str, Any] = (await ann.post("/api/tokens", json={"name": "page", **asked})).json()
            latest = app.store.now_ms() + min(HOUR_MS, own_end_ms or HOUR_MS)
            assert made["expires_at"] <= latest
            assert made["expires_at"] > latest - 60_000
        short = (await ann.post("/api/tokens", json={"name": "page", "chat": chat.id, "ttl_s": 5})).json()
        assert short["expires_at"] <= app.store.now_ms() + 5_000
