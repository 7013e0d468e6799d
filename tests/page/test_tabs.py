"""More tabs of open chats than a browser has connections for, as a person has them: one in front, the others hidden.
And more windows than that, all of them seen.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, Route, expect

from tests.page import program
from tests.page.conftest import ONE_BROWSER, WAIT_MS, begin_chat
from tests.page.program import STORY
from tests.page.test_recovery import WATCH
from tests.support.browser import NONE, find, new_window, tabbed_browser
from tests.support.scale import scaled
from tests.support.servers import ServerProcess, server

pytestmark = ONE_BROWSER

TABS = scaled(7, 12)  # a browser gives one server six connections
WINDOWS = scaled(6, 8)  # of which four have a stream

ANSWER = ".message.model .prose"


@pytest_asyncio.fixture(loop_scope="module")
async def person(live: ServerProcess) -> AsyncIterator[BrowserContext]:
    """A browser that is logged in, with one tab."""
    found = find()
    if found is None:
        pytest.skip(NONE)
    async with tabbed_browser(found) as context:
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        await live.log_in(context.pages[0])
        yield context


async def begun(live: ServerProcess, agent: str, count: int) -> list[str]:
    async with live.client() as client:
        made = [await client.post("/api/chats", json={"agent": agent, "message": "Tell me."}) for _ in range(count)]
    return [answer.json()["id"] for answer in made]


async def one_stream(live: ServerProcess) -> None:
    """Until the server has one open, and no more."""
    async with asyncio.timeout(WAIT_MS / 1000), live.client() as client:
        while (await client.get("/api/diagnostics")).json()["server"]["streams"] != 1:  # noqa: ASYNC110  the server's
            await asyncio.sleep(0.05)


async def _went_on(page: Page) -> None:
    """Nothing was ever doubled, and nothing that was shown went away."""
    shown: list[str] = [text for text in await page.evaluate("window.shown") if text]
    assert all(STORY.startswith(text) for text in shown), shown[-1]
    assert all(len(one) <= len(other) for one, other in pairwise(shown))


@pytest.mark.long
async def test_every_one_of_many_tabs_loads_and_shows_the_whole_text_when_it_is_in_front(
    live: ServerProcess, person: BrowserContext
) -> None:
    chats = await begun(live, "storyteller", TABS)
    tabs = []
    for chat in chats:
        tab = await person.new_page()
        await tab.goto(f"{live.url}/#/chats/{chat}")
        await expect(tab.get_by_role("heading", name="Tell me.")).to_be_attached()
        await tab.evaluate(WATCH)
        tabs.append(tab)
    assert await tabs[0].evaluate("document.visibilityState") == "hidden"
    await one_stream(live)  # that of the tab in front
    for tab in tabs:
        await tab.bring_to_front()
        await expect(tab.locator(ANSWER)).to_have_text(STORY)
        await expect(tab.locator(ANSWER)).to_have_count(1)
        await expect(tab.locator(".chat-head .chip")).to_have_text("at rest")
        await _went_on(tab)


async def test_a_page_that_goes_from_chat_to_chat_keeps_one_connection(page: Page, live: ServerProcess) -> None:
    chats = await begun(live, "echo", 6)
    for chat in chats:
        await page.goto(f"{live.url}/#/chats/{chat}")
        await expect(page.locator(ANSWER)).to_have_text("You said: Tell me.")
    for _ in range(3):
        for chat in chats:  # as fast as it goes, without waiting for any of them
            await page.evaluate("(chat) => { location.hash = `#/chats/${chat}` }", chat)
    await expect(page.locator(ANSWER)).to_have_text("You said: Tell me.")
    await page.wait_for_function("async () => (await navigator.locks.query()).held.length === 1")
    assert await page.evaluate("async () => (await navigator.locks.query()).pending.length") == 0
    await expect(page.get_by_text("They take turns")).to_be_hidden()


async def test_a_tab_that_was_hidden_for_many_turns_shows_each_of_them_once(
    live: ServerProcess, person: BrowserContext
) -> None:
    """One that was shown before, and one that was opened behind the others."""
    (chat,) = await begun(live, "echo", 1)
    seen, behind, front = person.pages[0], await person.new_page(), await person.new_page()
    await seen.bring_to_front()
    await seen.goto(f"{live.url}/#/chats/{chat}")
    await expect(seen.locator(ANSWER)).to_have_text("You said: Tell me.")
    await front.bring_to_front()
    await behind.goto(f"{live.url}/#/chats/{chat}")
    await expect(behind.get_by_role("heading", name="Tell me.")).to_be_attached()
    said = [f"wave {n}" for n in range(5)]
    async with live.client() as client:
        for words in said:
            await client.post(f"/api/chats/{chat}/messages", json={"message": words})
            await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})
    for tab in (seen, behind):
        await tab.bring_to_front()
        await expect(tab.locator(ANSWER)).to_have_text(
            ["You said: Tell me.", *(f"You said: {words}" for words in said)]
        )
        await expect(tab.locator(".message.user .words")).to_have_text(["Tell me.", *said])


async def test_a_tab_that_was_opened_behind_the_others_in_mid_turn_shows_that_turn_too(
    live: ServerProcess, person: BrowserContext
) -> None:
    front, behind = person.pages[0], await person.new_page()
    await front.bring_to_front()
    (chat,) = await begun(live, "storyteller", 1)
    await behind.goto(f"{live.url}/#/chats/{chat}")
    await expect(behind.get_by_role("heading", name="Tell me.")).to_be_attached()
    async with live.client() as client:
        assert (await client.get(f"/api/chats/{chat}")).json()["state"] == "running"
        await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})
        await client.post(f"/api/chats/{chat}/messages", json={"message": "Again."})
        await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})
    await behind.bring_to_front()
    await expect(behind.locator(ANSWER)).to_have_text([STORY, STORY])
    await expect(behind.locator(".message.user .words")).to_have_text(["Tell me.", "Again."])


@pytest.mark.long
async def test_more_windows_than_connections_take_turns_and_everything_else_goes_on(
    live: ServerProcess, person: BrowserContext
) -> None:
    chats = await begun(live, "thinker", WINDOWS)
    windows = [person.pages[0], *[await new_window(person) for _ in range(WINDOWS - 1)]]
    for window, chat in zip(windows, chats, strict=True):
        await window.goto(f"{live.url}/#/chats/{chat}")
        await expect(window.get_by_role("heading", name="Tell me.")).to_be_visible()
    assert {await window.evaluate("document.visibilityState") for window in windows} == {"visible"}
    for window in windows:
        await expect(window.locator(ANSWER)).to_contain_text("Let me think…")
    await expect(windows[-1].get_by_text("They take turns")).to_be_visible()
    for n, window in enumerate(windows[-2:]):
        await window.get_by_label("Your message").fill(f"and {n}")
        await window.keyboard.press("Enter")
        await expect(window.get_by_role("region", name="Queued messages")).to_contain_text(f"and {n}")
    for window in windows[1:]:
        await window.close()
    await expect(windows[0].get_by_text("They take turns")).to_be_hidden()


async def test_a_tab_that_slept_goes_on_where_it_was(page: Page, live: ServerProcess) -> None:
    """The browser freezes it in the middle of a stream: none of it runs, and nothing of it is lost."""
    chat = await begin_chat(page, "storyteller", "Tell me.")
    await page.evaluate(WATCH)
    await expect(page.locator(ANSWER)).to_contain_text("word3 ")
    session = await page.context.new_cdp_session(page)
    await session.send("Page.setWebLifecycleState", {"state": "frozen"})
    async with live.client() as client:
        assert (await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})).json()["state"] == "done"
        await client.post(f"/api/chats/{chat}/messages", json={"message": "Again."})
        assert (await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})).json()["state"] == "done"
    await session.send("Page.setWebLifecycleState", {"state": "active"})
    await expect(page.locator(ANSWER)).to_have_text([STORY, STORY])
    await expect(page.locator(".message.user .words")).to_have_text(["Tell me.", "Again."])
    await expect(page.locator(".chat-head .chip")).to_have_text("at rest")
    await _went_on(page)


async def test_two_tabs_of_one_chat_show_the_same(page: Page, live: ServerProcess) -> None:
    """What one of them does, the other shows, once: messages, a stop, an edit."""
    chat = await begin_chat(page, "thinker", "Think.")
    other = await page.context.new_page()
    await other.goto(f"{live.url}/#/chats/{chat}")
    for tab in (page, other):
        await expect(tab.locator(ANSWER)).to_contain_text("Let me think…")
    await other.get_by_label("Your message").fill("from the other")
    await other.keyboard.press("Enter")
    for tab in (page, other):
        await expect(tab.get_by_role("region", name="Queued messages").get_by_role("listitem")).to_have_count(1)
    await page.get_by_role("region", name="Queued messages").get_by_role("button", name="Remove").click()
    await expect(other.get_by_role("region", name="Queued messages")).to_be_hidden()
    await page.get_by_role("button", name="Stop").click()
    for tab in (page, other):
        await expect(tab.locator(".chat-head .chip")).to_have_text("at rest")
    await other.get_by_role("article", name="You").get_by_role("button", name="Edit").click()
    await other.get_by_role("textbox", name="The message").fill("Think again.")
    await other.get_by_role("button", name="Replace").click()
    for tab in (page, other):
        await expect(tab.locator(".message.user .words")).to_have_text(["Think again."])
        await expect(tab.locator(ANSWER)).to_have_count(1)
    await page.get_by_role("button", name="Stop").click()


async def test_a_server_that_has_too_much_to_do_is_asked_again_until_it_answers(
    page: Page, live: ServerProcess
) -> None:
    await begin_chat(page, "echo", "hello")
    await expect(page.locator(ANSWER)).to_have_text("You said: hello")
    box = page.get_by_label("Your message")
    refusals = iter([429, 503])

    async def refuse(route: Route) -> None:
        status = next(refusals, None)
        await (route.continue_() if status is None else route.fulfill(status=status, json={"status": status}))

    await page.route("**/messages", refuse)
    await box.fill("again")
    await page.keyboard.press("Enter")
    await expect(page.locator(ANSWER).last).to_have_text("You said: again")
    await expect(page.locator(".message.user")).to_have_count(2)


@pytest.mark.long
async def test_a_message_that_is_too_large_is_told_and_what_was_written_stays(
    page: Page, live: ServerProcess
) -> None:
    await begin_chat(page, "echo", "hello")
    await expect(page.locator(ANSWER)).to_have_text("You said: hello")
    box = page.get_by_label("Your message")
    await box.fill("x" * 17_000_000)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("log")).to_contain_text("It was not sent")
    assert await box.evaluate("element => element.value.length") == 17_000_000
    await expect(page.locator(".message.user")).to_have_count(1)


async def test_a_dead_server_is_told_on_a_view_without_a_stream(context: BrowserContext, tmp_path: Path) -> None:
    page = await context.new_page()
    with server(f"sqlite:///{tmp_path}/chats.db", tmp_path, begin=program.run, worker=False) as mortal:
        await mortal.log_in(page)
        await page.goto(f"{mortal.url}/#/schedules")
        await expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
        mortal.kill()
        await expect(page.locator(".banner")).to_have_text("Reconnecting…", timeout=15_000)
        await expect(page.locator(".banner")).to_have_text(
            "The server does not answer. Trying again…", timeout=15_000
        )
        with server(f"sqlite:///{tmp_path}/chats.db", tmp_path, port=mortal.port, begin=program.run, worker=False):
            await expect(page.locator(".banner")).to_be_hidden()
