"""Operations and schedules in a real browser: what an operator sees of the fleet, and what others do not."""

from pathlib import Path

from playwright.async_api import BrowserContext, Page, expect

from tests.page import program
from tests.page.conftest import ONE_BROWSER, Watched
from tests.page.test_inbox import enter, tab_to
from tests.support.servers import ServerProcess, server

pytestmark = ONE_BROWSER


async def test_an_operator_sees_workers_leases_running_tools_and_spending(page: Page, live: ServerProcess) -> None:
    seen = Watched(page)
    async with live.client() as client:
        chat = (await client.post("/api/chats", json={"agent": "fisher", "message": "go"})).json()["id"]
        done = (await client.post("/api/chats", json={"agent": "echo", "message": "go", "owner": "ann"})).json()["id"]
        assert (await client.get(f"/api/chats/{done}/turn", params={"wait_s": 30})).json()["state"] == "done"
        failed = (await client.post("/api/chats", json={"agent": "broken", "message": "Oh dear"})).json()["id"]
        await client.get(f"/api/chats/{failed}/turn", params={"wait_s": 30})
    await page.goto(f"{live.url}/#/operations")
    await expect(page.locator(".view-head")).to_contain_text("All is well")
    worker = page.get_by_role("region", name="Workers").get_by_role("row").last
    await expect(worker).to_contain_text("at work")
    await expect(worker).to_contain_text("left")  # of its lease
    tool = page.get_by_role("region", name="Running tools").get_by_role("row").last
    await expect(tool).to_contain_text("haul")
    await expect(tool.get_by_role("link")).to_have_attribute("href", f"#/chats/{chat}")
    await expect(page.get_by_role("region", name="Stuck-chat check")).not_to_contain_text("not in order")
    await expect(page.get_by_role("region", name="Failed chats").get_by_role("link", name="Oh dear")).to_be_visible()
    await expect(page.get_by_role("region", name="Spending today").get_by_role("row", name="ann")).to_be_visible()
    figure = page.get_by_role("figure").filter(has_text="Loop lag")
    await expect(figure.get_by_role("img", name="while this page looks")).to_be_visible()
    assert seen.complaints == []
    async with live.client() as client:
        await client.post(f"/api/chats/{chat}/stop")
    await expect(page.get_by_role("region", name="Running tools")).to_contain_text("None")


async def test_an_owner_is_shown_no_operations_and_told_why(live: ServerProcess, context: BrowserContext) -> None:
    page = await enter(live, context, owner="ann")
    await expect(page.get_by_role("link", name="Inbox")).to_be_visible()
    await expect(page.get_by_role("link", name="Operations")).to_have_count(0)
    await page.goto(f"{live.url}/#/operations")
    await expect(page.get_by_role("heading", name="For operators")).to_be_visible()


async def test_no_worker_is_said_with_what_to_do(context: BrowserContext, tmp_path: Path) -> None:
    with server(f"sqlite:///{tmp_path}/chats.db", tmp_path, begin=program.run, worker=False) as alone:
        page = await context.new_page()
        await alone.log_in(page)
        await page.goto(f"{alone.url}/#/operations")
        await expect(page.get_by_role("region", name="Workers")).to_contain_text("No worker.")
        await expect(page.get_by_role("region", name="Workers")).to_contain_text("holdfast worker")


async def test_a_schedule_is_triggered_paused_and_resumed_by_keyboard_and_tells_what_became_of_it(
    page: Page, live: ServerProcess
) -> None:
    await page.goto(f"{live.url}/#/schedules")
    await expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
    async with live.client() as client:
        made = {"name": "tides", "agent": "echo", "message": "Look", "cron": "30 2 * * *", "zone": "Europe/Berlin"}
        assert (await client.post("/api/schedules", json=made)).status_code == 201
    card = page.get_by_role("region", name="tides")
    await expect(card).to_contain_text("Europe/Berlin")
    await tab_to(page, ".schedules .button")
    await page.keyboard.press("Enter")
    await expect(card).to_contain_text("fired 1")
    await card.get_by_text("What became of each instant").focus()
    await page.keyboard.press("Enter")
    await expect(card.get_by_role("row").nth(1)).to_contain_text("done")
    await expect(card.get_by_role("link", name="open")).to_be_visible()
    await card.get_by_role("button", name="Pause…").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.type("low water")
    await page.keyboard.press("Enter")
    await expect(card).to_contain_text("paused by a person")
    await expect(card).to_contain_text("low water")
    await card.get_by_role("button", name="Resume").focus()
    await page.keyboard.press("Enter")
    await expect(card).to_contain_text("active")


async def test_who_may_only_read_gets_no_buttons_on_schedules(live: ServerProcess, context: BrowserContext) -> None:
    async with live.client() as client:
        made = {"name": "anns", "agent": "echo", "message": "Look", "every_s": 86_400, "owner": "ann"}
        assert (await client.post("/api/schedules", json=made)).status_code == 201
    page = await enter(live, context, owner="ann", scopes=["read"])
    await page.goto(f"{live.url}/#/schedules")
    card = page.get_by_role("region", name="anns")
    await expect(card).to_contain_text("every 1 d")
    await expect(card.get_by_role("button")).to_have_count(0)
