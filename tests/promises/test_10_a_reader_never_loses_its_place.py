"""Promise 10: a client can drop and resume by its cursor, on any server process, and sees every event once, in order.

Readers are dropped at random places and come back at once, each time to another process. A judge of its own says what
each of them saw: no journal entry missing, doubled or out of order; the pieces of a response in order, and none after
the message that replaces them; and what they amount to is what the history holds.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.postgres import PostgresServer
from tests.support.scale import scaled
from tests.support.servers import Seen, ServerProcess, all_seen, created, reading, server

READERS = scaled(60, 200)
CHATS = 10


class View:
    """What a client shows: committed messages, and the preview of the response that is being streamed."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.pieces: list[tuple[int, int]] = []
        self.replaced = 0  # attempts up to this one are over
        self.messages: list[str] = []
        self.preview = ""

    def take(self, event: Seen) -> None:
        if event.event == "delta":
            place = (event.data["attempt"], event.data["k"])
            assert place[0] > self.replaced, f"a piece of attempt {place[0]}, which was over"
            assert not self.pieces or place > self.pieces[-1], f"piece {place} after {self.pieces[-1]}"
            if self.pieces and self.pieces[-1][0] == place[0]:
                assert place[1] == self.pieces[-1][1] + 1, "a piece is missing"
            else:
                assert place[1] == 0, "the first piece is missing"
                self.preview = ""
            self.pieces.append(place)
            self.preview += event.data["text"]
        elif "seq" in event.data:
            assert event.data["seq"] == len(self.seqs) + 1, f"entry {event.data['seq']} after {len(self.seqs)}"
            self.seqs.append(event.data["seq"])
            self._entry(event)

    def _entry(self, event: Seen) -> None:
        self.replaced = max(self.replaced, event.data.get("attempt") or 0)
        if event.event == "message":
            text = "".join(part.get("text", "") for part in event.data["message"]["parts"])
            if event.data.get("attempt") is not None:
                assert text.startswith(self.preview), "what was streamed is the beginning of what was said"
                self.preview = ""
            self.messages.append(text)
        elif event.event == "preview.reset":
            self.preview = ""


async def read_with_drops(
    chat_id: str,
    next_client: Callable[[], httpx.AsyncClient],
    chance: random.Random,
    there: asyncio.Barrier,
    *,
    drops_max: int = 8,
) -> tuple[View, int]:
    """Until the end, leaving at random places. It is `there` before anything is said, so that what is said is on its
    way to it, however slow it is.
    """
    view, cursor, drops = View(), None, 0
    while True:
        first = cursor is None
        leave_after = chance.randint(int(first), 25) if drops < drops_max else None
        with suppress(httpx.TransportError):
            async for event in _events(next_client(), chat_id, cursor, follow=first):
                view.take(event)
                if first and cursor is None:
                    await there.wait()
                cursor = event.id or cursor
                if event.event == "end":
                    return view, drops
                if event.event == "reconnect" or leave_after == 0 or (first and event.event == "turn.ended"):
                    break
                leave_after = leave_after - 1 if leave_after is not None else None
        drops += 1
        await asyncio.sleep(chance.uniform(0, 0.05))  # a client's own pause before it comes back


async def _events(
    client: httpx.AsyncClient, chat_id: str, cursor: str | None, *, follow: bool
) -> AsyncGenerator[Seen, None]:
    async with reading(client, chat_id, cursor, follow=follow) as events:
        async for event in events:
            yield event


async def tell_stories(client: httpx.AsyncClient, chats: Sequence[str]) -> None:
    for n, chat_id in enumerate(chats):
        answer = await client.post(f"/api/chats/{chat_id}/messages", json={"message": f"story {n}"})
        assert answer.status_code == 200, answer.text


async def history(client: httpx.AsyncClient, chat_id: str) -> list[str]:
    page = (await client.get(f"/api/chats/{chat_id}/messages")).json()
    return ["".join(part.get("text", "") for part in message["parts"]) for message in page["messages"]]


async def judge(client: httpx.AsyncClient, chats: Sequence[str], views: Sequence[tuple[str, View]]) -> None:
    texts = {chat_id: await history(client, chat_id) for chat_id in chats}
    last = {chat_id: (await all_seen(client, chat_id))[-2].data["seq"] for chat_id in chats}
    for chat_id, view in views:
        assert view.messages == texts[chat_id]
        assert len(view.seqs) == last[chat_id]


async def test_readers_that_drop_and_resume_on_another_process_see_everything_once(
    postgres_url: str, tmp_path: Path
) -> None:
    with (
        server(postgres_url, tmp_path / "home") as one,
        server(postgres_url, tmp_path / "home", worker=False) as two,
    ):
        async with one.client() as first, two.client() as second:
            chats = [await created(first, "storyteller") for _ in range(CHATS)]
            turn = iter(range(10**9))
            there = asyncio.Barrier(READERS + 1)
            clients = (first, second)

            def next_client() -> httpx.AsyncClient:
                return clients[next(turn) % 2]

            async def reader(n: int) -> tuple[str, View, int]:
                view, drops = await read_with_drops(chats[n % CHATS], next_client, random.Random(n), there)
                return chats[n % CHATS], view, drops

            readers = [asyncio.create_task(reader(n)) for n in range(READERS)]
            await there.wait()
            await tell_stories(first, chats)
            read = await asyncio.gather(*readers)
            await judge(first, chats, [(chat_id, view) for chat_id, view, _ in read])
            assert sum(drops for _, _, drops in read) >= READERS, "they were dropped"
            assert sum(len(view.pieces) for _, view, _ in read) > READERS, "they saw it being said"


async def test_readers_resume_after_a_kill_9_of_the_only_server(tmp_path: Path) -> None:
    url, home = f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home"
    with server(url, home) as one:
        port = one.port
        async with one.client() as client:
            chats = [await created(client, "storyteller") for _ in range(4)]
            there = asyncio.Barrier(41)

            def reader(n: int) -> Coroutine[Any, Any, tuple[View, int]]:
                return read_with_drops(chats[n % 4], lambda: client, random.Random(n), there, drops_max=10**6)

            readers = [asyncio.create_task(reader(n)) for n in range(40)]
            async with reading(client, chats[0], follow=True) as events:
                await there.wait()
                await tell_stories(client, chats)
                while (await anext(events)).event != "delta":
                    pass
            one.kill()
            with server(url, home, port=port) as two:
                assert two.token == one.token
                read = await asyncio.gather(*readers)
                await judge(client, chats, [(chats[n % 4], view) for n, (view, _) in enumerate(read)])
                assert any(view.replaced and len(view.seqs) > 5 for view, _ in read)


async def test_a_server_that_goes_tells_its_readers_to_come_back(tmp_path: Path) -> None:
    url, home = f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home"
    with server(url, home) as one:
        async with one.client() as client:
            chat_id = await created(client, "echo", "hello")
            async with reading(client, chat_id, follow=True) as events:
                seen: list[Seen] = []
                async for event in events:
                    seen.append(event)
                    if event.event == "turn.ended":
                        one.process.terminate()
            assert seen[-1].event == "reconnect"
            assert one.process.wait(30.0) == 0


async def test_a_disconnect_stops_no_turn(tmp_path: Path) -> None:
    with server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as one:
        async with one.client() as client:
            chat_id = await created(client, "storyteller")
            async with aclosing(_events(client, chat_id, None, follow=True)) as events:
                await anext(events)
                await tell_stories(client, [chat_id])
                while (await anext(events)).event != "delta":
                    pass
            seen = await all_seen(client, chat_id)
            assert (seen[-1].event, seen[-1].data) == ("end", {"state": "idle"})
            assert len((await history(client, chat_id))[1].split()) == 200


@pytest.mark.parametrize("slow", [1, 5])
async def test_a_reader_that_reads_nothing_harms_nobody(tmp_path: Path, slow: int) -> None:
    """Its socket fills up; the others get everything, and the server keeps no copy for it."""
    with server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as one:
        async with one.client() as client:
            chat_id = await created(client, "echo", "x" * 2_000_000)
            lazy = [await _open_and_read_nothing(one, chat_id) for _ in range(slow)]
            for n in range(3):
                await client.post(f"/api/chats/{chat_id}/messages", json={"message": f"{n}" * 2_000_000})
            view = View()
            for event in await all_seen(client, chat_id):
                view.take(event)
            assert len(view.messages) == 8
            figures: dict[str, Any] = (await client.get("/api/diagnostics")).json()["server"]
            assert figures["feed_bytes"] <= figures["feed_bytes_max"]
            for writer in lazy:
                writer.close()


async def _open_and_read_nothing(one: ServerProcess, chat_id: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port, limit=1)
    writer.write(
        f"GET /api/chats/{chat_id}/events?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {one.token}\r\n\r\n".encode()
    )
    await writer.drain()
    assert await reader.readexactly(8) == b"HTTP/1.1"
    return writer


async def test_readers_stay_while_the_store_is_away_and_go_on_when_it_is_back(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with server(postgres_url, tmp_path) as live:
        async with live.client() as client:
            chat_id = await created(client, "talker", "one two three")
            views = [View() for _ in range(20)]
            first, last = asyncio.Barrier(len(views) + 1), asyncio.Barrier(len(views) + 1)
            readers = [asyncio.ensure_future(_two_turns(client, chat_id, view, first, last)) for view in views]
            async with asyncio.timeout(60.0):
                await first.wait()
                postgres_server.kill9()
                answer = await client.get(f"/api/chats/{chat_id}")
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                postgres_server.start()
                answer = await client.post(f"/api/chats/{chat_id}/messages", json={"message": "four five six"})
                assert answer.status_code == 200, "it takes the first connection that it gets"
                await last.wait()
            for reader in readers:
                reader.cancel()
    for view in views:
        assert view.messages == [
            "one two three", "You said: one two three", "four five six", "You said: four five six"
        ]  # fmt: skip


async def _two_turns(
    client: httpx.AsyncClient, chat_id: str, view: View, first: asyncio.Barrier, last: asyncio.Barrier
) -> None:
    """On one connection."""
    async with reading(client, chat_id, follow=True) as events:
        async for event in events:
            view.take(event)
            if event.event == "turn.ended":
                await (first if event.data["turn"] == 1 else last).wait()
    raise AssertionError("the stream broke off")
