"""Whether any worker could drive a chat, as those see it who wait for the chat in a program of their own.

They only look: they end no lease and take no chat. A worker counts while its lease lasts, its process lives on this
host, and an observer has not seen it silent for its TTL; it could drive the chat if it holds it, or has its agent and
is not about to leave.
"""

import math

import msgspec

from holdfast.core.leases import LeaseWatch
from holdfast.core.records import ChatRecord, Lease, Snapshot, State
from holdfast.errors import NotFound, NoWorker
from holdfast.store import host_lock
from holdfast.store.contract import Store

LOOK_MS = 1_000  # between two looks of a process at the workers, however many chats are waited for in it


class _Told(msgspec.Struct):
    """What a worker tells of itself, as far as it matters here."""

    agents: list[str] = []
    draining: bool = False


_told = msgspec.json.Decoder(_Told)


def is_live(lease: Lease) -> bool:
    """Its worker may act: the lease lasts, and on this host its process lives."""
    return lease.ended is None and not (lease.lock_path is not None and host_lock.is_dead(lease.lock_path))


class DriverWatch:
    """One for all who wait in a process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leases = LeaseWatch()
        self._live: list[tuple[str, _Told]] = []
        self._looked_at_ms = -math.inf

    async def undriven(self, snapshot: Snapshot) -> ChatRecord | None:
        """The chat that needs a worker and has none: this one, or a sub-agent's that it waits for."""
        chat = snapshot.chat
        if chat.state is State.WAITING and (
            chat.wake_at is None or chat.wake_at > self._store.options.clock.wall_ms()
        ):
            return await self._undriven_child(snapshot)
        if chat.state in (State.IDLE, State.FAILED) or await self._has_driver(chat):
            return None
        return chat

    async def _undriven_child(self, snapshot: Snapshot) -> ChatRecord | None:
        for call in snapshot.open_calls:
            if call.child_id is None:
                continue
            try:
                child = await self._store.read_chat(call.child_id)
            except NotFound:
                continue
            if (found := await self.undriven(child)) is not None:
                return found
        return None

    async def _has_driver(self, chat: ChatRecord) -> bool:
        await self._look()
        return any(
            worker == chat.worker or (chat.agent in told.agents and not told.draining) for worker, told in self._live
        )

    async def _look(self) -> None:
        clock = self._store.options.clock
        if clock.boot_ms() - self._looked_at_ms < min(LOOK_MS, self._leases.pause_ms):
            return
        leases = await self._store.list_workers()
        self._looked_at_ms = clock.boot_ms()
        silent = {lease.worker for lease in self._leases.look(leases, clock.boot_ms())}
        live = [lease for lease in leases if lease.worker not in silent and is_live(lease)]
        self._live = [(lease.worker, _told.decode(lease.info)) for lease in live]


class Patience:
    """Of one who waits for a chat: it ends when no worker could drive the chat for `wait_s` without a break."""

    def __init__(self, watch: DriverWatch, wait_s: float) -> None:
        self._watch = watch
        self._wait_s = wait_s
        self._since_ms: float | None = None  # none could

    async def check(self, snapshot: Snapshot, now_ms: float) -> None:
        """Call it at every look. Raises NoWorker."""
        chat = await self._watch.undriven(snapshot)
        if chat is None:
            self._since_ms = None
            return
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms >= self._wait_s * 1000:
            raise NoWorker(chat.id, chat.agent, self._wait_s)
