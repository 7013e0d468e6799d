"""The event loop's time, which a test can move on: a deadline comes when the test says so.

With a short deadline for a whole test, a machine that stands still for a moment fails what only prepares it, and the
test waits for the deadline besides. With this, everything has the usual time, and what is stuck meets its deadline at
once. Only what goes by the loop's clock: not threads, not other processes.
"""

import asyncio


class LoopTime:
    """Of the running loop, from here on. Goes on by itself as well."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._real = loop.time
        self._ahead_s = 0.0
        loop.time = self.now  # type: ignore[method-assign]

    def now(self) -> float:
        return self._real() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Whoever is due by then wakes in the loop's next turn."""
        self._ahead_s += seconds
