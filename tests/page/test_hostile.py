"""What strangers write, in every place where the page shows it: nothing runs, nothing breaks the page, no report."""

import pytest
from playwright.async_api import Page, expect

from tests.page.conftest import ONE_BROWSER, Watched, begin_chat
from tests.page.program import HOSTILE, TURNED_NAME, Chart
from tests.support.servers import ServerProcess

pytestmark = ONE_BROWSER

TURNED = "gnp.\u202eexe\u0007\u200bname"


async def _is_whole(page: Page, seen: Watched) -> None:
    """Nothing of it became a part of the page, the page has its width."""
    assert await page.evaluate("document.title") != "taken"
    assert (
        await page.evaluate(
            "document.querySelectorAll('img[onerror], main script, main svg script, main iframe').length"
        )
        == 0
    )
    wide, inner = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner, "nothing to scroll sideways"
    assert seen.complaints == []


@pytest.mark.parametrize(
    "words", [HOSTILE, f"<svg onload=alert(1)>{TURNED}", "x" * 300_000], ids=["html", "svg", "long"]
)
async def test_what_a_person_or_a_model_writes_is_words(page: Page, words: str) -> None:
    seen = Watched(page)
    await begin_chat(page, "echo", words)
    await expect(page.get_by_role("article", name="Answer")).to_contain_text(f"You said: {words[:60]}")
    await _is_whole(page, seen)


async def test_a_long_block_of_code_scrolls_in_itself(page: Page) -> None:
    seen = Watched(page)
    await begin_chat(page, "hostile", "Go.")
    code = page.locator(".message.model pre")
    await expect(code).to_contain_text("line")
    assert await code.evaluate("element => element.clientHeight") < 700
    assert await page.locator("a[href^='javascript']").count() == 0
    await _is_whole(page, seen)


async def test_a_result_of_five_megabytes_is_shown_by_its_beginning(page: Page) -> None:
    seen = Watched(page)
    await begin_chat(page, "flooder", "Go.")
    await expect(page.get_by_role("article", name="Answer").last).to_contain_text("So much.")
    card = page.get_by_role("region", name="Tool flood")
    await card.locator("summary").click()
    await expect(card).to_contain_text("of 5,000,000 characters")
    await card.get_by_role("button", name="Show more").click()
    await expect(card).to_contain_text("104,000 of")
    await _is_whole(page, seen)


async def test_names_of_files_and_titles_do_not_turn_the_line_around(page: Page, live: ServerProcess) -> None:
    async with live.client() as client:
        part = {
            "kind": "file",
            "media_type": "text/html",
            "uri": "data:text/html;base64,PGI+",
            "name": TURNED + HOSTILE,
        }
        made = await client.post("/api/chats", json={"agent": "echo", "message": [part], "title": TURNED + HOSTILE})
        assert made.status_code == 201
    seen = Watched(page)
    await page.goto(f"{live.url}/#/chats/{made.json()['id']}")
    shown = "gnp.⟨U+202E⟩exe⟨U+0007⟩⟨U+200B⟩name<img"
    await expect(page.get_by_role("heading", level=1)).to_contain_text(shown)
    await expect(page.get_by_role("article", name="You")).to_contain_text(shown)
    await expect(page.get_by_role("list", name="Chats")).to_contain_text("gnp.⟨U+202E⟩exe")
    await _is_whole(page, seen)


async def test_a_plan_that_is_none_breaks_no_chat_and_code_has_no_class_of_the_page(page: Page) -> None:
    seen = Watched(page)
    await begin_chat(page, "careless", "Go.")
    code = page.locator(".prose pre")
    await expect(code).to_contain_text("/kelp+/")
    plan = page.get_by_role("region", name="Tool plan")
    await expect(plan).to_contain_text("0 of 2 done")
    await expect(plan.locator(".button.primary")).to_have_count(0)
    pattern = code.locator("span", has_text="/kelp+/")
    assert await pattern.evaluate("element => element.getBoundingClientRect().width") > 20, "not hidden by a class"
    assert await code.locator("[class]").evaluate_all("all => all.every(({ className }) => /^hl-/.test(className))")
    await _is_whole(page, seen)


async def test_names_of_agents_and_skills_are_words(page: Page, live: ServerProcess) -> None:
    seen = Watched(page)
    async with live.client() as client:
        for agent in ("echo", TURNED_NAME):
            given = {"agent": agent, "message": f"/{Chart.NAMES[-1]} go"}
            chat = (await client.post("/api/chats", json=given)).json()["id"]
            await client.get(f"/api/chats/{chat}/turn", params={"wait_s": 30})
    await page.goto(f"{live.url}/#/chats/{chat}")
    shown = "mate⟨U+202E⟩⟨U+0007⟩<img"
    await expect(page.locator(".facts")).to_contain_text(shown)
    await expect(page.get_by_role("list", name="Chats")).to_contain_text(shown)
    await expect(page.locator(".expansion summary")).to_contain_text("skill x⟨U+202E⟩<img")
    await _is_whole(page, seen)
    await page.goto(f"{live.url}/#/new")
    await page.get_by_label("Agent", exact=True).select_option(TURNED_NAME)
    await expect(page.get_by_label("Agent", exact=True).locator("option:checked")).to_contain_text(shown)
    await page.get_by_label("Your message").press("/")
    await expect(page.locator(".slash-menu li").last).to_contain_text("/x⟨U+202E⟩<img")
    await _is_whole(page, seen)
