"""Server processes, a client for them, and what a reader of an event stream sees, parsed by rules of our own."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
from msgspec import Struct
from playwright.async_api import Page

from tests.server.program import run
from tests.support.forks import Fork


class ServerProcess:
    """`tests.server.program`, from its start to its end. Its token is in its home."""

    def __init__(self, process: Fork, home: Path, url: str, said: list[str]) -> None:
        self.process = process
        self.home = home
        self.url = url
        self.token = (home / "token").read_text().strip()
        self.said = said

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=30.0, trust_env=False, limits=limits, **options
        )

    async def log_in(self, page: Page) -> None:
        """As a person does who has the link of the terminal."""
        await page.goto(f"{self.url}/login#{self.token}")
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{self.url}/")

    async def set_cookie(self, headers: Mapping[str, str] | None = None) -> str:
        """What a browser that logs in is told to keep."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, headers=headers) as browser:
            answer = await browser.post("/login", data={"code": self.token})
            return str(answer.headers["set-cookie"])

    async def cookie(self) -> str:
        """What a browser that logged in sends, `name=value`."""
        return (await self.set_cookie()).partition(";")[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30.0)


@contextmanager
def server(
    store_url: str,
    home: Path,
    *,
    port: int = 0,
    worker: bool = True,
    settings: Mapping[str, str] = {},
    files_max: int | None = None,
    begin: Callable[..., None] = run,
    terminal: int | None = None,
) -> Iterator[ServerProcess]:
    """`settings`: variables of its environment. `files_max`: open files that it may have. `begin`: its program.
    `terminal`: what it was started at, as the first of its session.
    """
    home.mkdir(parents=True, exist_ok=True)
    begin = partial(begin, store_url, str(home), port, worker=worker)
    process = Fork(
        begin,
        {**os.environ, **settings},
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stderr=subprocess.PIPE,
        start_new_session=terminal is not None,
        files_max=files_max,
    )
    assert process.stderr is not None
    words = process.stderr
    said: list[str] = []
    try:
        while not (said and "listening on" in said[-1]):
            line = words.readline()
            assert line, f"the server ended: {said}"
            said.append(line.strip())
        listening = ServerProcess(process, home, said[-1].rpartition(" ")[2], said)

        def hear() -> None:
            with suppress(ValueError):  # closed, behind a test that failed
                said.extend(line.strip() for line in words)

        ear = threading.Thread(target=hear, daemon=True)
        ear.start()
        try:
            yield listening
        except BaseException as error:
            error.add_note("\n".join(["what the server said:", *said]))
            raise
        listening.stop()
        ear.join(10.0)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        words.close()


class Seen(Struct, frozen=True):
    """One event as it came over the wire."""

    event: str
    data: dict[str, Any]
    id: str | None = None


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Only line feeds end them, unlike what Python takes for the end of a line."""
    rest = ""
    async for text in response.aiter_text():
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield line


async def seen_in(response: httpx.Response) -> AsyncIterator[Seen]:
    """By the rules of the HTML standard: fields of a block, ended by an empty line; comments are nothing."""
    fields: dict[str, str] = {}
    async for line in _lines(response):
        if not line:
            if "data" in fields:
                yield Seen(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id"))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")


@asynccontextmanager
async def reading(
    client: httpx.AsyncClient, chat_id: str, after: str | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[Seen]]:
    headers = {"Last-Event-ID": after} if after else {}
    path = f"/api/chats/{chat_id}/events"
    async with client.stream("GET", path, params=query, headers=headers) as response:
        response.raise_for_status()
        yield seen_in(response)


async def all_seen(client: httpx.AsyncClient, chat_id: str, after: str | None = None) -> list[Seen]:
    async with reading(client, chat_id, after) as events:
        return [event async for event in events]


async def created(client: httpx.AsyncClient, agent: str, message: str | None = None, **more: Any) -> str:
    answer = await client.post("/api/chats", json={"agent": agent, "message": message, **more})
    assert answer.status_code == 201, answer.text
    chat_id: str = answer.json()["id"]
    return chat_id


async def ended(client: httpx.AsyncClient, chat_id: str) -> dict[str, Any]:
    """The chat, once it rests."""
    await all_seen(client, chat_id)
    found: dict[str, Any] = (await client.get(f"/api/chats/{chat_id}")).json()
    return found
