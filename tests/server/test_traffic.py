"""Requests and streams in `/metrics`: by route and class of status, bounded whatever clients ask for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.server.audit import BURST, Audit
from holdfast.server.traffic import METHODS
from tests.support.servers import ServerProcess, created, reading, server


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("traffic")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running


async def figures(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Samples of HTTP, by name and values of labels in the order of the labels' names."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        if family.name.startswith(("holdfast_http", "holdfast_server"))
        for sample in family.samples
    }


CHAT = "/api/chats/{chat_id}"


async def test_requests_are_counted_by_route_and_status_and_streams_while_they_are_open(live: ServerProcess) -> None:
    async with live.client() as client:
        before = await figures(client)
        chat_id = await created(client, "thinker", "hello")
        for _ in range(3):
            assert (await client.get(f"/api/chats/{chat_id}")).status_code == 200
            assert (await client.get("/api/chats/none")).status_code == 404
        assert (await client.get("/api/chats", headers={"Authorization": "Bearer no"})).status_code == 401
        assert (await client.get("/api/chats", headers={"Host": "evil.example"})).status_code == 421
        assert (await client.get("/v1/responses/none")).status_code == 404
        async with reading(client, chat_id) as events:
            await anext(events)
            found = await figures(client)

    def grown(*key: str) -> float:
        return found.get(key, 0.0) - before.get(key, 0.0)

    assert grown("holdfast_http_requests_total", "GET", CHAT, "2xx") == 3
    assert grown("holdfast_http_requests_total", "GET", CHAT, "4xx") == 3
    assert grown("holdfast_http_requests_total", "POST", "/api/chats", "2xx") == 1
    assert grown("holdfast_http_requests_total", "GET", "none", "4xx") == 2, "refused before there was a route"
    assert grown("holdfast_http_seconds_count", "GET", CHAT) == 6
    assert grown("holdfast_http_refused_total", "unauthorized") == 1
    assert grown("holdfast_http_refused_total", "forbidden_host") == 1
    assert grown("holdfast_http_refused_total", "not_found") == 4, "whatever the protocol's words for it"
    assert found["holdfast_server_streams",] == 1
    assert found["holdfast_http_answering",] >= 2, "the stream, and this question"
    assert found["holdfast_server_connections",] >= 1
    assert ("holdfast_http_seconds_count", "GET", f"{CHAT}/events") not in found, "a stream's length is no wait"


async def test_no_client_makes_new_labels(live: ServerProcess) -> None:
    async with live.client() as client:
        await figures(client)
        before = await figures(client)
        for n in range(30):
            await client.request(f"M{n}", f"/made/up/{n}", params={f"q{n}": "x"})
            await client.get(f"/api/chats/nothing{n}")
        found = await figures(client)
    # What an earlier client of this server left is counted whenever its connection ends, so there may be others.
    new = {key[1:] for key in found if key not in before and key[0] == "holdfast_http_requests_total"}
    assert {key for key in new if key[-1] == "4xx"} <= {("other", "none", "4xx"), ("GET", CHAT, "4xx")}
    assert {key[1] for key in found if key[0] == "holdfast_http_requests_total"} <= METHODS | {"other"}
    assert not any("made" in part for key in found for part in key)


async def test_a_client_that_leaves_before_its_answer_is_counted_as_such(live: ServerProcess) -> None:
    key = ("holdfast_http_requests_total", "POST", "none", "left")
    head = f"POST /api/chats HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {live.token}\r\n"
    async with live.client() as client:
        before = (await figures(client)).get(key, 0.0)
        _, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(f"{head}Content-Length: 10\r\n\r\nhalf".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(30):
            while (await figures(client)).get(key, 0.0) == before:
                pass


def test_a_stranger_fills_no_log_with_refusals(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    audit = Audit(lambda: now_s)

    def refuse(times: int) -> None:
        for n in range(times):
            audit.tell(name="", status=401, reason="x", principal=None, client="c", path=f"/{n}" * 500, about={})

    refuse(1_000)
    assert len(caplog.records) == BURST
    assert all(len(vars(record)["path"]) <= 200 for record in caplog.records)
    now_s = 3.0
    refuse(1_000)
    assert len(caplog.records) == BURST + 3
    assert vars(caplog.records[BURST])["left_out"] == 1_000 - BURST
