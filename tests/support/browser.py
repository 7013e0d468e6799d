"""A real browser for tests. `python -m tests.support.browser` sees to it that there is one.

Chromium comes from wherever this machine has it: HOLDFAST_TEST_BROWSER, the system's, or Playwright's own. If there
is none, Playwright fetches its own; where that cannot be reached, root gets the distribution's package. Tests in a
browser are skipped where all of that fails.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NONE = "no Chromium here, and none could be installed; HOLDFAST_TEST_BROWSER=PATH names one"
INSTALL_S = 300.0  # for each way

# A browser that is being tested with has nothing to look for in the network.
QUIET = (
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
