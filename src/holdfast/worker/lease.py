"""Keeping the worker's lease from a thread that does not depend on the event loop.

Trust ends at `renewal started + TTL - margin`, by boot time: a sleeping laptop, a stopped process or a slow store can
only make it end earlier than the lease itself. After that the worker must not act, whatever the database says.
"""

import logging
import threading
from collections.abc import Callable

from msgspec import Raw

from holdfast import threads
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, LeaseLost
from holdfast.store.base import LeaseLine, Store, WorkerInfo

log = logging.getLogger("holdfast.lease")

RENEWALS_PER_TTL = 3.3
MARGIN_SHARE = 0.1
RETRY_S = 1.0


class LeaseKeeper:
    """Registers on `start`, renews until `stop`, and says whether the worker may still act."""

    def __init__(
        self,
        store: Store,
        worker: WorkerInfo,
        clock: Clock,
        on_lost: Callable[[], None],
        describe: Callable[[], Raw | None] = lambda: None,
    ) -> None:
        """`describe` is called before every renewal: what it returns is what the fleet reads of this worker."""
        self._store = store
        self._worker = worker
        self._clock = clock
        self._on_lost = on_lost
        self._describe = describe
        self._ttl_ms = store.options.lease_ttl_ms
        self._trusted_until_ms = 0
        self._stopping = threading.Event()
        self._registered = threading.Event()
        self._error: BaseException | None = None
        self.renewals = 0
        self.failed_renewals = 0

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
        """No trust from now on. The thread retires the lease and ends; nobody waits for it."""
        self._stopping.set()
        self._registered.set()  # whoever waits in `start`

    def _serve(self) -> None:
        try:
            line = self._store.lease_line()
        except HoldfastError as error:
            self._error = error
            self._registered.set()
            return
        try:
            began = self._clock.boot_ms()
            line.register(self._worker)
            self._trust_from(began)
            self._registered.set()
            self._keep(line)
            if self._stopping.is_set():
                line.retire(self._worker.worker)
        except HoldfastError as error:
            self._error = error
            extra = {"action": "lease_failed", "worker": self._worker.worker, "error": str(error)}
            log.error("the lease could not be taken or kept", extra=extra)
        finally:
            line.close()
            if self._registered.is_set() and not self._stopping.is_set():
                self._on_lost()
            self._registered.set()

    def _keep(self, line: LeaseLine) -> None:
        """Until we stop, or trust is gone: because the lease is, or because nobody could tell."""
        wait_s = interval_s = self._ttl_ms / 1000 / RENEWALS_PER_TTL
        while not self._stopping.wait(min(wait_s, self.trust_left_ms / 1000)):
            renewed = self._renew(line)
            if not renewed and not self.trusted():
                return
            wait_s = interval_s if renewed else min(RETRY_S, interval_s)

    def _renew(self, line: LeaseLine) -> bool:
        began = self._clock.boot_ms()
        try:
            line.renew(self._worker.worker, self._describe())
        except LeaseLost:
            self._trusted_until_ms = 0
            return False
        except HoldfastError as error:
            # Tried again while there is trust, which runs out by itself.
            self.failed_renewals += 1
            self._store.pulse.failed(began, error)
            log.warning("renewal failed", extra={"action": "renewal_failed", "error": str(error)})
            return False
        self._trust_from(began)
        self._store.pulse.proved()
        self.renewals += 1
        return True

    def _trust_from(self, began_ms: int) -> None:
        self._trusted_until_ms = began_ms + int(self._ttl_ms * (1 - MARGIN_SHARE))
