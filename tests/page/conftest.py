"""A server with the agents of `program.py`, one browser for a whole module, and a page that is logged in."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.page import program
from tests.support.browser import NONE, browser, find
from tests.support.servers import ServerProcess, server

WAIT_MS = 30_000
ONE_BROWSER = pytest.mark.asyncio(loop_scope="module")  # the mark of a module whose tests share it


class Watched:
    """What the page asked for, and what the browser complained of."""

    def __init__(self, page: Page) -> None:
        self.hosts: set[str] = set()
        self.complaints: list[str] = []
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def live(home: Path) -> Iterator[ServerProcess]:
    with server(f"sqlite:///{home}/chats.db", home, begin=program.run) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    found = find()
    if found is None:
        pytest.skip(NONE)
    async with browser(found) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def context(chromium: Browser) -> AsyncIterator[BrowserContext]:
    context = await chromium.new_context(viewport={"width": 1280, "height": 820}, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(live: ServerProcess, context: BrowserContext) -> Page:
    """Logged in as the admin."""
    page = await context.new_page()
    await live.log_in(page)
    return page


async def settled(page: Page) -> None:
    """The turn is over and the head of the chat is filled: what one clicks on below it no longer moves."""
    await expect(page.get_by_role("link", name="Timeline")).to_be_visible()
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()


async def begin_chat(page: Page, agent: str, words: str) -> str:
    """As a person does: the agent, the words, Enter. The chat's id."""
    if not page.url.endswith("#/new"):
        await page.goto(f"{page.url.partition('#')[0]}#/new")
    await page.get_by_label("Agent", exact=True).select_option(agent)
    await page.get_by_label("Your message").fill(words)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/#/chats/*")
    return page.url.rpartition("/")[2]
