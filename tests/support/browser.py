"""A real browser for tests. `python -m tests.support.browser` sees to it that there is one.

Chromium comes from wherever this machine has it: HOLDFAST_TEST_BROWSER, the system's, or Playwright's own. If there
is none, Playwright fetches its own; where that cannot be reached, root gets the distribution's package. Tests in a
browser are skipped where all of that fails.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NONE = "no Chromium here, and none could be installed; HOLDFAST_TEST_BROWSER=PATH names one"
INSTALL_S = 300.0  # for each way
START_S = 60.0

# A browser that is being tested with has nothing to look for in the network. And nothing in it moves by itself: what
# pulses is drawn sixty times a second, which took a good part of the time of all tests in a browser. Contexts that
# Playwright makes do not heed the flag: they are asked for `reduced_motion`.
QUIET = (
    "--force-prefers-reduced-motion",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)


def find() -> str | None:
    """The program, if there is one."""
    if named := os.environ.get("HOLDFAST_TEST_BROWSER"):
        return named
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


@asynccontextmanager
async def browser(program: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=program, args=QUIET)
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def tabbed_browser(program: str) -> AsyncIterator[BrowserContext]:
    """One whose tabs are as a person's: only the one in front is visible. Playwright makes all of its own visible."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:  # it may still write while it ends
        started = (program, "--headless", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={home}")
        process = await asyncio.create_subprocess_exec(
            *started, *QUIET, "about:blank", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            port = await _port_of(Path(home) / "DevToolsActivePort")
            async with async_playwright() as playwright:
                url = f"http://127.0.0.1:{port}"
                made = await playwright.chromium.connect_over_cdp(url, no_defaults=True)
                yield made.contexts[0]
                await made.close()
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), START_S)


async def _port_of(file: Path) -> int:
    """Where it listens, once it does."""
    async with asyncio.timeout(START_S):
        while not (said := file.read_text().split() if file.exists() else []):  # noqa: ASYNC110  the browser writes it
            await asyncio.sleep(0.05)
    return int(said[0])


async def new_window(context: BrowserContext) -> Page:
    """A tab in a window of its own: it is seen beside the others."""
    assert context.browser is not None
    session = await context.browser.new_browser_cdp_session()
    async with context.expect_page() as opened:
        await session.send("Target.createTarget", {"url": "about:blank", "newWindow": True})
    await session.detach()
    return await opened.value


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def install() -> None:
    say("Installing Chromium for the tests in a browser")
    ways = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.getuid() == 0 and shutil.which("apt-get"):
        ways += [["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "--no-install-recommends", "chromium"]]
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    for way in ways:
        try:
            done = subprocess.run(way, env=environ, timeout=INSTALL_S, check=False, capture_output=True, text=True)
        except subprocess.TimeoutExpired as error:
            said = str(error)
            continue
        if done.returncode == 0 and find() is not None:
            return
        said = done.stderr[-2000:]
    say(f"{NONE}\n{said}")


if __name__ == "__main__" and find() is None:
    install()
