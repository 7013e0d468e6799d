"""Every action of the page by keyboard alone: one table of them, done one after the other. Nothing here clicks.

What is in lists of its own is done by keyboard where it is tested: the inbox (`test_inbox`), schedules
(`test_operations`), the spans of a timeline and the kill that is watched (`test_timeline`).
"""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Locator, Page, expect

from tests.page.conftest import ONE_BROWSER
from tests.page.test_chat import PNG
from tests.support.servers import ServerProcess

pytestmark = ONE_BROWSER

PRESSES = 150


class Keys:
    """A person without a mouse."""

    def __init__(self, page: Page, live: ServerProcess) -> None:
        self.page = page
        self.live = live

    async def to(self, wanted: Locator) -> None:
        await expect(wanted).to_be_visible()
        for _ in range(PRESSES):
            if await wanted.evaluate("element => element === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        raise AssertionError(f"the keyboard does not come to {wanted}")

    async def do(self, name: str, within: Locator | None = None, role: str = "button") -> None:
        """Goes there and presses Enter."""
        found = (within or self.page).get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
        await self.to(found.last)
        await self.page.keyboard.press("Enter")

    async def write(self, label: str, words: str) -> None:
        await self.to(self.page.get_by_label(label, exact=True).last)
        await self.page.keyboard.press("Control+A")
        await self.page.keyboard.type(words)

    async def pick(self, label: str, words: str) -> None:
        field = self.page.get_by_label(label, exact=True)
        await self.to(field)
        await self.page.keyboard.type(words)
        await expect(field.locator("option:checked")).to_have_text(words)

    async def say(self, words: str) -> None:
        await self.write("Your message", words)
        await self.page.keyboard.press("Enter")

    async def begin(self, agent: str, words: str) -> None:
        await self.do("New chat", role="link")
        await expect(self.page.get_by_role("heading", name="What should be done?")).to_be_visible()
        await self.pick("Agent", agent)
        await self.say(words)
        await self.page.wait_for_url("**/#/chats/*")

    async def see(self, words: str) -> None:
        await expect(self.page.locator("#main")).to_contain_text(words)

    async def menu(self, item: str) -> None:
        await self.to(self.page.locator("summary[aria-label=More]"))
        await self.page.keyboard.press("Enter")
        await self.do(item)

    @property
    def queued(self) -> Locator:
        return self.page.get_by_role("region", name="Queued messages").get_by_role("listitem")


async def _begin(keys: Keys) -> None:
    await keys.begin("thinker", "Think.")
    await keys.see("Let me think…")


async def _queue(keys: Keys) -> None:
    for n, words in enumerate(("first", "second", "third")):
        await keys.say(words)
        await expect(keys.queued).to_have_count(n + 1)


async def _edit_queued(keys: Keys) -> None:
    await keys.do("Edit", keys.queued.filter(has_text="first"))
    await keys.write("The message", "changed")
    await keys.do("Save")
    await expect(keys.queued.filter(has_text="changed")).to_have_count(1)


async def _remove_queued(keys: Keys) -> None:
    await keys.do("Remove", keys.queued.filter(has_text="third"))
    await expect(keys.queued).to_have_count(2)


async def _steer_queued(keys: Keys) -> None:
    await keys.do("Steer in", keys.queued.filter(has_text="changed"))
    await expect(keys.queued).to_have_count(2)  # it waits for the next step


async def _take_queued_now(keys: Keys) -> None:
    await keys.do("Now", keys.queued.filter(has_text="second"))
    await expect(keys.page.locator(".message.user", has_text="second")).to_be_visible()


async def _interrupt(keys: Keys) -> None:
    await keys.write("Your message", "now this")
    await keys.do("Interrupt")
    await expect(keys.page.locator(".message.user", has_text="now this")).to_be_visible()


async def _stop(keys: Keys) -> None:
    for _ in range(5):  # what was queued has its turn
        await keys.do("Stop")
        await expect(keys.page.get_by_role("button", name="Stopping…")).to_have_count(0)
        if await keys.page.locator(".chat-head .chip[data-state=idle]").count():
            return
    raise AssertionError("it does not stop")


async def _say_and_copy(keys: Keys) -> None:
    await keys.begin("echo", "barnacles")
    await keys.see("You said: barnacles")
    await keys.do("Copy", keys.page.get_by_role("article", name="Answer"))
    await expect(keys.page.get_by_role("button", name="Copied")).to_be_visible()


async def _edit(keys: Keys) -> None:
    await keys.do("Edit", keys.page.get_by_role("article", name="You"))
    await keys.write("The message", "limpets")
    await keys.do("Replace")
    await keys.see("You said: limpets")


async def _fork(keys: Keys) -> None:
    before = keys.page.url
    await keys.do("Fork", keys.page.get_by_role("article", name="Answer"))
    await keys.page.wait_for_url(lambda url: url != before)
    await keys.see("You said: limpets")


async def _rename(keys: Keys) -> None:
    await keys.menu("Rename")
    await keys.write("Title", "Limpets on the hull")
    await keys.page.keyboard.press("Enter")
    await expect(keys.page.get_by_role("heading", name="Limpets on the hull")).to_be_visible()


async def _why(keys: Keys) -> None:
    await keys.do("Why?")
    await expect(keys.page.locator(".why")).to_be_visible()


async def _archive(keys: Keys) -> None:
    await keys.menu("Archive")
    await expect(keys.page.locator(".facts")).to_contain_text("archived")
    await keys.menu("Bring back")
    await expect(keys.page.locator(".facts")).not_to_contain_text("archived")
    await expect(keys.page.locator("summary[aria-label=More]")).to_be_focused()


async def _attach(keys: Keys) -> None:
    await keys.to(keys.page.get_by_role("button", name="Attach"))
    async with keys.page.expect_file_chooser() as opened:
        await keys.page.keyboard.press("Enter")
    await (await opened.value).set_files({"name": "wave.png", "mimeType": "image/png", "buffer": PNG})
    await keys.do("Remove wave.png")
    await expect(keys.page.get_by_role("list", name="Attached files")).to_be_hidden()


async def _search_and_filter(keys: Keys) -> None:
    chats = keys.page.get_by_role("list", name="Chats").get_by_role("link")
    await keys.write("Search chats", "Limpets on")
    await expect(chats).to_have_count(1)
    await keys.pick("Which chats", "At rest")
    await keys.pick("Of which agent", "echo")
    await expect(chats).to_have_count(1)
    await keys.to(chats.first)
    await keys.page.keyboard.press("Enter")
    await expect(keys.page.get_by_role("heading", name="Limpets on the hull")).to_be_visible()


async def _approve(keys: Keys) -> None:
    await keys.begin("payer", "Pay.")
    await keys.do("Approve")
    await keys.see("Done.")


async def _deny(keys: Keys) -> None:
    await keys.begin("payer", "Pay.")
    await keys.do("Deny…")
    await keys.page.keyboard.type("too much")
    await keys.page.keyboard.press("Enter")
    await keys.see("denied")


async def _always(keys: Keys) -> None:
    await keys.begin("seller", "Sell.")
    await keys.do("Always…")
    await keys.pick("For how long", "for an hour")
    await keys.do("Approve, and always")
    await keys.see("Sold.")


async def _answer(keys: Keys) -> None:
    await keys.begin("asker", "Ask.")
    await keys.write("Your answer", "The North Sea")
    await keys.page.keyboard.press("Enter")
    await keys.see("Thank you.")


async def _retry(keys: Keys) -> None:
    await keys.begin("broken", "Oh.")
    await keys.do("Try again")
    await expect(keys.page.get_by_text("This turn failed.")).to_have_count(2)


async def _call_a_slash_command(keys: Keys) -> None:
    await keys.do("New chat", role="link")
    await keys.pick("Agent", "echo")
    await keys.write("Your message", "/ch")
    options = keys.page.get_by_role("option").and_(keys.page.locator(".slash-menu li"))
    await expect(options).to_have_count(2)
    await keys.page.keyboard.press("ArrowDown")
    await expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    await keys.page.keyboard.press("Enter")
    await expect(keys.page.get_by_label("Your message")).to_have_value("/check ")
    await keys.page.keyboard.type("the keel")
    await keys.page.keyboard.press("Enter")
    await keys.page.wait_for_url("**/#/chats/*")
    await expect(keys.page.get_by_role("article", name="You")).to_contain_text("as the model read it")


async def _travel_in_time(keys: Keys) -> None:
    await keys.do("Timeline", role="link")
    travel = keys.page.get_by_label("Time travel: entries of the journal")
    await expect(keys.page.locator(".span.turn.done")).to_be_visible()
    await keys.to(travel)
    await keys.page.keyboard.press("ArrowLeft")
    await expect(keys.page.get_by_role("heading", name="The chat as it was")).to_be_visible()
    await keys.do("Back to now")
    await keys.do("Why is it waiting?")
    await expect(keys.page.locator(".timeline-why")).to_be_visible()
    await keys.do("Fork from here")
    await keys.page.wait_for_url(lambda url: not url.endswith("/timeline"))


async def _look_at_operations(keys: Keys) -> None:
    await keys.do("Operations", role="link")
    await expect(keys.page.get_by_role("region", name="Stuck-chat check")).to_contain_text("Every chat is driven")


async def _delete(keys: Keys) -> None:
    await keys.begin("echo", "gone soon")
    await keys.see("You said: gone soon")
    await keys.menu("Delete")
    await keys.do("Delete", keys.page.get_by_role("dialog"))
    await expect(keys.page.get_by_role("list", name="Chats")).not_to_contain_text("gone soon")


async def _log_out_and_in(keys: Keys) -> None:
    await keys.do("Log out")
    await keys.page.wait_for_url("**/login")
    await keys.to(keys.page.get_by_role("textbox"))
    await keys.page.keyboard.type(keys.live.token)
    await keys.page.keyboard.press("Enter")
    await expect(keys.page.get_by_role("link", name="New chat")).to_be_visible()


ACTIONS: dict[str, Callable[[Keys], Awaitable[None]]] = {
    "new chat, agent picker, send": _begin,
    "queue a message": _queue,
    "edit a queued message": _edit_queued,
    "remove a queued message": _remove_queued,
    "steer a queued message in": _steer_queued,
    "take a queued message now": _take_queued_now,
    "interrupt": _interrupt,
    "stop": _stop,
    "copy an answer": _say_and_copy,
    "edit a message": _edit,
    "fork from a message": _fork,
    "rename": _rename,
    "ask why": _why,
    "archive and bring back": _archive,
    "attach a file, and remove it": _attach,
    "search, filters, open a chat": _search_and_filter,
    "approve": _approve,
    "deny with words": _deny,
    "always": _always,
    "answer a question": _answer,
    "try a failed turn again": _retry,
    "call a slash command": _call_a_slash_command,
    "timeline: travel in time, ask why, fork": _travel_in_time,
    "operations: the check for stuck chats": _look_at_operations,
    "delete": _delete,
    "log out and in": _log_out_and_in,
}


@pytest.mark.long
async def test_every_action_works_by_keyboard_alone(page: Page, live: ServerProcess) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    # From the beginning: a browser that is asked for it only just before may open the chooser of its own instead.
    page.on("filechooser", lambda _: None)
    keys = Keys(page, live)
    for action, act in ACTIONS.items():
        try:
            await act(keys)
        except AssertionError as error:
            pytest.fail(f"{action}: {error}")
