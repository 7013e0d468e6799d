"""One timer for all streams: each is ended by its own deadline, and none by another's."""

import asyncio

import pytest

from holdfast.core.deadlines import ModelDeadlines
from holdfast.errors import FirstByteTimeout
from holdfast.models.assembler import Assembler
from holdfast.models.base import TextDelta
from holdfast.models.deadline_watch import Watch
from holdfast.models.stream_guard import GuardedStream, GuardRound


def _guarded(round: GuardRound, first_byte_s: float) -> GuardedStream:
    watch = Watch(ModelDeadlines(first_byte_s=first_byte_s), "a model", asyncio.get_running_loop().time)
    watch.sent()
    task = asyncio.current_task()
    assert task is not None
    return GuardedStream(round, watch, task, Assembler(lambda: "call"))


async def test_a_stream_with_less_time_than_those_before_it_is_ended_at_its_own_deadline() -> None:
    round = GuardRound()

    async def patient() -> None:
        with _guarded(round, 300) as guarded:
            guarded.last = TextDelta(text="on")
            await asyncio.Event().wait()

    others = asyncio.ensure_future(patient())
    await asyncio.sleep(0)
    armed_at: list[tuple[float, float]] = []

    async def hurried() -> None:
        with _guarded(round, 0.01) as guarded:
            assert round._timer is not None
            armed_at.append((round._timer.when(), guarded.due_at))
            await asyncio.sleep(30)

    with pytest.raises(FirstByteTimeout):
        await hurried()
    ((rings_at, due_at),) = armed_at
    assert rings_at == due_at, "it is seen only when the timer of the other rings"
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert not others.done()
    others.cancel()
    await asyncio.wait((others,))
    assert others.cancelled()


async def test_a_cancellation_from_elsewhere_passes_even_at_the_deadline() -> None:
    round = GuardRound()

    async def reads() -> None:
        with _guarded(round, 0.01):
            await asyncio.sleep(30)

    reading = asyncio.ensure_future(reads())
    await asyncio.sleep(0)
    (stream,) = round._streams
    stream.look(asyncio.get_running_loop().time() + 1)
    reading.cancel()
    await asyncio.wait((reading,))
    assert reading.cancelled()


async def test_a_round_is_used_again_by_the_next_loop() -> None:
    round = GuardRound()

    async def late() -> None:
        with pytest.raises(FirstByteTimeout), _guarded(round, 0.01):
            await asyncio.sleep(30)

    await asyncio.to_thread(lambda: asyncio.run(late()))
    await late()
