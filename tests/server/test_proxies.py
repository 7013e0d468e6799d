"""Behind a proxy: the client is the one that the proxy saw, and no header of a stranger changes anything."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast.errors import ConfigError
from holdfast.server.proxies import PROXIED, Kind, Proxies, address
from tests.support.servers import ServerProcess, created, reading, server

HERE = "10.0.0.1"
TRUSTED = ("10.0.0.0/24", "fd00::/8")


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose proxies are on loopback: the tests are one."""
    folder: Path = tmp_path_factory.mktemp("behind")
    settings = {"HOLDFAST_TRUSTED_PROXIES": "127.0.0.1, ::1", "HOLDFAST_ALLOWED_HOSTS": "chats.example"}
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home", settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that knows of no proxy."""
    folder: Path = tmp_path_factory.mktemp("direct")
    settings = {"HOLDFAST_ALLOWED_HOSTS": "chats.example"}
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home", settings=settings) as running:
        yield running


def applied(lines: list[tuple[str, str]], peer: str = HERE, kind: Kind = "x-forwarded") -> tuple[str, str, str]:
    """Client, scheme and host, as the routes see them."""
    raw = [(b"host", b"inside:7433"), *((name.encode(), value.encode()) for name, value in lines)]
    scope: dict[str, Any] = {"type": "http", "client": (peer, 5), "scheme": "http", "headers": raw}
    Proxies(TRUSTED, kind).apply(scope)
    (host,) = [value.decode() for name, value in scope["headers"] if name == b"host"]
    return scope["client"][0], scope["scheme"], host


FOR, PROTO, HOST = "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"
INSIDE = "inside:7433"

# name -> the headers, what is believed
LISTS: dict[str, tuple[list[tuple[str, str]], tuple[str, str, str]]] = {
    "no word": ([], (HERE, "http", INSIDE)),
    "one proxy": (
        [(FOR, "203.0.113.9"), (PROTO, "https"), (HOST, "chats.example")], ("203.0.113.9", "https", "chats.example"),
    ),
    "a client that says it is another": ([(FOR, "127.0.0.1, 203.0.113.9")], ("203.0.113.9", "http", INSIDE)),
    "a client that says it is a proxy": ([(FOR, "1.1.1.1, 10.0.0.7, 203.0.113.9")], ("203.0.113.9", "http", INSIDE)),
    "two proxies": ([(FOR, "203.0.113.9, 10.0.0.7")], ("203.0.113.9", "http", INSIDE)),
    "two proxies, all of it told": (
        [(FOR, "203.0.113.9, 10.0.0.7"), (PROTO, "https, http"), (HOST, "chats.example, middle")],
        ("203.0.113.9", "https", "chats.example"),
    ),
    "two proxies, the outer one's scheme passed on": (
        [(FOR, "203.0.113.9, 10.0.0.7"), (PROTO, "https")], ("203.0.113.9", "https", INSIDE),
    ),
    "the client's own scheme before the proxy's": ([(FOR, "203.0.113.9"), (PROTO, "https, http")],
                                                   ("203.0.113.9", "http", INSIDE)),
    "lines that are cut": ([(FOR, "1.1.1.1"), (FOR, "203.0.113.9")], ("203.0.113.9", "http", INSIDE)),
    "lines that are cut, the proxy in the last": ([(FOR, "203.0.113.9"), (FOR, "10.0.0.7")],
                                                  ("203.0.113.9", "http", INSIDE)),
    "with a port": ([(FOR, "203.0.113.9:4711")], ("203.0.113.9", "http", INSIDE)),
    "IPv6": ([(FOR, "2001:db8::1")], ("2001:db8::1", "http", INSIDE)),
    "IPv6 with a port": ([(FOR, "[2001:db8::1]:4711")], ("2001:db8::1", "http", INSIDE)),
    "IPv4 in IPv6": ([(FOR, "::ffff:203.0.113.9")], ("203.0.113.9", "http", INSIDE)),
    "nonsense": ([(FOR, "1.1.1.1, what?")], (HERE, "http", INSIDE)),
    "nothing between commas": ([(FOR, "1.1.1.1,,")], (HERE, "http", INSIDE)),
    "a scheme that there is not": ([(FOR, "203.0.113.9"), (PROTO, "gopher")], ("203.0.113.9", "http", INSIDE)),
    "a host that is none": ([(FOR, "203.0.113.9"), (HOST, "a b/../c")], ("203.0.113.9", "http", INSIDE)),
    "the header of the other kind": ([("forwarded", "for=1.1.1.1;proto=https;host=evil.example")],
                                     (HERE, "http", INSIDE)),
    "only the scheme": ([(PROTO, "https")], (HERE, "https", INSIDE)),
    "more proxies than there are": ([(FOR, "1.1.1.1" + ", 10.0.0.7" * 500)], ("10.0.0.7", "http", INSIDE)),
}  # fmt: skip

FORWARDED: dict[str, tuple[str, tuple[str, str, str]]] = {
    "one proxy": ("for=203.0.113.9;proto=https;host=chats.example", ("203.0.113.9", "https", "chats.example")),
    "in other letters": ('FOR="203.0.113.9:4711" ; Proto=HTTPS', ("203.0.113.9", "https", INSIDE)),
    "IPv6": ('for="[2001:db8::1]:4711"', ("2001:db8::1", "http", INSIDE)),
    "two proxies": ("for=203.0.113.9;proto=https, for=10.0.0.7;proto=http", ("203.0.113.9", "https", INSIDE)),
    "a client that says it is another": (
        "for=10.0.0.9;proto=https, for=203.0.113.9",
        ("203.0.113.9", "http", INSIDE),
    ),
    "a hidden client": ("for=1.1.1.1, for=_hidden", (HERE, "http", INSIDE)),
    "an unknown client": ("for=1.1.1.1, for=unknown;proto=https", (HERE, "https", INSIDE)),
    "a quote that hides the proxy's word": ('for=1.1.1.1;x=", for=203.0.113.9', (HERE, "http", INSIDE)),
    "a quote that the proxy's own closes": ('for=1.1.1.1;x=", for="[2001:db8::1]"', (HERE, "http", INSIDE)),
    "a comma in quotes": ('for="1.1.1.1, for=203.0.113.9"', (HERE, "http", INSIDE)),
    "an escaped quote": (r'x="\", for=1.1.1.1;y=\"";for=203.0.113.9', ("203.0.113.9", "http", INSIDE)),
    "twice in one": ("for=203.0.113.9;for=1.1.1.1", (HERE, "http", INSIDE)),
    "nonsense": ("what?", (HERE, "http", INSIDE)),
}


@pytest.mark.parametrize("name", LISTS)
def test_of_what_proxies_list_the_client_is_the_first_that_is_no_proxy_from_the_end(name: str) -> None:
    lines, believed = LISTS[name]
    assert applied(lines) == believed
    assert applied(lines, peer="203.0.113.200") == ("203.0.113.200", "http", INSIDE), "the word of a stranger"


@pytest.mark.parametrize("name", FORWARDED)
def test_forwarded_is_read_as_its_rfc_has_it_or_not_at_all(name: str) -> None:
    line, believed = FORWARDED[name]
    assert applied([("forwarded", line), (FOR, "1.2.3.4"), (PROTO, "https")], kind="forwarded") == believed
    assert applied([("forwarded", line)], peer="203.0.113.200", kind="forwarded")[0] == "203.0.113.200"


def test_a_long_header_is_read_in_linear_time() -> None:
    for line in ('for="' + "\\" * 30_000, "for=a;" * 8_000, "," * 30_000, "for=x, " * 4_000):
        assert applied([("forwarded", line)], kind="forwarded")[0] == HERE


def test_a_network_that_is_none_is_named() -> None:
    for wrong in ("proxy.example", "10.0.0.1/8", "*", ""):
        with pytest.raises(ConfigError, match=r"trusted_proxies: .* is no address"):
            Proxies([wrong])
    assert Proxies(["10.0.0.7"]).trusts(address("::ffff:10.0.0.7"))
    assert not Proxies([]).trusts(address("127.0.0.1"))


def test_without_a_client_there_is_no_one_to_trust() -> None:
    scope = {"type": "http", "client": None, "headers": [(b"x-forwarded-for", b"1.1.1.1")]}
    Proxies(["0.0.0.0/0", "::/0"]).apply(scope)
    assert (scope["client"], PROXIED in scope) == (None, False)


async def raw(live: ServerProcess, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    try:
        writer.write(data)
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


async def test_a_health_check_of_http_1_0_that_names_no_host_is_answered(direct: ServerProcess) -> None:
    answer = await raw(direct, b"GET /health HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"status":"ok"' in answer
    token = f"Authorization: Bearer {direct.token}\r\n".encode()
    for request in (
        b"GET /api/chats HTTP/1.0\r\n" + token,
        b"GET / HTTP/1.0\r\n",
        b"GET /health HTTP/1.0\r\nHost: evil.example\r\n",
        b"GET /health HTTP/1.0\r\nHost:\r\n",
    ):
        assert (await raw(direct, request + b"\r\n")).startswith(b"HTTP/1.1 421 "), request


async def test_each_client_behind_a_proxy_has_its_own_streams(tmp_path: Path) -> None:
    settings = {"HOLDFAST_TRUSTED_PROXIES": "127.0.0.1", "HOLDFAST_TEST_STREAMS_PER_CLIENT": "1"}
    with server(f"sqlite:///{tmp_path}/chats.db", tmp_path / "home", settings=settings) as live:
        async with live.client() as client:
            chat_id = await created(client, "thinker", "hello")

        def of(address: str) -> httpx.AsyncClient:
            made = live.client()
            made.headers["X-Forwarded-For"] = f"198.51.100.1, {address}"  # the first one is what the client wrote
            return made

        async with of("203.0.113.1") as one, of("203.0.113.2") as two, reading(one, chat_id), reading(two, chat_id):
            third = await one.get(f"/api/chats/{chat_id}/events")
            assert (third.status_code, third.json()["code"]) == (429, "too_many_streams")


async def test_the_cookie_is_secure_behind_a_proxy_that_ends_tls_and_only_there(
    behind: ServerProcess, direct: ServerProcess
) -> None:
    told = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "chats.example", "X-Forwarded-For": "203.0.113.9"}
    assert "; Secure" in await behind.set_cookie(headers=told)
    assert "holdfast_session_443=" in await behind.set_cookie(headers=told)
    assert "; Secure" not in await behind.set_cookie()
    assert "; Secure" not in await direct.set_cookie(headers=told), "the word of a stranger"


async def test_the_origin_of_a_page_is_compared_with_what_the_proxy_was_asked_for(
    behind: ServerProcess, direct: ServerProcess
) -> None:
    told = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "chats.example"}

    async def status(live: ServerProcess, origin: str) -> int:
        async with live.client() as client:
            answer = await client.post("/api/chats", json={"agent": "echo"}, headers={**told, "Origin": origin})
            return answer.status_code

    assert await status(behind, "https://chats.example") == 201
    assert await status(behind, "https://chats.example:443") == 201
    assert await status(behind, "http://chats.example") == 403, "a page that came without TLS"
    assert await status(behind, behind.url) == 403
    assert await status(direct, "https://chats.example") == 403, "the word of a stranger"


async def test_a_host_that_a_proxy_names_is_judged_like_any_other(behind: ServerProcess) -> None:
    async with behind.client() as client:
        answer = await client.get("/api/agents", headers={"X-Forwarded-Host": "evil.example"})
        assert (answer.status_code, answer.json()["code"]) == (421, "forbidden_host")
