"""A browser's own EventSource: it comes back by itself, and is told when there is nothing to come back for."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.support.browser import NONE, browser, find
from tests.support.servers import ServerProcess, created, ended, reading, server

# As a page of ours would have it: it does nothing about ends, and says how it went once it is told not to come back.
READ = """url => new Promise(done => {
    const seen = []; let opened = 0;
    const source = new EventSource(url);
    source.onopen = () => { opened += 1 };
    source.addEventListener("turn.ended", event => seen.push(event.type));
    source.addEventListener("end", event => seen.push(event.type));
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) done({seen, opened}) };
})"""


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    with server(f"sqlite:///{tmp_path}/chats.db", tmp_path / "home") as process:
        yield process


async def test_a_reader_that_saw_the_end_and_comes_back_is_told_to_stay_away(live: ServerProcess) -> None:
    async with live.client() as client:
        chat_id = await created(client, "echo", "hello")
        path = f"/api/chats/{chat_id}/events"
        async with reading(client, chat_id) as events:
            seen = [event async for event in events]
        assert seen[-1].event == "end"
        assert seen[-1].id is not None
        again = await client.get(path, headers={"Last-Event-ID": seen[-1].id})
        assert (again.status_code, again.content) == (204, b"")
        assert (await client.get(path, params={"after": seen[-1].id})).status_code == 204
        almost = await client.get(path, headers={"Last-Event-ID": str(seen[-2].id)})
        assert (almost.status_code, "event: end" in almost.text) == (200, True), "it had not seen the end"
        await client.post(f"/api/chats/{chat_id}/messages", json={"message": "and now"})
        await ended(client, chat_id)
        async with reading(client, chat_id, seen[-1].id) as events:
            assert [event.event async for event in events][:1] == ["turn.started"], "there is more to tell"


async def test_a_reader_that_follows_stays_though_it_saw_the_end(live: ServerProcess) -> None:
    async with live.client() as client:
        chat_id = await created(client, "echo", "hello")
        async with reading(client, chat_id) as events:
            last = [event async for event in events][-1].id
        headers = {"Last-Event-ID": str(last)}
        async with client.stream("GET", f"/api/chats/{chat_id}/events?follow=true", headers=headers) as response:
            assert response.status_code == 200
            assert (await anext(response.aiter_text())).startswith("retry: ")


async def test_a_stream_says_when_to_come_back(live: ServerProcess) -> None:
    async with live.client() as client:
        answer: httpx.Response = await client.get(f"/api/chats/{await created(client, 'echo')}/events")
        assert answer.text.startswith("retry: 1000\n")


async def test_an_event_source_in_a_browser_ends_by_itself(live: ServerProcess) -> None:
    program = find()
    if program is None:
        pytest.skip(NONE)
    async with live.client() as client:
        chat_id = await created(client, "echo", "hello")
    async with browser(program) as made:
        page = await made.new_page()
        await live.log_in(page)
        statuses: list[int] = []
        page.on("response", lambda answer: statuses.append(answer.status) if "/events" in answer.url else None)
        told = await page.evaluate(READ, f"/api/chats/{chat_id}/events")
    assert told == {"seen": ["turn.ended", "end"], "opened": 1}
    assert statuses == [200, 204]
