"""A deploy under clients: one server goes while another one takes its place at the same port."""

import asyncio
from collections import Counter
from pathlib import Path

import httpx2 as httpx

from tests.support.servers import server
from tests.support.waiting import until

WAIT_S = 120.0


async def deployed_under(folder: Path, clients: int, lame_duck_s: float) -> Counter[str]:
    """What so many clients got that asked again and again on kept connections: statuses, and names of errors."""
    url, home = f"sqlite:///{folder}/holdfast.db", folder / "home"
    settings = {"HOLDFAST_REUSE_PORT": "true", "HOLDFAST_LAME_DUCK_S": str(lame_duck_s)}
    got: Counter[str] = Counter()
    over = asyncio.Event()
    with server(url, home, settings=settings) as old:

        async def ask() -> None:
            async with old.client() as client:
                while not over.is_set():
                    try:
                        got[str((await client.get("/api/agents")).status_code)] += 1
                    except httpx.HTTPError as error:
                        got[f"{type(error).__name__}: {error}"] += 1

        asking = [asyncio.create_task(ask()) for _ in range(clients)]
        with server(url, home, port=old.port, settings=settings):
            await until(lambda: got["200"] >= clients, WAIT_S)
            old.process.terminate()
            await until(lambda: old.process.poll() is not None, WAIT_S)
            over.set()
            await asyncio.gather(*asking)
    return got
