"""Restate: a handler whose model and tool are journaled actions, served to its server, which keeps the journal."""

import asyncio
import time
from datetime import timedelta

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
from restate import RunOptions
from workload import TEXT, Workload

work = Workload()
chats = restate.Service("chats", inactivity_timeout=timedelta(hours=1))
OPTIONS: "RunOptions[str]" = RunOptions()


@chats.handler()
async def turn(context: restate.Context, chat: str) -> int:
    said = 0

    async def ask(cycle: int) -> str:
        return TEXT if work.asked(chat, cycle) else ""

    async def weather(cycle: int) -> str:
        return await work.tool(chat, cycle)

    for cycle in range(work.cycles):
        said += len(await context.run_typed("ask", ask, OPTIONS, cycle))
        said += len(await context.run_typed("weather", weather, OPTIONS, cycle))
    await context.run_typed("ask", ask, OPTIONS, work.cycles)
    return said


async def main() -> None:
    ingress, admin, port = work.server.split(",")
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    ended = asyncio.Event()
    serving = asyncio.create_task(serve(restate.app(services=[chats]), config, shutdown_trigger=ended.wait))  # type: ignore[arg-type]
    async with httpx.AsyncClient(timeout=None) as client:
        await registered(client, admin, port)

        async def one(chat: str) -> None:
            headers = {"idempotency-key": chat}
            answer = await client.post(f"{ingress}/chats/turn", json=chat, headers=headers)
            answer.raise_for_status()

        await work.drive(one)
    ended.set()
    await serving


async def registered(client: httpx.AsyncClient, admin: str, port: str) -> None:
    """Known already, after a restart: the server finds it at the same place."""
    until = time.monotonic() + 30
    while not work.resume:
        try:
            body = {"uri": f"http://127.0.0.1:{port}", "force": True}
            (await client.post(f"{admin}/deployments", json=body)).raise_for_status()
        except httpx.HTTPError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    asyncio.run(main())
