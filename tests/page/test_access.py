"""Everybody can use the page: axe-core finds nothing serious in any view, and the keyboard reaches all of it."""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from playwright.async_api import Page, expect

from tests.page.conftest import ONE_BROWSER, begin_chat
from tests.support.client_tools import PACKAGES, needs_packages
from tests.support.scale import FULL
from tests.support.servers import ServerProcess
from tests.support.waiting import eventually

pytestmark = [ONE_BROWSER, needs_packages]

AXE = PACKAGES / "node_modules" / "axe-core" / "axe.min.js"
# What goes over the edge of a part of the page, and is in nothing within it that scrolls or cuts by itself.
WIDE = """(part) => [...part.querySelectorAll("*")]
    .filter((one) => one.getBoundingClientRect().right > part.getBoundingClientRect().left + part.clientWidth + 0.5
    && ![...function* (at) { while ((at = at.parentElement) && at !== part) yield at }(one)]
        .some((at) => ["auto", "scroll", "hidden"].includes(getComputedStyle(at).overflowX)))
    .slice(0, 5).map((one) => one.outerHTML.slice(0, 160))"""
RUN = "() => axe.run(document, { resultTypes: ['violations'] })"


async def serious(page: Page) -> list[str]:
    """What axe-core calls serious or worse, and where."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = await page.evaluate(RUN)
    return [
        f"{rule['id']}: {json.dumps([node['html'][:200] for node in rule['nodes'][:3]])}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]


async def _show_chat(page: Page, agent: str, until: str) -> None:
    await begin_chat(page, agent, "Tell me about the sea.")
    await expect(page.locator("#main")).to_contain_text(until)


async def _show_new(page: Page) -> None:
    await expect(page.get_by_role("heading", name="What should be done?")).to_be_visible()


async def _show_place(page: Page, place: str, until: str) -> None:
    await page.goto(f"{page.url.partition('#')[0]}#/{place}")
    await expect(page.locator("#main")).to_contain_text(until)


async def _show_inbox(page: Page) -> None:
    for agent in ("payer", "seller", "hurried"):
        await _show_chat(page, agent, "Deny" if agent != "hurried" else "Now?")
    await _show_place(page, "inbox", "waiting")
    await page.get_by_role("button", name="Always…").click()


async def _show_schedules(page: Page) -> None:
    given = {"name": "tides", "agent": "echo", "message": "Look", "every_s": 3600}
    await page.request.post(f"{page.url.partition('#')[0]}api/schedules", data=given)
    await _show_place(page, "schedules", "tides")


async def _show_timeline(page: Page) -> None:
    await _show_chat(page, "payer", "Approve")
    await page.get_by_role("link", name="Timeline").click()
    await page.get_by_role("button", name="Why is it waiting?").click()
    await expect(page.locator("#main")).to_contain_text("It waits for a person to approve or deny")
    await page.get_by_text("All of it as a table").click()
    await expect(page.get_by_role("table")).to_contain_text("approval: pay")


VIEWS: dict[str, Callable[[Page], Awaitable[None]]] = {
    "nothing waits": lambda page: _show_place(page, "inbox", "Nothing waits for you"),
    "inbox": _show_inbox,
    "operations": lambda page: _show_place(page, "operations", "at work"),
    "schedules": _show_schedules,
    "new": _show_new,
    "markdown": lambda page: _show_chat(page, "writer", "first"),
    "tools": lambda page: _show_chat(page, "sailor", "The waves are 3 m high."),
    "asking": lambda page: _show_chat(page, "payer", "Approve"),
    "timeline": _show_timeline,
    "failed": lambda page: _show_chat(page, "broken", "This turn failed."),
}


# In `make test` half of the views in each; in `make long` all in both.
SCHEMES: dict[str, tuple[Literal["light", "dark"], ...]] = {
    view: ("light", "dark") if FULL else (("light", "dark")[number % 2],) for number, view in enumerate(VIEWS)
}


@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_has_no_serious_violation_and_fits_a_small_phone(page: Page, view: str) -> None:
    await VIEWS[view](page)
    for scheme in SCHEMES[view]:
        await page.emulate_media(color_scheme=scheme)
        assert await serious(page) == [], scheme
    await page.set_viewport_size({"width": 360, "height": 640})
    for place in ("document.documentElement", "document.querySelector('#main')"):
        fits = functools.partial(page.evaluate, f"{place}.scrollWidth <= {place}.clientWidth")
        try:
            await eventually(fits)  # a timeline is drawn anew for the width that it gets
        except AssertionError:
            pytest.fail(f"{place} is wider than the phone: {await page.evaluate(f'({WIDE})({place})')}")


async def test_a_chat_is_begun_and_an_approval_given_by_keyboard_alone(page: Page, live: ServerProcess) -> None:
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await _press_until(page, page.get_by_label("Agent", exact=True))
    await page.keyboard.type("payer")
    await _press_until(page, page.get_by_label("Your message"))
    await page.keyboard.type("Pay.")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/#/chats/*")
    approve = page.get_by_role("button", name="Approve", exact=True)
    await expect(approve).to_be_visible()
    await _press_until(page, approve)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="Answer").last).to_contain_text("Done.")


async def _press_until(page: Page, wanted: Any, presses: int = 60) -> None:
    for _ in range(presses):
        if await wanted.evaluate("element => element === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError("the keyboard does not come there")
