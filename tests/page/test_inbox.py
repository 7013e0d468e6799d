"""What waits for people, in a real browser: answered by keyboard alone, by who may, with all of it in sight."""

import json

from playwright.async_api import BrowserContext, Page, expect

from tests.page.conftest import ONE_BROWSER, Watched
from tests.support.servers import ServerProcess

pytestmark = ONE_BROWSER


async def ask(live: ServerProcess, agent: str, **more: str) -> str:
    """A chat that waits for a person."""
    async with live.client() as client:
        made = (await client.post("/api/chats", json={"agent": agent, "message": "go", **more})).json()
        turn = (await client.get(f"/api/chats/{made['id']}/turn", params={"wait_s": 30})).json()
        assert turn["state"] == "waiting", turn
    return str(made["id"])


async def said(live: ServerProcess, chat: str) -> str:
    """The history once the turn is over."""
    async with live.client() as client:
        turn = (await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})).json()
        assert turn["state"] == "done", turn
        return json.dumps((await client.get(f"/api/chats/{chat}/messages")).json())


async def enter(live: ServerProcess, context: BrowserContext, **token: object) -> Page:
    """A page of one who has such a token."""
    async with live.client() as client:
        made = (await client.post("/api/tokens", json={"name": "somebody", **token})).json()
    page = await context.new_page()
    await page.goto(f"{live.url}/login#{made['token']}")
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{live.url}/")
    return page


async def tab_to(page: Page, selector: str) -> None:
    """As a person without a mouse does."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("(what) => document.activeElement.matches(what)", selector):
            return
    raise AssertionError(f"{selector} is not reached by Tab")


async def test_what_waits_is_approved_denied_and_answered_by_keyboard_alone(page: Page, live: ServerProcess) -> None:
    seen = Watched(page)
    paid, kept, told = [await ask(live, "payer"), await ask(live, "payer"), await ask(live, "asker")]
    await page.goto(f"{live.url}/#/inbox")
    items = page.locator(".inbox-item")
    await expect(items).to_have_count(3)
    await expect(page.get_by_role("link", name="Inbox 3 wait for an answer")).to_be_visible()
    await tab_to(page, ".inbox-item")
    await expect(items.nth(0)).to_be_focused()
    await page.keyboard.press("r")
    await page.keyboard.type("jad, the ")  # what is typed into a field is words
    await page.keyboard.type("North Sea")
    await page.keyboard.press("Enter")
    await expect(items).to_have_count(2)
    assert "jad, the North Sea" in await said(live, told)
    await expect(items.nth(0)).to_be_focused()  # the next one, not the page's beginning
    await page.keyboard.press("j")
    await expect(items.nth(1)).to_be_focused()
    await page.keyboard.press("a")
    await expect(items).to_have_count(1)
    assert "paid 7" in await said(live, paid)
    await expect(items.nth(0)).to_be_focused()
    await page.keyboard.press("d")
    await page.keyboard.type("too much")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Nothing waits for you")).to_be_visible()
    history = await said(live, kept)
    assert "too much" in history
    assert "paid 7" not in history
    await expect(page.get_by_role("link", name="Inbox", exact=True)).to_be_visible()
    assert seen.complaints == []


async def test_enter_opens_the_chat_and_keys_do_nothing_outside_of_the_list(page: Page, live: ServerProcess) -> None:
    chat = await ask(live, "payer")
    await page.goto(f"{live.url}/#/inbox")
    await expect(page.locator(".inbox-item")).to_have_count(1)
    await page.get_by_role("radio", name="All").focus()
    await page.keyboard.press("a")
    await tab_to(page, ".inbox-item")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/#/chats/{chat}")
    asked = page.get_by_role("group", name="pay asks")
    await expect(asked.get_by_role("button", name="Approve")).to_be_enabled()  # it was not approved, and can be here
    await asked.get_by_role("button", name="Approve").click()
    assert "paid 7" in await said(live, chat)


async def test_long_arguments_are_shown_whole_before_they_can_be_approved(page: Page, live: ServerProcess) -> None:
    chat = await ask(live, "spender", title="Go through the fleet and see what can be done about it all")
    await page.goto(f"{live.url}/#/inbox")
    item = page.locator(f".inbox-item[data-key^='{chat}/']")
    await expect(item.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    await page.set_viewport_size({"width": 400, "height": 800})
    wide = await page.evaluate(
        "document.querySelector('#main').scrollWidth - document.querySelector('#main').clientWidth"
    )
    assert wide == 0, "nothing is beyond the edge of a phone"
    await item.get_by_role("button", name="Show all of it, then approve").click()
    await item.get_by_role("button", name="Show more").click()
    await expect(item).to_contain_text("PAYLOAD")
    await item.get_by_role("button", name="Approve", exact=True).click()
    assert "paid 7" in await said(live, chat)


async def test_always_shows_the_rules_that_it_keeps_and_the_next_call_is_not_asked_about(
    page: Page, live: ServerProcess
) -> None:
    chat = await ask(live, "seller")
    await page.goto(f"{live.url}/#/inbox")
    item = page.locator(f".inbox-item[data-key^='{chat}/']")
    await item.get_by_role("button", name="Always…").click()
    await expect(item).to_contain_text("allow call(sell)")
    await item.get_by_label("Where").select_option("agent")
    await item.get_by_label("For how long").select_option("for an hour")
    await item.get_by_role("button", name="Approve, and always").click()
    await said(live, chat)
    async with live.client() as client:
        (rule,) = (await client.get("/api/kept-rules")).json()["kept_rules"]
        assert (rule["rule"], rule["scope"]) == ("allow call(sell)", "agent")
        assert rule["expires_at"] - rule["made_at"] == 3_600_000
        again = (await client.post("/api/chats", json={"agent": "seller", "message": "go"})).json()["id"]
    assert "sold 2" in await said(live, again)


async def test_a_reader_sees_what_waits_and_until_when_and_no_buttons(
    live: ServerProcess, context: BrowserContext
) -> None:
    await ask(live, "payer", owner="ann")
    await ask(live, "hurried", owner="ann")
    await ask(live, "payer", owner="bob")
    page = await enter(live, context, owner="ann", scopes=["read"])
    await page.goto(f"{live.url}/#/inbox")
    items = page.locator(".inbox-item")
    await expect(items).to_have_count(2)  # none of bob's
    await expect(items.first).to_contain_text("59 min")
    await expect(items.last).to_contain_text("Your token may look, and not approve.")
    await expect(items.get_by_role("button")).to_have_count(0)
    await expect(items.get_by_role("textbox")).to_have_count(0)
    await items.last.focus()
    await page.keyboard.press("a")
    await page.keyboard.press("d")
    await page.get_by_role("radio", name="Questions").check(force=True)
    await expect(items).to_have_count(1)
    async with live.client() as client:
        assert len((await client.get("/api/calls", params={"owner": "ann"})).json()["calls"]) == 2
