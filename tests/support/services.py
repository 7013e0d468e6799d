"""The services of a worker go by the clock: a test that counts what something asks of the store ends them first."""

import asyncio

from holdfast.worker.worker import Worker


async def end_services(worker: Worker, *, but: tuple[str, ...] = ()) -> None:
    """Those that are left are named as their coroutines are."""
    ended = [task for task in worker._services if task.get_coro().__qualname__ not in but]  # type: ignore[union-attr]
    for task in ended:
        task.cancel()
    await asyncio.wait(ended)
