"""Somebody deletes the data folder under a running server: nobody waits for what cannot come, all are told."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.support.servers import ServerProcess, created, ended, reading, server

DEADLINE_S = 30.0


@pytest.fixture(params=[True, False], ids=["worker", "no worker"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    data = tmp_path / "data"
    data.mkdir()
    with server(f"sqlite:///{data}/holdfast.db", data, worker=request.param) as running:
        yield running
        running.kill()  # where its lease and its lock were is nothing any more


async def streamed(client: httpx.AsyncClient, opened: asyncio.Event) -> list[str]:
    """What a client of OpenAI's protocol reads, to the end of the stream."""
    body = {"model": "thinker", "messages": [{"role": "user", "content": "tell me"}], "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        opened.set()
        return [line async for line in response.aiter_lines() if line.startswith("data: ")]


async def test_a_deleted_data_folder_ends_streams_and_is_told_to_everybody_who_asks(
    live: ServerProcess, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
        client = await stack.enter_async_context(live.client())
        chat_id = await created(client, "echo")
        readers = [await stack.enter_async_context(reading(client, chat_id, follow=True)) for _ in range(3)]
        for events in readers:
            assert (await anext(events)).event == "chat.created"
        opened = asyncio.Event()
        completion = asyncio.ensure_future(streamed(client, opened))
        await opened.wait()
        # In one stroke: what the server makes in it while it is being emptied would keep it.
        shutil.rmtree((tmp_path / "data").rename(tmp_path / "gone"))

        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
        assert "store_gone" in health.json()["reasons"]
        for method, path, body in (
            ("GET", f"/api/chats/{chat_id}", None),
            ("GET", f"/api/chats/{chat_id}/events", None),
            ("GET", "/api/chats", None),
            ("POST", "/api/chats", {"agent": "echo", "message": "lost"}),
            ("POST", f"/api/chats/{chat_id}/messages", {"message": "lost"}),
        ):
            answer = await client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_gone"), (method, path)
        asked = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
        answer = await client.post("/v1/chat/completions", json=asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_gone")

        for events in readers:
            *_, last = [event async for event in events]
            assert (last.event, last.data["code"], last.data["status"]) == ("problem", "store_gone", 503)
        told = await completion
        assert json.loads(told[-1].removeprefix("data: "))["error"]["code"] == "store_gone"


async def test_a_data_folder_that_is_put_back_is_used_again(live: ServerProcess, tmp_path: Path) -> None:
    """Moved away and back: the same files, and nothing was acknowledged meanwhile."""
    async with live.client() as client, asyncio.timeout(DEADLINE_S):
        chat_id = await created(client, "echo")
        away = (tmp_path / "data").rename(tmp_path / "away")
        assert (await client.get(f"/api/chats/{chat_id}")).status_code == 503
        away.rename(tmp_path / "data")
        assert (await ended(client, chat_id))["state"] == "idle"
        assert "store_gone" not in (await client.get("/health")).json()["reasons"]
