"""The JavaScript client in Node and in Chromium, while the only server is killed or replaced amid an answer.

The model says something else each time it is asked. A page that adds what it is told, and takes back what it is told
to take back, ends with the exact text. Two ends of a server in `make test`, sixty in `make long`.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from playwright.async_api import Page

from tests.support.browser import browser, find
from tests.support.client_tools import NODE
from tests.support.programs import ROOT
from tests.support.scale import FULL, scaled
from tests.support.tallies import Tell

ENDS = scaled(2, 60)  # of a server: by kill -9 and by SIGTERM, in turn
UPDATES_MAX = 40  # that are told before one
LEAVES = 0.05  # the chance that a reader leaves after an update
HERE = Path(__file__).parent
FINISH_S = 100.0

IN_PAGE = """async ([id, leaves, settled]) => {
    READ_TURN
    const holdfast = await import("/client/holdfast.js");
    const chat = new holdfast.Holdfast().chat(id);
    return await readTurn(holdfast, chat, {leaves, settled, say: () => {}});
}""".replace("READ_TURN", (HERE / "read_turn.js").read_text(encoding="utf-8").replace("export ", ""))


class Servers:
    """One at a time, all at the same address."""

    def __init__(self, url: str, home: Path, dice: random.Random) -> None:
        self._arguments = [url, str(home)]
        self._home = home
        self._dice = dice
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self._home / "token").read_text(encoding="ascii").strip()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.javascript.fickle_server", *self._arguments]
        seed = str(self._dice.randrange(1 << 30))
        self._process = subprocess.Popen(
            [*command, str(self.port), seed], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "listening on" in line:
                self.port = int(line.strip().rpartition(":")[2])
                return
        raise AssertionError("the server ended")

    def end(self, *, deploy: bool) -> None:
        """By kill -9, or as a deploy does it."""
        assert self._process is not None
        if deploy:
            self._process.terminate()
        else:
            self._process.kill()
        self._process.communicate(timeout=60.0)


@contextmanager
def serving(url: str, home: Path, dice: random.Random) -> Iterator[Servers]:
    home.mkdir()
    servers = Servers(url, home, dice)
    servers.start()
    try:
        yield servers
    finally:
        servers.end(deploy=False)


class NodeReader:
    """A reader in a process of its own."""

    def __init__(self, servers: Servers, chat_id: str, how: str) -> None:
        self._arguments = [str(HERE / "reader.js"), servers.url, servers.token, chat_id, str(LEAVES), how]
        self.told = asyncio.Semaphore(0)

    async def read(self) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            str(NODE), *self._arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        last = b""
        async for line in process.stdout:
            last = line
            self.told.release()
        assert await process.wait() == 0, (await process.stderr.read()).decode()
        found: dict[str, Any] = json.loads(last)
        return found


@asynccontextmanager
async def page_of(servers: Servers) -> AsyncIterator[Page | None]:
    """None where there is no browser: what Node shows is judged all the same."""
    program = find()
    if program is None:
        yield None
        return
    async with browser(program) as made:
        page = await made.new_page()
        await page.goto(f"{servers.url}/login#{servers.token}")
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{servers.url}/")
        await page.goto(f"{servers.url}/client/holdfast.js")  # any page of the server that does not load itself anew
        yield page


async def committed(client: httpx.AsyncClient, chat_id: str) -> str:
    history = (await client.get(f"/api/chats/{chat_id}/messages")).json()["messages"]
    parts = [part for message in history if message["role"] == "assistant" for part in message["parts"]]
    return "".join(part["text"] for part in parts if part["kind"] == "text")


async def play(servers: Servers, page: Page | None, dice: random.Random, *, deploy: bool) -> Counter[str]:
    headers = {"Authorization": f"Bearer {servers.token}"}
    async with httpx.AsyncClient(base_url=servers.url, headers=headers, timeout=30.0, trust_env=False) as client:
        made = [await client.post("/api/chats", json={"agent": "fickle", "message": "Weather?"}) for _ in range(2)]
    ids = [answer.json()["id"] for answer in made]
    node, settled = NodeReader(servers, ids[0], "live"), NodeReader(servers, ids[1], "settled")
    reading = [asyncio.create_task(node.read()), asyncio.create_task(settled.read())]
    if page is not None:
        reading += [asyncio.ensure_future(page.evaluate(IN_PAGE, [chat_id, LEAVES, False])) for chat_id in ids]
    try:
        enough = asyncio.create_task(_take(node.told, dice.randint(3, UPDATES_MAX)))
        await asyncio.wait((enough, reading[0]), return_when=asyncio.FIRST_COMPLETED)
        enough.cancel()
        await asyncio.to_thread(servers.end, deploy=deploy)
        await asyncio.to_thread(servers.start)
        async with asyncio.timeout(FINISH_S):
            found = await asyncio.gather(*reading)
    finally:
        for task in reading:
            task.cancel()
    async with httpx.AsyncClient(base_url=servers.url, headers=headers, timeout=30.0, trust_env=False) as client:
        texts = [await committed(client, chat_id) for chat_id in ids]
    for shown, text in zip(found, texts * 2, strict=False):
        assert shown["shown"] == shown["text"] == text, "it ends with the exact text"
    assert "Restarted" not in found[1]["seen"], "nothing is ever taken back from a settled reader"
    return sum((Counter(shown["seen"]) for shown in found), Counter())


async def _take(told: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await told.acquire()


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("store_url", ["sqlite", *(["postgres"] if FULL else [])], indirect=True)
async def test_pages_and_programs_end_with_the_exact_text_whatever_becomes_of_the_server(
    store_url: str, tmp_path: Path, tell: Tell
) -> None:
    dice = random.Random(16)
    seen: Counter[str] = Counter()
    with serving(store_url, tmp_path / "home", dice) as servers:
        async with page_of(servers) as page:
            for n in range(ENDS):
                seen += await play(servers, page, dice, deploy=n % 2 == 1)
    tell(
        f"{ENDS} ends of a server, half of them kill -9; asked again {seen['Retrying']} times, text taken back "
        f"{seen['Restarted']} times; {seen['left']} times a reader left and came back"
    )
    assert seen["Retrying"], "an end met an attempt"
