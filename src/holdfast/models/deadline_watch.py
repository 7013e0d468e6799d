"""Which deadline of a model call is running, and the error that says it passed."""

from collections.abc import Callable

from holdfast.core.deadlines import ModelDeadlines
from holdfast.errors import CallTimeout, ConnectTimeout, FirstByteTimeout, ProviderTimeout, SilenceTimeout

_TICK_S = 0.001  # an event loop's timer may be this early


class Watch:
    """One attempt. `where` names the other side in errors; `now` is the event loop's clock.

    It starts with the connection. `sent` begins the wait for the first piece, `progressed` for the next one: call it
    when the reader of the last piece wants more, so that the reader's time is not the provider's.
    """

    __slots__ = ("_call_at", "_connect_at", "_limits", "_margin_s", "_now", "_progress_at", "_sent_at", "_where")

    def __init__(self, limits: ModelDeadlines, where: str, now: Callable[[], float], margin_s: float = 0.0) -> None:
        began_at = now()
        self._limits = limits
        self._where = where
        self._now = now
        self._margin_s = margin_s
        self._connect_at = began_at + limits.connect_s + margin_s
        self._call_at = began_at + limits.call_s + margin_s
        self._sent_at: float | None = None
        self._progress_at: float | None = None

    def sent(self, in_s: float = 0.0) -> None:
        """Now, or at the latest in so many seconds."""
        self._sent_at = self._now() + in_s

    def progressed(self) -> None:
        self._progress_at = self._now()

    def alive(self) -> None:
        """It is there, and said nothing yet: the wait that runs begins anew."""
        if self._progress_at is not None:
            self._progress_at = self._now()
        elif self._sent_at is not None:
            self._sent_at = self._now()

    @property
    def due_at(self) -> float:
        if self._progress_at is not None:
            return min(self._progress_at + self._limits.silence_s + self._margin_s, self._call_at)
        if self._sent_at is not None:
            return min(self._sent_at + self._limits.first_byte_s + self._margin_s, self._call_at)
        return min(self._connect_at, self._call_at)

    def late(self, request_id: str | None = None) -> ProviderTimeout:
        limits, where = self._limits, self._where
        if self._now() >= self._call_at - _TICK_S:
            message = f"the call to {where} took longer than {limits.call_s:g} s (call_s)"
            return CallTimeout(message, limits.call_s, request_id=request_id)
        if self._progress_at is not None:
            message = f"nothing more of the response from {where} for {limits.silence_s:g} s (silence_s)"
            return SilenceTimeout(message, limits.silence_s, request_id=request_id)
        if self._sent_at is not None:
            message = f"nothing of the response from {where} within {limits.first_byte_s:g} s (first_byte_s)"
            return FirstByteTimeout(message, limits.first_byte_s, request_id=request_id)
        return ConnectTimeout(
            f"no connection to {where} within {limits.connect_s:g} s (connect_s): check the address and the network, "
            "or whether all connections are in use",
            limits.connect_s,
        )
