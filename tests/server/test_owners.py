"""Two owners and an admin on every route and protocol: no answer, stream, count or error tells one of the other.

What is asked is made from the server's routes and its description (`walk.py`), so a new route is walked, too, or
fails here until it can be.
"""

import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from fastapi import APIRouter
from msgspec.structs import replace

from holdfast import App, Schedule
from holdfast.core import kept_files
from holdfast.core.records import File, Message, Role, Text
from holdfast.ids import new_id
from holdfast.principals import SCOPES
from holdfast.server.guarded import GuardedRoute, Routes, check_guarded
from holdfast.server.http import http_app
from holdfast.server.login import LOGOUT, SCRIPT
from holdfast.server.sessions import LOGIN
from holdfast.store.tokens import NewToken, digest_of
from holdfast.store.webhooks import NewWebhook
from tests.server.program import make_app
from tests.server.walk import DESCRIPTION, Asked, Guarded, Ids, every_route, requests_of
from tests.support.kept import keep

ADMIN = "admin-token-of-this-test"
SECRET = "the-plan-of-bob"  # in everything that bob says and names


class House(NamedTuple):
    """A served app with chats of bob's, and what was made for the test in it."""

    app: App
    api: Any
    bobs: Ids
    never: Ids

    @asynccontextmanager
    async def client(self, token: str) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.api)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, timeout=30.0
        ) as client:
            yield client

    async def token(self, owner: str | None, scopes: frozenset[str] = SCOPES, **more: Any) -> str:
        new = NewToken(name="test", owner=owner, scopes=scopes, **more)
        return (await self.app.store.tokens.create(new))[1]


@pytest.fixture
async def house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    app = make_app(store_url, str(tmp_path))
    api = http_app(app, token=ADMIN)
    async with app.worker():
        # Of no worker here: an endpoint on this machine, which the settings do not allow.
        hook, _ = await app.store.webhooks.create(
            NewWebhook(name=SECRET, url=f"http://127.0.0.1:9/{SECRET}", owner="bob")
        )
        chat = await app.create(
            "payer", SECRET, owner="bob", title=SECRET, metadata={"plan": SECRET, "owner": "bob", "chat": "x"}
        )
        await chat.wait(60.0)
        picture = SECRET.encode() * 200
        uri = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        parts = (Text(text=SECRET), File(media_type="image/png", uri=uri))
        queued = await chat.send(Message(id=new_id("msg"), role=Role.USER, parts=parts))
        (call,) = await chat.open_calls()
        assert queued.answer.message_id is not None
        kept, secret = await app.store.tokens.create(NewToken(name=SECRET, owner="bob"))
        assert digest_of(secret)
        (rule,) = await keep(app.store, f"allow call({SECRET})", owner="bob", agent="by-hand", by=SECRET)
        plan = Schedule(SECRET, agent="payer", message=SECRET, at=datetime(2999, 1, 1, tzinfo=UTC), owner="bob")
        schedule = await app.schedules.create(plan)
        told = (await app.store.deliveries.page(hook.id))[-1]
        file = kept_files.digest_of(picture)
        ids = (chat.id, queued.answer.message_id, call.id, kept.id, rule.id, "bob", file, schedule.id)
        fact = await app.memory.add(SECRET, owner="bob", agent="payer", by=SECRET)
        bobs = Ids(*ids, hook.id, told.notice_id, fact.id)
        never = Ids(*map(_never, bobs))._replace(owner="kim")  # which is no part of a word in an answer
        yield House(app, api, bobs, never)


def _never(id: str) -> str:
    """Of the same shape, and no one's."""
    return re.sub(r"[0-9a-z]{8}$", "00000000", id)


async def answered(client: httpx.AsyncClient, asked: Asked) -> httpx.Response:
    body = {"content" if isinstance(asked.body, bytes) else "json": asked.body} if asked.body is not None else {}
    return await client.request(asked.method, asked.path, params=asked.query, **body)


def told(answer: httpx.Response, ids: Ids) -> tuple[int, str, dict[str, str]]:
    """All of it, but for the ids that were asked for and what is made anew each time."""
    headers = {name: ids.taken_out(value) for name, value in answer.headers.items() if name != "x-holdfast-chat"}
    text = ids.taken_out(answer.text)
    text = re.sub(r"(chat|msg|resp_1_chat|conv_chat|tok|hf_tok)_[0-9a-zA-Z_-]{20,}", "<new>", text)
    text = re.sub(r'("(?:created|created_at|updated_at|completed_at|at)"):\s*[\d.]+', r"\1:0", text)
    headers.pop("content-length", None)
    headers.pop("location", None)
    return answer.status_code, text, headers


async def test_a_chat_of_another_owner_is_told_of_as_one_that_never_was(house: House) -> None:
    before = await state_of(house)
    async with house.client(await house.token("ann")) as ann:
        for route in every_route():
            pairs = zip(requests_of(route, house.bobs), requests_of(route, house.never), strict=True)
            for bobs, never in pairs:
                if bobs == never:
                    continue
                answer, other = await answered(ann, bobs), await answered(ann, never)
                assert told(answer, house.bobs) == told(other, house.never), (route.method, route.path, bobs)
                assert SECRET not in answer.text, (route.method, route.path)
                if not bobs.query and "{" in route.path and "{name" not in route.path:
                    status = 403 if route.need.all_owners else 404
                    assert answer.status_code == status, (route.method, route.path, answer.text)
    assert await state_of(house) == before, "nothing of bob's was touched"


async def test_a_token_for_one_chat_is_told_of_no_other_chat_of_its_owner(house: House) -> None:
    chat = await house.app.create("echo", "mine", owner="bob")
    before = await state_of(house)
    own_never = house.never._replace(owner="bob")  # its owner is no secret to it
    async with house.client(await house.token("bob", chat=chat.id)) as limited:
        for route in every_route():
            pairs = zip(requests_of(route, house.bobs), requests_of(route, own_never), strict=True)
            for bobs, never in pairs:
                if bobs == never:
                    continue
                answer, other = await answered(limited, bobs), await answered(limited, never)
                assert told(answer, house.bobs) == told(other, own_never), (route.method, route.path, bobs)
                assert SECRET not in answer.text, (route.method, route.path)
        listed = (await limited.get("/api/chats")).json()["chats"]
        assert [line["id"] for line in listed] == [chat.id]
        assert (await limited.get(f"/api/chats/{chat.id}")).status_code == 200
    assert await state_of(house) == before


async def state_of(house: House) -> list[Any]:
    """Everything of bob's that the walk knows of."""
    chat = house.app.chat(house.bobs.chat)
    snapshot = await chat.snapshot()
    (token,) = await house.app.store.tokens.read([house.bobs.token])
    rule = await house.app.store.kept_rules.read(house.bobs.rule)
    schedule = await house.app.schedules.get(house.bobs.schedule)
    hook = await house.app.store.webhooks.read(house.bobs.webhook)
    fact = await house.app.memory.get(house.bobs.memory)
    calls, queue = snapshot.open_calls, snapshot.queue
    return [replace(snapshot.chat, updated_at=0), calls, queue, token, rule, schedule, hook, fact]


async def test_the_walk_asks_for_what_is_there(house: House) -> None:
    """Or it would prove nothing: for the owner and the admin every one of these answers is another one."""
    routes = [route for route in every_route() if route.method == "GET" and "_id}" in route.path]
    streams = [route for route in routes if route.path.endswith("/events")]
    assert len(routes) > 10
    assert streams
    tokens = (ADMIN, await house.token("bob"))
    for token in tokens:
        async with house.client(token) as client:
            for route in set(routes) - set(streams):
                answer = await answered(client, next(requests_of(route, house.bobs)))
                assert answer.status_code == 200, (route.path, answer.text)
    await house.app.chat(house.bobs.chat).stop(clear_queue=True)  # a stream ends where the chat rests
    for token in tokens:
        async with house.client(token) as client:
            for route in streams:
                answer = await answered(client, next(requests_of(route, house.bobs)))
                assert SECRET in answer.text, route.path


async def test_lists_searches_and_counts_are_of_the_owner(house: House) -> None:
    await house.app.create("echo", "about a plan", owner="ann", metadata={"plan": "ann"})
    async with house.client(await house.token("ann")) as ann, house.client(ADMIN) as admin:
        for route in every_route():
            if route.method == "GET" and "{" not in route.path:
                answer = await ann.get(route.path)
                assert SECRET not in answer.text, route.path
                assert house.bobs.chat not in answer.text, route.path
        for query in (
            {"search": "plan"},
            {"metadata": f"plan:{SECRET}"},
            {"state": "waiting"},
            {"agent": "payer"},
            {},
        ):
            listed = (await ann.get("/api/chats", params=query)).json()["chats"]
            assert all(line["owner"] == "ann" for line in listed), query
            everyones = (await admin.get("/api/chats", params=query)).json()["chats"]
            assert house.bobs.chat in [line["id"] for line in everyones], query
        for owner, status in (("bob", 403), ("eve", 403), ("ann", 200), ("", 200)):
            assert (await ann.get("/api/chats", params={"owner": owner})).status_code == status, owner
            made = await ann.post("/api/chats", json={"agent": "echo", "owner": owner})
            assert made.status_code == (201 if status == 200 else 403), owner
            assert status == 403 or made.json()["owner"] == "ann"


async def test_health_tells_figures_to_those_who_operate_for_all_owners_and_to_no_others(house: House) -> None:
    chat = house.bobs.chat
    strangers = {
        "nobody": "",
        "a token that is none": "hf_tok_0_" + "0" * 43,
        "an owner": await house.token("ann"),
        "one chat": await house.token(None, chat=chat),
        "no scope for it": await house.token(None, SCOPES - {"operate"}),
    }
    for who, token in strangers.items():
        async with house.client(token) as client:
            answer = await client.get("/health")
            assert (answer.status_code, set(answer.json())) == (200, {"status", "reasons", "version"}), who
    async with house.client("") as browser:
        await browser.post("/login", data={"code": ADMIN})
        by_cookie = (await browser.request("GET", "/health", headers={"Authorization": ""})).json()
        del browser.headers["Authorization"]
        assert "diagnostics" not in by_cookie, "what is sent as a token counts, also where it is none"
        told = [(await browser.get("/health")).json()]
    for token in (ADMIN, await house.token(None)):
        async with house.client(token) as operator:
            told.append((await operator.get("/health")).json())
    for figures in told:
        assert figures["diagnostics"]["running_executions"] == 0
        assert figures["apps"][0]["workers"][0]["chats_max"] == 100
        assert figures["server"]["streams_max"] == 10_000


@pytest.mark.parametrize("route", every_route(), ids=lambda route: f"{route.method} {route.path}")
async def test_a_missing_scope_is_named(route: Guarded, tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path}/holdfast.db", str(tmp_path))
    house = House(app, http_app(app, token=ADMIN), *[Ids("chat_0", "msg_0", "call_0", "tok_0", "rule_0", "bob")] * 2)
    async with app:
        scope = route.need.scope
        for asked in requests_of(route, house.bobs):
            async with house.client("") as nobody:
                answer = await answered(nobody, asked)
                if route.path != LOGIN:  # which is public, and refuses a code that is none
                    assert (answer.status_code == 401) == (not route.need.public), answer.text
            if scope is None:
                continue
            async with house.client(await house.token(None, SCOPES - {scope})) as without:
                answer = await answered(without, asked)
                assert answer.status_code == 403, answer.text
                assert f"the scope {scope!r}" in answer.text
                assert route.of_v1 or answer.json()["scope"] == scope
            if route.need.all_owners:
                async with house.client(await house.token("ann")) as ann:
                    assert (await answered(ann, asked)).status_code == 403


def test_every_route_of_the_description_is_walked_and_says_its_scope() -> None:
    walked = {(route.method.lower(), route.path): route.need for route in every_route()}
    for path, methods in DESCRIPTION["paths"].items():
        for method, operation in methods.items():
            scopes = [scope for line in operation["security"] for scope in line["token"]]
            need = walked[method, path]
            assert scopes == ([need.scope] if need.scope is not None else []), (method, path)
            assert need.public == (operation["security"] == []), (method, path)


def test_only_health_the_modules_links_and_the_way_in_and_out_are_public() -> None:
    public = {"/health", "/client/{name}", "/page/{name}", LOGIN, SCRIPT, LOGOUT, "/approvals/{link}"}
    assert {route.path for route in every_route() if route.need.public} == public


def test_a_route_that_declares_no_scope_is_an_error_when_it_is_imported() -> None:
    routes = Routes()
    with pytest.raises(TypeError, match="GET /secrets declares no scope"):
        routes.get("/secrets")
    with pytest.raises(TypeError, match="declares no scope"):
        routes.get("/secrets", scope="everything")  # type: ignore[arg-type]
    bare = APIRouter(route_class=GuardedRoute)
    with pytest.raises(TypeError, match="/secrets declares no scope"):
        bare.get("/secrets")(lambda: None)
    plain = APIRouter()
    plain.get("/secrets")(lambda: None)
    with pytest.raises(TypeError, match="/secrets is not guarded"):
        check_guarded(plain)
