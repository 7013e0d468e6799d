"""Promise 7 over time: chats whose worker renews its lease and does not drive them.

One look cannot tell. A lease that is not ended may belong to a worker that has just died, and what a worker published
with its last renewal is older than its last claim. So an observer looks, waits for one and a half renewal intervals
and looks again; before it accuses a worker, it does so once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from holdfast.core.leases import watched_s
from holdfast.core.records import Lease
from holdfast.store.contract import Store
from holdfast.store.records import Held

DRIVEN_MAX = 1_000  # chats that a worker publishes; one that drives more publishes none


def published(claim_stamps: Iterable[int]) -> list[int] | None:
    """What a worker tells of the chats it drives: few bits of a random number each. None: they are too many."""
    short = sorted({stamp & 0xFFFFFFFF for stamp in claim_stamps})
    return short if len(short) <= DRIVEN_MAX else None


async def find_undriven(store: Store, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> list[str]:
    """Chats whose worker renews its lease and does not drive them. Waits only while a worker holds chats."""
    first = await _look(store)
    suspects: set[tuple[str, Held]] = set()
    for _ in range(2):
        if not any(held for _, held in first.values()):
            return []
        ttl_ms = max(lease.ttl_ms for lease, _ in first.values())
        await pause(watched_s(ttl_ms))
        then = await _look(store)
        suspects = {
            (worker, held)
            for worker in first.keys() & then.keys()
            for held in first[worker][1] & then[worker][1]
            if _is_undriven(first[worker][0], then[worker][0], held)
        }
        if not suspects:
            return []
        first = {worker: then[worker] for worker, _ in suspects}
    return sorted(chat_id for _, (chat_id, _) in suspects)


async def _look(store: Store) -> dict[str, tuple[Lease, frozenset[Held]]]:
    live = [lease for lease in await store.list_workers() if lease.ended is None]
    return {lease.worker: (lease, frozenset(await store.held_chats(lease.worker))) for lease in live}


def _is_undriven(before: Lease, now: Lease, held: Held) -> bool:
    """One that did not renew has not said anything: the observer of leases tells of it."""
    driven = msgspec.json.decode(now.info).get("driven")
    return now.renewal != before.renewal and driven is not None and held[1] & 0xFFFFFFFF not in driven
