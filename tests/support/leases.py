"""Leases end before an observer's eyes: time that passes unseen ends nothing."""

from holdfast.core.leases import LeaseWatch
from holdfast.store.contract import Store
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand

LOOKS = 5  # the first sees the numbers, the last is a TTL later; no gap is above a third of it


async def silence(store: Store, clock: FakeClock, *living: Hand) -> dict[str, int]:
    """A TTL passes while somebody watches: all leases end but those of `living`, who renew meanwhile. What
    `expire_workers` found."""
    watch = LeaseWatch()
    lost: dict[str, int] = {}
    for n in range(LOOKS):
        if n:
            clock.advance(-(-store.options.lease_ttl_ms // (LOOKS - 1)))
        for hand in living:
            hand.line.renew(hand.name)
        lost |= await store.expire_workers(watch)
    return lost
