"""What stands between us and a browser: its two pipes, and the proxy that it has to take. No browser is needed."""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ToolFailed
from holdfast.tools.browser import chromium, devtools
from holdfast.tools.browser import proxy as proxies
from holdfast.tools.browser.devtools import BrowserLost, DevTools
from holdfast.tools.browser.proxy import BrowserProxy
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.web.client import Target
from tests.support.waiting import until
from tests.tools.sites import Names, Site, site


class OtherEnd:
    """A browser's end of the pipes, in the hands of a test."""

    def __init__(self) -> None:
        self.commands, theirs_in = os.pipe()
        theirs_out, self.answers = os.pipe()
        self.devtools = DevTools(theirs_in, theirs_out)
        os.set_blocking(self.commands, False)

    async def say(self, data: bytes) -> None:
        """However much it is: it is read as it comes."""
        await asyncio.get_running_loop().run_in_executor(None, self._say, data)

    def _say(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self.answers, data[: 1 << 16]) :]
        except OSError:
            pass

    def heard(self) -> list[Any]:
        try:
            return [json.loads(each) for each in os.read(self.commands, 1 << 16).split(b"\x00") if each]
        except BlockingIOError:
            return []


@pytest.fixture
async def other() -> AsyncIterator[OtherEnd]:
    end = OtherEnd()
    yield end
    end.devtools.close()
    os.close(end.commands)
    os.close(end.answers)


async def test_a_command_gets_its_answer_whatever_comes_before_it(other: OtherEnd) -> None:
    events: list[Any] = []
    other.devtools.listen("Page.event", events.append)
    asking = asyncio.ensure_future(other.devtools.ask("Page.enable", {"a": 1}, session="s"))
    await asyncio.sleep(0)
    [asked] = other.heard()
    assert asked == {"id": 1, "method": "Page.enable", "params": {"a": 1}, "sessionId": "s"}
    await other.say(
        b'{"method":"Page.event","params":{"x":2}}\x00{"method":"Other"}\x00{"id":77,"result":{}}\x00{"id":1,'
    )
    await other.say(b'"result":{"done":true}}\x00')
    assert await asking == {"done": True}
    assert events == [{"x": 2}]


async def test_what_the_browser_refuses_is_told_and_nothing_is_lost(other: OtherEnd) -> None:
    asking = asyncio.ensure_future(other.devtools.ask("Nonsense"))
    await asyncio.sleep(0)
    await other.say(b'{"id":1,"error":{"code":-1,"message":"no such method"}}\x00')
    with pytest.raises(ToolFailed, match="the browser refused: no such method"):
        await asking
    assert other.devtools.lost is None


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (rb"a\ud800b", "a\ufffdb"),
        (rb"\udc00", "\ufffd"),
        (rb"\ud83d\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd"),
        (rb"\\ud800 \ud800", "\\ufffd \ufffd"),
    ],
)
async def test_half_a_character_of_a_pages_text_is_marked_and_the_rest_is_heard(
    other: OtherEnd, said: bytes, heard: str
) -> None:
    asking = asyncio.ensure_future(other.devtools.ask("Runtime.evaluate"))
    await asyncio.sleep(0)
    await other.say(b'{"id":1,"result":{"value":"' + said + b'"}}\x00')
    assert await asking == {"value": heard}
    assert other.devtools.lost is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"not json\x00", "cannot be understood"),
        (b"[1]\x00", "cannot be understood"),
        (b'{"method":"Page.event","params":' + b"[" * 100_000 + b"\x00", "cannot be understood"),
        (b"x" * (devtools.MESSAGE_BYTES_MAX + (1 << 20)), "more than 8,388,608 bytes at once"),
    ],
)
async def test_what_no_browser_would_say_ends_it_and_who_waits_is_told(
    other: OtherEnd, said: bytes, why: str
) -> None:
    other.devtools.listen("Page.event", lambda _: None)
    asking = asyncio.ensure_future(other.devtools.ask("Page.enable"))
    await asyncio.sleep(0)
    await other.say(said)
    with pytest.raises(BrowserLost, match=why):
        await asking
    with pytest.raises(BrowserLost, match=why):
        await other.devtools.ask("Page.enable")
    assert len(other.devtools._heard) == 0


async def test_a_browser_that_does_not_answer_costs_one_deadline(other: OtherEnd) -> None:
    with pytest.raises(BrowserLost, match=r"did not answer within 0.05 s"):
        await other.devtools.ask("Page.enable", within_s=0.05)
    assert not other.devtools._waiting


async def test_a_browser_that_does_not_read_is_lost_before_much_is_kept(other: OtherEnd) -> None:
    for _ in range(40):
        other.devtools.tell("Input.insertText", {"text": "x" * 50_000})
    assert other.devtools.lost == "the browser does not read what it is told"
    assert len(other.devtools._unsent) <= devtools.UNSENT_BYTES_MAX + 60_000


# --- its files ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(chromium, "profiles_folder", lambda: tmp_path)
    return tmp_path


async def test_what_a_killed_worker_left_half_removed_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await chromium.new_profile()
    removes = shutil.rmtree

    def killed(path: Path, **_: Any) -> None:
        if path != left.path:
            removes(path, ignore_errors=True)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        left.remove()  # killed before the folder itself went, it has let go of its lock
    assert (left.path / chromium.LOCK).exists()
    assert not (left.path / "profile").exists()
    other = await chromium.new_profile()
    assert list(folder.iterdir()) == [other.path]
    other.remove()
    assert not list(folder.iterdir())


async def test_a_folder_that_is_taken_for_one_that_was_left_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = fcntl.flock, list[Path]()

    def late(file: int, how: int) -> None:
        if not taken:  # another process comes by before the lock is ours
            taken.extend(folder.iterdir())
            monkeypatch.setattr(fcntl, "flock", lock)
            chromium._remove_left()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    profile = chromium.Profile()
    assert [path.exists() for path in taken] == [False]
    assert (profile.path / "profile" / "Default" / "Preferences").exists()
    chromium._remove_left()
    assert list(folder.iterdir()) == [profile.path], "its lock is held"
    profile.remove()


# --- the proxy ---------------------------------------------------------------------------------------


@pytest.fixture
async def served() -> AsyncIterator[Site]:
    async with site() as found:
        yield found


@pytest.fixture
async def proxy() -> AsyncIterator[BrowserProxy]:
    made = BrowserProxy(bytes_max=100_000, resolve=Names())
    await made.start()
    yield made
    await made.close()


async def through(proxy: BrowserProxy, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request.encode())
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_plain_request_is_carried_as_a_server_expects_it(served: Site, proxy: BrowserProxy) -> None:
    proxy.begin(Rulebook(["allow reach(site.test:*)"]), None)
    url = f"http://site.test:{served.port}/ok"
    head = f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\nProxy-Connection: keep-alive\r\nX-One: 1\r\n\r\n"
    answer = await through(proxy, head)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"Connection: close\r\n\r\nhello")
    assert served.hits == {"/ok": 1}
    assert served.heads[0]["host"] == f"site.test:{served.port}", "the one that was checked"
    assert "proxy-connection" not in served.heads[0]


@pytest.mark.parametrize(
    "request_line",
    [
        "CONNECT 127.0.0.1:{port} HTTP/1.1",
        "CONNECT loop.test:{port} HTTP/1.1",
        "CONNECT mapped.test:{port} HTTP/1.1",
        "CONNECT [::1]:{port} HTTP/1.1",
        "GET http://localhost:{port}/ok HTTP/1.1",
        "GET http://2130706433:{port}/ok HTTP/1.1",
        "GET http://mixed.test/ok HTTP/1.1",
        "GET ftp://site.test:{port}/ok HTTP/1.1",
        "GET https://site.test:{port}/ok HTTP/1.1",
    ],
)
async def test_what_leads_inside_is_refused_with_words(served: Site, proxy: BrowserProxy, request_line: str) -> None:
    proxy.begin(Rulebook(["allow reach(site.test:*)"]), None)
    answer = await through(proxy, request_line.format(port=served.port) + "\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 Refused\r\n")
    assert b"Refused: " in answer
    assert not served.hits


@pytest.mark.parametrize(
    "said", ["\r\n\r\n", "GET\r\n\r\n", "a b c d\r\n\r\n", "GET /ok HTTP/1.1\r\n\r\n", "\xff x y\r\n\r\n"]
)
async def test_garbage_ends_a_connection_and_nothing_else(served: Site, proxy: BrowserProxy, said: str) -> None:
    proxy.begin(Rulebook(["allow reach(site.test:*)"]), None)
    assert b"200 OK" not in await through(proxy, said)
    await until(lambda: proxy.connections == 0)
    answer = await through(proxy, f"GET http://site.test:{served.port}/ok HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"hello")


async def test_a_flood_is_cut_off_at_its_limit(served: Site, proxy: BrowserProxy) -> None:
    proxy.begin(Rulebook(["allow reach(site.test:*)"]), None)
    answer = await through(proxy, f"GET http://site.test:{served.port}/endless HTTP/1.1\r\n\r\n")
    assert len(answer) <= 100_000 + (64 << 10)
    assert proxy.flooded


async def test_what_a_form_sends_arrives_before_the_server_answers(served: Site, proxy: BrowserProxy) -> None:
    proxy.begin(Rulebook(["allow reach(site.test:*)"]), None)
    url, body = f"http://site.test:{served.port}/echo", "q=kelp"
    answer = await through(proxy, f"POST {url} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}")
    assert answer.endswith(b"\r\n\r\nq=kelp")
    assert served.bodies == [("POST", b"q=kelp")]


@pytest.mark.parametrize("tunnel", [False, True])
async def test_a_connection_that_the_browser_leaves_is_left_however_silent_the_server_is(
    served: Site, proxy: BrowserProxy, tunnel: bool
) -> None:
    proxy.begin(Rulebook(["allow reach(site.test:*)"]), None)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    host = f"site.test:{served.port}"
    if tunnel:
        writer.write(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /late HTTP/1.1\r\n\r\n")
    else:
        writer.write(f"GET http://{host}/late HTTP/1.1\r\n\r\n".encode())
    await until(lambda: served.hits["/late"])
    writer.close()
    await until(lambda: proxy.connections == 0)
    await asyncio.wait_for(served.gone.wait(), 30)


async def test_a_connection_that_the_rules_of_the_next_call_are_against_ends(
    served: Site, proxy: BrowserProxy
) -> None:
    allowed = Rulebook(["allow reach(site.test:*)"])
    proxy.begin(allowed, None)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(f"CONNECT site.test:{served.port} HTTP/1.1\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    proxy.pause()
    proxy.begin(Rulebook(["allow reach(site.test:*)", "deny reach(10.0.0.0/8)"]), None)
    assert proxy.connections == 1, "they have nothing against this one"
    proxy.begin(Rulebook(["allow reach(site.test:*)", "deny reach(127.0.0.0/8)"]), None)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    await until(lambda: proxy.connections == 0)
    assert not served.hits
    writer.close()


@pytest.mark.parametrize(
    ("opened", "wanted", "asks"),
    [
        ("https://loop.test/", "CONNECT loop.test:443", False),
        ("https://loop.test/", "GET http://loop.test/", True),
        ("http://loop.test/", "CONNECT loop.test:443", False),  # to https, as most hosts have it
        ("https://loop.test/", "CONNECT mirror.test:443", True),
        (None, "CONNECT loop.test:443", True),
    ],
)
async def test_what_a_person_approved_is_a_host_and_a_port(
    proxy: BrowserProxy, opened: str | None, wanted: str, asks: bool
) -> None:
    proxy.begin(Rulebook(mode="ask"), None if opened is None else Target(opened))
    answer = await through(proxy, f"{wanted} HTTP/1.1\r\n\r\n")
    assert (b"To have a person asked" in answer) is asks
    assert (b"is an internal address" in answer) is not asks, "the rules allow it: it is looked up"


async def test_a_resolver_that_fails_is_told_of_in_words(proxy: BrowserProxy) -> None:
    proxy.begin(Rulebook(), None)
    assert b"unheard.test cannot be found: KeyError" in await through(
        proxy, "GET http://unheard.test/ HTTP/1.1\r\n\r\n"
    )


async def test_a_name_that_is_not_found_out_costs_its_time_and_no_more(
    served: Site, expire: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "REACH_S", 999.0)
    asked = asyncio.Event()

    async def never(host: str) -> list[str]:
        asked.set()
        await asyncio.Event().wait()
        return []

    proxy = BrowserProxy(bytes_max=100_000, resolve=never)
    await proxy.start()
    try:
        proxy.begin(Rulebook(), None)
        asking = asyncio.ensure_future(through(proxy, "GET http://site.example/ HTTP/1.1\r\n\r\n"))
        await asked.wait()
        expire(999.0)
        assert b"cannot connect to site.example:80: no answer within 999 s" in await asking
    finally:
        await proxy.close()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can be another user")
async def test_another_users_process_gets_nothing_from_it(served: Site, proxy: BrowserProxy) -> None:
    proxy.begin(Rulebook(["allow reach(site.test:*)"]), None)
    code = (
        "import encodings.idna, os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "try:\n    s.sendall(sys.argv[2].encode()); print(s.recv(100))\nexcept OSError: print('refused')\n"
    )
    request = f"GET http://site.test:{served.port}/ok HTTP/1.1\r\n\r\n"
    told = await asyncio.to_thread(
        lambda: (
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", code, str(proxy.port), request],
                capture_output=True,
                timeout=60,
                check=True,
            ).stdout
        )
    )
    assert told.strip() in (b"refused", b"b''")
    assert not served.hits
