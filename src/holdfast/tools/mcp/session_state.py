"""What is known of a session with an MCP server while it lasts, and of why it ended. Both transports write it."""

import asyncio
from collections.abc import Callable

from holdfast.core.records import Frozen
from holdfast.system.capture import Kept

# A server may say everything twice, as text and as structure. The SDK reads it on the event loop: 20 MB take it a
# tenth to a third of a second.
MESSAGE_BYTES_MAX = 32 << 20
STDERR_BYTES = 16_384
EPITAPH_CHARS = 1_000


class SessionEnded(Frozen):
    """Why there will be no more messages."""

    reason: str


class SessionState:
    """`stirred` is called when it ends, when it is in doubt, and when it wants a login."""

    def __init__(self, stirred: Callable[[], None]) -> None:
        self._stirred = stirred
        self.ended: SessionEnded | None = None
        self.closed = asyncio.Event()  # nothing of it is left
        self.doubted = False  # the server may not know our session any more
        self.login_wanted: str | None = None  # why no request gets through: it is left as soon as none is under way
        self.garbage = 0  # lines on standard output that are no messages
        self.last_garbage = ""
        self.pid: int | None = None
        self.stderr = Kept(STDERR_BYTES)

    def end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = SessionEnded(reason=reason)
            self._stirred()

    def doubt(self) -> None:
        self.doubted = True
        self._stirred()

    def want_login(self, why: str) -> None:
        if self.login_wanted is None:
            self.login_wanted = why
            self._stirred()

    def epitaph(self) -> str:
        """What is known of why it went wrong, beside the error itself."""
        said = self.stderr.text.strip()[-EPITAPH_CHARS:]
        found = [f"standard error ends with: {said}"] if said else []
        if self.garbage:
            found.insert(0, f"{self.garbage:,} lines of its output were no messages, the last: {self.last_garbage}")
        return "; ".join(found)
