"""Tokens by the API: no wider than their maker, and ended for good, in every process, also for those who stay."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast.server.access import rotate_token
from tests.support.servers import ServerProcess, created, reading, server

ENDS_S = 10.0


@pytest.fixture
def two(store_url: str, tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers on one database, with one home."""
    with (
        server(store_url, tmp_path / "home") as first,
        server(store_url, tmp_path / "home", worker=False) as second,
    ):
        yield first, second


@pytest.fixture
def live(tmp_path: Path) -> Iterator[ServerProcess]:
    with server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as running:
        yield running


@asynccontextmanager
async def using(running: ServerProcess, token: str) -> AsyncIterator[httpx.AsyncClient]:
    async with running.client() as client:
        client.headers["Authorization"] = f"Bearer {token}"
        yield client


async def made(client: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    answer = await client.post("/api/tokens", json={"name": "test", **asked})
    assert answer.status_code == 201, answer.text
    token: dict[str, Any] = answer.json()
    return token


async def until_its_end(client: httpx.AsyncClient, chat_id: str, began: asyncio.Event) -> tuple[str, dict[str, Any]]:
    last: tuple[str, dict[str, Any]] = ("", {})
    async with reading(client, chat_id, follow=True, live=True) as events:
        async for event in events:
            if event.event == "live":
                began.set()
            last = (event.event, event.data)
    return last


async def test_open_streams_of_a_revoked_token_end_in_every_process(two: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = two
    async with first.client() as admin:
        chat_id = await created(admin, "echo", "hello", owner="ann")
        parent = await made(admin, owner="ann", scopes=["read", "chat", "operate"])
        async with using(second, parent["token"]) as maker:
            token = await made(maker, chat=chat_id)
        assert (token["owner"], token["chat"]) == ("ann", chat_id)
        began = [asyncio.Event(), asyncio.Event()]
        async with using(second, token["token"]) as reader, second.client() as other:
            gone = asyncio.create_task(until_its_end(reader, chat_id, began[0]))
            stays = asyncio.create_task(until_its_end(other, chat_id, began[1]))
            await asyncio.gather(*(event.wait() for event in began))
            await admin.delete(f"/api/tokens/{parent['id']}")
            revoked_at = time.monotonic()
            name, data = await gone
            assert time.monotonic() - revoked_at < ENDS_S
            assert (name, data["reason"]) == ("unauthorized", "the token was revoked, or has expired")
            assert (await reader.get(f"/api/chats/{chat_id}")).status_code == 401
            assert not stays.done(), "the admin's goes on"
            stays.cancel()
            await asyncio.wait((stays,))


async def test_an_expired_token_ends_its_streams_and_long_polls(two: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = two
    async with first.client() as admin:
        chat_id = await created(admin, "thinker", "hello", owner="ann")
        token = await made(admin, chat=chat_id, ttl_s=2)
        expires_at = token["expires_at"] / 1000
        began = asyncio.Event()
        async with using(second, token["token"]) as reader:
            stream = asyncio.create_task(until_its_end(reader, chat_id, began))
            poll = asyncio.create_task(reader.get(f"/api/chats/{chat_id}/turn", params={"wait_s": 60}))
            name, _ = await stream
            answer = await poll
            assert time.time() - expires_at < ENDS_S
            assert name == "unauthorized"
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        await admin.post(f"/api/chats/{chat_id}/stop")


async def test_the_admin_token_is_rotated_while_servers_run(
    two: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    first, second = two
    async with first.client() as admin, second.client() as other:
        chat_id = await created(admin, "echo", "hello")
        began = asyncio.Event()
        stream = asyncio.create_task(until_its_end(other, chat_id, began))
        await began.wait()
        token = rotate_token(tmp_path / "home")
        assert ((tmp_path / "home" / "token").stat().st_mode & 0o777) == 0o600
        rotated_at = time.monotonic()
        assert (await stream)[0] == "unauthorized"
        assert time.monotonic() - rotated_at < ENDS_S
        for running, old in ((first, admin), (second, other)):
            while (await old.get("/api/chats")).status_code != 401:
                assert time.monotonic() - rotated_at < ENDS_S
                await asyncio.sleep(0.1)
            async with using(running, token) as new:
                assert (await new.get("/api/chats")).status_code == 200


async def test_no_token_makes_one_that_is_wider_than_itself(live: ServerProcess) -> None:
    async with live.client() as admin:
        anns = await created(admin, "echo", "hello", owner="ann")
        bobs = await created(admin, "echo", "hello", owner="bob")
        wide = await made(admin, owner="ann", scopes=["read", "chat", "operate"], ttl_s=3600)
        narrow = await made(admin, owner="ann", scopes=["read"])
        async with using(live, wide["token"]) as ann, using(live, narrow["token"]) as reader:

            async def refused(client: httpx.AsyncClient, status: int, **asked: Any) -> dict[str, Any]:
                answer = await client.post("/api/tokens", json={"name": "x", **asked})
                assert answer.status_code == status, answer.text
                problem: dict[str, Any] = answer.json()
                return problem

            assert (await refused(ann, 403, scopes=["approve"]))["scope"] == "approve"
            await refused(ann, 403, owner="bob")
            await refused(ann, 404, chat=bobs)
            assert (await refused(reader, 403))["scope"] == "operate"
            assert (await refused(reader, 403, chat=anns, scopes=["read", "chat"]))["scope"] == "chat"
            clamped = await made(ann, ttl_s=10**6)
            assert (clamped["owner"], clamped["expires_at"]) == ("ann", wide["expires_at"])
            one = await made(reader, chat=anns)
            assert (one["scopes"], one["owner"], one["chat"]) == (["read"], "ann", anns)
            async with using(live, one["token"]) as browser:
                assert (await browser.get(f"/api/chats/{anns}")).status_code == 200
                await refused(browser, 403, chat=anns)
            listed = (await ann.get("/api/tokens")).json()["tokens"]
            assert {token["owner"] for token in listed} == {"ann"}
            assert not any("token" in token for token in listed), "no secret is shown again"
            foreign = await made(admin, owner="bob")
            assert (await ann.delete(f"/api/tokens/{foreign['id']}")).status_code == 404
            assert (await ann.delete(f"/api/tokens/{narrow['id']}")).status_code == 200
            assert (await reader.get("/api/chats")).status_code == 401


async def test_a_retry_with_another_token_of_the_owner_is_the_same_request(live: ServerProcess) -> None:
    async with live.client() as admin:
        tokens = [await made(admin, owner=owner) for owner in ("ann", "ann", "bob")]
        ids = []
        for token in tokens:
            async with using(live, token["token"]) as client:
                headers = {"Idempotency-Key": "order-7"}
                answer = await client.post("/api/chats", json={"agent": "echo", "message": "hi"}, headers=headers)
                assert answer.status_code == 201, answer.text
                ids.append(answer.json()["id"])
        assert ids[0] == ids[1]
        assert ids[2] != ids[0]


async def test_the_protocols_of_openai_work_with_a_token_that_reads_and_chats(live: ServerProcess) -> None:
    async with live.client() as admin:
        token = await made(admin, owner="ann", scopes=["read", "chat"])
        async with using(live, token["token"]) as ann:
            answer = await ann.post("/v1/responses", json={"model": "echo", "input": "hello"})
            assert answer.status_code == 200, answer.text
            chat_id = answer.headers["x-holdfast-chat"]
            assert (await admin.get(f"/api/chats/{chat_id}")).json()["owner"] == "ann"
            again = {"model": "echo", "input": "and again", "previous_response_id": answer.json()["id"]}
            assert (await ann.post("/v1/responses", json=again)).status_code == 200
            paid = await ann.post("/v1/responses", json={"model": "payer", "input": "pay"})
            (asked,) = [item for item in paid.json()["output"] if item["type"] == "mcp_approval_request"]
            approval = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
            answer = await ann.post("/v1/responses", json={"model": "payer", "input": [approval]})
            assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
            assert "'approve'" in answer.json()["error"]["message"]
