"""Streamed text of all chats of a process, flushed together: about every 50 ms, one transaction for all.

What an attempt streamed and nobody flushed yet is dropped when its message is committed: the message replaces it.
"""

import asyncio
import logging

from holdfast.core.codec import encode
from holdfast.core.journal import Delta
from holdfast.errors import StoreError
from holdfast.store.base import DeltaBatch, Store

log = logging.getLogger("holdfast.deltas")

FLUSH_INTERVAL_S = 0.05
BUFFERED_BYTES_MAX = 8 << 20


class Stream:
    """One attempt of one chat, while it streams."""

    def __init__(self, chat_id: str, worker: str, fence: int, attempt: int) -> None:
        self.chat_id = chat_id
        self.worker = worker
        self.fence = fence
        self.attempt = attempt
        self.next_k = 0
        self.pending: list[Delta] = []
        self.refused = False

    def add(self, delta: Delta) -> int:
        """Neighbours of one kind become one row. Returns by how many bytes the buffer grew."""
        last = self.pending[-1] if self.pending else None
        if last is not None and (last.part, last.call_id) == (delta.part, delta.call_id):
            self.pending[-1] = Delta(
                part=last.part, text=last.text + delta.text, call_id=last.call_id, name=last.name
            )
        else:
            self.pending.append(delta)
        return len(delta.text)

    def take(self) -> DeltaBatch | None:
        if not self.pending or self.refused:
            self.pending.clear()
            return None
        bodies = tuple(encode(delta) for delta in self.pending)
        batch = DeltaBatch(
            chat_id=self.chat_id,
            worker=self.worker,
            fence=self.fence,
            attempt=self.attempt,
            first_k=self.next_k,
            bodies=bodies,
        )
        self.next_k += len(bodies)
        self.pending.clear()
        return batch


class DeltaFlusher:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._streams: dict[str, Stream] = {}
        self._buffered_bytes = 0
        self._in_flight: asyncio.Future[None] | None = None
        self._in_flight_chats: frozenset[str] = frozenset()
        self._wanted = asyncio.Event()  # there is something to flush
        self._task: asyncio.Task[None] | None = None
        self.flushes = 0
        self.dropped_flushes = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    def open(self, chat_id: str, worker: str, fence: int, attempt: int) -> Stream:
        stream = self._streams[chat_id] = Stream(chat_id, worker, fence, attempt)
        return stream

    def add(self, stream: Stream, delta: Delta) -> None:
        """Never waits: a preview that does not fit is dropped, the message itself is not affected."""
        if self._buffered_bytes < BUFFERED_BYTES_MAX:
            self._buffered_bytes += stream.add(delta)
            self._wanted.set()

    async def close(self, stream: Stream) -> None:
        """Forget what was not flushed; wait for what is being flushed, so that it cannot land after the commit."""
        if self._streams.get(stream.chat_id) is stream:
            del self._streams[stream.chat_id]
        stream.pending.clear()
        if self._in_flight is not None and stream.chat_id in self._in_flight_chats:
            await asyncio.wait((self._in_flight,))

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()  # while nothing streams, nothing wakes the process
            await asyncio.sleep(FLUSH_INTERVAL_S)
            self._wanted.clear()
            await self.run_once()

    async def run_once(self) -> None:
        """One flush. Whatever fails costs previews, never a turn, and not the next flush."""
        batches = [batch for stream in self._streams.values() if (batch := stream.take()) is not None]
        self._buffered_bytes = 0
        if not batches:
            return
        done = self._in_flight = asyncio.get_running_loop().create_future()
        self._in_flight_chats = frozenset(batch.chat_id for batch in batches)
        try:
            for chat_id in await self._store.add_deltas(batches):
                if (stream := self._streams.get(chat_id)) is not None:
                    stream.refused = True
            self.flushes += 1
        except Exception as error:  # one task does it for all chats, and must live
            self.dropped_flushes += 1
            known = isinstance(error, StoreError)
            extra = {"action": "deltas_dropped", "error": str(error)}
            log.warning("deltas not flushed", extra=extra, exc_info=None if known else error)
        finally:
            done.set_result(None)
            self._in_flight = None
