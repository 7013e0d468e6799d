"""fetch: public pages as text, nothing from inside, and nothing without end."""

import asyncio
import ipaddress
import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from holdfast.core.records import Replay
from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.context import ToolContext, enter
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.web import cache as webcache
from holdfast.tools.web import client as web
from holdfast.tools.web.addresses import internal
from holdfast.tools.web.cache import install_cache, installed_cache, remove_cache
from holdfast.tools.web.client import Bounds, Target, cache_key
from holdfast.tools.web.fetch import fetch_tool
from holdfast.tools.web.html_text import readable
from tests.tools.hostile import FETCHES, table
from tests.tools.sites import INSIDE, Names, Site, site

ALLOWED = ("site.test:*", "mirror.test:*")


@pytest.fixture
async def served() -> AsyncIterator[Site]:
    async with site() as found:
        yield found


@pytest.fixture(autouse=True)
def no_cache_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(webcache, "ANSWER_S", 60.0)  # or a machine that stands still has no cache for a while
    assert installed_cache() is None
    yield
    remove_cache()


async def fetch(*urls: str, raw: bool = False, allowed: Sequence[str] = ALLOWED, **options: Any) -> str:
    made = fetch_tool(**{"resolve": Names(), "bytes_max": 100_000, **options})
    enter(ToolContext(rulebook=Rulebook([f"allow reach({host})" for host in allowed])))
    return str(await made(**made.validate(json.dumps({"urls": urls, "raw": raw}))))


async def refused(*urls: str, **options: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        await fetch(*urls, **options)
    return str(caught.value)


async def test_every_hostile_input_gets_what_the_table_says(served: Site) -> None:
    rows = []
    for case in FETCHES:
        names = Names(rebind=[["127.0.0.1"], ["10.0.0.1"]])
        allowed = (*ALLOWED, "127.0.0.1:*") if "rebind" in case.url else ALLOWED
        try:
            got = await fetch(case.url.format(port=served.port), resolve=names, allowed=allowed)
        except ToolFailed as error:
            got = str(error)
        rows.append(("ok" if case.got in got and INSIDE not in got else "WRONG", case.what, case.got, got))
    assert all(verdict == "ok" for verdict, *_ in rows), "\n" + table(rows)
    assert served.hits["/secret"] == 0


async def test_a_page_comes_as_readable_text_or_as_its_source(served: Site) -> None:
    url = f"http://site.test:{served.port}/html"
    got = await fetch(url)
    assert got == (
        f"## {url}\n200 OK, text/html, 259 bytes\n\n"
        "A & B\n\n# Head\n\nOne two\n\n- first\n- second\nlink (https://example.com/x?a=1&b=2)\n\na\n  b"
    )
    assert "<script>evil('<p>')</script>" in await fetch(url, raw=True)


@pytest.mark.parametrize(
    ("path", "got"),
    [
        ("/ok", "hello"),
        ("/gzip", "packed packed"),
        ("/gzips", "one two"),
        ("/deflate", "packed"),
        ("/raw-deflate", "packed"),
        ("/latin", "café"),
        ("/binary", "5 bytes that are no text"),
        ("/to-ok", "hello"),
    ],
)
async def test_what_a_server_may_send_is_understood(served: Site, path: str, got: str) -> None:
    assert got in await fetch(f"http://site.test:{served.port}{path}")


async def test_several_urls_are_fetched_at_once_and_one_that_fails_spoils_no_other(served: Site) -> None:
    base = f"http://site.test:{served.port}"
    got = await fetch(f"{base}/ok", "http://127.0.0.1/", f"{base}/missing", f"{base}/latin")
    assert [line for line in got.split("\n") if line.startswith("## ")] == [
        f"## {base}/ok",
        "## http://127.0.0.1/",
        f"## {base}/missing",
        f"## {base}/latin",
    ]
    assert "hello" in got
    assert "loopback" in got
    assert "404 Not Found" in got
    assert "café" in got


async def test_if_none_could_be_fetched_the_call_failed(served: Site) -> None:
    said = await refused(f"http://site.test:{served.port}/missing", "http://127.0.0.1/")
    assert "404 Not Found" in said
    assert "loopback" in said


async def test_too_many_urls_or_none_are_refused() -> None:
    assert "1 to 10" in await refused()
    assert "1 to 10" in await refused(*["http://site.test/"] * 11)


async def test_lookups_that_hang_keep_no_other_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def answer(host: str, *args: object, **options: object) -> list[object]:
        if host == "hanging.example":
            release.wait(60)
        return [(None, None, None, None, ("192.0.2.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    hanging = [asyncio.ensure_future(web.look_up("hanging.example")) for _ in range(web.LOOKUPS_MAX)]
    assert await asyncio.wait_for(web.look_up("other.example"), 30) == ["192.0.2.1"]
    assert not any(task.done() for task in hanging), "they are still waited for"
    release.set()
    assert await asyncio.gather(*hanging) == [["192.0.2.1"]] * len(hanging)


@pytest.mark.parametrize("path", ["/dripping", "/silent"])
async def test_a_server_that_takes_for_ever_costs_the_time_limit(served: Site, path: str) -> None:
    assert "timed out after 0.3 s" in await refused(f"http://site.test:{served.port}{path}", time_s=0.3)


async def test_a_resolver_that_hangs_costs_the_time_limit() -> None:
    async def never(host: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    assert "timed out after 0.2 s" in await refused("http://site.test/", resolve=never, time_s=0.2)


async def test_an_endless_body_is_hung_up_on(served: Site) -> None:
    assert "cut at 100,000 bytes" in await fetch(f"http://site.test:{served.port}/endless")
    await asyncio.wait_for(served.gone.wait(), 30)


async def test_cancelling_a_fetch_hangs_up(served: Site) -> None:
    task = asyncio.ensure_future(fetch(f"http://site.test:{served.port}/dripping"))
    await asyncio.wait_for(served.asked.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(served.gone.wait(), 30)


async def test_the_connection_goes_to_the_address_that_was_checked(served: Site) -> None:
    """A second look-up would be answered with another address: there is none."""
    names = Names(once=[["127.0.0.1"], ["10.0.0.1"]])
    got = await fetch(f"http://once.test:{served.port}/ok", resolve=names, allowed=["127.0.0.1:*"])
    assert "hello" in got
    assert names.asked == ["once.test"]
    assert served.heads[0]["host"] == f"once.test:{served.port}"


async def test_every_checked_address_is_tried_in_turn(served: Site) -> None:
    names = Names(two=[["127.0.0.9", "127.0.0.1"]])
    assert "hello" in await fetch(f"http://two.test:{served.port}/ok", resolve=names, allowed=["127.0.0.0/8:*"])


async def test_what_is_allowed_is_allowed_and_nothing_else(served: Site) -> None:
    here = f"http://127.0.0.1:{served.port}/ok"
    for allowed in (f"127.0.0.1:{served.port}", "127.0.0.1:*", "127.0.0.0/8:*", f"127.0.0.0/8:{served.port}"):
        assert "hello" in await fetch(here, allowed=[allowed])
    for other in (f"127.0.0.1:{served.port + 1}", "127.0.0.1", "*:*", "127.0.0.2:*"):
        assert "loopback" in await refused(here, allowed=[other])
    public = Names(public=[["127.0.0.1"], ["93.184.215.14"]])
    assert "loopback" in await refused(f"http://public.test:{served.port}/ok", allowed=["*.test:*"], resolve=public)
    assert "metadata" in await refused("http://169.254.169.254/", allowed=["*"])
    assert "port 6379" in await refused("http://93.184.215.14:6379/", allowed=["93.184.215.14"])


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["deny reach(mirror.test)"], "the rule `deny reach(mirror.test)` says deny"),
        (["ask reach(mirror.test)"], "To have a person asked, fetch that by itself"),
    ],
)
async def test_a_redirect_to_where_the_rules_are_against_is_not_followed(
    served: Site, rules: list[str], words: str
) -> None:
    made = fetch_tool(resolve=Names())
    allowed = [f"allow reach({host})" for host in ALLOWED]
    enter(ToolContext(rulebook=Rulebook([*allowed, *rules])))
    with pytest.raises(ToolFailed) as caught:
        await made(urls=[f"http://site.test:{served.port}/to-mirror"])
    assert f"it leads to reach(mirror.test:{served.port}): " in str(caught.value)
    assert words in str(caught.value)
    assert served.hits == {"/to-mirror": 1}


@pytest.mark.parametrize(
    ("mode", "rules", "goes"),
    [
        ("ask", [], True),
        ("unattended", [], True),  # it was judged before, and allowed by a kept rule
        ("read", [], False),
        ("unattended", ["ask reach(a.test)"], False),
        ("unattended", ["deny reach(a.test)"], False),
    ],
)
def test_where_only_the_mode_is_against_the_first_host_was_judged_before_and_no_other_was(
    mode: Any, rules: list[str], goes: bool
) -> None:
    bounds = Bounds(Rulebook(rules, mode))
    first = Target("https://a.test/")
    if goes:
        bounds.check(first, first)
    else:
        with pytest.raises(ToolFailed, match="it leads to"):
            bounds.check(first, first)
    with pytest.raises(ToolFailed, match="it leads to"):
        bounds.check(Target("https://b.test/"), first)


async def test_a_name_and_a_password_stay_with_the_host_they_are_for(served: Site) -> None:
    def url(path: str) -> str:
        return f"http://me:s3cr%2Ft@site.test:{served.port}{path}"

    basic = "Basic bWU6czNjci90"
    assert basic in await fetch(url("/who"))
    assert basic in await fetch(url("/to-who"))
    assert "nobody" in await fetch(url("/to-mirror"))
    assert "nobody" in await fetch(f"http://site.test:{served.port}/to-other-user")
    said = await refused(url("/missing"), "http://me:s3cr%2Ft@127.0.0.1/", "http://me:s3cr%2Ft@[broken/")
    assert "s3cr" not in said


async def test_an_odd_url_is_a_failure_with_words() -> None:
    for url in ("", "http://", "http://[::1", "http://a..b.com/", "http://-.com/", "//x", "http://" + "a" * 9000):
        assert "Failed: " in await refused(url)


async def test_a_fetch_is_pure() -> None:
    assert fetch_tool().replay is Replay.PURE


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_a_public_address_is_public(address: str) -> None:
    assert internal(ipaddress.ip_address(address)) is None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for site.test that nobody signed, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so there is no certificate to serve with")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=site.test"),
            *("-addext", "subjectAltName=DNS:site.test"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")


async def test_tls_is_with_the_name_though_the_connection_is_to_an_address(certificate: tuple[str, str]) -> None:
    asked_for: list[str | None] = []
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*certificate)
    serving.sni_callback = lambda _, name, __: asked_for.append(name)
    trusting = ssl.create_default_context(cafile=certificate[0])
    async with site(serving) as served:
        assert "hello" in await fetch(f"https://site.test:{served.port}/ok", ssl_context=trusting)
        assert "hello" not in await refused(f"https://mirror.test:{served.port}/ok", ssl_context=trusting)
    assert asked_for[0] == "site.test"


# --- the cache ------------------------------------------------------------------------------------------------------


async def test_a_fresh_page_comes_from_the_cache(served: Site, tmp_path: Path) -> None:
    install_cache(tmp_path / "cache.db")
    url = f"http://site.test:{served.port}/fresh"
    first, second = await fetch(url), await fetch(url)
    assert "from the cache" not in first
    assert "from the cache" in second
    assert second.endswith("fresh")
    assert served.hits["/fresh"] == 1


async def test_a_page_with_a_tag_is_asked_for_again_and_not_sent_again(served: Site, tmp_path: Path) -> None:
    install_cache(tmp_path / "cache.db")
    url = f"http://site.test:{served.port}/etag"
    assert (await fetch(url)).endswith("tagged")
    assert (await fetch(url)).endswith("tagged")
    assert [head.get("if-none-match") for head in served.heads] == [None, '"1"']


@pytest.mark.parametrize("path", ["/no-store", "/private"])
async def test_what_must_not_be_kept_is_not(served: Site, tmp_path: Path, path: str) -> None:
    install_cache(tmp_path / "cache.db")
    url = f"http://site.test:{served.port}{path}"
    await fetch(url)
    await fetch(url)
    assert served.hits[path] == 2


async def test_a_page_that_was_fetched_with_a_password_is_not_kept(served: Site, tmp_path: Path) -> None:
    install_cache(tmp_path / "cache.db")
    await fetch(f"http://me:pw@site.test:{served.port}/fresh")
    assert "from the cache" not in await fetch(f"http://site.test:{served.port}/fresh")


async def test_what_one_tool_got_from_inside_another_does_not_get_from_the_cache(
    served: Site, tmp_path: Path
) -> None:
    install_cache(tmp_path / "cache.db")
    url = f"http://site.test:{served.port}/fresh"
    await fetch(url)
    assert "loopback" in await refused(url, allowed=())
    # Not even if the name has become that of a public address meanwhile.
    inside, outside = map(ipaddress.ip_address, ("127.0.0.1", "93.184.215.14"))
    assert cache_key(Target(url), [inside]) != cache_key(Target(url), [outside])
    assert cache_key(Target(url), [outside, inside]) != cache_key(Target(url), [outside])


async def test_a_tool_can_go_without_the_cache(served: Site, tmp_path: Path) -> None:
    install_cache(tmp_path / "cache.db")
    url = f"http://site.test:{served.port}/fresh"
    await fetch(url)
    await fetch(url, cache=False)
    assert served.hits["/fresh"] == 2


async def test_a_second_install_warns_and_changes_nothing(
    served: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = install_cache(tmp_path / "cache.db")
    url = f"http://site.test:{served.port}/fresh"
    await fetch(url)
    with caplog.at_level(logging.WARNING):
        assert install_cache(tmp_path / "other.db") is first
    assert [record.__dict__["action"] for record in caplog.records] == ["web_cache_installed_twice"]
    assert not (tmp_path / "other.db").exists()
    assert "from the cache" in await fetch(url)


def test_the_cache_outlives_the_event_loops_of_its_process(tmp_path: Path) -> None:
    """A restart in-process: another loop, the same cache; and a cache that was removed and installed again."""

    async def life(port: int | None) -> tuple[int, str]:
        async with site() as served:
            url = f"http://site.test:{port or served.port}/fresh"
            return served.port, await fetch(url)

    install_cache(tmp_path / "cache.db")
    port, _ = asyncio.run(life(None))
    assert "from the cache" in asyncio.run(life(port))[1]
    remove_cache()
    install_cache(tmp_path / "cache.db")
    assert "from the cache" in asyncio.run(life(port))[1]


async def test_the_cache_stays_within_its_size(served: Site, tmp_path: Path) -> None:
    install_cache(tmp_path / "cache.db", bytes_max=2_000)
    for number in range(20):
        assert "fresh" in await fetch(f"http://site.test:{served.port}/fresh?{number}")
    kept = apsw.Connection(str(tmp_path / "cache.db")).execute("SELECT bytes FROM entries").fetchall()
    assert 0 < sum(cast("int", size) for (size,) in kept) <= 2_000


async def test_a_cache_that_fails_is_a_cache_that_has_nothing(
    served: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install_cache(tmp_path / "cache.db")
    await fetch(f"http://site.test:{served.port}/fresh")
    other = apsw.Connection(str(tmp_path / "cache.db"))
    other.execute("DROP TABLE entries")
    other.close()
    assert (await fetch(f"http://site.test:{served.port}/fresh")).endswith("fresh")
    assert {record.__dict__.get("action") for record in caplog.records} == {"web_cache_failed"}


def test_a_file_that_cannot_be_a_cache_is_said_at_once_and_left_alone(tmp_path: Path) -> None:
    foreign = apsw.Connection(str(tmp_path / "foreign.db"))
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    before = (tmp_path / "foreign.db").read_bytes()
    with pytest.raises(ConfigError, match="something else"):
        install_cache(tmp_path / "foreign.db")
    assert (tmp_path / "foreign.db").read_bytes() == before
    (tmp_path / "text").write_text("no database at all, by any means" * 100)
    with pytest.raises(ConfigError, match="cannot be the web cache"):
        install_cache(tmp_path / "text")
    assert installed_cache() is None


# --- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "<a href='",
        "<!--",
        "<![CDATA[",
        "<script>",
        "<title>",
        '<p title="',
        "<p title='\"",
        "</",
        "<",
        "&#x",
        "<svg><svg/>",
        "<pre>",
        "<a href=x>",
        "<a " + 'href="' * 100 + ">",
    ],
)
def test_reading_hostile_html_takes_linear_time(source: str) -> None:
    """Ten times the text takes about ten times as long; a quadratic reader would take a hundred times."""

    def cost_s(size: int) -> float:
        text = source * (size // len(source) | 1)  # odd: the last quote stays open
        began = time.thread_time()
        readable(text)
        return time.thread_time() - began

    cost_s(20_000)
    small = min(cost_s(20_000) for _ in range(3))
    large = min(cost_s(400_000) for _ in range(2))
    assert large < 20 * 5 * max(small, 0.001)
