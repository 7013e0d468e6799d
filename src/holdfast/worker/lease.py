"""Keeping the worker's lease from a thread that does not depend on the event loop.

Trust ends at `renewal started + TTL - margin`, by boot time: a sleeping laptop, a stopped process or a slow store can
only make it end earlier than another worker may end the lease. Without trust the worker must not act, whatever the
database says. The next renewal decides: it brings trust back, or says that the lease was ended.
"""

import threading
from collections.abc import Callable

from msgspec import Raw

from holdfast.core.leases import margin_ms, renewal_interval_s
from holdfast.errors import HoldfastError, LeaseLost
from holdfast.log_context import logger
from holdfast.store.contract import LeaseLine, Store
from holdfast.store.records import WorkerInfo
from holdfast.system import threads
from holdfast.system.clock import Clock

log = logger("holdfast.lease")

RETRY_S = 1.0


class LeaseKeeper:
    """Registers on `start`, renews until `stop`, and says whether the worker may still act."""

    def __init__(
        self,
        store: Store,
        worker: WorkerInfo,
        clock: Clock,
        on_doubt: Callable[[], None],
        on_ended: Callable[[], None],
        describe: Callable[[], Raw | None] = lambda: None,
    ) -> None:
        """`on_doubt`: trust ran out, and comes back with a renewal. `on_ended`: the lease was, or its thread keeps it
        no more; once. `describe` is called before every renewal: what it returns is what the fleet reads of us.
        """
        self._store = store
        self._worker = worker
        self._clock = clock
        self._on_doubt = on_doubt
        self._on_ended = on_ended
        self._describe = describe
        self._ttl_ms = store.options.lease_ttl_ms
        self._trusted_until_ms = 0
        self._stopping = threading.Event()
        self._registered = threading.Event()
        self._error: BaseException | None = None
        self._line: LeaseLine | None = None
        self._taken = False
        self._doubting = False
        self.renewals = 0
        self.failed_renewals = 0
        self.doubts = 0  # how often trust ran out

    def start(self) -> None:
        """Returns once the lease is held. Raises what kept it from being taken."""
        self._thread = threads.start("lease", self._serve)
        self._registered.wait(self._store.options.deadline_s)
        if self._error is not None:
            raise self._error
        if not self.trusted():
            raise LeaseLost(self._worker.worker)

    def trusted(self) -> bool:
        return not self._stopping.is_set() and self._clock.boot_ms() < self._trusted_until_ms

    @property
    def trust_left_ms(self) -> int:
        return max(0, self._trusted_until_ms - self._clock.boot_ms())

    def stop(self, wait_s: float) -> None:
        self.abandon()
        self._thread.join(wait_s)

    def abandon(self) -> None:
        """No trust from now on. The thread retires the lease and ends; no one waits for it."""
        self._stopping.set()
        self._registered.set()  # the waiter in `start`

    def _serve(self) -> None:
        try:
            began = self._clock.boot_ms()
            self._open().register(self._worker)
            self._trust_from(began)
            self._taken = True
            self._registered.set()
            self._keep()
        except LeaseLost:
            self._trusted_until_ms = 0
            log.warning("the lease was ended", extra={"action": "lease_lost", "worker": self._worker.worker})
        except HoldfastError as error:
            self._error = error
            extra = {"action": "lease_failed", "worker": self._worker.worker, "error": str(error)}
            log.error("the lease could not be taken", extra=extra)
        finally:
            self._registered.set()
            self._leave()

    def _leave(self) -> None:
        """However it ended, even where it is unknown whether the lease was taken: this id is not used any more, and
        others should not have to watch it."""
        try:
            if self._line is not None or self._taken:
                self._open().retire(self._worker.worker)
        except HoldfastError as error:
            log.warning("the lease was not given back", extra={"action": "retire_failed", "error": str(error)})
        finally:
            self._close()
            if self._taken and not self._stopping.is_set():
                self._on_ended()

    def _keep(self) -> None:
        """Until we stop. Raises LeaseLost when another worker ended the lease."""
        wait_s = interval_s = renewal_interval_s(self._ttl_ms)
        while not self._stopping.wait(wait_s):
            if self._renew():
                wait_s = interval_s
                continue
            wait_s = min(RETRY_S, interval_s)
            if self.trusted():
                wait_s = min(wait_s, self.trust_left_ms / 1000)
            else:
                self._close()  # whatever is wrong with it: another may be better
                self._doubt()

    def _doubt(self) -> None:
        if not self._doubting:
            self._doubting = True
            self.doubts += 1
            log.warning("no renewal: trust ran out", extra={"action": "lease_doubted", "worker": self._worker.worker})
            self._on_doubt()

    def _renew(self) -> bool:
        began = self._clock.boot_ms()
        try:
            self._open().renew(self._worker.worker, self._describe())
        except LeaseLost:
            raise
        except HoldfastError as error:
            # Tried again for as long as it takes: trust runs out by itself.
            self.failed_renewals += 1
            self._store.pulse.failed(began, error)
            log.warning("renewal failed", extra={"action": "renewal_failed", "error": str(error)})
            return False
        self._trust_from(began)
        self._store.pulse.proved()
        self._doubting = False
        self.renewals += 1
        return True

    def _open(self) -> LeaseLine:
        if self._line is None:
            self._line = self._store.lease_line()
        return self._line

    def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _trust_from(self, began_ms: int) -> None:
        self._trusted_until_ms = began_ms + self._ttl_ms - margin_ms(self._ttl_ms)
