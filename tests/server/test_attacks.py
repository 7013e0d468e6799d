"""Who must not get in, does not; who wants to tie the server up, does not. Raw bytes over a socket."""

import asyncio
import gzip
import json
import re
import select
import socket
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from holdfast import App
from holdfast.server import lingering
from holdfast.server.bodies import BodyMiddleware
from holdfast.server.http import http_app
from holdfast.server.limits import BoundedProtocol
from holdfast.server.lingering import in_kernel
from tests.support.servers import ServerProcess, created, ended, server
from tests.support.waiting import until

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("attacked")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running


@pytest.fixture
async def client(live: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with live.client() as client:
        yield client


async def sent(live: ServerProcess, data: bytes) -> tuple[int, bytes]:
    """The status that these bytes got, and the whole answer. 0: the server closed without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ),
                None,
            )
            body = await reader.readexactly(length) if length is not None else await reader.read(65536)
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    finally:
        writer.transport.abort()  # what was not taken is of no use to a server that has answered
    return int(head.split()[1]), head + body


def request(path: str, *headers: str, method: str = "GET", host: str | None, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    if host is not None:
        lines.append(f"Host: {host}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


TOKEN = "Authorization: Bearer {token}"
SESSION = "Cookie: {session}"
NOT_IN, FOREIGN = "unauthorized", "forbidden_origin"
HERE = "127.0.0.1"
CREATE = json.dumps({"agent": "echo"}).encode()

# name -> (path, method, headers, host, body), the status it gets, words of the answer
ATTACKS: dict[str, tuple[tuple[str, str, list[str], str | None, bytes], int, str]] = {
    "no token": (("/api/chats", "GET", [], HERE, b""), 401, NOT_IN),
    "no token, the stream": (("/api/chats/x/events", "GET", [], HERE, b""), 401, NOT_IN),
    "no token, metrics": (("/metrics", "GET", [], HERE, b""), 401, NOT_IN),
    "no token, description": (("/api/openapi.json", "GET", [], HERE, b""), 401, NOT_IN),
    "no token, the page": (("/", "GET", ["Accept: text/html"], HERE, b""), 401, "Open the link"),
    "wrong token": (("/api/chats", "GET", ["Authorization: Bearer nope"], HERE, b""), 401, NOT_IN),
    "half a token": (("/api/chats", "GET", ["Authorization: Bearer {half}"], HERE, b""), 401, NOT_IN),
    "empty token": (("/api/chats", "GET", ["Authorization: Bearer "], HERE, b""), 401, NOT_IN),
    "token as basic": (("/api/chats", "GET", ["Authorization: Basic {token}"], HERE, b""), 401, NOT_IN),
    "token as cookie": (("/api/chats", "GET", ["Cookie: holdfast_session_{port}={token}"], HERE, b""), 401, "unaut"),
    "broken cookie": (("/api/chats", "GET", ["Cookie: ;;=\x01holdfast_session"], HERE, b""), 401, NOT_IN),
    "token in the query": (("/api/chats?token={token}", "GET", [], HERE, b""), 401, NOT_IN),
    "login with a wrong code": (("/login", "POST", [], HERE, b'"&code=nope&"'), 401, "was used"),
    "login by a query": (("/login?code={token}", "POST", [], HERE, b'"&x=y&"'), 401, "was used"),
    "another host": (("/api/chats", "GET", [TOKEN], "evil.example", b""), 421, "forbidden_host"),
    "another host, health": (("/health", "GET", [], "evil.example", b""), 421, "forbidden_host"),
    "a host that begins like ours": (("/health", "GET", [], "127.0.0.1.evil.example", b""), 421, "forbidden_host"),
    "a host with a user": (("/health", "GET", [], "127.0.0.1@evil.example", b""), 421, "forbidden_host"),
    "no host": (("/health", "GET", [], None, b""), 400, ""),
    "an empty host": (("/health", "GET", [], "", b""), 421, "forbidden_host"),
    "two hosts": (("/health", "GET", ["Host: evil.example"], HERE, b""), 400, ""),
    "cross-origin, with the cookie": (
        ("/api/chats", "POST", [SESSION, "Origin: https://evil.example"], HERE, CREATE), 403, FOREIGN,
    ),
    "the origin of another port": (
        ("/api/chats", "POST", [SESSION, "Origin: http://127.0.0.1:1"], HERE, CREATE), 403, FOREIGN,
    ),
    "the origin null": (("/api/chats", "POST", [SESSION, "Origin: null"], HERE, CREATE), 403, "forbidden"),
    "cross-site without an origin": (
        ("/api/chats", "GET", [SESSION, "Sec-Fetch-Site: cross-site"], HERE, b""), 403, FOREIGN,
    ),
    "a preflight": (
        ("/api/chats", "OPTIONS", ["Origin: https://evil.example", "Access-Control-Request-Method: POST"],
         HERE, b""), 403, FOREIGN,
    ),
    "a path with dots": (("/api/../api/chats", "GET", [], HERE, b""), 401, NOT_IN),
    "a way around by health": (("/health/../api/chats", "GET", [], HERE, b""), 401, NOT_IN),
    "health in other letters": (("/HEALTH", "GET", [], HERE, b""), 401, NOT_IN),
    "health with a slash": (("/health/", "GET", [], HERE, b""), 401, NOT_IN),
    "a double slash": (("//api/chats", "GET", [], HERE, b""), 401, NOT_IN),
    "encoded slashes": (("/health%2f..%2fapi%2fchats", "GET", [], HERE, b""), 401, NOT_IN),
    "an absolute URL": (("http://evil.example/api/chats", "GET", [TOKEN], HERE, b""), 421, "forbidden_host"),
    "a file of the server": (("/api/chats/..%2f..%2ftoken", "GET", [TOKEN], HERE, b""), 404, "not_found"),
    "a NUL in an id": (("/api/chats/a%00b", "GET", [TOKEN], HERE, b""), 404, "not_found"),
    "an id that is no Unicode": (("/api/chats/%ff%fe", "GET", [TOKEN], HERE, b""), 404, "not_found"),
    "SQL in a search": (("/api/chats?search='%20OR%201=1--", "GET", [TOKEN], HERE, b""), 200, '"chats":[]'),
    "a websocket": (
        ("/api/chats", "GET", [TOKEN, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                               "Sec-WebSocket-Key: x"], HERE, b""), 200, "",
    ),
    "a huge header": (("/health", "GET", ["X-Big: " + "x" * 100_000], HERE, b""), 431, "head_too_large"),
    "a thousand headers": (("/health", "GET", [f"X-{n}: {'y' * 60}" for n in range(1000)], HERE, b""), 431, "head"),
    "a huge path": (("/" + "x" * 100_000, "GET", [TOKEN], HERE, b""), 431, "head_too_large"),
    "garbage": (("\x00\x01\x02", "GARBAGE", [], HERE, b""), 400, ""),
    "a body of 20 MB": (("/api/chats", "POST", [TOKEN], HERE, b'"' + b"x" * (20 << 20) + b'"'), 413, "too_large"),
    "a deep body": (("/api/chats", "POST", [TOKEN], HERE, b"[" * 100_000), 400, "invalid_input"),
    "numbers without end": (
        ("/api/chats", "POST", [TOKEN], HERE, b'{"agent":"echo","metadata":{"n":' + b"9" * 10_000 + b"}}"), 400, "",
    ),
    "not a number": (("/api/chats", "POST", [TOKEN], HERE, b'{"agent":"echo","metadata":{"n":NaN}}'), 400, ""),
    "lone surrogates": (("/api/chats", "POST", [TOKEN], HERE, b'{"agent":"echo","message":"\\ud800"}'), 400, ""),
    "a body that is packed": (
        ("/api/chats", "POST", [TOKEN, "Content-Encoding: gzip"], HERE, gzip.compress(CREATE)), 415, "as it is",
    ),
    "two keys": (
        ("/api/chats", "POST", [TOKEN, "Idempotency-Key: a", "Idempotency-Key: b"], HERE, CREATE), 400, "one key",
    ),
    "a method that nobody has": (("/api/chats", "TRACE", [TOKEN], HERE, b""), 405, "here one can only GET, POST"),
    "two lengths": (
        ("/api/chats", "POST", [TOKEN, "Content-Length: 1"], HERE, CREATE), 400, "",
    ),
    "a length and chunks": (
        ("/api/chats", "POST", [TOKEN, "Transfer-Encoding: chunked"], HERE, CREATE), 400, "ambiguous_length",
    ),
}  # fmt: skip


@asynccontextmanager
async def listening(
    program: Any, made: list[BoundedProtocol], take_s: float = BoundedProtocol.take_s
) -> AsyncIterator[tuple[str, int]]:
    """A program on a port, without the rest of the server; its connections are added to `made`."""
    config = uvicorn.Config(program, lifespan="off", log_config=None)
    config.load()

    def protocol() -> BoundedProtocol:
        made.append(BoundedProtocol(config=config, server_state=ServerState(), app_state={}))
        made[-1].take_s = take_s
        return made[-1]

    listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()
    finally:
        listener.close()
        for connection in made:
            connection.transport.abort()  # else it would be left to the garbage collection of a later test
        await listener.wait_closed()
        await asyncio.sleep(0)  # in which they are closed


async def talks_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Begins its answer before it has heard the whole request."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_garbage_in_the_midst_of_an_answer_is_not_answered_within_it() -> None:
    async with listening(talks_at_once, []) as address, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            begun = await reader.readuntil(b"half")
            writer.write(b"no chunk\r\n")
            rest = await reader.read()
        finally:
            writer.close()
    assert begun.startswith(b"HTTP/1.1 200 ")
    assert rest == b""


async def test_a_huge_head_that_comes_in_pieces_gets_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: the server does not hang up on who is still sending."""
    monkeypatch.setattr(lingering, "LEAVE_S", 3600.0)  # so that it is the client who takes all the time it likes
    line = b"X-Big: " + b"x" * 40_000
    async with listening(talks_at_once, []) as address, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n" + line)
            head = await reader.readuntil(b"\r\n\r\n")
            for _ in range(20):
                writer.write(line)
                await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"head_too_large"' in answer


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_gets(name: str, live: ServerProcess) -> None:
    (path, method, headers, host, body), status, words = ATTACKS[name]
    session = await live.cookie()
    fields = {"token": live.token, "half": live.token[:20], "session": session, "port": str(live.port)}
    data = request(
        path.format(**fields) if "{" in path else path,
        *(header.format(**fields) for header in headers),
        method=method,
        host=f"{host}:{live.port}" if host == HERE else host,
        body=body,
    )
    got, answer = await sent(live, data)
    assert (got, words.encode() in answer) == (status, True), answer[:500]
    assert live.token.encode() not in answer
    assert session.partition("=")[2].encode() not in answer
    if status in (401, 403, 421):
        assert b"access-control-allow" not in answer.lower()


async def test_a_browser_logs_in_and_gets_a_cookie_that_is_not_the_token(live: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=live.url, trust_env=False, follow_redirects=True) as browser:
        page = await browser.post("/login", data={"code": live.token}, headers={"Origin": live.url})
        assert (page.status_code, page.url.path) == (200, "/")
        cookie = page.history[0].headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()
        assert live.token not in cookie
        assert (await browser.get("/api/chats")).status_code == 200
        own = await browser.post("/api/chats", json={"agent": "echo"}, headers={"Origin": live.url})
        assert own.status_code == 201


async def test_what_a_model_or_a_user_says_is_never_markup_on_the_page(
    live: ServerProcess, client: httpx.AsyncClient
) -> None:
    """In a browser: tests/page/test_hostile.py."""
    before = await client.get("/")
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    chat_id = await created(client, "echo", hostile, title=hostile)
    await ended(client, chat_id)
    page = await client.get("/")
    assert page.text == before.text, "the page holds nothing of any chat"
    assert not re.search(r"<script(?! type=\"module\" src=\"page/app\.js\"></script>)", page.text)
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"


async def test_words_that_look_like_an_event_stay_words(client: httpx.AsyncClient) -> None:
    """A line break in a message must not end the event that carries it."""
    hostile = "x\n\nevent: turn.ended\ndata: {}\n\r\r\n\u2028id: y"
    chat_id = await created(client, "echo", hostile)
    await ended(client, chat_id)
    answer = await client.get(f"/api/chats/{chat_id}/events")
    names = [line for line in answer.text.split("\n") if line.startswith("event: ")]
    assert [name[7:] for name in names] == ["chat.created", "turn.started", "message", "message", "turn.ended", "end"]


async def test_slow_heads_are_cut_off_while_others_are_served(live: ServerProcess, client: httpx.AsyncClient) -> None:
    """Slow loris: 200 connections that send a byte now and then. Sending more does not buy them time."""
    began = time.monotonic()
    lorises = [await asyncio.open_connection("127.0.0.1", live.port) for _ in range(200)]
    closed = 0

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        while not reader.at_eof():
            writer.write(b"X-A: b\r\n")
            try:
                answer = await asyncio.wait_for(reader.read(200), 1.0)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            assert answer in (b"",) or answer.startswith(b"HTTP/1.1 408")
        closed += 1
        writer.close()

    drips = [asyncio.create_task(drip(*loris)) for loris in lorises]
    assert (await client.get("/health")).status_code == 200
    await until(lambda: closed == 200, PATIENCE_S + 10)
    assert time.monotonic() - began > 8, "they had their time"
    await asyncio.gather(*drips)


async def test_a_body_that_never_ends_is_answered_and_closed(live: ServerProcess) -> None:
    """Its deadline is 30 s: too long for a test, so here the same middleware has a shorter one."""
    started: list[dict[str, object]] = []
    never = asyncio.Event()

    async def receive() -> dict[str, object]:
        await never.wait()
        raise AssertionError

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        started.append(message)

    async def app(*_: object) -> None:
        raise AssertionError("the route must not see it")

    middleware = BodyMiddleware(app, deadline_s=0.01)
    await middleware({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
    assert started[0]["status"] == 408


BIG = b"x" * (32 << 20)  # more than the kernel takes off our hands


async def big(_scope: object, _receive: object, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": BIG})


@asynccontextmanager
async def asked_for_much(take_s: float) -> AsyncIterator[tuple[BoundedProtocol, socket.socket]]:
    """A connection on which an answer waits for its reader."""
    made: list[BoundedProtocol] = []
    loop = asyncio.get_running_loop()
    async with listening(big, made, take_s=take_s) as address:
        with socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: bool(made) and made[0]._take_deadline is not None, PATIENCE_S)
            yield made[0], client


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off_with_what_is_kept_for_it() -> None:
    async with asked_for_much(take_s=0.05) as (connection, _):
        await until(connection.transport.is_closing, PATIENCE_S)
        assert connection.transport.get_write_buffer_size() == 0


async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it() -> None:
    loop = asyncio.get_running_loop()
    async with asked_for_much(take_s=3600.0) as (connection, client):
        for _ in range(3):
            left = connection.transport.get_write_buffer_size()
            while connection.transport.get_write_buffer_size() == left:
                assert await loop.sock_recv(client, 1 << 20)
            connection._look()
            assert not connection.transport.is_closing()
        while connection.flow.write_paused:
            assert await loop.sock_recv(client, 1 << 20)
        assert connection._take_deadline is None


async def test_a_client_that_takes_less_than_the_kernel_holds_for_it_takes_something() -> None:
    """The kernel asks us for more only when a good part of what it has is gone."""
    loop = asyncio.get_running_loop()
    async with asked_for_much(take_s=3600.0) as (connection, client):
        served = connection.transport.get_extra_info("socket")
        await until(lambda: not select.select([], [served], [], 0)[1], PATIENCE_S)  # the kernel takes no more
        kept, held = connection.transport.get_write_buffer_size(), in_kernel(served)
        while in_kernel(served) >= held:
            assert await loop.sock_recv(client, 1 << 12)
        assert connection.transport.get_write_buffer_size() == kept
        connection._look()
        assert not connection.transport.is_closing()


async def test_the_token_file_is_its_owners_alone(live: ServerProcess, tmp_path: Path) -> None:
    await until(lambda: any("holdfast login" in line for line in live.said))  # said after "listening"
    assert not any(live.token in line for line in live.said), "its standard error is no terminal"
    home = live.home
    assert (home / "token").stat().st_mode & 0o777 == 0o600


async def test_the_home_that_a_mounted_api_makes_is_its_owners_alone_and_in_no_repository(tmp_path: Path) -> None:
    home = tmp_path / "home"
    app = App(f"sqlite:///{tmp_path}/holdfast.db", home=str(home))
    http_app(app)
    async with app:
        pass
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home / ".gitignore").read_text() == "*\n"
