"""The database's clock, as well as this process can know it without asking.

Wake-ups go by the server's clock, so that machines need not agree on the time; leases go by none. A transaction reads
it; a commit decided ahead uses the last reading plus the time that passed here since. The reading is taken as of its
arrival, a little later than it was made, so our idea of the time is never ahead of the server's: what we say is due
now, is due there.

Where a test owns the time, its clock is used for everything instead.
"""

from holdfast.system.clock import Clock, SystemClock


class DatabaseClock:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owned = not isinstance(clock, SystemClock)
        self._offset_ms: int | None = None

    def observe(self, server_ms: int) -> int:
        """A reading of the server's clock that has just arrived. Returns what the time is."""
        self._offset_ms = server_ms - self._clock.boot_ms()
        return self.now()

    def now(self) -> int:
        if self._owned or self._offset_ms is None:
            return self._clock.wall_ms()
        return self._clock.boot_ms() + self._offset_ms

    def values(self) -> dict[str, int | None]:
        """For SQL. None: the server reads its own clock."""
        return {"wall": self._clock.wall_ms() if self._owned else None}

    @property
    def offset_ms(self) -> int | None:
        """How far the server's clock is ahead of ours, for people."""
        return None if self._offset_ms is None else self.now() - self._clock.wall_ms()
