"""Clients that would take the server from everybody else: what each gets, and that others are served meanwhile."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2 as httpx
import psutil  # type: ignore[import-untyped]
import pytest

from tests.support.deploys import deployed_under
from tests.support.servers import ServerProcess, created, server
from tests.support.waiting import until

WAIT_S = 60.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running


@pytest.fixture
async def client(live: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with live.client() as client:
        yield client


async def opened(live: ServerProcess, head: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {live.token}\r\n\r\n".encode())
    return reader, writer


async def test_readers_of_large_messages_take_no_memory_of_their_own(
    live: ServerProcess, client: httpx.AsyncClient
) -> None:
    """Twenty, of a chat with two messages of 8 MB. Each had its own copies of the whole chat: 100 took 9 GB."""
    chat_id = await created(client, "echo", "x" * 8_000_000)
    await client.get(f"/api/chats/{chat_id}/turn", params={"wait_s": 60})
    process = psutil.Process(live.process.pid)
    before = process.memory_info().rss
    head = f"GET /api/chats/{chat_id}/events"
    async with asyncio.timeout(WAIT_S):
        readers = [await opened(live, head) for _ in range(20)]
        for reader, _ in readers:
            await reader.readuntil(b"event: chat.created")

        async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
            size = 0
            while data := await reader.read(MIB):
                size += len(data)
            writer.close()
            return size

        peak = process.memory_info().rss
        reading = asyncio.gather(*(whole(*reader) for reader in readers))
        while not reading.done():
            await asyncio.wait((reading,), timeout=0.02)
            peak = max(peak, process.memory_info().rss)
        sizes = set(await reading)
    assert len(sizes) == 1
    assert sizes.pop() > 16_000_000
    assert (peak - before) / MIB < 350


ONES = b"1," * 6_500_000 + b"1"
BODIES = {
    "a list of 13 MB": (b"[" + ONES + b"]", 400),
    "a list of 13 MB where a message is expected": (b'{"agent":"echo","message":[' + ONES + b"]}", 400),
    "as many elements as there can be": (b'{"agent":"echo","message":[' + b"1," * 99_900 + b"1]}", 422),
    "a hundred thousand unknown fields": (
        b'{"agent":"echo",' + b",".join(b'"f%d":1' % n for n in range(99_000)) + b"}", 422,
    ),
    "a part with a hundred thousand unknown fields": (
        b'{"agent":"echo","message":[{' + b",".join(b'"f%d":1' % n for n in range(99_000)) + b"}]}", 422,
    ),
    "lists in lists in lists": (b"[" * 13_000_000, 400),
    "empty lists without end": (b"[" + b"[]," * 4_000_000 + b"[]]", 400),
    "quotes": (b'"' * 13_000_000, 400),
    "a string of escapes that never ends": (b'{"agent":"' + rb"\"," * 4_000_000, 400),
}  # fmt: skip


@pytest.mark.parametrize("path", ["/api/chats", "/v1/responses"])
@pytest.mark.parametrize("name", BODIES)
async def test_no_body_holds_the_server_up(
    live: ServerProcess, client: httpx.AsyncClient, name: str, path: str
) -> None:
    """One such list made an error of each of its elements, on the event loop: the process was ended as stalled."""
    body, status = BODIES[name]
    headers = {"Content-Type": "application/json"}
    async with asyncio.timeout(WAIT_S):
        answer = await client.post(path, content=body, headers=headers)
    assert answer.status_code in ({status} if path == "/api/chats" else {400})
    assert len(answer.content) < 10_000
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("path", ["/api/chats", "/v1/responses"])
@pytest.mark.parametrize("called", ["Application/JSON", "text/plain"])
async def test_a_body_is_bounded_whatever_it_is_called(client: httpx.AsyncClient, called: str, path: str) -> None:
    """Python's own reader took it, on the event loop: 1.6 s for 13 MB."""
    answer = await client.post(path, content=b"[" + ONES + b"]", headers={"Content-Type": called})
    assert answer.status_code == 400
    assert "elements" in answer.text


async def test_what_is_no_message_has_a_smaller_limit(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "echo")
    for path in ("stop", "fork", "calls/x/deny"):
        answer = await client.post(f"/api/chats/{chat_id}/{path}", json={"words": "x" * (2 << 20)})
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large"), path
    large = await client.post(f"/api/chats/{chat_id}/messages", json={"message": "x" * (2 << 20)})
    assert large.status_code == 200


async def raw(live: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", live.port)


async def going_on(writer: asyncio.StreamWriter, more: bytes) -> None:
    for _ in range(100_000):
        writer.write(more)
        await writer.drain()
        await asyncio.sleep(0.01)


UNAUTHORISED = b"POST /api/chats HTTP/1.1\r\nHost: 127.0.0.1\r\n"
AFTER_A_REFUSAL = {
    "a length that is never reached": (UNAUTHORISED + b"Content-Length: 1000000000\r\n\r\n", b"x"),
    "chunks of a byte": (UNAUTHORISED + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "a GET with a body": (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("name", AFTER_A_REFUSAL)
async def test_a_body_that_goes_on_after_the_answer_ends_with_its_connection(live: ServerProcess, name: str) -> None:
    """It held its connection for as long as it liked, without a token: 995 of them were the end of the service."""
    head, more = AFTER_A_REFUSAL[name]
    reader, writer = await raw(live)
    try:
        writer.write(head + more)
        async with asyncio.timeout(WAIT_S):
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.split()[1] in (b"401", b"200")
            with pytest.raises(ConnectionError):
                await going_on(writer, more)  # until the server hangs up
    finally:
        writer.transport.abort()


async def test_an_empty_line_between_requests_and_a_whole_url_are_legal(live: ServerProcess) -> None:
    reader, writer = await raw(live)
    host = f"127.0.0.1:{live.port}"
    requests = [
        f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n\r\n",
        f"\r\nGET http://{host}/health HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"POST /api/chats HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {live.token}\r\n"
        'Content-Type: application/json\r\nContent-Length: 16\r\n\r\n{"agent":"echo"}\r\n',
        f"GET http://{host}/health HTTP/1.1\r\nHost: {host}\r\n\r\n",
    ]
    writer.write("".join(requests).encode())
    statuses = []
    async with asyncio.timeout(WAIT_S):
        for _ in requests:
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.append(int(head.split()[1]))
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
    writer.close()
    assert statuses == [200, 200, 201, 200]


async def statuses(reader: asyncio.StreamReader) -> list[int]:
    """Of all answers until the server closes, each of which is whole."""
    found: list[int] = []
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return found
            found.append(int(head.split()[1]))
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))


CREATE = b'{"agent":"echo"}'


@pytest.mark.parametrize("name", ["the end of a head", "chunks", "chunks and a part of a head"])
async def test_a_request_behind_another_is_answered_wherever_a_packet_ends(live: ServerProcess, name: str) -> None:
    """The next request came in one packet with the rest of the one before. It was given up, or waited for ever."""
    head = f" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {live.token}\r\nContent-Type: application/json\r\n"
    listing, creating = f"GET /api/agents{head}".encode(), f"POST /api/chats{head}".encode()
    next_one = creating + b"Connection: close\r\nContent-Length: 16\r\n\r\n" + CREATE
    chunks = creating + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + CREATE + b"\r\n0\r\n\r\n"
    end = next_one.index(b"\r\n\r\n")
    packets, expected = {
        "the end of a head": ([listing, b"\r\n" + next_one[:-9], next_one[-9:]], [200, 201]),
        "chunks": ([chunks + next_one[:-9], next_one[-9:]], [201, 201]),
        "chunks and a part of a head": ([chunks + next_one[:end], next_one[end:]], [201, 201]),
    }[name]
    reader, writer = await raw(live)
    for packet in packets:
        writer.write(packet)
        await asyncio.sleep(0.1)  # so that it is read alone; the answer is the same where it is not
    assert await statuses(reader) == expected
    writer.close()


async def test_an_answer_that_is_being_taken_is_whole_though_its_client_said_more(
    live: ServerProcess, client: httpx.AsyncClient
) -> None:
    """An empty line behind its request, and a connection that closes: what it had not taken in 2 s was lost."""
    chat_id = await created(client, "echo", "x" * 8_000_000)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    narrow.connect(("127.0.0.1", live.port))
    reader, writer = await asyncio.open_connection(sock=narrow, limit=1 << 16)
    head = f"GET /api/chats/{chat_id}/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {live.token}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n\r\n".encode())
    size = 0
    async with asyncio.timeout(WAIT_S):
        while data := await reader.read(1 << 16):
            size += len(data)
            await asyncio.sleep(0.04)
    writer.close()
    assert size > 8_000_000


async def test_chunks_of_a_byte_have_an_answer(live: ServerProcess) -> None:
    reader, writer = await raw(live)
    head = f"POST /api/chats HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {live.token}\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n" * 20_000)
    assert await statuses(reader) == [400]
    writer.close()


async def test_clients_that_leave_at_the_first_byte_of_a_refusal_are_let_go(live: ServerProcess) -> None:
    """The end of some answers was written to a connection that had gone: it raised, and the server kept its side
    until the deadline of the body.
    """
    process, heard = psutil.Process(live.process.pid), len(live.said)
    before = len(process.net_connections("tcp"))
    head = f"POST /api/chats HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {live.token}\r\n"

    async def leave_early() -> None:
        reader, writer = await raw(live)
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n" * 40_000)
        await reader.readexactly(1)
        writer.transport.abort()

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(leave_early() for _ in range(40)))
    await until(lambda: len(process.net_connections("tcp")) <= before)
    assert [line for line in live.said[heard:] if "Traceback" in line] == []


async def test_connections_that_only_linger_make_room(tmp_path: Path) -> None:
    """Each was refused and goes on sending: for 2 s it was held, and everybody else got a 503."""
    settings = {"HOLDFAST_CONNECTIONS_MAX": "20"}
    with server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home", settings=settings) as small:
        refused = [await raw(small) for _ in range(20)]
        async with asyncio.timeout(WAIT_S):
            for reader, writer in refused:
                writer.write(UNAUTHORISED + b"Content-Length: 1000000000\r\n\r\nx")
                await reader.readuntil(b"\r\n\r\n")
            async with small.client() as client:
                assert (await client.get("/health")).status_code == 200
        for _, writer in refused:
            writer.transport.abort()


async def test_who_waits_for_a_turn_is_told_how_it_stands_when_the_server_goes(tmp_path: Path) -> None:
    """It was a 500, five seconds later."""
    with server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as old:
        async with old.client() as client, asyncio.timeout(WAIT_S):
            chat_id = await created(client, "thinker", "hello")
            path = f"/api/chats/{chat_id}/turn"
            waiting = asyncio.ensure_future(client.get(path, params={"wait_s": 60}))
            while (await client.get(path)).json()["state"] != "running":
                pass
            old.process.terminate()
            answer = await waiting
            assert (answer.status_code, answer.json()["state"]) == (200, "running")


async def test_a_server_without_room_serves_who_comes_and_its_log_does_not_grow(tmp_path: Path) -> None:
    """More clients than it has files for, each of which opens a connection and says nothing."""
    with server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home", files_max=256) as small:
        idle = [await raw(small) for _ in range(400)]
        try:
            async with small.client() as client, asyncio.timeout(WAIT_S):
                for _ in range(5):
                    async with small.client() as another:
                        assert (await another.get("/health")).status_code == 200
                figures = (await client.get("/api/diagnostics")).json()["server"]
            assert figures["connections"] <= figures["connections_max"] == 128
            assert figures["connections_closed_idle"] > 200
            assert len(small.said) < 20
        finally:
            for _, writer in idle:
                writer.transport.abort()


async def test_each_request_has_its_answer_while_a_server_is_replaced(tmp_path: Path) -> None:
    """Clients that ask again and again on kept connections. 200 of them: tests/long/test_deploys.py."""
    assert set(await deployed_under(tmp_path, 20, lame_duck_s=1)) == {"200"}


async def test_a_server_that_goes_still_listens_and_its_health_says_draining(tmp_path: Path) -> None:
    url, home = f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home"
    with server(url, home, settings={"HOLDFAST_LAME_DUCK_S": "5"}) as old:
        async with old.client() as client, asyncio.timeout(WAIT_S):
            assert "connection" not in (await client.get("/health")).headers
            old.process.terminate()
            while (answer := await client.get("/health")).status_code == 200:
                pass
            assert (answer.json()["status"], answer.headers["connection"]) == ("draining", "close")
            async with old.client() as another:
                served = await another.get("/api/agents")
            assert (served.status_code, served.headers["connection"]) == (200, "close")
            old.process.terminate()  # once more: now
