"""A chat of very many messages opens at its end, at once, and holds no more of itself in the page than is near."""

from pathlib import Path

from playwright.async_api import Page, expect

from holdfast import App
from holdfast.core.limits import Limits
from holdfast.core.records import Message, Role, Text
from holdfast.store.records import StoreOptions
from tests.page.conftest import ONE_BROWSER
from tests.page.program import agents
from tests.support.servers import ServerProcess

pytestmark = ONE_BROWSER

MESSAGES = 2_000


async def long_chat(url: str, messages: int) -> str:
    """A chat that was said elsewhere: question and answer in turn."""
    past = [
        Message(
            id=f"msg_{n}", role=Role.ASSISTANT if n % 2 else Role.USER, parts=(Text(text=f"message {n} of many"),)
        )
        for n in range(messages)
    ]
    room = StoreOptions(limits=Limits(given_messages_max=messages))
    async with App(url, agents=agents(), options=room) as app:
        chat = await app.create("echo", past=past)
        return chat.id


async def test_a_chat_of_very_many_messages_opens_at_its_end_and_scrolls_to_its_beginning(
    page: Page, live: ServerProcess, home: Path
) -> None:
    chat_id = await long_chat(f"sqlite:///{home}/chats.db", MESSAGES)
    await page.goto(f"{live.url}/#/chats/{chat_id}")
    await expect(page.locator(".history").get_by_text(f"message {MESSAGES - 1} of many")).to_be_in_viewport()
    articles = page.locator(".history article")
    assert await articles.count() < 200
    await page.locator(".scroller").evaluate("element => { element.scrollTop = 0 }")
    await expect(page.locator(".history").get_by_text("message 0 of many")).to_be_in_viewport()
    await expect(page.locator(".history").get_by_text(f"message {MESSAGES - 1} of many")).to_have_count(
        0
    )  # far away: let go of
    assert await articles.count() < 200
    await page.get_by_role("button", name="Newest").click()
    await expect(page.locator(".history").get_by_text(f"message {MESSAGES - 1} of many")).to_be_in_viewport()


async def test_who_may_only_read_sees_no_way_to_write(page: Page, live: ServerProcess) -> None:
    async with live.client() as client:
        made = await client.post("/api/chats", json={"agent": "thinker", "message": "Think."})
        token = await client.post("/api/tokens", json={"name": "reader", "owner": "", "scopes": ["read"]})
        assert token.status_code == 201, token.text
    await page.context.clear_cookies()
    await page.goto(f"{live.url}/login#{token.json()['token']}")
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{live.url}/")
    await page.goto(f"{live.url}/#/chats/{made.json()['id']}")
    await expect(page.get_by_role("article", name="Answer")).to_contain_text("Let me think…")
    await expect(page.get_by_text("Your token lets you read this chat.")).to_be_visible()
    for name in ("Stop", "Send", "Edit", "Fork", "New chat"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)


async def test_a_compaction_is_a_fold_at_its_place_also_for_who_opens_the_chat_later(
    page: Page, live: ServerProcess
) -> None:
    async with live.client() as client:
        chat = (await client.post("/api/chats", json={"agent": "echo", "message": "wave 0"})).json()["id"]

        async def rest() -> None:
            assert (await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})).json()["state"] == "done"

        await rest()
        for n in range(1, 6):
            await client.post(f"/api/chats/{chat}/messages", json={"message": f"wave {n}"})
            await rest()
        await client.post(f"/api/chats/{chat}/compact")
        await page.goto(f"{live.url}/#/chats/{chat}")
        fold = page.locator(".compaction")
        await expect(page.locator(".live .compaction")).to_have_count(1)  # it is of the last turn, which streams
        await expect(fold).to_have_count(1)
        for n in range(6, 8):
            await client.post(f"/api/chats/{chat}/messages", json={"message": f"wave {n}"})
            await rest()
        (told,) = (await client.get(f"/api/chats/{chat}/messages")).json()["compactions"]
    assert told.keys() == {"upto", "summary", "created_at"}
    await page.reload()
    await expect(page.locator(".history .compaction")).to_have_count(1)
    await expect(fold).to_have_count(1)
    await fold.locator("summary").click()
    await expect(fold).to_contain_text(told["summary"].split("\n")[0])
    before = await page.locator(".history .page > *").evaluate_all(
        "all => all.slice(0, all.findIndex((one) => one.matches('.compaction'))).length"
    )
    assert before == told["upto"]
