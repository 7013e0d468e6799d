"""The page in a real browser: `make bench BENCH_ARGS=page`.

How soon a chat of 20,000 messages is painted and can be used, what a page holds after as many words as a model says
in an hour, what it holds while it streams (BENCH_PAGE_STREAM_S=3600 for a whole hour), and what twenty tabs of open
chats cost the server and the browser.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from playwright.async_api import Browser, CDPSession, Page, expect

from bench.figures import Figures
from tests.page import program
from tests.page.conftest import begin_chat
from tests.page.test_long_chat import long_chat
from tests.support.browser import NONE, browser, find, tabbed_browser
from tests.support.servers import ServerProcess, server

MESSAGES = int(os.environ.get("BENCH_PAGE_MESSAGES", "20000"))
TURNS = int(os.environ.get("BENCH_PAGE_TURNS", "90"))  # of 2,000 words each: 50 words a second for an hour
TABS = int(os.environ.get("BENCH_PAGE_TABS", "20"))
STREAM_S = float(os.environ.get("BENCH_PAGE_STREAM_S", "60"))
IDLE_S = 30.0
WAIT_MS = 120_000

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


async def page(figures: Figures) -> None:
    found = find()
    if found is None:
        figures.add(f"page: {NONE}", 0, "")
        return
    expect.set_options(timeout=WAIT_MS)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = f"sqlite:///{home}/chats.db"
        with server(url, home, begin=program.run) as live:
            async with browser(found) as made:
                await _long(figures, made, live, await long_chat(url, MESSAGES))
                await _hour(figures, made, live)
                await _streaming(figures, made, live)
            await _tabs(figures, found, live)


async def _entered(made: Browser, live: ServerProcess) -> Page:
    context = await made.new_context(viewport={"width": 1280, "height": 820})
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    await live.log_in(page)
    return page


async def _long(figures: Figures, made: Browser, live: ServerProcess, chat_id: str) -> None:
    page = await _entered(made, live)
    await page.goto("about:blank")
    began = time.perf_counter()
    await page.goto(f"{live.url}/#/chats/{chat_id}")
    await expect(page.locator(".history").get_by_text(f"message {MESSAGES - 1} of many")).to_be_in_viewport()
    usable_ms = (time.perf_counter() - began) * 1e3
    figures.add(f"page: a chat of {MESSAGES:,} messages, first paint", await page.evaluate(PAINTED), "ms")
    figures.add("page: its last message is seen", usable_ms, "ms")
    await page.locator(".scroller").evaluate("element => { element.scrollTop = 0 }")
    began = time.perf_counter()
    await expect(page.locator(".history").get_by_text("message 0 of many")).to_be_in_viewport()
    figures.add("page: its first message is seen, from the end", (time.perf_counter() - began) * 1e3, "ms")
    figures.add("page: messages that it then holds", await page.locator(".history article").count(), "messages")
    await page.context.close()


async def _heap_mb(session: CDPSession) -> float:
    await session.send("HeapProfiler.collectGarbage")
    used: dict[str, Any] = await session.send("Runtime.getHeapUsage")
    return float(used["usedSize"]) / 1e6


async def _hour(figures: Figures, made: Browser, live: ServerProcess) -> None:
    page = await _entered(made, live)
    session = await page.context.new_cdp_session(page)
    await begin_chat(page, "lecturer", "Begin.")
    heaps = []
    for turn in range(TURNS):
        await expect(page.locator(".chat-head .chip")).to_have_text("at rest")
        if turn in (4, TURNS - 1):
            heaps.append(await _heap_mb(session))
        if turn < TURNS - 1:
            await page.get_by_label("Your message").fill(f"Go on, {turn}.")
            await page.keyboard.press("Enter")
            await expect(page.locator(".message.user").last).to_contain_text(f"Go on, {turn}.")
    figures.add("page: heap after 5 turns of 2,000 words", heaps[0], "MB")
    figures.add(f"page: heap after {TURNS} of them, an hour's words", heaps[1], "MB", at_most=heaps[0] + 40)
    await page.context.close()


async def _streaming(figures: Figures, made: Browser, live: ServerProcess) -> None:
    """One chat, one answer of 33 words a second after the other; its heap after the first and after the last."""
    page = await _entered(made, live)
    session = await page.context.new_cdp_session(page)
    await begin_chat(page, "storyteller", "Tell me.")
    began = time.monotonic()
    heaps, answers = list[float](), 1
    while True:
        await expect(page.locator(".chat-head .chip")).to_have_text("at rest")
        heaps.append(await _heap_mb(session))
        if time.monotonic() - began >= STREAM_S and len(heaps) > 1:
            break
        answers += 1
        await page.get_by_label("Your message").fill(f"Go on, {answers}.")
        await page.keyboard.press("Enter")
        await expect(page.locator(".message.user").last).to_contain_text(f"Go on, {answers}.")
    minutes = (time.monotonic() - began) / 60
    title = f"page: heap after {minutes:.0f} minutes of streaming"
    note = f"{heaps[0]:.1f} MB after the first of {answers} answers, at most {max(heaps):.1f}"
    figures.add(title, heaps[-1], "MB", at_most=heaps[0] + 40, note=note)
    await page.context.close()


def _of_browser() -> list[Any]:
    return [process for process in psutil.Process().children(recursive=True) if "chrom" in process.name()]


def _cpu_s(processes: list[Any]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


async def _tabs(figures: Figures, chromium: str, live: ServerProcess) -> None:
    """Open chats in tabs as a person has them: one in front. At rest, and while the chat in front is being told."""
    async with tabbed_browser(chromium) as context:
        context.set_default_timeout(WAIT_MS)
        first = context.pages[0]
        await live.log_in(first)
        for n in range(TABS):
            tab = first if n == 0 else await context.new_page()
            await tab.bring_to_front()
            await tab.goto(f"{live.url}/#/new")
            await begin_chat(tab, "echo", f"hello {n}")
            await expect(tab.get_by_text(f"You said: hello {n}")).to_be_visible()
        await _measured(figures, live, "at rest")
        stories = asyncio.ensure_future(_stories(tab, live))
        await _measured(figures, live, "while the one in front streams 33 words a second")
        stories.cancel()
        memory = sum(process.memory_info().rss for process in _of_browser()) / 1e6
        figures.add(
            f"page: resident memory of a browser with {TABS} tabs, what it shares counted often", memory, "MB"
        )


async def _stories(tab: Page, live: ServerProcess) -> None:
    """One after the other."""
    while True:
        await tab.goto(f"{live.url}/#/new")
        await begin_chat(tab, "storyteller", "Tell me.")
        await expect(tab.locator(".chat-head .chip")).to_have_text("at rest")


async def _measured(figures: Figures, live: ServerProcess, how: str) -> None:
    server_process = [psutil.Process(live.process.pid)]
    served_s, shown_s = _cpu_s(server_process), _cpu_s(_of_browser())
    await asyncio.sleep(IDLE_S)
    served_s, shown_s = _cpu_s(server_process) - served_s, _cpu_s(_of_browser()) - shown_s
    figures.add(f"page: server's CPU with {TABS} tabs of open chats, {how}", served_s / IDLE_S * 100, "% of a core")
    figures.add(f"page: the browser's, all of its processes, {how}", shown_s / IDLE_S * 100, "% of a core")
