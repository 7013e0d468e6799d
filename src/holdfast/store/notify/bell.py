"""Wakes waiters inside one process: "this chat changed", "there is work".

A bell is a hint. A waiter looks at the store first and again after every ring and every timeout, so a ring
too many costs a look and a ring too few costs one poll interval.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from holdfast.core.change import Change
from holdfast.store.records import QUIET

WORK = ""  # the topic of workers: something may be claimable
DELIVERIES = "deliveries"  # the topic of who tells endpoints: something may be due. In this process alone
WEBHOOKS = "webhooks"  # the same: a person changed an endpoint, or asked for something to be sent


def control_topic(chat_id: str) -> str:
    """Rings when another writer than its runner changed a held chat: a stop, an edit, an answer."""
    return f"control:{chat_id}"


def rest_topic(chat_id: str) -> str:
    """Rings when a turn of the chat is over, and when nothing more happens in it until a person or a client acts: it
    rests, or waits for an answer.
    """
    return f"rest:{chat_id}"


class Bell:
    """Not thread-safe: belongs to one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self.witness: Callable[[Sequence[Change]], None] | None = None  # is told of every commit of this process

    @property
    def waiter_count(self) -> int:
        return sum(len(waiters) for waiters in self._waiters.values())

    @property
    def awaited(self) -> bool:
        """Whether there is a waiter. From any thread."""
        return bool(self._waiters)

    def tell(self, changes: Sequence[Change], topics: Iterable[str] = ()) -> None:
        """Of changes that are committed, to who may want to know of them; and ring these topics."""
        self.show(changes)
        if self._waiters:
            self.ring(topics_of(changes).union(topics))

    def show(self, changes: Sequence[Change]) -> None:
        """To the witness, if there is one, and to who tells endpoints of what ended or waits."""
        if self.witness is not None and changes:
            self.witness(changes)
        if DELIVERIES in self._waiters and any(map(_may_be_told, changes)):
            self.ring((DELIVERIES,))

    def ring(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for waiter in self._waiters.get(topic, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def ring_all(self) -> None:
        self.ring(list(self._waiters))

    def listen(self, topic: str) -> "BellListener":
        """Listen first, then look at the store, then wait: what rings in between is not missed."""
        return BellListener(self, topic)


class BellListener:
    def __init__(self, bell: Bell, topic: str) -> None:
        self._bell = bell
        self._topic = topic
        self._future: asyncio.Future[None] | None = None

    def __enter__(self) -> "BellListener":
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        waiters = self._bell._waiters.get(self._topic)
        if waiters is not None and self._future is not None:
            waiters.discard(self._future)
            if not waiters:
                del self._bell._waiters[self._topic]

    def _arm(self) -> None:
        self._future = asyncio.get_running_loop().create_future()
        self._bell._waiters.setdefault(self._topic, set()).add(self._future)

    async def wait(self, timeout_s: float) -> bool:
        """True if it rang since the listener was made or last waited."""
        assert self._future is not None
        await asyncio.wait((self._future,), timeout=timeout_s)
        if not self._future.done():
            return False
        self.__exit__()
        self._arm()
        return True


def _may_be_told(change: Change) -> bool:
    return change.turn_over is not None or change.after.chat.state in QUIET


def topics_of(changes: Sequence[Change]) -> set[str]:
    """Who may want to know: readers of the chats, workers if there is something to claim, a chat's runner, and who
    waits until it rests or a turn of it is over."""
    topics = {change.after.chat.id for change in changes}
    for change in changes:
        if change.after.chat.wake_at is not None:
            topics.add(WORK)
        if change.after.chat.worker is not None and not change.by_runner:
            topics.add(control_topic(change.after.chat.id))
        if change.after.chat.state in QUIET or change.turn_over is not None:
            topics.add(rest_topic(change.after.chat.id))
    return topics
