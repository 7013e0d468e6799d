"""The page of the docs: its programs run, and its page is used as a person would, in a real browser."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from holdfast.server.client_files import FOLDER
from tests.support.browser import NONE, browser, find
from tests.support.client_tools import NODE, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "javascript.md"
_BLOCK = re.compile(r"^```(js|python|html)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))
WAIT_MS = 30_000


class Site:
    """The two files in a folder, served as the page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        (folder / "web.py").write_text(BLOCKS["python"], encoding="utf-8")
        (folder / "page.html").write_text(BLOCKS["html"], encoding="utf-8")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.folder / ".holdfast" / "token").read_text(encoding="ascii").strip()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web:program", "--port", str(self.port)],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if found := re.search(r"running on http://127.0.0.1:(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError("".join(said))

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=30.0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.kill()


def test_the_program_for_node_runs(site: Site, tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "holdfast-client"
    package.parent.mkdir()
    package.symlink_to(FOLDER)
    (tmp_path / "hello.mjs").write_text(BLOCKS["js"], encoding="utf-8")
    said = run(NODE, "hello.mjs", cwd=tmp_path, HOLDFAST_URL=f"{site.url}/agents", HOLDFAST_TOKEN=site.token)
    text, _, last = said.rstrip().rpartition("\n")
    assert last == f"done: {text}"


async def test_the_page_chats_comes_back_after_a_reload_and_survives_the_death_of_its_server(site: Site) -> None:
    program = find()
    if program is None:
        pytest.skip(NONE)
    async with browser(program) as made:
        page = await made.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(f"{site.url}/agents/login#{site.token}")
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{site.url}/agents/")
        await page.goto(site.url)
        await _say(page, "hello")
        shown = page.locator("main p")
        await expect(shown).to_have_count(2, timeout=WAIT_MS)
        await expect(shown.nth(1)).to_contain_text("hello", timeout=WAIT_MS)
        said = await shown.nth(1).text_content()
        await page.reload()
        await expect(shown.nth(1)).to_have_text(said or "", timeout=WAIT_MS)
        site.kill()
        await _say(page, "<b>again</b>")  # it is sent until there is a server to take it
        site.start()
        await expect(shown).to_have_count(4, timeout=WAIT_MS)
        await expect(shown.nth(3)).to_contain_text("<b>again</b>", timeout=WAIT_MS)
        assert await page.locator("main b").count() == 0
        assert complaints == []


async def _say(page: Page, words: str) -> None:
    await page.fill("input", words)
    await page.click("form button")
