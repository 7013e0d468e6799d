"""Promise 1: once a call that adds a message, an answer or a result has returned, no `kill -9` undoes it.

Clients talk to a real server process that is killed again and again, at moments that only chance knows: some requests
are answered, some are under way. Whoever got no answer asks again under the same key, as a client does. In the end
what was acknowledged is there, once, in order, and so is what was asked for twice. (Power cuts, where the kernel dies
too, are in tests/powercut/.)
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.support.servers import ServerProcess, created, reading, server
from tests.support.waiting import until

CHATS = 6
MESSAGES = 25
KILLS = 3
PATIENCE_S = 60.0


class Clients:
    """They know of the server only its address, which outlives its processes."""

    def __init__(self, first: ServerProcess) -> None:
        self.client = first.client()
        self.acknowledged = 0
        self.repeated = 0

    async def post(self, path: str, key: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Until there is an answer, under one key."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await self.client.post(path, json=body, headers={"Idempotency-Key": key})
                except httpx.TransportError:
                    self.repeated += 1
                    await asyncio.sleep(0.02)
                    continue
                assert answer.status_code < 300, answer.text
                self.acknowledged += 1
                told: dict[str, Any] = answer.json()
                return told

    async def talk(self, chat_id: str) -> None:
        for n in range(MESSAGES):
            await self.post(f"/api/chats/{chat_id}/messages", f"{chat_id} {n}", {"message": f"m{n}"})

    async def answer(self, agent: str, act: str, body: dict[str, Any] | None) -> str:
        """A chat that waits for somebody, and whose answer is sent as soon as it does."""
        chat_id: str = (await self.post("/api/chats", f"a {agent}", {"agent": agent, "message": "go"}))["id"]
        call_id = None
        async with asyncio.timeout(PATIENCE_S):
            while call_id is None:
                try:
                    calls = (await self.client.get(f"/api/chats/{chat_id}/calls")).json()["calls"]
                    call_id = calls[0]["call_id"] if calls else None
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.01)
        await self.post(f"/api/chats/{chat_id}/calls/{call_id}/{act}", f"{chat_id} {act}", body)
        return chat_id

    async def kills(self, running: ServerProcess, start: Callable[[], ServerProcess]) -> None:
        """Each time after so many answers more. The last successor is left alive."""
        chance = random.Random(7)
        for _ in range(KILLS):
            upto = self.acknowledged + chance.randint(10, 35)
            await until(lambda upto=upto: self.acknowledged >= upto, PATIENCE_S)  # type: ignore[misc]
            running.kill()
            running = await asyncio.to_thread(start)


async def texts_of(client: httpx.AsyncClient, chat_id: str) -> list[str]:
    async with reading(client, chat_id) as events:
        async for _ in events:
            pass  # until the chat rests
    page = (await client.get(f"/api/chats/{chat_id}/messages", params={"limit": 1000})).json()
    assert page["next"] is None
    return [part.get("text", part.get("content", "")) for message in page["messages"] for part in message["parts"]]


async def test_what_a_server_acknowledged_outlives_its_kill(store_url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ExitStack() as stack:
        first = stack.enter_context(server(store_url, home))
        clients = Clients(first)
        chats = [await created(clients.client, "echo") for _ in range(CHATS)]
        killing = asyncio.create_task(
            clients.kills(first, lambda: stack.enter_context(server(store_url, home, port=first.port)))
        )
        talking = asyncio.gather(*(clients.talk(chat_id) for chat_id in chats))
        payer, asker = await asyncio.gather(
            clients.answer("payer", "approve", None),
            clients.answer("asker", "result", {"content": "the sky is blue"}),
        )
        await talking
        await killing
        async with aclosing(clients.client) as client:
            for chat_id in chats:
                said = [text for text in await texts_of(client, chat_id) if not text.startswith("You said")]
                assert said == [f"m{n}" for n in range(MESSAGES)]
            assert (await texts_of(client, asker)).count("the sky is blue") == 1
            paid = await texts_of(client, payer)
            assert sum("paid 7" in text or "may or may not" in text for text in paid) == 1, paid
        assert clients.repeated > 0, "some request got no answer, or nothing was shown"
