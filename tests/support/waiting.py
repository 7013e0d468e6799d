"""Waiting for what another thread or process does: for a condition, never for a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], object], deadline_s: float = 30.0) -> None:
    """Returns as soon as the condition holds. That it never does is the test's failure."""
    give_up_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        await asyncio.sleep(0.002)


async def eventually(condition: Callable[[], Awaitable[object]], deadline_s: float = 30.0) -> None:
    """The same for a condition that has to be asked for, such as what the database holds."""
    give_up_at = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        await asyncio.sleep(0.01)
