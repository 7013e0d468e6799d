"""What a client may do with its connection, and how it ends: each request has its answer, and the answer says so."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from starlette.types import Message, Scope

from holdfast import Agent, App
from holdfast.server.frames import BATCH_BYTES
from holdfast.server.http import http_app
from tests.support.servers import ServerProcess, created, ended, server
from tests.support.waiting import until

WAIT_S = 60.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("connections")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running


@pytest.fixture
async def client(live: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with live.client() as client:
        yield client


def head(live: ServerProcess, line: str, *more: str) -> bytes:
    lines = [f"{line} HTTP/1.1", f"Host: 127.0.0.1:{live.port}", f"Authorization: Bearer {live.token}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def raw(live: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", live.port)


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Status, head and body."""
    async with asyncio.timeout(WAIT_S):
        told = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in told.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return int(told.split()[1]), told.lower(), await reader.readexactly(int(length.split(b":")[1]))


# --- a client that has said all, and still listens -----------------------------------------------------


async def answers_to(live: ServerProcess, said: bytes) -> bytes:
    """All that comes until the server closes, for a client that shuts its side right after its words, as `nc -N`."""
    reader, writer = await raw(live)
    writer.write(said)
    writer.write_eof()
    async with asyncio.timeout(WAIT_S):
        told = await reader.read()
    writer.close()
    return told


async def test_a_client_that_has_said_all_gets_its_answer(live: ServerProcess) -> None:
    """It got none: its end of the line was taken for its leaving."""
    told = await answers_to(live, head(live, "GET /api/agents"))
    assert told.startswith(b"HTTP/1.1 200 OK\r\n")
    assert told.endswith(b"}")


async def test_a_client_that_has_said_several_requests_gets_every_answer(live: ServerProcess) -> None:
    told = await answers_to(live, head(live, "GET /api/agents") * 3)
    assert told.count(b"HTTP/1.1 200 OK\r\n") == 3


async def test_a_client_that_has_said_all_gets_a_stream_to_its_end(
    live: ServerProcess, client: httpx.AsyncClient
) -> None:
    chat_id = await created(client, "storyteller", "hello")
    told = await answers_to(live, head(live, f"GET /api/chats/{chat_id}/events"))
    assert b"word199" in told
    assert b"event: end" in told


async def test_a_client_that_has_said_all_gets_the_answer_that_it_has_to_wait_for(
    live: ServerProcess, client: httpx.AsyncClient
) -> None:
    chat_id = await created(client, "storyteller", "hello")
    told = await answers_to(live, head(live, f"GET /api/chats/{chat_id}/turn?wait_s=60"))
    final = told[told.rindex(b"HTTP/1.1 ") :]
    assert final.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in final.lower()
    assert b'"state":"done"' in final


async def test_half_a_request_has_no_answer(live: ServerProcess) -> None:
    whole = (
        head(live, "POST /api/chats", "Content-Type: application/json", "Content-Length: 16") + b'{"agent":"echo"}'
    )
    for said in (whole[:20], whole[:-4], b""):
        assert await answers_to(live, said) == b""


@pytest.mark.parametrize("path", ["events?follow=true", "turn?wait_s=60"])
async def test_a_client_that_leaves_is_not_waited_for(
    live: ServerProcess, client: httpx.AsyncClient, path: str
) -> None:
    """Its leaving looks the same as having said all, until something is sent to it."""
    chat_id = await created(client, "thinker", "hello")

    async def connections() -> int:
        return int((await client.get("/api/diagnostics")).json()["server"]["connections"])

    before = await connections()
    _, writer = await raw(live)
    writer.write(head(live, f"GET /api/chats/{chat_id}/{path}"))
    async with asyncio.timeout(WAIT_S):
        while await connections() == before:
            pass
        writer.close()
        async with asyncio.timeout(
            5.0
        ):  # a stream has its next sign of life after 10 s, the turn its answer after 60
            while await connections() > before:
                pass
    await client.post(f"/api/chats/{chat_id}/stop")
    await ended(client, chat_id)


# --- bodies that come late -----------------------------------------------------------------------------


async def test_a_get_whose_body_comes_late_keeps_its_connection(live: ServerProcess) -> None:
    """RFC 9112, 9.3: a server reads the whole request, or closes. It closed, and did not say so (9.6)."""
    reader, writer = await raw(live)
    writer.write(head(live, "GET /api/agents", "Content-Length: 2"))
    await asyncio.sleep(0.1)  # so that its body is late; the answers are the same if it is not
    writer.write(b"{}" + head(live, "GET /health"))
    for _ in range(2):
        status, told, _ = await one_answer(reader)
        assert status == 200
        assert b"connection: close" not in told
    writer.close()


@pytest.mark.parametrize("length", ["Content-Length: 100", "Content-Length: 100000000", "Transfer-Encoding: chunked"])
async def test_a_get_whose_body_never_comes_is_answered_and_told_that_its_connection_ends(
    live: ServerProcess, length: str
) -> None:
    reader, writer = await raw(live)
    writer.write(head(live, "GET /api/agents", length))
    status, told, _ = await one_answer(reader)
    assert status == 200
    assert b"connection: close" in told
    async with asyncio.timeout(WAIT_S):
        assert await reader.read() == b""
    writer.close()


async def test_an_upload_that_a_going_server_cannot_wait_for_is_to_be_sent_again(tmp_path: Path) -> None:
    """It was a 500, which says that the request is at fault."""
    with server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "home") as old:
        uploads = [await raw(old) for _ in range(2)]
        for (_, writer), path in zip(uploads, ("/api/chats", "/v1/responses"), strict=True):
            begun = head(old, f"POST {path}", "Content-Type: application/json", "Content-Length: 100")
            writer.write(begun + b'{"agent":')
        async with old.client() as client:
            assert (await client.get("/health")).status_code == 200  # they were read by now
        old.process.terminate()
        for reader, writer in uploads:
            status, told, body = await one_answer(reader)
            assert status == 503
            assert b"retry-after: 1" in told
            assert b"connection: close" in told
            assert b"server_going" in body
            writer.close()
        await until(lambda: old.process.poll() is not None, WAIT_S)
        assert not [line for line in old.said if "Traceback" in line]


# --- a listener that outlives its server ---------------------------------------------------------------


def activated(listener: socket.socket, folder: Path) -> "subprocess.Popen[bytes]":
    """`holdfast serve` as a service manager starts it: the socket is its file 3, and it is told so by its number."""
    command = [sys.executable, "-m", "holdfast", "serve", "--home", str(folder), "--port", "1"]
    command += ["--database", f"sqlite:///{folder}/holdfast.db"]
    started = 'exec 3<&"$1"; shift; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            ["bash", "-c", started, "bash", str(listener.fileno()), *command],
            pass_fds=[listener.fileno()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOLDFAST_LAME_DUCK_S": "0"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


async def test_a_passed_socket_refuses_nobody_while_its_server_is_restarted(tmp_path: Path) -> None:
    """Each client comes on a new connection, at every moment: some while there is no server at all."""
    got: Counter[str] = Counter()
    over = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        port = listener.getsockname()[1]

        async def ask() -> None:
            while not over.is_set():
                try:
                    # `verify`: with certificates to load, a client is slow between its connection and its request.
                    async with httpx.AsyncClient(timeout=WAIT_S, trust_env=False, verify=False) as client:
                        got[str((await client.get(f"http://127.0.0.1:{port}/health")).status_code)] += 1
                except httpx.HTTPError as error:
                    got[f"{type(error).__name__}: {error}"] += 1

        first = activated(listener, tmp_path)
        lives: list[subprocess.Popen[Any]] = [first]
        asking = [asyncio.create_task(ask()) for _ in range(5)]
        try:
            await until(lambda: got["200"] >= 20, WAIT_S)
            first.terminate()
            await until(lambda: first.poll() is not None, WAIT_S)
            told = got["200"]
            lives.append(activated(listener, tmp_path))
            await until(lambda: got["200"] >= told + 20, WAIT_S)
        finally:
            over.set()
            await asyncio.gather(*asking)
            for life in lives:
                life.kill()
                life.wait()
    assert set(got) <= {"200", "503"}  # draining, for who asks a server that goes
    assert (tmp_path / "log").read_text().count(f"listening on http://127.0.0.1:{port}") == 2


# --- fairness ------------------------------------------------------------------------------------------


async def test_others_have_their_turn_between_the_slices_of_a_large_piece(tmp_path: Path) -> None:
    """A client that takes it at once is never waited for: a hundred of them held the loop for seconds."""
    turns = 0
    at_slice: list[int] = []
    told = asyncio.Event()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send(message: Message) -> None:
        if len(message.get("body", b"")) == BATCH_BYTES:
            at_slice.append(turns)
            if len(at_slice) == 20:
                told.set()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    app = App(f"sqlite:///{tmp_path}/holdfast.db", agents=[Agent("echo", "scripted")], home=str(tmp_path))
    async with app, asyncio.timeout(WAIT_S):
        chat = await app.create("echo", "x" * (20 * BATCH_BYTES))
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + b"t" * 32)]
        path = f"/api/chats/{chat.id}/events"
        scope: Scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
            "query_string": b"", "raw_path": path.encode(), "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        reading = asyncio.ensure_future(http_app(app, token="t" * 32)(scope, receive, send))
        other = asyncio.ensure_future(others())
        await told.wait()
        for task in (reading, other):
            task.cancel()
        await asyncio.wait((reading, other))
    assert len(set(at_slice)) == len(at_slice)
