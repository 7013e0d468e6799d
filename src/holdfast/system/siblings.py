"""What the processes under one supervisor know of each other without asking: how many chats each drives, and whether
it has room; and a nudge, by which one says to another that there is something to claim.

The figures lie in a piece of memory that all of them share, a slot for each. They are hints: one that is read while
it is written, or of a process that has just died, costs an unequal share and nothing else. A slot whose process has
not touched it for a while does not count, so that no chat waits for a process that hangs.
"""

import mmap
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

_SLOT = struct.Struct("=qqqq")
FRESH_S = 3.0  # a process touches its slot at least once a second while its event loop runs
TOGETHER = 2  # chats that a process claims at once while it drives few
TOGETHER_SHARE = 8  # of those that it drives, one part in so many
YIELD_S = 0.1  # how long it leaves a chat to a sibling that drives fewer


class Load(NamedTuple):
    pid: int  # 0: the slot is free
    chats: int
    room: int
    touched_ns: int


class LoadTable:
    """Not locked: see above."""

    def __init__(self, fd: int, slots: int) -> None:
        self.slots = slots
        self._memory = mmap.mmap(fd, slots * _SLOT.size)

    @staticmethod
    def size(slots: int) -> int:
        return slots * _SLOT.size

    def write(self, slot: int, load: Load) -> None:
        _SLOT.pack_into(self._memory, slot * _SLOT.size, *load)

    def clear(self, slot: int) -> None:
        self.write(slot, Load(0, 0, 0, 0))

    def read(self, slot: int) -> Load:
        return Load._make(_SLOT.unpack_from(self._memory, slot * _SLOT.size))

    def close(self) -> None:
        self._memory.close()


class Siblings:
    """Of the process in `slot`. `ear` hears nudges, `mouths` reach the ears of all slots, its own too."""

    def __init__(
        self,
        slot: int,
        pid: int,
        table: LoadTable,
        ear: socket.socket,
        mouths: Sequence[socket.socket],
        now_ns: Callable[[], int] = time.monotonic_ns,  # the same in all processes of a machine
    ) -> None:
        self._slot = slot
        self._pid = pid
        self._table = table
        self._mouths = mouths
        self._now_ns = now_ns
        self._yielding_since_ns: int | None = None
        self.ear = ear
        self.nudges = 0
        ear.setblocking(False)
        self.hear()  # what was said to the process that had the slot before

    def touch(self, chats: int, room: int) -> None:
        """`room`: how many more it could drive; none while it goes."""
        self._table.write(self._slot, Load(self._pid, chats, room, self._now_ns()))

    def hear(self) -> None:
        """Takes all nudges that came."""
        with suppress(BlockingIOError):
            while self.ear.recv(16):
                pass

    def share(self, chats: int, room: int) -> int:
        """How many of `room` to claim now. None, and a sibling is nudged, while one drives clearly fewer; but not for
        longer than YIELD_S, whatever that one does: it may hang, or have the same chats refused by its own limits.
        """
        others = self._others()
        if not others or room <= 0:
            self._yielding_since_ns = None
            return room
        slot, least = min(others, key=lambda other: other[1].chats)
        share = least.chats - chats + max(TOGETHER, chats // TOGETHER_SHARE)
        if share > 0:
            self._yielding_since_ns = None
            return min(room, share)
        now_ns = self._now_ns()
        if self._yielding_since_ns is None:
            self._yielding_since_ns = now_ns
        elif now_ns - self._yielding_since_ns >= YIELD_S * 1e9:
            self._yielding_since_ns = None
            return min(room, max(TOGETHER, chats // TOGETHER_SHARE))
        self._nudge(slot)
        return 0

    @property
    def yields(self) -> bool:
        """Whether the last share was none, for a sibling's sake."""
        return self._yielding_since_ns is not None

    def _others(self) -> list[tuple[int, Load]]:
        fresh_ns = self._now_ns() - int(FRESH_S * 1e9)
        loads = ((slot, self._table.read(slot)) for slot in range(self._table.slots) if slot != self._slot)
        return [(slot, load) for slot, load in loads if load.pid and load.room > 0 and load.touched_ns >= fresh_ns]

    def _nudge(self, slot: int) -> None:
        """Where the other's ear is full, it has been told."""
        self.nudges += 1
        with suppress(OSError):
            self._mouths[slot].send(b"!", socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._table.clear(self._slot)
