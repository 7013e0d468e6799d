"""Browser sessions: in by a link, once, or by a token; out by the logout, on every process, and by time."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Page, expect

from holdfast import App
from holdfast.principals import OWN_SCOPES
from holdfast.server.access import rotate_token
from holdfast.server.cookies import cookie_name
from holdfast.server.http import http_app
from holdfast.server.sessions import Lifetime, link_of, new_link_code
from holdfast.store.tokens import NewToken, Token
from tests.server.test_browser import neighbour
from tests.support.browser import NONE, browser, find
from tests.support.servers import ServerProcess, created, seen_in, server
from tests.support.waiting import eventually, until

DAY_MS = 24 * 3600 * 1000


class House:
    """Two servers of one home on one database, and the database itself."""

    def __init__(self, app: App, home: Path, one: ServerProcess, two: ServerProcess) -> None:
        self.app = app
        self.home = home
        self.one = one
        self.two = two

    async def code(self) -> str:
        return await new_link_code(self.app.store, self.one.token)

    async def session(self, code: str, at: ServerProcess) -> dict[str, str] | None:
        """The cookie that a browser has after it logged in."""
        async with httpx.AsyncClient(base_url=at.url, trust_env=False) as browser:
            answer = await browser.post("/login", data={"code": code}, headers={"Origin": at.url})
            assert answer.status_code in (303, 401), answer.text
            return dict(browser.cookies) or None


@pytest.fixture
async def house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    home = tmp_path / "home"
    with server(store_url, home) as one, server(store_url, home, worker=False) as two:
        async with App(store_url, agents=[]) as app:
            yield House(app, home, one, two)


def moved(cookie: dict[str, str], to: ServerProcess) -> dict[str, str]:
    """As behind one address, where all processes have the same port to a browser."""
    (value,) = cookie.values()
    return {cookie_name({"scheme": "http", "headers": [(b"host", f"127.0.0.1:{to.port}".encode())]}): value}


async def status(at: ServerProcess, cookie: dict[str, str]) -> int:
    async with httpx.AsyncClient(base_url=at.url, trust_env=False, cookies=moved(cookie, at)) as browser:
        return (await browser.get("/api/chats")).status_code


async def until_out(at: ServerProcess, cookie: dict[str, str]) -> None:
    async def is_out() -> bool:
        return await status(at, cookie) == 401

    await eventually(is_out)


async def test_a_link_works_once_and_looking_at_it_does_not_use_it_up(house: House) -> None:
    code = await house.code()
    async with httpx.AsyncClient(base_url=house.one.url, trust_env=False) as scanner:
        for _ in range(3):
            page = await scanner.get(f"/login#{code}")
            assert (page.status_code, code in page.text, dict(scanner.cookies)) == (200, False, {})
    cookie = await house.session(code, house.one)
    assert cookie is not None
    assert [await status(at, cookie) for at in (house.one, house.two)] == [200, 200], "on every process"
    assert await house.session(code, house.one) is None
    assert await house.session(code, house.two) is None
    assert await status(house.one, {"x": code}) == 401, "a link is no session"


async def test_of_two_browsers_with_one_link_at_the_same_instant_one_comes_in(house: House) -> None:
    for _ in range(5):
        code = await house.code()
        tries = [house.session(code, at) for at in (house.one, house.two) * 4]
        assert sum(cookie is not None for cookie in await asyncio.gather(*tries)) == 1


async def test_a_logout_ends_the_session_and_its_streams_on_every_process(house: House) -> None:
    cookie = await house.session(await house.code(), house.one)
    other = await house.session(await house.code(), house.one)
    assert cookie is not None
    assert other is not None
    async with house.one.client() as client:
        chat_id = await created(client, "thinker", "hello")
    async with (
        httpx.AsyncClient(base_url=house.two.url, trust_env=False, cookies=moved(cookie, house.two)) as reader,
        reader.stream("GET", f"/api/chats/{chat_id}/events", params={"follow": True}) as stream,
    ):
        assert stream.status_code == 200
        async with httpx.AsyncClient(base_url=house.one.url, trust_env=False, cookies=cookie) as browser:
            out = await browser.post("/logout", headers={"Origin": house.one.url})
            assert (out.status_code, out.headers["location"]) == (303, "/login")
            assert "Max-Age=0" in out.headers["set-cookie"]
        assert await status(house.one, cookie) == 401, "here at once"
        async with asyncio.timeout(10):
            await until_out(house.two, cookie)
            assert [event.event async for event in seen_in(stream)][-1] == "unauthorized"
    assert [await status(at, other) for at in (house.one, house.two)] == [200, 200], "the other browser stays"


async def test_a_new_admin_token_ends_the_sessions_and_links_of_the_old_one(house: House) -> None:
    by_link = await house.session(await house.code(), house.one)
    by_token = await house.session(house.one.token, house.one)
    unused = await house.code()
    assert by_link is not None
    assert by_token is not None
    assert await status(house.two, by_token) == 200
    new = rotate_token(house.home)
    async with asyncio.timeout(10):
        for at in (house.one, house.two):
            for cookie in (by_link, by_token):
                await until_out(at, cookie)
    assert await house.session(unused, house.one) is None
    assert await house.session(new, house.one) is not None


async def test_a_session_made_with_a_token_has_its_rights_and_ends_with_it(house: House) -> None:
    token, secret = await house.app.store.tokens.create(NewToken(name="ann", owner="acme", scopes=OWN_SCOPES))
    cookie = await house.session(secret, house.one)
    assert cookie is not None
    assert secret not in cookie.values()
    async with httpx.AsyncClient(base_url=house.one.url, trust_env=False, cookies=cookie) as browser:
        made = await browser.post("/api/chats", json={"agent": "echo"}, headers={"Origin": house.one.url})
        assert (made.status_code, made.json()["owner"]) == (201, "acme")
        assert (await browser.get("/metrics")).status_code == 403
    await house.app.store.tokens.revoke(token.id)
    async with asyncio.timeout(10):
        await until_out(house.one, cookie)


async def test_the_secret_of_a_cookie_is_no_token(house: House) -> None:
    """As one it would outlive the admin token that it was made with, which is compared for cookies alone."""
    cookie = await house.session(await house.code(), house.one)
    assert cookie is not None
    (secret,) = cookie.values()
    bearer = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=house.one.url, trust_env=False, headers=bearer) as thief:
        assert (await thief.get("/api/chats")).status_code == 401
    async with httpx.AsyncClient(base_url=house.one.url, trust_env=False, cookies=cookie) as browser:
        assert (await browser.get("/api/chats")).status_code == 200


async def test_the_database_has_no_secret_that_lets_a_browser_in(house: House) -> None:
    cookie = await house.session(await house.code(), house.one)
    assert cookie is not None
    (secret,) = cookie.values()
    (found,) = await house.app.store.tokens.page(kind="session")
    known, _, unknown = secret.partition(f"{found.id}_")
    assert known == "hf_"
    assert len(unknown) > 20
    assert unknown not in repr(found)


async def test_a_session_that_is_not_used_ends(store_url: str, tmp_path: Path) -> None:
    settings = {"HOLDFAST_SESSION_IDLE_S": "0.5"}
    with server(store_url, tmp_path / "home", settings=settings) as live:
        async with App(store_url, agents=[]) as app:
            cookie = (await live.cookie()).partition("=")[2]
            (session,) = await app.store.tokens.page(kind="session")
            await until(lambda: session.ended(app.store.now_ms()) is not None)
            assert await status(live, {"x": cookie}) == 401


def session_at(created_at: int, expires_at: int) -> Token:
    return Token(id="t", kind="session", name="n", owner=None, scopes=OWN_SCOPES, chat=None, created_at=created_at,
                 expires_at=expires_at, revoked_at=None, created_by="", parent=None)  # fmt: skip


def test_the_end_of_a_session_moves_with_its_use_up_to_its_last_day() -> None:
    life = Lifetime(all_s=30 * DAY_MS / 1000, idle_s=7 * DAY_MS / 1000)
    assert life.first_end(0) == 7 * DAY_MS
    assert life.later_end(session_at(0, 7 * DAY_MS), 1000) is None, "so soon it is not written again"
    assert life.later_end(session_at(0, 7 * DAY_MS), 6 * DAY_MS) == 13 * DAY_MS
    assert life.later_end(session_at(0, 28 * DAY_MS), 27 * DAY_MS) == 30 * DAY_MS
    assert life.later_end(session_at(0, 30 * DAY_MS), 29 * DAY_MS) is None


async def test_the_end_of_a_token_moves_only_forward_and_only_while_it_is_valid(store_url: str) -> None:
    async with App(store_url, agents=[]) as app:
        tokens, now_ms = app.store.tokens, app.store.now_ms()
        new = NewToken(name="n", owner=None, scopes=OWN_SCOPES, kind="session", expires_at=now_ms + 1000)
        token, _ = await tokens.create(new)
        for wanted, end in ((5000, 5000), (2000, 5000)):
            await tokens.extend(token.id, now_ms + wanted)
            (found,) = await tokens.read([token.id])
            assert found.expires_at == now_ms + end
        await tokens.revoke(token.id)
        await tokens.extend(token.id, now_ms + 9000)
        (found,) = await tokens.read([token.id])
        assert found.expires_at == now_ms + 5000


@pytest.mark.parametrize("code", ["", "x", "hf_tok_nothing_" + "x" * 43, "y" * 100_000, "\x00", "ü"])
async def test_what_is_no_code_lets_no_browser_in(live: ServerProcess, code: str) -> None:
    async with httpx.AsyncClient(base_url=live.url, trust_env=False) as browser:
        answer = await browser.post("/login", data={"code": code})
        assert (answer.status_code, dict(browser.cookies)) == (401, {})
        assert "holdfast login" in answer.text
        many = "&".join(f"a{n}=b" for n in range(1000))
        answer = await browser.post("/login", content=many, headers={"Content-Type": "text/plain"})
        assert answer.status_code in (400, 401)


async def test_a_page_elsewhere_can_log_no_browser_in_or_out(live: ServerProcess) -> None:
    """Not even into a session of its own, in which a person would then write."""
    for path in ("/login", "/logout"):
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            async with httpx.AsyncClient(base_url=live.url, trust_env=False, headers=headers) as browser:
                answer = await browser.post(path, data={"code": live.token})
                assert (answer.status_code, dict(browser.cookies)) == (403, {})


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("sessions")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    if (program := find()) is None:
        pytest.skip(NONE)
    async with browser(program) as made:
        yield await made.new_page(reduced_motion="reduce")


async def test_a_link_on_a_page_elsewhere_leads_in_and_out_again(page: Page, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    with neighbour() as site, server(url, tmp_path / "home") as live:
        async with App(url, agents=[]) as app:
            link = link_of(live.url, await new_link_code(app.store, live.token))
        elsewhere = site.replace("127.0.0.1", "localhost")  # another site than the server's
        await page.goto(elsewhere)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.evaluate("link => { location.href = link }", link)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("link", name="Operations")).to_be_visible()
        assert page.url == f"{live.url}/"
        code = link.partition("#")[2]
        assert code.startswith("hf_")
        assert not any(code in url.partition("#")[0] for url in asked), "no server is told by a URL"
        await page.goto(elsewhere)
        await page.evaluate("url => { location.href = url }", live.url)
        await expect(page.get_by_role("link", name="Operations")).to_be_visible()
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("button", name="Log in")).to_be_visible()
        await page.goto(live.url)
        await expect(page.locator("body")).to_contain_text("Open the link")
        await page.goto(link)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("body")).to_contain_text("This link was used")


@contextlib.asynccontextmanager
async def mounted(program: FastAPI) -> AsyncIterator[str]:
    """By a uvicorn that logs every request, as it does by default."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(program, log_config=None, access_log=True, lifespan="off")
        serving = uvicorn.Server(config)
        task = asyncio.create_task(serving.serve(sockets=[listener]))
        await until(lambda: serving.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/agents"
        finally:
            serving.should_exit = True
            await task


async def test_no_secret_is_in_the_log_of_the_program_that_mounts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any earlier uvicorn of this process that logs no requests has cut this off, for all that come after it.
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "disabled", False)
    caplog.set_level("DEBUG", "uvicorn.access")
    caplog.set_level("DEBUG")
    program = FastAPI()
    token = "t" * 40
    async with App(f"sqlite:///{tmp_path}/x.db", agents=[], home=str(tmp_path)) as app:
        program.mount("/agents", http_app(app, token=token))
        code = await new_link_code(app.store, token)
        async with mounted(program) as url:
            await page.goto(link_of(url, code))
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("link", name="Operations")).to_be_visible()
            (cookie,) = await page.context.cookies()
            assert (cookie["path"], cookie["sameSite"], cookie["httpOnly"]) == ("/agents", "Lax", True)
    assert "POST /agents/login" in caplog.text
    for secret in (token, code, cookie["value"]):
        assert secret not in caplog.text
        assert secret[-40:] not in caplog.text  # without what says what it is
