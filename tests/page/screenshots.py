"""Pictures of every view, light, dark and on a phone: `make pictures` makes them anew, to be looked at.

What is shown is made up and the same each time; instants are those of the run.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.async_api import Page, expect

from tests.page import program
from tests.page.conftest import begin_chat
from tests.support.browser import NONE, browser, find
from tests.support.servers import ServerProcess, server

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZES = {"light": (1280, 820), "dark": (1280, 820), "phone": (400, 800)}

SCHEDULES: tuple[dict[str, object], ...] = (
    {"name": "tides", "message": "Read the tide tables of {date}.", "cron": "0 6 * * *", "zone": "Europe/Berlin"},
    {"name": "buoy", "message": "What does the buoy say?", "every_s": 2},
)

View = Callable[[Page, ServerProcess], Awaitable[None]]


async def _new(page: Page, live: ServerProcess) -> None:
    await page.goto(f"{live.url}/#/new")
    await expect(page.get_by_role("heading", name="What should be done?")).to_be_visible()


async def _list(page: Page, live: ServerProcess) -> None:
    await page.goto(f"{live.url}/#/")
    await expect(page.get_by_role("list", name="Chats")).to_contain_text("sailor")


def _chat(agent: str, words: str, until: str) -> View:
    async def show(page: Page, live: ServerProcess) -> None:
        await page.goto(f"{live.url}/#/new")
        await begin_chat(page, agent, words)
        await expect(page.locator("#main")).to_contain_text(until)

    return show


async def _tools(page: Page, live: ServerProcess) -> None:
    """With a difference unfolded."""
    await _chat("sailor", "Go out and measure the waves.", "The waves are 3 m high.")(page, live)
    await page.get_by_role("region", name="Tool edit_file").locator("summary").first.click()


async def _schedules(page: Page, live: ServerProcess) -> None:
    async with live.client() as client:
        for given in SCHEDULES:
            await client.post("/api/schedules", json={"agent": "echo", **given})
    await page.goto(f"{live.url}/#/schedules")
    await expect(page.locator("#main")).to_contain_text("tide")


async def _inbox(page: Page, live: ServerProcess) -> None:
    for agent in ("asker", "seller"):
        await page.goto(f"{live.url}/#/new")
        await begin_chat(page, agent, "Sell the boats that we do not need.")
        await expect(page.locator(".asked-controls")).to_be_visible()
    await page.goto(f"{live.url}/#/inbox")
    await expect(page.locator(".inbox-item").nth(2)).to_be_visible()


async def _operations(page: Page, live: ServerProcess) -> None:
    await page.goto(f"{live.url}/#/new")
    await begin_chat(page, "fisher", "Haul the net in.")
    await page.goto(f"{live.url}/#/operations")
    await expect(page.get_by_role("region", name="Running tools")).to_contain_text("haul")
    await page.wait_for_timeout(10_000)  # for figures to be drawn


async def _timeline(page: Page, live: ServerProcess) -> None:
    """One kill is shown in all sizes."""
    async with live.client() as client:
        chats = (await client.get("/api/chats", params={"agent": "shop"})).json()["chats"]
    if chats:
        await page.goto(f"{live.url}/#/chats/{chats[0]['id']}/timeline")
    else:
        await page.goto(f"{live.url}/#/new")
        await page.get_by_role("button", name="Watch a kill").click()
    await expect(page.locator(".span.turn.done")).to_be_visible(timeout=60_000)


VIEWS: dict[str, View] = {
    "new": _new,
    "tools": _tools,
    "answer": _chat("writer", "What holds kelp on its rock?", "first"),
    "approval": _chat("payer", "Pay the harbour master.", "Approve"),
    "failed": _chat("broken", "Are you there?", "This turn failed."),
    "timeline": _timeline,
    "list": _list,
    "inbox": _inbox,
    "operations": _operations,
    "schedules": _schedules,
}


def _keep(picture: bytes, path: Path) -> None:
    """With a palette: half the size, and nothing that the eye misses."""
    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


async def main() -> int:
    found = find()
    if found is None:
        sys.stderr.write(f"{NONE}\n")
        return 1
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with server(f"sqlite:///{home}/chats.db", home, begin=program.run) as live:
            async with browser(found) as made:
                for name, (width, height) in SIZES.items():
                    context = await made.new_context(
                        viewport={"width": width, "height": height},
                        color_scheme="dark" if name == "dark" else "light",
                    )
                    page = await context.new_page()
                    await live.log_in(page)
                    for view, show in VIEWS.items():
                        await show(page, live)
                        await page.wait_for_timeout(300)  # for what fades in
                        _keep(await page.screenshot(), FOLDER / f"{view}-{name}.png")
                        sys.stdout.write(f"{view}-{name}.png\n")
                    await context.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
