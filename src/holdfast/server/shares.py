"""How much of a server one client may have: streams at the same time, and requests per minute. Counted in this
process alone, at the same cost for one client or ten thousand.

An owner is one client, whatever its tokens. Of those without an owner streams are counted by address, and requests by
name. Requests with a token for one chat count for its owner, and are at most a part of the owner's: that token is in
the browser of a stranger. Requests to links that answer calls need no token, and are counted by address.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.errors import TooManyRequests, TooManyStreams
from holdfast.principals import Principal

STREAMS_MAX = 10_000
STREAMS_PER_CLIENT_MAX = 500
MINUTE_S = 60.0
ONE_CHAT = 0.25  # of its owner's requests, for the tokens of one chat together
LINKS_PER_MINUTE_MAX = 600  # requests to links, of one address: a proxy may stand for many people
COUNTED_MAX = 10_000  # of those whose requests are counted; the one that was quiet longest is forgotten first
_ROUNDING_S = 1e-3


class StreamShares:
    """Streams that are open, of all clients and of each."""

    def __init__(self, streams_max: int = STREAMS_MAX, per_client_max: int = STREAMS_PER_CLIENT_MAX) -> None:
        self._streams_max = streams_max
        self._per_client_max = per_client_max
        self._open: Counter[str] = Counter()
        self.count = 0

    def figures(self) -> dict[str, Any]:
        return {
            "streams": self.count,
            "streams_max": self._streams_max,
            "streams_per_client_max": self._per_client_max,
        }

    def check(self, client: str) -> None:
        """Raises TooManyStreams: for who would begin something before it streams."""
        if self.count >= self._streams_max:
            raise TooManyStreams("streams of this server", self.count, self._streams_max, "come back later")
        if self._open[client] >= self._per_client_max:
            held = self._open[client]
            raise TooManyStreams("streams of one client", held, self._per_client_max, "close some of them")

    @contextlib.contextmanager
    def counted(self, client: str) -> Iterator[None]:
        self.check(client)
        self.count += 1
        self._open[client] += 1
        try:
            yield
        finally:
            self.count -= 1
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]


def stream_client(principal: Principal, address: str) -> str:
    """Whose streams are counted together."""
    return f"owner {principal.owner}" if principal.owner is not None else address


class _Bucket(NamedTuple):
    """Whose requests are counted together, and how many there may be. It holds a minute's, and fills evenly."""

    client: Hashable
    per_minute: float

    @property
    def pace_s(self) -> float:
        return MINUTE_S / self.per_minute


class RequestShares:
    """Requests per minute. Of each client one number is kept: when its bucket is full again. A full bucket and one
    that is not kept are the same.
    """

    def __init__(self, per_minute_max: int | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_minute_max = per_minute_max
        self._now_s = now_s
        self._full_at: dict[Hashable, float] = {}  # the one that was quiet longest first

    def figures(self) -> dict[str, Any]:
        return {
            "requests_per_owner_minute_max": self._per_minute_max,
            "link_requests_per_address_minute_max": LINKS_PER_MINUTE_MAX,
            "clients_counted": len(self._full_at),
            "clients_counted_max": COUNTED_MAX,
        }

    def take(self, principal: Principal) -> None:
        """Counts a request. Raises TooManyRequests: then it is not counted, and one that is sent when it says finds
        room, unless another was first.
        """
        if self._per_minute_max is not None:
            self._take(list(self._buckets(principal, self._per_minute_max)))

    def take_link(self, address: str) -> None:
        """The same for a request to a link, which needs no token: a stranger guesses no faster than that."""
        self._take([_Bucket(("link", address), LINKS_PER_MINUTE_MAX)])

    def _take(self, buckets: Sequence[_Bucket]) -> None:
        now_s = self._now_s()
        self._forget(now_s, len(buckets))
        for bucket in buckets:  # the last that asked is forgotten last, also where it is refused
            self._full_at[bucket.client] = max(now_s, self._full_at.pop(bucket.client, now_s))
        for bucket in buckets:
            wait_s = self._full_at[bucket.client] + bucket.pace_s - now_s - MINUTE_S
            if wait_s > _ROUNDING_S:
                raise TooManyRequests(int(bucket.per_minute), math.ceil(wait_s - _ROUNDING_S))
        for bucket in buckets:
            self._full_at[bucket.client] += bucket.pace_s

    @staticmethod
    def _buckets(principal: Principal, per_minute: int) -> Iterator[_Bucket]:
        if principal.owner is not None:
            yield _Bucket(("owner", principal.owner), per_minute)
        elif principal.chat is None:
            yield _Bucket(("name", principal.name), per_minute)
        if principal.chat is not None:
            yield _Bucket(("chat", principal.owner, principal.chat), max(1.0, per_minute * ONE_CHAT))

    def _forget(self, now_s: float, room: int) -> None:
        """Some whose buckets are full, and any where there is no room. One more than a request can add: what is kept
        gets less again.
        """
        for _ in range(room + 1):
            client = next(iter(self._full_at), None)
            if client is None or (self._full_at[client] > now_s and len(self._full_at) + room <= COUNTED_MAX):
                return
            del self._full_at[client]
