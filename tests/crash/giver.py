"""The processes that get killed while they add items to a conversation that has not begun, and while they name
another agent for it: `python -m tests.crash.giver URL`.

As `keeper`: one process, which forks another for each point. A line goes to standard output for each: what it did,
the point, the conversation, and how it ended.
"""

import asyncio
import os
import signal
import sys

import httpx2 as httpx

from holdfast import Agent, App, faults
from holdfast.models.scripted import ScriptedModel
from holdfast.server.http import http_app

UNPASSED = "vacuum.rebuilt"  # a request that is killed there is not killed
PASSED = ["write.chat.after", "commit.before", "commit.after"]
# Where the old chat was gone and the new one not there yet, when a conversation was made anew:
BETWEEN = ["delete.after"]
POINTS = [*PASSED, *BETWEEN, UNPASSED]
TOKEN = "t" * 40
PICTURE = "data:image/png;base64," + "QUJD" * 1_000  # more than is kept in a message
SAID = [{"type": "message", "role": "user", "content": "one"}]
ADDED = [
    {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]},
    {"type": "message", "role": "assistant", "content": "two"},
]


def program(url: str) -> App:
    return App(url, agents=[Agent("first", ScriptedModel("I see.")), Agent("second", ScriptedModel("I see."))])


def client(app: App) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=http_app(app, token=TOKEN))
    return httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30
    )


async def add(person: httpx.AsyncClient, made: str, point: str) -> list[dict[str, object]]:
    """With its key: asked again, it is done once."""
    headers = {"Idempotency-Key": f"add {point}"}
    answer = await person.post(f"/v1/conversations/{made}/items", json={"items": ADDED}, headers=headers)
    answer.raise_for_status()
    found: list[dict[str, object]] = answer.json()["data"]
    return found


async def respond(person: httpx.AsyncClient, made: str, point: str) -> None:
    asked = {"model": "second", "conversation": made, "input": "three", "background": True}
    answer = await person.post("/v1/responses", json=asked, headers={"Idempotency-Key": f"respond {point}"})
    answer.raise_for_status()


DEEDS = {"add": add, "respond": respond}


async def do(url: str, deed: str, point: str) -> None:
    async with program(url) as app, client(app) as person:
        made = (await person.post("/v1/conversations", json={"items": SAID, "metadata": {"at": point}})).json()["id"]
        os.write(1, f"{deed} {point} {made} ".encode())
        faults.arm(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
        await DEEDS[deed](person, made, point)


async def warm_up(url: str) -> None:
    async with program(url):
        pass


def main(url: str) -> None:
    asyncio.run(warm_up(url))
    for deed in DEEDS:
        for point in POINTS:
            child = os.fork()
            if child == 0:
                asyncio.run(do(url, deed, point))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
