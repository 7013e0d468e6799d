"""What a child process says: read by the event loop, kept in bounded memory.

The reader goes on reading after the kept part is full, and throws away what stands between head and tail. To stop
reading would block the child until its deadline, and to end it for talking too much would turn a noisy success into a
half-done failure. But a flood must not take the event loop from the chats: beyond the kept part it is read once per
millisecond, out of a pipe made as large as the system allows, and the child waits for us now and then. Where somebody
makes sense of each piece, and takes long for it, pieces get smaller and pauses longer: the chats keep three quarters
of the loop.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from time import monotonic

CHUNK_BYTES = 65_536
FLOOD_BYTES = 1 << 20  # what Linux lets any user make of a pipe
FLOOD_PAUSE_S = 0.001
LEAST_BYTES = 1_024  # of a piece that takes long
LONG_S = 0.005  # for one piece: as long as others can do without the loop
SHARE = 3  # a pause is so many times as long as what it follows
PAUSE_S_MAX = 1.0


class Kept:
    """Head and tail of a stream: `bytes_max` of it, in no more than twice that much memory, whatever comes."""

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 2:
            raise ValueError(f"bytes_max is {bytes_max}; head and tail need a byte each")
        self._head_max = bytes_max // 2
        self._tail_max = bytes_max - self._head_max
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_max - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_max :]
        if len(self._tail) > 2 * self._tail_max:  # not each time: a stream of single bytes must not cost a copy each
            del self._tail[: -self._tail_max]

    @property
    def full(self) -> bool:
        return self.total >= self._head_max + self._tail_max

    @property
    def text(self) -> str:
        tail = bytes(self._tail[-self._tail_max :])
        left_out = self.total - len(self._head) - len(tail)
        if left_out == 0:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        head = self._head.decode("utf-8", "replace")
        return f"{head}\n[… {left_out:,} bytes left out …]\n{tail.decode('utf-8', 'replace')}"

    def take(self, *, whole: bool) -> str:
        """What is kept; from now on, only what comes after it. Unless this is the whole, a character of which only
        the first bytes are there is left for the next time.
        """
        last = self._tail or self._head
        begun = bytes(last[-_begun(last) :]) if not whole and _begun(last) else b""
        if begun:
            del last[-len(begun) :]
            self.total -= len(begun)
        text = self.text
        self._head.clear()
        self._tail.clear()
        self.total = 0
        self.add(begun)
        return text


def _begun(data: bytearray) -> int:
    """How many bytes at the end are the beginning of a character in UTF-8."""
    for back, byte in enumerate(reversed(data[-3:]), start=1):
        if byte & 0b1100_0000 != 0b1000_0000:  # the first byte of a character, or all of it
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if length > back else 0
    return 0


class PipeReader:
    """Reads a pipe of ours, which it closes, until its end or until the caller wants no more.

    `heard` is called with each piece; it is ours and must be quick. Without `kept`, that is all.
    """

    def __init__(self, fd: int, kept: Kept | None, heard: Callable[[bytes], None] | None = None) -> None:
        self._fd = fd
        self._kept = kept
        self._heard = heard
        self._chunk_bytes = CHUNK_BYTES
        self._wide = False
        self._took_s = 0.0  # for the last piece
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    async def ended(self, within_s: float) -> bool:
        """Whether every holder has closed the other end."""
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """A process that still holds the other end writes into the void. What is in the pipe is read first."""
        if self._fd < 0:
            return
        for _ in range(FLOOD_BYTES // CHUNK_BYTES):
            self._chunk_bytes = CHUNK_BYTES
            if not self._take():
                break
        self._end()

    def _read(self) -> None:
        if not self._take():
            return
        floods = self._kept is not None and self._kept.full
        if floods and not self._wide:
            self._widen()
        if floods or self._took_s > LONG_S:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(self._pause_s, self._go_on)

    @property
    def _pause_s(self) -> float:
        return min(max(FLOOD_PAUSE_S, SHARE * self._took_s), PAUSE_S_MAX)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._read)

    def _take(self) -> bool:
        """One piece; False if there is none now."""
        if self._fd < 0:
            return False
        try:
            data = os.read(self._fd, self._chunk_bytes)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        if self._kept is not None:
            self._kept.add(data)
        if self._heard is not None:
            self._hear(data, self._heard)
        return True

    def _hear(self, data: bytes, heard: Callable[[bytes], None]) -> None:
        began = monotonic()
        heard(data)
        self._took_s = monotonic() - began
        if self._took_s > LONG_S:
            self._chunk_bytes = max(LEAST_BYTES, min(self._chunk_bytes, len(data)) // 2)
        elif self._took_s < LONG_S / 4 and len(data) == self._chunk_bytes:
            self._chunk_bytes = min(2 * self._chunk_bytes, FLOOD_BYTES if self._wide else CHUNK_BYTES)

    def _widen(self) -> None:
        self._wide = True
        if self._heard is None:
            self._chunk_bytes = FLOOD_BYTES
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, FLOOD_BYTES)
        except (AttributeError, OSError):  # macOS, or this user has enough of large pipes: slower, and as true
            return

    def _end(self) -> None:
        if self._fd < 0:
            return  # `close` came to the end of the pipe itself
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._ended.set()
