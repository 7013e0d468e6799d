"""What a child says, read by the loop: somebody who takes long to make sense of it does not keep the loop."""

import asyncio
import os
import threading

import pytest

from holdfast.system import capture
from holdfast.system.capture import CHUNK_BYTES, LEAST_BYTES, LONG_S, SHARE, Kept, PipeReader

FLOOD = b"{}\n" * 300_000


class Clock:
    """Time passes only while a piece is heard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(capture, "monotonic", lambda: self.now)


async def test_who_takes_long_for_each_piece_gets_smaller_ones_and_the_loop_its_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program floods its output with events of three bytes: each costs more to read than to write."""
    per_byte_s = 1e-5  # 0.65 s for a whole piece of the usual size
    clock, sizes, pauses, heard = Clock(monkeypatch), [], [], bytearray()
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def hear(data: bytes) -> None:
        sizes.append(len(data))
        heard.extend(data)
        clock.now += len(data) * per_byte_s

    def call_later(delay: float, callback: object, *given: object) -> object:
        if getattr(callback, "__name__", "") == "_go_on":
            pauses.append(delay)
            delay = 0.0
        return later(delay, callback, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", call_later)
    ours, theirs = os.pipe()
    writer = threading.Thread(target=_write, args=(theirs,))
    writer.start()
    reader = PipeReader(ours, Kept(65_536), hear)
    try:
        assert await reader.ended(60.0)
    finally:
        reader.close()
        writer.join()
    assert bytes(heard) == FLOOD, "nothing of it is lost"
    assert sizes[0] <= CHUNK_BYTES
    settled = sizes[10:]
    assert max(settled) * per_byte_s < 4 * LONG_S
    assert min(settled[:-1]) >= LEAST_BYTES // 2
    took = [size * per_byte_s for size in sizes]
    long = [(s, pause) for s, pause in zip(took[10:], pauses[10:], strict=False) if s > LONG_S]
    assert all(pause >= SHARE * s * 0.99 for s, pause in long)


async def test_what_is_still_in_the_pipe_is_heard_when_it_is_closed_however_long_a_piece_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its result comes last."""
    clock, heard = Clock(monkeypatch), bytearray()

    def hear(data: bytes) -> None:
        heard.extend(data)
        clock.now += 60.0

    ours, theirs = os.pipe()
    reader = PipeReader(ours, Kept(65_536), hear)
    reader._chunk_bytes = LEAST_BYTES
    os.write(theirs, b"x" * 60_000)
    reader.close()
    assert len(heard) == 60_000
    os.close(theirs)


def _write(fd: int) -> None:
    rest = memoryview(FLOOD)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.close(fd)


async def test_a_pipe_whose_other_end_is_closed_is_read_to_its_end_and_closed_once() -> None:
    ours, theirs = os.pipe()
    said: list[bytes] = []
    reader = PipeReader(ours, None, said.append)
    os.write(theirs, b"last words")
    os.close(theirs)
    reader.close()  # comes to the end of the pipe before the loop has looked at it
    reader.close()
    assert said == [b"last words"]
    assert await reader.ended(30.0)
