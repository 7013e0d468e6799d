"""The page of a chat in a real browser: what a person does, and what they see of it."""

import asyncio
import re

from playwright.async_api import Page, Route, expect

from tests.page.conftest import ONE_BROWSER, Watched, begin_chat, settled
from tests.page.program import STORY
from tests.support.servers import ServerProcess

pytestmark = ONE_BROWSER

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf500f0004030180"
    "b5b06a140000000049454e44ae426082"
)


async def test_words_stream_into_the_page_and_stand_there_once(page: Page) -> None:
    seen = Watched(page)
    await begin_chat(page, "storyteller", "Tell me.")
    answer = page.locator(".message.model .prose")
    await expect(answer).to_contain_text("word3 ")  # while it is being said
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(page.locator(".chat-head .dot.pulse")).to_be_visible()
    assert await page.evaluate("document.getAnimations().length") == 0, "for who wants nothing to move, nothing does"
    await expect(answer).to_have_text(STORY)
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await page.reload()
    await expect(answer).to_have_text(STORY)
    await expect(answer).to_have_count(1)
    assert seen.complaints == []


async def test_a_turn_is_stopped_in_mid_stream_and_what_was_said_stays(page: Page) -> None:
    await begin_chat(page, "thinker", "Think.")
    answer = page.get_by_role("article", name="Answer")
    await expect(answer).to_contain_text("Let me think…")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".chat-head .chip")).to_have_text("at rest")
    await expect(answer).to_contain_text("Let me think…")
    await expect(answer).to_contain_text("Stopped by a person")


async def test_messages_queue_behind_a_turn_and_are_edited_promoted_and_removed(page: Page) -> None:
    await begin_chat(page, "thinker", "Think.")
    await expect(page.get_by_role("article", name="Answer")).to_contain_text("Let me think…")
    for words in ("first", "second", "third"):
        await page.get_by_label("Your message").fill(words)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("region", name="Queued messages").get_by_text(words)).to_be_visible()
    queued = page.get_by_role("region", name="Queued messages").get_by_role("listitem")
    await queued.filter(has_text="first").get_by_role("button", name="Remove").click()
    await expect(queued).to_have_count(2)
    await queued.filter(has_text="second").get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="The message").fill("second, changed")
    await page.get_by_role("button", name="Save").click()
    await expect(queued.filter(has_text="second, changed")).to_be_visible()
    await queued.filter(has_text="second, changed").get_by_role("button", name="Now").click()
    said = page.locator(".message.user")
    await expect(said.last).to_contain_text("second, changed")  # it has begun a turn of its own
    await expect(queued).to_have_count(1)
    await page.get_by_role("button", name="Stop").click()


async def test_a_message_is_edited_and_the_chat_goes_on_from_there(page: Page) -> None:
    await begin_chat(page, "echo", "one")
    await expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: one")
    await settled(page)
    await page.get_by_role("article", name="You").get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="The message").fill("two")
    await page.get_by_role("button", name="Replace").click()
    await expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: two")
    await expect(page.get_by_role("article", name="Answer")).to_have_count(1)
    await expect(page.get_by_text("You said: one")).to_have_count(0)


async def test_a_chat_is_forked_at_a_message_and_found_by_its_words(page: Page) -> None:
    first = await begin_chat(page, "echo", "barnacles on the hull")
    answers = page.get_by_role("article", name="Answer")
    await expect(answers).to_contain_text("barnacles")
    await page.get_by_label("Your message").fill("and weed")
    await page.keyboard.press("Enter")
    await expect(answers.last).to_contain_text("You said: and weed")
    await settled(page)
    await answers.first.get_by_role("button", name="Fork").click()
    await page.wait_for_url(lambda url: "/chats/" in url and first not in url)
    await expect(answers).to_have_count(1)
    await expect(page.get_by_text("and weed")).to_have_count(0)
    await page.get_by_label("Search chats").fill("barnacles")
    await expect(page.get_by_role("list", name="Chats").get_by_role("link")).to_have_count(2)
    await page.get_by_label("Search chats").fill("no chat says this")
    await expect(page.get_by_text("No chat is like that.")).to_be_visible()


async def test_a_picture_is_attached_and_shown(page: Page, live: ServerProcess) -> None:
    await page.goto(f"{live.url}/#/new")
    await page.locator("input[type=file]").set_input_files(
        {"name": "wave.png", "mimeType": "image/png", "buffer": PNG}
    )
    await expect(page.get_by_role("list", name="Attached files")).to_contain_text("wave.png")
    chat = await begin_chat(page, "echo", "Look at this.")
    await expect(page.get_by_role("article", name="You").get_by_role("img", name="wave.png")).to_be_visible()
    async with live.client() as client:
        parts = (await client.get(f"/api/chats/{chat}/messages")).json()["messages"][0]["parts"]
    assert [part["kind"] for part in parts] == ["text", "file"]


async def test_tools_are_cards_with_their_plan_difference_and_result(page: Page) -> None:
    await begin_chat(page, "sailor", "Sail.")
    await expect(page.get_by_role("article", name="Answer").last).to_contain_text("The waves are 3 m high.")
    await expect(page.get_by_role("region", name="Tool plan")).to_contain_text("1 of 2 done")
    edit = page.get_by_role("region", name="Tool edit_file")
    await edit.locator("summary").click()
    await expect(edit.locator(".line.gone")).to_contain_text("Waves: 2 m")
    await expect(edit.locator(".line.come")).to_contain_text("Waves: 3 m")
    measure = page.get_by_role("region", name="Tool measure")
    await measure.locator("summary").click()
    await expect(measure).to_contain_text("waves of 3 m")
    await expect(measure).to_contain_text("onerror")  # as words
    assert await page.title() != "taken"


async def test_a_chat_is_renamed_archived_brought_back_and_deleted(page: Page) -> None:
    await begin_chat(page, "echo", "hello")
    await page.get_by_label("More").click()
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Title").fill("A good name")
    await page.get_by_role("button", name="Rename").last.click()
    await expect(page.get_by_role("heading", name="A good name")).to_be_visible()
    await expect(page.get_by_role("list", name="Chats").get_by_role("link").first).to_contain_text("A good name")
    await page.get_by_label("More").click()
    await page.get_by_role("button", name="Archive").click()
    await expect(page.get_by_role("list", name="Chats").get_by_text("A good name")).to_have_count(0)
    await page.get_by_label("Which chats").select_option("archived")
    await expect(page.get_by_role("list", name="Chats").get_by_text("A good name")).to_be_visible()
    await page.get_by_label("More").click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("list", name="Chats").get_by_text("A good name")).to_have_count(0)


async def test_a_turn_that_failed_says_why_and_is_tried_again(page: Page) -> None:
    await begin_chat(page, "broken", "hello")
    await expect(page.get_by_text("This turn failed.")).to_be_visible()
    await expect(page.locator(".turn-end")).to_contain_text("the key was refused")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_text("This turn failed.")).to_have_count(2)


async def test_what_another_model_says_takes_the_place_of_what_the_first_began(page: Page) -> None:
    await begin_chat(page, "doubtful", "How is the sea?")
    answer = page.get_by_role("article", name="Answer")
    await expect(answer.locator(".prose")).to_have_text(re.compile(r"^\s*The sea\.\s*It is calm\.\s*$"))
    await expect(page.locator(".chat-head .chip")).to_have_text("at rest")
    await expect(page.get_by_role("region", name="Tool sell")).to_have_count(0)  # it never was called
    await expect(answer).to_have_count(1)


async def test_words_are_never_lost(page: Page) -> None:
    """Those that are written while others are sent, and those of the queue that are taken back and refused."""
    await begin_chat(page, "thinker", "Think.")
    await expect(page.get_by_role("article", name="Answer")).to_contain_text("Let me think…")
    box = page.get_by_label("Your message")
    held: list[Route] = []
    sent = asyncio.Event()

    async def hold(route: Route) -> None:
        held.append(route)
        sent.set()

    await page.route("**/messages", hold)
    await box.fill("first")
    await page.keyboard.press("Enter")
    async with asyncio.timeout(30):
        await sent.wait()
    await page.keyboard.type(", then second")
    await held[0].continue_()
    queued = page.get_by_role("region", name="Queued messages").get_by_role("listitem")
    await expect(queued).to_contain_text("first")
    await expect(box).to_have_value(", then second")
    await page.unroute("**/messages")
    await page.route("**/messages", lambda route: route.fulfill(status=409, json={}))
    await queued.get_by_role("button", name="Steer in").click()
    await expect(box).to_have_value("first\n, then second")
    await page.unroute("**/messages")
    await page.get_by_role("button", name="Stop").click()


async def test_what_is_done_elsewhere_is_seen(page: Page, live: ServerProcess) -> None:
    seen = Watched(page)
    chat = await begin_chat(page, "echo", "hello")
    await expect(page.locator(".chat-head .chip")).to_have_text("at rest")
    line = page.get_by_role("list", name="Chats").get_by_role("link").first
    element = await line.element_handle()
    assert element is not None
    async with live.client() as client:
        await client.patch(f"/api/chats/{chat}", json={"title": "Named elsewhere", "archived": False})
        await expect(line).to_contain_text("Named elsewhere")
        assert await element.evaluate("element => element.isConnected"), "it is not taken away under a finger"
        await client.patch(f"/api/chats/{chat}", json={"archived": True})
        await expect(page.locator(".facts")).to_contain_text("archived")
        await client.delete(f"/api/chats/{chat}")
    await expect(page.get_by_role("heading", name="This chat is not there")).to_be_visible()
    await expect(page.get_by_label("Your message")).to_be_hidden()
    assert seen.complaints == []
