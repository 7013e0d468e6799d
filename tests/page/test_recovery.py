"""The server of a page is killed with -9, or deployed anew, in mid-stream: the page comes back by itself, whole."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.page import program
from tests.page.conftest import ONE_BROWSER, begin_chat
from tests.support.servers import ServerProcess, server

pytestmark = ONE_BROWSER

# Every text that the answer ever showed, as long as it was another one: what came, and what was taken back.
WATCH = """() => {
    window.shown = [];
    new MutationObserver(() => {
        const text = document.querySelector(".message.model .prose")?.innerText.trim() ?? "";
        if (text !== window.shown.at(-1)) window.shown.push(text);
    }).observe(document.querySelector("#main"), { subtree: true, childList: true, characterData: true });
}"""


def _kill(process: ServerProcess) -> None:
    process.kill()


def _deploy(process: ServerProcess) -> None:
    process.stop()


@pytest.mark.parametrize("end", [_kill, _deploy], ids=["kill -9", "deploy"])
async def test_a_page_goes_on_by_itself_when_its_server_is_replaced_in_mid_stream(
    end: Callable[[ServerProcess], None], context: BrowserContext, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    page = await context.new_page()
    with server(url, tmp_path, begin=program.run) as first:
        await first.log_in(page)
        await begin_chat(page, "storyteller", "Tell me.")
        await page.evaluate(WATCH)
        answer = page.locator(".message.model .prose")
        await expect(answer).to_contain_text("word10 ")
        end(first)
        await expect(page.get_by_text("Reconnecting…")).to_be_visible()
        await expect(answer).to_contain_text("word10 ")  # what was said stays
        with server(url, tmp_path, port=first.port, begin=program.run):
            await expect(answer).to_have_text(program.STORY)
            await expect(page.get_by_text("Reconnecting…")).to_be_hidden()
            await expect(page.locator(".chat-head .chip")).to_have_text("at rest")
            await expect(answer).to_have_count(1)
            await _check_what_was_shown(page)


async def _check_what_was_shown(page: Page) -> None:
    """Nothing was ever doubled, and nothing that was shown went away: each text continues the one before it."""
    shown: list[str] = [text for text in await page.evaluate("window.shown") if text]
    assert len(shown) > 3
    assert all(program.STORY.startswith(text) for text in shown), [
        text for text in shown if not program.STORY.startswith(text)
    ]
    assert all(len(one) <= len(other) for one, other in pairwise(shown))
