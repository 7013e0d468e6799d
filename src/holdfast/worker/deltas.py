"""Streamed text of all chats of a process, flushed together: about every 50 ms, one transaction for all.

What was streamed of an attempt is stored without a gap, or up to a point and no further: a flush that failed is sent
again under the same numbers before anything newer, and a stream that outgrows its room ends there. What was not
flushed when the message is committed is forgotten: the message replaces it.
"""

import asyncio

from holdfast.core.codec import encode
from holdfast.core.journal import Delta
from holdfast.core.records import ChatRecord
from holdfast.errors import CallerError, StoreError
from holdfast.log_context import logger
from holdfast.store.contract import Store
from holdfast.store.records import DeltaBatch

log = logger("holdfast.deltas")

FLUSH_INTERVAL_S = 0.05
FLUSH_AGAIN_S_MAX = 1.0
BUFFERED_BYTES_MAX = 8 << 20
STREAM_SHARE = 1 / 8  # of that room, for one stream: one that says much takes no room of the others
FAILED_ALONE_MAX = 3


class DeltaStream:
    """One attempt of one chat, while it streams."""

    def __init__(self, chat: ChatRecord, attempt: int) -> None:
        self.chat = chat  # as it was when the attempt began
        self.chat_id = chat.id
        self.attempt = attempt
        self.sent = False  # rows may be in the store
        self.stored = 0  # rows that are there for certain
        self.rows: list[bytes] = []  # numbered from there on, perhaps sent: they never change any more
        self.pending: list[Delta] = []  # not numbered yet
        self.pending_bytes = 0
        self.buffered_bytes = 0  # as its flusher counted them
        self.ended = False  # at a row that is the last one of its preview, whatever the model says next
        self.failed_alone = 0

    def add(self, delta: Delta, size: int) -> None:
        """Neighbours of one kind become one row."""
        self.pending_bytes += size
        last = self.pending[-1] if self.pending else None
        if last is not None and (last.part, last.call_id) == (delta.part, delta.call_id):
            self.pending[-1] = Delta(
                part=last.part, text=last.text + delta.text, call_id=last.call_id, name=last.name
            )
        else:
            self.pending.append(delta)

    def take(self) -> DeltaBatch | None:
        """All that is not in the store for certain. Raises InvalidInput for what is no text."""
        self.rows += [encode(delta) for delta in self.pending]
        self.pending.clear()
        self.pending_bytes = 0
        if not self.rows:
            return None
        self.sent = True
        return DeltaBatch(
            chat=self.chat,
            attempt=self.attempt,
            first_k=self.stored,
            bodies=tuple(self.rows),
        )

    def landed(self, batch: DeltaBatch) -> None:
        self.stored += len(batch.bodies)
        del self.rows[: len(batch.bodies)]
        self.failed_alone = 0

    def end(self) -> None:
        """Here, and what is not stored is forgotten."""
        self.ended = True
        self.rows.clear()
        self.pending.clear()
        self.pending_bytes = 0


class DeltaFlusher:
    def __init__(self, store: Store, buffered_bytes_max: int = BUFFERED_BYTES_MAX) -> None:
        self._store = store
        self.buffered_bytes_max = buffered_bytes_max
        self._stream_bytes_max = int(buffered_bytes_max * STREAM_SHARE)
        self._streams: dict[str, DeltaStream] = {}
        self.buffered_bytes = 0  # of text that is not in the store for certain
        self._in_flight: asyncio.Future[None] | None = None
        self._in_flight_chats: frozenset[str] = frozenset()
        self._wanted = asyncio.Event()  # there is something to flush
        self._task: asyncio.Task[None] | None = None
        self.flushes = 0
        self.failed_flushes = 0
        self.streams_cut = 0  # previews that ended before their response did

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    def open(self, chat: ChatRecord, attempt: int) -> DeltaStream:
        if (earlier := self._streams.get(chat.id)) is not None:
            self._forget(earlier)
        stream = self._streams[chat.id] = DeltaStream(chat, attempt)
        return stream

    def add(self, stream: DeltaStream, delta: Delta) -> None:
        """Never waits. A preview that does not fit ends here: what came after it would be told as if it followed."""
        if stream.ended or self._streams.get(stream.chat_id) is not stream:
            return
        size = len(delta.text.encode("utf-8", "replace"))
        room = min(self.buffered_bytes_max - self.buffered_bytes, self._stream_bytes_max - stream.buffered_bytes)
        if size > room:
            stream.ended = True
            self._note_cut(stream, "there is no room for more text that waits for the store")
            return
        stream.add(delta, size)
        stream.buffered_bytes += size
        self.buffered_bytes += size
        self._wanted.set()

    async def close(self, stream: DeltaStream) -> None:
        """Forget what was not flushed; wait for what is being flushed, so that it cannot land after the commit."""
        if self._streams.get(stream.chat_id) is stream:
            del self._streams[stream.chat_id]
        self._forget(stream)
        if self._in_flight is not None and stream.chat_id in self._in_flight_chats:
            await asyncio.wait((self._in_flight,))

    def _forget(self, stream: DeltaStream) -> None:
        stream.end()
        self._count(stream)

    def _count(self, stream: DeltaStream) -> None:
        held = sum(map(len, stream.rows)) + stream.pending_bytes
        self.buffered_bytes += held - stream.buffered_bytes
        stream.buffered_bytes = held

    async def _run(self) -> None:
        pause_s = FLUSH_INTERVAL_S
        while True:
            await self._wanted.wait()  # while nothing streams, nothing wakes the process
            await asyncio.sleep(pause_s)
            self._wanted.clear()
            try:
                flushed = await self.run_once()
            except Exception as error:  # as for a flush
                flushed = False
                log.error("deltas not flushed", extra={"action": "deltas_not_flushed"}, exc_info=error)
            if flushed:
                pause_s = FLUSH_INTERVAL_S
            else:
                pause_s = min(2 * pause_s, FLUSH_AGAIN_S_MAX)
                self._wanted.set()

    async def run_once(self) -> bool:
        """One flush. Whatever fails costs previews, never a turn, and not the next flush. False: try again soon."""
        sent = {stream.chat_id: (stream, batch) for stream in self._streams.values() if (batch := self._take(stream))}
        if not sent:
            return True
        done = self._in_flight = asyncio.get_running_loop().create_future()
        self._in_flight_chats = frozenset(sent)
        try:
            error = await self._send(list(sent.values()))
            if error is None or isinstance(error, StoreError):
                return error is None
            # Of one of them, not of the store: the others are not to wait for it.
            errors = [await self._send_alone(*pair) for pair in sent.values()]
            return not any(errors)
        finally:
            done.set_result(None)
            self._in_flight = None

    def _take(self, stream: DeltaStream) -> DeltaBatch | None:
        try:
            batch = stream.take()
        except CallerError as error:
            self._cut(stream, str(error))
            return None
        self._count(stream)
        return batch

    async def _send(self, sent: list[tuple[DeltaStream, DeltaBatch]]) -> Exception | None:
        try:
            refused = await self._store.add_deltas([batch for _, batch in sent])
        except Exception as error:  # one task does it for all chats, and must live
            self.failed_flushes += 1
            known = isinstance(error, StoreError)
            extra = {"action": "deltas_not_flushed", "error": str(error)}
            log.warning("deltas not flushed", extra=extra, exc_info=None if known else error)
            return error
        self.flushes += 1
        for stream, batch in sent:
            if stream.chat_id in refused:
                self._forget(stream)  # its writer is stale, and its next commit finds out
            else:
                stream.landed(batch)
                self._count(stream)
        return None

    async def _send_alone(self, stream: DeltaStream, batch: DeltaBatch) -> Exception | None:
        error = await self._send([(stream, batch)])
        if error is not None and not isinstance(error, StoreError):
            stream.failed_alone += 1
            if isinstance(error, CallerError) or stream.failed_alone >= FAILED_ALONE_MAX:
                self._cut(stream, f"{type(error).__name__}: {error}")
                return None
        return error

    def _cut(self, stream: DeltaStream, why: str) -> None:
        self._forget(stream)
        self._note_cut(stream, why)

    def _note_cut(self, stream: DeltaStream, why: str) -> None:
        self.streams_cut += 1
        extra = {"action": "preview_cut", "chat": stream.chat_id, "fence": stream.chat.fence, "error": why}
        log.warning("a preview ends before its response", extra=extra)
