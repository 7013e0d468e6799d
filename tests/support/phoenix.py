"""Phoenix, a receiver of traces with a page, from its registry: pinned, in an environment of its own under `build`.

`python -m tests.support.phoenix FILE` draws the picture of the docs: the trace of a turn that three workers carried.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from playwright.async_api import Page

from tests.clients.install import filled, python_packages
from tests.support import browser
from tests.support.carrying import carried
from tests.support.ports import free_port
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "tests" / "long" / "phoenix.txt"
START_S = 300.0  # its first start compiles all of it
SETTLE_MS = 3_000  # what moves on the page has come to rest


class Phoenix:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    @property
    def environ(self) -> Mapping[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100", "HOLDFAST_TRACES": "true"}

    def read(self, path: str) -> Any:
        with urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)

    def spans(self) -> list[dict[str, Any]]:
        """All that it has, as it tells them."""
        found: list[dict[str, Any]] = self.read("/v1/projects/default/spans?limit=1000")["data"]
        return sorted(found, key=lambda span: str(span["start_time"]))

    @property
    def project(self) -> str:
        found: str = self.read("/v1/projects/default")["data"]["id"]
        return found


@asynccontextmanager
async def phoenix(folder: Path) -> AsyncIterator[Phoenix]:
    """Raises NotInstalled where the registry cannot be reached."""
    home = filled(ROOT / "build" / "phoenix", LOCK, python_packages)
    port = free_port()
    process = _started(home, folder, port)
    try:
        made = Phoenix(port)
        await until(lambda: _is_up(made, process), START_S)
        yield made
    finally:
        process.kill()
        process.wait(30)


def _started(home: Path, folder: Path, port: int) -> "subprocess.Popen[bytes]":
    environ = {
        **os.environ,
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    command = [str(home / "bin" / "python"), "-m", "phoenix.server.main", "serve"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT)


def _is_up(made: Phoenix, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "Phoenix ended"
    try:
        made.read("/v1/projects")
    except (URLError, OSError):
        time.sleep(0.2)
        return False
    return True


async def draw(page: Page, found: Phoenix, trace_id: str, path: Path) -> None:
    """The trace as its page shows it, with the first worker that was lost opened."""
    await page.goto(f"{found.url}/projects/{found.project}/traces/{trace_id}")
    lost = page.get_by_text("worker lost").first
    await lost.wait_for(timeout=60_000)
    await page.wait_for_timeout(SETTLE_MS)
    await lost.click()
    await page.get_by_text("holdfast.why").first.wait_for(timeout=60_000)
    await page.wait_for_timeout(SETTLE_MS)
    panel = {"x": 378, "y": 48, "width": 1122, "height": 852}
    await page.screenshot(path=path, clip=panel)  # type: ignore[arg-type]


async def main(path: Path) -> None:
    program = browser.find()
    assert program is not None, browser.NONE
    with tempfile.TemporaryDirectory() as folder:
        async with phoenix(Path(folder)) as found, browser.browser(program) as opened:

            async def before_kill(life: int) -> None:
                await until(lambda: any(span["attributes"]["holdfast.fence"] == life for span in found.spans()))

            url = f"sqlite:///{folder}/holdfast.db"
            await carried(url, {**found.environ, "HOLDFAST_TRACE_CONTENT": "true"}, before_kill)
            await until(lambda: any(span["parent_id"] is None for span in found.spans()))
            page = await opened.new_page(viewport={"width": 1500, "height": 900})
            await draw(page, found, found.spans()[0]["context"]["trace_id"], path)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
