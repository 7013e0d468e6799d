"""`kill -9` of a server that adds items to a conversation, or names its agent, on both stores."""

import asyncio
import signal
import subprocess
import sys
from typing import Any

import httpx2 as httpx

from holdfast.app import App
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.crash.giver import ADDED, BETWEEN, DEEDS, PASSED, PICTURE, POINTS, UNPASSED, add, client, program
from tests.crash.writer import WRITER_S_MAX
from tests.support.aftermath import find_faults
from tests.support.programs import ROOT


def test_a_conversation_that_has_not_begun_is_never_lost_wherever_its_server_is_killed(store_url: str) -> None:
    command = [sys.executable, "-m", "tests.crash.giver", store_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WRITER_S_MAX, text=True, check=False)
    ended = [line.split() for line in done.stdout.splitlines()]
    assert [(deed, point) for deed, point, *_ in ended] == [(deed, point) for deed in DEEDS for point in POINTS]
    asyncio.run(judge(store_url, [(deed, point, made) for deed, point, made, _ in ended]))
    survived = [point for _, point, _, code in ended if int(code) == 0]
    assert survived == [*BETWEEN, UNPASSED] * 2, f"nothing is deleted, and nothing made: {done.stderr}"
    assert {int(code) for _, point, _, code in ended if point in PASSED} == {-signal.SIGKILL}


async def judge(url: str, deeds: list[tuple[str, str, str]]) -> None:
    async with program(url) as app, client(app) as person:
        for deed, point, made in deeds:
            committed = point not in PASSED or point == "commit.after"
            if deed == "add":
                await check_added(person, made, point, committed=committed)
            else:
                await check_named(app, person, made, point, committed=committed)
    async with open_store(url, StoreOptions()) as store:
        assert await find_faults(store) == []


async def check_added(person: httpx.AsyncClient, made: str, point: str, *, committed: bool) -> None:
    found = await items(person, made)
    assert len(found) == (1 + len(ADDED) if committed else 1), point
    assert (await person.get(f"/v1/conversations/{made}")).json()["metadata"] == {"at": point}
    again = await add(person, made, point)
    found = await items(person, made)
    assert again == found[1:], "asked again with its key, it is there once, and answered as it was"
    assert found[1]["content"][0]["image_url"] == PICTURE
    assert len(found) == 1 + len(ADDED), point


async def check_named(app: App, person: httpx.AsyncClient, made: str, point: str, *, committed: bool) -> None:
    """Naming the agent is one write, sending the message the next: the kill was in the first."""
    chat = (await app.chat(made.removeprefix("conv_")).snapshot()).chat
    assert chat.agent == ("second" if committed else "first"), point
    assert (await items(person, made))[0]["content"][0]["text"] == "one", point


async def items(person: httpx.AsyncClient, made: str) -> list[dict[str, Any]]:
    answer = await person.get(f"/v1/conversations/{made}/items", params={"order": "asc"})
    assert answer.status_code == 200, (made, answer.text)
    found: list[dict[str, Any]] = answer.json()["data"]
    return found
