"""The cookie of a browser beside those of other programs of the host, of which browsers tell us all."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from playwright.async_api import expect
from starlette.datastructures import Headers

from holdfast.server.cookies import VALUES_MAX, cookie_name, cookie_values
from tests.support.browser import NONE, browser, find
from tests.support.servers import ServerProcess, server

# What programs on one host leave for each other: none of it can be read as RFC 6265 has it.
NEIGHBOURS = ('prefs={"theme": "dark", "wide": true}', "a[b]=c", "lone", "=", "with space=x y", "ü=ö", '"="')


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("cookies")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running


@pytest.fixture
async def stranger(live: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Without a token."""
    async with httpx.AsyncClient(base_url=live.url, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("other", NEIGHBOURS)
async def test_a_cookie_of_another_program_locks_no_one_out(
    other: str, live: ServerProcess, stranger: httpx.AsyncClient
) -> None:
    ours = await live.cookie()
    for line in (f"{other}; {ours}", f"{ours}; {other}", f"{other};{ours};{other}"):
        answer = await stranger.get("/api/agents", headers=[(b"Cookie", line.encode())])
        assert answer.status_code == 200, line
    assert (await stranger.get("/api/agents", headers=[(b"Cookie", other.encode())])).status_code == 401


async def test_a_cookie_of_our_name_that_a_neighbour_wrote_locks_no_one_out(
    live: ServerProcess, stranger: httpx.AsyncClient
) -> None:
    ours = await live.cookie()
    planted = ours.partition("=")[0] + "=planted"
    answer = await stranger.get("/api/agents", headers={"Cookie": f"{planted}; {ours}"})
    assert answer.status_code == 200
    many = "; ".join([planted] * VALUES_MAX)
    assert (await stranger.get("/api/agents", headers={"Cookie": f"{many}; {ours}"})).status_code == 401, "bounded"


async def test_more_cookies_than_a_head_has_room_for_get_words_that_help(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/api/agents", headers={"Cookie": "; ".join(f"c{n}={'x' * 100}" for n in range(400))})
    assert (answer.status_code, answer.json()["code"]) == (431, "head_too_large")
    assert "cookies" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("host", "scheme", "port"),
    [
        ("127.0.0.1:7433", "http", "7433"),
        ("[::1]:7434", "http", "7434"),
        ("[::1]", "http", "80"),
        ("holdfast.example", "https", "443"),
        ("holdfast.example:", "https", "443"),
        ("x:y=z; a", "http", "80"),
    ],
)
def test_the_cookie_is_named_after_the_port_that_the_browser_knows(host: str, scheme: str, port: str) -> None:
    scope = {"type": "http", "scheme": scheme, "headers": [(b"host", host.encode())]}
    assert cookie_name(scope) == f"holdfast_session_{port}"


def test_a_cookie_is_read_however_the_lines_are_cut() -> None:
    lines = [(b"cookie", b"a=1"), (b"cookie", b' mine = "2" ;b'), (b"cookie", b"mine=3")]
    assert cookie_values(Headers(raw=lines), "mine") == ["2", "3"]


async def test_two_servers_of_one_host_leave_each_other_logged_in(live: ServerProcess, tmp_path: Path) -> None:
    program = find()
    if program is None:
        pytest.skip(NONE)
    with server(f"sqlite:///{tmp_path}/chats.db", tmp_path / "home") as second:
        async with browser(program) as made:
            page = await made.new_page(reduced_motion="reduce")
            for one in (live, second):
                await one.log_in(page)
                await expect(page.get_by_role("link", name="Operations")).to_be_visible()
            for one in (live, second):
                await page.goto(one.url)
                await expect(page.get_by_role("link", name="Operations")).to_be_visible()
