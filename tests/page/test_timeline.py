"""The timeline in a real browser: a real kill is watched in it, and what came before it is gone back to."""

import re
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, expect

from holdfast import App
from holdfast.core.records import Message, NewChat, Role, Text
from tests.page.conftest import ONE_BROWSER, Watched, begin_chat
from tests.page.test_inbox import tab_to
from tests.support.servers import ServerProcess, seen_in

pytestmark = ONE_BROWSER

BATCH = {"look_up_price", "reserve_stock", "charge_card"}
KILL_MS = 90_000  # a bound against a hang: two workers start, and a chat comes to its end


async def journal_of(live: ServerProcess, chat_id: str) -> list[dict[str, Any]]:
    async with live.client() as client, client.stream("GET", f"/api/chats/{chat_id}/events") as answer:
        return [seen.data for seen in [seen async for seen in seen_in(answer)] if "seq" in seen.data]


def of_kind(entries: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [entry for entry in entries if entry["kind"] == kind]
    return found


class Kill:
    """One that was started from the page and watched there; what was seen on the way."""

    def __init__(self, chat_id: str, seen_live: list[str], complaints: list[str]) -> None:
        self.chat_id = chat_id
        self.seen_live = seen_live
        self.complaints = complaints


async def watched_kill(live: ServerProcess, chromium: Browser) -> Kill:
    context = await chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = await context.new_page()
    watched = Watched(page)
    await live.log_in(page)
    await page.goto(f"{live.url}/#/new")
    await tab_to(page, ".demo button")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/chats/chat_\w+/timeline"), timeout=KILL_MS)
    seen: list[str] = []
    for state in (".span.call.running", ".span.gap", ".span.turn.done"):
        await page.locator(state).first.wait_for(timeout=KILL_MS)
        seen.append(state)
    chat_id = page.url.split("/")[-2]
    await context.close()
    return Kill(chat_id, seen, watched.complaints)


async def open_timeline(page: Page, live: ServerProcess, chat_id: str) -> None:
    await page.goto(f"{live.url}/#/chats/{chat_id}/timeline")
    await expect(page.locator(".span.turn.done")).to_be_visible()


async def _was_watched_as_it_happened(live: ServerProcess, kill: Kill, page: Page) -> None:
    assert kill.seen_live == [".span.call.running", ".span.gap", ".span.turn.done"]
    assert kill.complaints == []
    await open_timeline(page, live, kill.chat_id)
    entries = await journal_of(live, kill.chat_id)
    lost, taken = of_kind(entries, "chat.handed_over"), of_kind(entries, "chat.taken_over")
    signs = [entry["at"] for entry in entries if entry["seq"] < lost["seq"]]
    gap_ms = taken["at"] - max(*signs, lost["heard_at"])
    words = f"{gap_ms} ms" if gap_ms < 1_000 else f"{gap_ms / 1_000:.{2 if gap_ms < 10_000 else 1}f} s"
    panel = page.locator(".timeline-span")
    await expect(panel.get_by_role("heading")).to_have_text(f"{words} without a worker")
    await expect(panel).to_contain_text("died while it held the chat")
    titles = page.locator(".lane-title")
    await expect(titles).to_contain_text(["chat", lost["worker"][-5:], taken["worker"][-5:]])
    await expect(page.locator(".span.call.lost")).to_have_count(2)
    await expect(page.locator(".span.call.unknown")).to_contain_text("charge_card")


async def _is_gone_back_to_and_forked_from(live: ServerProcess, kill: Kill, page: Page) -> None:
    await open_timeline(page, live, kill.chat_id)
    lost = of_kind(await journal_of(live, kill.chat_id), "chat.handed_over")
    past = page.locator(".timeline-past")
    await expect(past).to_contain_text("Done: the order stands")
    await page.get_by_label("Time travel").fill(str(lost["seq"] - 1))
    await expect(past.get_by_role("heading", name="The chat as it was")).to_be_visible()
    assert {await name.inner_text() for name in await past.locator(".open-calls code").all()} == BATCH
    await expect(past).not_to_contain_text("Done: the order stands")
    await page.get_by_label("Time travel").press("ArrowLeft")
    await expect(page.locator(".travel output")).to_contain_text(f"entry {lost['seq'] - 2} of")
    await past.get_by_role("button", name="Back to now").click()
    await expect(past).to_contain_text("Done: the order stands")
    await page.get_by_label("Time travel").fill(str(lost["seq"] - 1))
    await expect(past).to_contain_text("had no result yet: the fork ends before the response that asked for it")
    await past.get_by_role("button", name="Fork from here").click()
    await page.wait_for_url(re.compile(r"#/chats/chat_\w+$"))
    async with live.client() as client:
        fork = page.url.rpartition("/")[2]
        messages = (await client.get(f"/api/chats/{fork}/messages")).json()["messages"]
        shown = (await client.get(f"/api/chats/{fork}")).json()
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert (shown["state"], shown["forked_from"]) == ("idle", kill.chat_id)


async def _has_a_link_for_each_span(live: ServerProcess, kill: Kill, page: Page) -> None:
    await open_timeline(page, live, kill.chat_id)
    await page.locator(".span.call", has_text="find").first.click()
    panel = page.locator(".timeline-span")
    await expect(panel.get_by_role("heading", name="find_customer")).to_be_visible()
    href = await panel.get_by_role("link", name="Link to this", exact=True).get_attribute("href")
    assert href is not None
    other = await page.context.new_page()
    await other.goto(f"{live.url}/{href}")
    again = other.locator(".timeline-span")
    await expect(again.locator("li.linked")).to_be_visible()
    await expect(again.locator("li.linked pre")).to_contain_text('"kind": "message"')
    await expect(other.locator(".timeline-past")).to_contain_text("→ find_customer({})")
    await expect(other.locator(".timeline-past")).not_to_contain_text("Found. I look up")


async def _is_walked_through_by_keyboard(live: ServerProcess, kill: Kill, page: Page) -> None:
    await open_timeline(page, live, kill.chat_id)
    await page.locator(".span.chosen").focus()
    await page.keyboard.press("Home")
    await expect(page.locator(".span.chosen")).to_contain_text("Turn 1")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowRight")
    chosen = page.locator(".span.chosen")
    name = await chosen.get_attribute("aria-label")
    await expect(chosen).to_be_focused()
    await page.keyboard.press("+")
    await expect(chosen).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".timeline-span")).to_be_focused()
    assert name
    await expect(page.locator(".timeline-span")).to_contain_text(name.split(".")[0])


async def test_a_kill_is_watched_gone_back_to_linked_and_walked_through(
    live: ServerProcess, chromium: Browser, page: Page
) -> None:
    """All of it with one kill: it takes its time."""
    kill = await watched_kill(live, chromium)
    await _was_watched_as_it_happened(live, kill, page)
    await _has_a_link_for_each_span(live, kill, page)
    await _is_walked_through_by_keyboard(live, kill, page)
    await _is_gone_back_to_and_forked_from(live, kill, page)


async def test_a_long_chat_opens_at_its_last_turn_and_says_what_is_not_loaded(
    live: ServerProcess, home: Path, page: Page
) -> None:
    past = [
        Message(id=f"m{n}", role=(Role.USER, Role.ASSISTANT)[n % 2], parts=(Text(text="kelp"),)) for n in range(602)
    ]
    async with App(f"sqlite:///{home}/chats.db") as app:
        first = Message(id="last", role=Role.USER, parts=(Text(text="hello"),))
        await app.store.create_chat(NewChat(id="chat_long", agent="echo", past=tuple(past), message=first))
    await open_timeline(page, live, "chat_long")
    main = page.locator("#main")
    await expect(main).to_contain_text("earlier turns are not loaded")
    await expect(main).to_contain_text("To fork from here, load the chat from its beginning")
    await expect(page.locator(".timeline-past li")).to_have_count(2)
    await page.get_by_role("button", name="Load from the beginning").click()
    await expect(main).not_to_contain_text("earlier turns are not loaded")
    await expect(main).to_contain_text("544 earlier messages are not shown")
    await expect(page.get_by_role("button", name="Fork from here")).to_be_visible()


async def test_a_chat_that_waits_says_for_what_in_one_click(live: ServerProcess, page: Page) -> None:
    await begin_chat(page, "payer", "Pay.")
    await expect(page.locator("#main")).to_contain_text("Approve")
    await page.get_by_role("link", name="Timeline").click()
    await expect(page.locator(".span.approval.running")).to_be_visible()
    await page.get_by_role("button", name="Why is it waiting?").click()
    why = page.locator(".timeline-why")
    await expect(why).to_contain_text("It waits for a person to approve or deny: pay")
    async with live.client() as client:
        chat_id = page.url.split("/")[-2]
        (call,) = (await client.get(f"/api/chats/{chat_id}/calls")).json()["calls"]
        await client.post(f"/api/chats/{chat_id}/calls/{call['call_id']}/approve", json={"digest": call["digest"]})
    await expect(page.locator(".span.approval.over")).to_be_visible()  # as it happens
    await expect(page.locator(".span.turn.done")).to_be_visible()
