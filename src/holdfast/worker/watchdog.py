"""Watches the event loop from a thread: is it still running, and if not, what holds it up?

Twice a second the thread asks the loop to say when it got to it (`call_soon_threadsafe`); a loop with nothing to do
pays nothing in between. An answer that takes longer than a second is a stall: recorded with the stack of what the
loop's thread was doing, and shown.

At the hard limit the process ends, so that others take over. That must work when the GIL is held and no thread of
ours can run, so the guard decides it (`system/guard_process.py`): the watchdog passes the loop's answers on to
it as a beat, and when they stay away the guard sends SIGXCPU, on which `faulthandler`, which needs no GIL, writes all
stacks to standard error before the process exits. faulthandler's own timer would do without the guard, but it counts
the time in which the process was stopped, and ends it at the very moment it is woken.

The thread is not the one that renews the lease: that one may wait seconds for a database.
"""

import asyncio
import ctypes
import faulthandler
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from holdfast.core.records import Frozen
from holdfast.log_context import logger
from holdfast.system import threads
from holdfast.system.clock import Clock
from holdfast.worker import stacks

log = logger("holdfast.watchdog")

WATCH_S = 0.5
STALL_S = 1.0
HARD_LIMIT_S = 60.0
STALLS_KEPT = 20


class LoopStall(Frozen):
    """`frozen`: the watching thread did not run either. The process was stopped, or something held the GIL.

    Its stack is then from the moment after.
    """

    began_at: int
    lasted_ms: int | None  # None while it lasts
    frozen: bool
    stack: str


class Watchdog:
    """Made and started in the loop's thread. `look` is what its own thread does twice a second.

    `beat` is called after every answer of the loop, `rest` when there is no running loop to watch.
    """

    def __init__(
        self,
        clock: Clock,
        beat: Callable[[], None],
        rest: Callable[[], None],
        report_s: float = STALL_S,
        hard_limit_s: float | None = HARD_LIMIT_S,
    ) -> None:
        self._clock = clock
        self._beat = beat
        self._rest = rest
        # A healthy loop must beat several times within the hard limit, however short that is.
        self._watch_s = min(WATCH_S, (hard_limit_s or HARD_LIMIT_S) / 8)
        self._report_s = report_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_at: float | None = None
        self._answered_at: float | None = None
        self._looked_at = time.monotonic()
        self._frozen_s = 0.0  # of the time since the question, how much this thread did not run
        self._open: LoopStall | None = None
        self._closed: deque[LoopStall] = deque(maxlen=STALLS_KEPT)
        self._last_lag_s = 0.0
        self._closed_count = 0
        self._longest_ms = 0

    # --- figures -----------------------------------------------------------------------------------

    @property
    def lag_ms(self) -> int:
        """How long the loop takes to get to something: by its last answer, or longer if one is overdue now."""
        asked_at, answered_at = self._asked_at, self._answered_at
        waited_s = (answered_at or time.monotonic()) - asked_at if asked_at is not None else 0.0
        return int(max(self._last_lag_s, waited_s) * 1000)

    @property
    def stalls(self) -> list[LoopStall]:
        """The last ones, oldest first; one that still lasts is among them."""
        current = self._open
        return [*self._closed, current] if current is not None else list(self._closed)

    @property
    def stall_count(self) -> int:
        return self._closed_count + (self._open is not None)

    @property
    def longest_stall_ms(self) -> int:
        return max(self._longest_ms, self.lag_ms) if self._open is not None else self._longest_ms

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._looked_at = time.monotonic()
        self._beat()  # we are called from the loop; what follows may hold the GIL before the thread can say so
        self._thread = threads.start("watchdog", self._serve)

    def stop(self) -> None:
        """Does not wait: the thread ends within its next look."""
        self._stopping.set()

    def _serve(self) -> None:
        self._ask(time.monotonic())
        while not self._stopping.wait(self._watch_s):
            self.look()
        self._rest()

    def look(self) -> None:
        now = time.monotonic()
        overslept_s = now - self._looked_at - self._watch_s
        self._looked_at = now
        if overslept_s >= self._report_s:
            self._frozen_s += overslept_s
            self._close(self._stall(overslept_s), overslept_s, frozen=True)
        if not self._loop.is_running():  # between two runs, or for good: there is nothing to hold up
            self._asked_at = self._open = None
            self._rest()
        elif self._asked_at is None:
            self._ask(now)
        elif self._answered_at is not None:
            self._take_answer(self._answered_at - self._asked_at)
            self._ask(now)
        elif now - self._asked_at - self._frozen_s >= self._report_s and self._open is None:
            self._open = self._stall(now - self._asked_at)
            self._report(self._open)

    def _ask(self, now: float) -> None:
        self._asked_at, self._answered_at, self._frozen_s = now, None, 0.0
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # closed just now
            self._asked_at = None

    def _answer(self) -> None:
        self._answered_at = time.monotonic()

    def _take_answer(self, lag_s: float) -> None:
        self._last_lag_s = lag_s
        self._beat()
        stall, self._open = self._open, None
        if stall is not None or lag_s - self._frozen_s >= self._report_s:
            self._close(stall or self._stall(lag_s), lag_s, frozen=False)

    def _close(self, stall: LoopStall, lasted_s: float, *, frozen: bool) -> None:
        lasted_ms = int(lasted_s * 1000)
        stall = LoopStall(began_at=stall.began_at, lasted_ms=lasted_ms, frozen=frozen, stack=stall.stack)
        self._closed.append(stall)
        self._closed_count += 1
        self._longest_ms = max(self._longest_ms, lasted_ms)
        self._report(stall)

    def _stall(self, lag_s: float) -> LoopStall:
        began_at = self._clock.wall_ms() - int(lag_s * 1000)
        return LoopStall(began_at=began_at, lasted_ms=None, frozen=False, stack=stacks.of_thread(self._loop_thread))

    def _report(self, stall: LoopStall) -> None:
        extra = {"action": "loop_stalled", "lasted_ms": stall.lasted_ms, "frozen": stall.frozen, "stack": stall.stack}
        log.warning("the event loop stalled", extra=extra)


# --- the end at the hard limit -----------------------------------------------------------------------


class _LastWords:
    """SIGXCPU writes all stacks to standard error and exits: one handler per process, for all its workers.

    The exit is libc's own `_exit`, called by the kernel: the default action would do, but not for a process that is
    the first of its container, which survives every signal that it does not handle.

    faulthandler reads the frames of threads that may be running, and can crash over one. Here that is no loss: the
    process ends either way, and a loop that stood still was told of with its stack long before.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._users = 0
        self._installed = False

    def install(self) -> None:
        with self._mutex:
            self._users += 1
            if self._users > 1:
                return
            if signal.getsignal(signal.SIGXCPU) is not signal.SIG_DFL:
                log.warning("SIGXCPU is handled by other code", extra={"action": "last_words_not_installed"})
                return
            libc = ctypes.CDLL(None)
            libc.signal(int(signal.SIGXCPU), ctypes.cast(libc._exit, ctypes.c_void_p))
            if sys.__stderr__ is not None:
                faulthandler.register(signal.SIGXCPU, file=stacks.STDERR, all_threads=True, chain=True)
            self._installed = True

    def remove(self) -> None:
        with self._mutex:
            self._users -= 1
            if self._users == 0 and self._installed:
                self._installed = False
                faulthandler.unregister(signal.SIGXCPU)
                ctypes.CDLL(None).signal(int(signal.SIGXCPU), None)


last_words = _LastWords()
