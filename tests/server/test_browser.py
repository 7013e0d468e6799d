"""The page in a real browser: what a person sees, and what a browser would not let happen."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.async_api import BrowserContext, expect

from tests.support.browser import NONE, browser, find
from tests.support.servers import ServerProcess, server

WAIT_MS = 30_000


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("browser")
    with server(f"sqlite:///{home}/chats.db", home) as process:
        yield process


@pytest.fixture
async def context() -> AsyncIterator[BrowserContext]:
    program = find()
    if program is None:
        pytest.skip(NONE)
    async with browser(program) as made:
        context = await made.new_context(viewport={"width": 400, "height": 800})
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        yield context


async def test_the_link_of_the_terminal_logs_a_browser_in_and_leaves_no_token_behind(
    live: ServerProcess, context: BrowserContext
) -> None:
    page = await context.new_page()
    await page.goto(live.url)
    await expect(page.locator("body")).to_contain_text("Open the link")
    await live.log_in(page)
    assert page.url == f"{live.url}/", "the token is not in the address bar"
    await expect(page.get_by_role("link", name="holdfast")).to_be_visible()
    assert await page.evaluate("document.cookie") == "", "scripts cannot read it"
    cookies = await context.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies] == [(True, "Lax")]
    await page.reload()
    await expect(page.get_by_role("link", name="holdfast")).to_be_visible()


async def test_the_page_fits_a_telephone(live: ServerProcess, context: BrowserContext) -> None:
    async with live.client() as client:
        await client.post("/api/chats", json={"agent": "echo", "message": "hello", "title": "x" * 200})
    page = await context.new_page()
    await live.log_in(page)
    await expect(page.get_by_role("list", name="Chats")).to_contain_text("xxxx")
    wide, seen = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen, "nothing to scroll sideways"


@contextmanager
def neighbour() -> Iterator[str]:
    """Another program on this machine that serves a page. To a browser the same site: it sends our cookie along."""

    class Blank(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>neighbour</title><body>hello")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{site.server_port}"
        finally:
            site.shutdown()
            thread.join()


async def test_a_page_of_another_program_can_do_nothing_with_the_cookie(
    live: ServerProcess, context: BrowserContext
) -> None:
    page = await context.new_page()
    await live.log_in(page)
    with neighbour() as url:
        await page.goto(url)
        assert await page.evaluate(READ, f"{live.url}/api/agents") == "kept out"
        async with page.expect_console_message(lambda message: "frame-ancestors" in message.text):
            await page.evaluate(FRAME, live.url)
        async with page.expect_navigation() as answer:
            await page.evaluate(SEND, f"{live.url}/api/chats")
        refused = await answer.value
    assert refused is not None
    assert (refused.status, (await refused.json())["code"]) == (403, "forbidden_origin")


READ = """url => fetch(url, {credentials: "include"}).then(answer => answer.text(), () => "kept out")"""
FRAME = """url => { const frame = document.createElement("iframe"); frame.src = url; document.body.append(frame) }"""
SEND = """url => { const form = document.createElement("form");
    Object.assign(form, {method: "post", action: url, enctype: "text/plain"});
    document.body.append(form); form.submit() }"""
