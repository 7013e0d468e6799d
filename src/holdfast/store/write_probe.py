"""Whether writes work: a store whose reads answer may take none, because a synchronous standby is dead, a disk fails
every sync, or a process is frozen with the write lock.

What tells is a write that waits for no chat: a lease's renewal, or one made for this alone where none has told for a
while. A client's write that fails only makes us look at once: its chat may be locked, and all others fine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.errors import StoreError
from holdfast.system.clock import Clock, dice

log = logging.getLogger("holdfast.store")

PROOF_S = 10.0  # so old may the last proof be before another is made
AGAIN_S = 1.0  # after a write that failed


class Pulse:
    """Figures from any thread; `beat` and `run_forever` in the event loop."""

    def __init__(self, clock: Clock, write: Callable[[], Awaitable[None]]) -> None:
        """`write` makes a small durable write, and raises StoreError."""
        self._clock = clock
        self._write = write
        self._proved_ms: int | None = None
        self._failing_ms: int | None = None  # since when
        self._asking_ms: int | None = None  # a write is under way since
        self._waiting: set[asyncio.Event] = set()  # one for each who keeps it: an event belongs to one loop
        self.error: str | None = None
        self.proofs = 0

    @property
    def age_s(self) -> float | None:
        """Of the last proof that writes work. None: there was none yet."""
        return None if self._proved_ms is None else (self._clock.boot_ms() - self._proved_ms) / 1000

    @property
    def failing_s(self) -> float:
        """For how long no write has worked, as far as one was tried."""
        since = self._failing_ms if self._failing_ms is not None else self._asking_ms
        return 0.0 if since is None else (self._clock.boot_ms() - since) / 1000

    def proved(self) -> None:
        self._proved_ms = self._clock.boot_ms()
        if self._failing_ms is not None:
            said = {"action": "store.writes_again", "after_s": round(self.failing_s, 1)}
            log.warning("the store takes writes again", extra=said)
        self._failing_ms, self.error = None, None

    def failed(self, began_ms: int, error: Exception) -> None:
        """A write that waits for no chat."""
        if self._failing_ms is None:
            self._failing_ms = began_ms
            said = {"action": "store.no_writes", "error": f"{type(error).__name__}: {error}"}
            log.warning("the store takes no writes", extra=said)
        self.error = f"{type(error).__name__}: {error}"

    def doubt(self) -> None:
        """Any other that failed: look at once."""
        for doubted in self._waiting:
            doubted.set()

    async def run_forever(self) -> None:
        doubted = asyncio.Event()
        self._waiting.add(doubted)
        try:
            while True:
                pause_s = AGAIN_S if self._failing_ms is not None else max(self._due_in_s(), 0.0)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s * dice.uniform(1.0, 1.2)):
                        await doubted.wait()
                if doubted.is_set() or self._failing_ms is not None or self._due_in_s() <= 0:
                    doubted.clear()
                    await self.beat()
        finally:
            self._waiting.discard(doubted)

    def _due_in_s(self) -> float:
        age_s = self.age_s
        return 0.0 if age_s is None else PROOF_S - age_s

    async def beat(self) -> None:
        """Make a write, unless one is under way. Raises nothing."""
        if self._asking_ms is not None:
            await asyncio.sleep(AGAIN_S)
            return
        began_ms = self._asking_ms = self._clock.boot_ms()
        self.proofs += 1
        try:
            await self._write()
        except StoreError as error:
            self.failed(began_ms, error)
        except Exception as error:  # whatever it is, the next one is made all the same
            log.error("a write could not be tried", extra={"action": "store.pulse_failed"}, exc_info=error)
            self.failed(began_ms, error)
        else:
            self.proved()
        finally:
            self._asking_ms = None
