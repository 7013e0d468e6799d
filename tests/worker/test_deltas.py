"""Previews on their way into the store: what goes wrong with them costs previews, and only those."""

from holdfast import faults
from holdfast.core.journal import Delta
from holdfast.core.records import attempt_id
from holdfast.store.base import Store
from holdfast.worker.deltas import DeltaFlusher
from tests.support.chats import Hand, new_chat
from tests.support.waiting import eventually, until


async def test_a_flush_that_fails_in_a_way_nobody_foresaw_is_not_the_last(store: Store) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    hand = Hand(store)
    fence = (await hand.take("c1")).chat.fence
    deltas = DeltaFlusher(store)
    deltas.start()
    stream = deltas.open("c1", hand.name, fence, attempt_id(fence, 1))

    def fail() -> None:
        raise RuntimeError("nobody foresaw this")

    faults.arm("deltas.before", fail)
    deltas.add(stream, Delta(part="text", text="lost"))
    await until(lambda: deltas.dropped_flushes)
    deltas.add(stream, Delta(part="text", text="shown"))
    await eventually(lambda: store.read_deltas("c1", stream.attempt))
    await until(lambda: deltas.flushes == 1)  # counted once its commit was answered
    await deltas.close(stream)
    await deltas.stop()
