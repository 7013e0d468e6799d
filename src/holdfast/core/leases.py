"""Which leases have gone silent, as one observer sees it, and how long a worker may trust its own.

No lease ends by a wall clock. A renewal counts its number up; an observer that sees one number for a whole TTL, while
it looks without a break, may end the lease, where that number still stands. Observers need not agree on anything, and
a renewal that comes first wins. All times are the observer's own boot time, in milliseconds.
"""

import math
from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.records import Lease

LOOKS_PER_TTL = 6  # so often an observer should look: half as often would do
BREAK_SHARE = 3  # a gap above a TTL's third is a break

RENEWALS_PER_TTL = 3.3
WATCHED_INTERVALS = 1.5  # in so many renewal intervals a worker that lives has renewed its lease

MARGIN_SHARE = 0.1
MARGIN_MS_MIN = 2_000
MARGIN_SHARE_MAX = 0.25


def margin_ms(ttl_ms: int) -> int:
    """How much earlier a worker stops trusting its lease than an observer may end it: a tenth and at least 2 s, but
    never more than a quarter, so that a very short lease leaves time to act."""
    return int(min(max(ttl_ms * MARGIN_SHARE, MARGIN_MS_MIN), ttl_ms * MARGIN_SHARE_MAX))


def renewal_interval_s(ttl_ms: int) -> float:
    return ttl_ms / 1000 / RENEWALS_PER_TTL


def watched_s(ttl_ms: int) -> float:
    """How long who only looks, and ends nothing, watches a lease before it calls it silent."""
    return WATCHED_INTERVALS * renewal_interval_s(ttl_ms)


class _Seen(Struct):
    renewal: int
    since_ms: int
    last_ms: int


class LeaseWatch:
    """One observer. `look` is told what the store says and when the answer arrived; nothing else moves it."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._lock_paths: list[str] = []
        self._ttl_ms_min = math.inf

    def look(self, leases: Iterable[Lease], at_ms: int) -> list[Lease]:
        """Those that were silent for their TTL. They stay so, look after look, until the number moves or a break."""
        seen: dict[str, _Seen] = {}
        silent: list[Lease] = []
        lock_paths: list[str] = []
        ttl_ms_min = math.inf
        for lease in leases:
            if lease.ended is not None:
                continue
            ttl_ms_min = min(ttl_ms_min, lease.ttl_ms)
            if lease.lock_path is not None:
                lock_paths.append(lease.lock_path)
            known = self._seen.get(lease.worker)
            unbroken = known is not None and 0 <= at_ms - known.last_ms <= lease.ttl_ms / BREAK_SHARE
            if known is None or not unbroken or known.renewal != lease.renewal:  # a lower number is another, too
                known = _Seen(lease.renewal, at_ms, at_ms)
            known.last_ms = at_ms
            seen[lease.worker] = known
            if at_ms - known.since_ms >= lease.ttl_ms:
                silent.append(lease)
        self._seen = seen
        self._lock_paths = lock_paths
        self._ttl_ms_min = ttl_ms_min
        return silent

    @property
    def lock_paths(self) -> list[str]:
        """Of the leases that were not ended when it looked last, where they can be tried from here."""
        return self._lock_paths

    @property
    def pause_ms(self) -> float:
        """How long until the next look at most, for the shortest lease in sight."""
        return self._ttl_ms_min / LOOKS_PER_TTL

    def moved(self, lease: Lease) -> bool:
        """The number is not the one that was seen before: its worker lives, somewhere."""
        known = self._seen.get(lease.worker)
        return known is not None and known.renewal != lease.renewal
