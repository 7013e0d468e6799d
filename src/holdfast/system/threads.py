"""The only module that makes threads. Every thread has a name, an owner and a count that `/health` can show.

Threads are daemons: one that hangs in the kernel or in a user's code is abandoned and counted, never joined
without a limit, so nothing that hangs can hold up an exit.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LOST_MAX = 32


def start(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"holdfast-{name}", daemon=True)
    thread.start()
    return thread


class Job(Generic[T]):
    """One piece of work for another thread. It is withdrawn, or taken; once taken it runs to its end."""

    __slots__ = ("_state", "future", "loop", "unwanted", "work")

    def __init__(self, work: Callable[..., T], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.future: asyncio.Future[T] = loop.create_future()
        self.loop = loop
        self._state = threading.Lock()
        self.unwanted = False  # work that can end early looks at this now and then

    def take(self) -> bool:
        """True for the first caller only: the thread that runs it, or the waiter that gave up."""
        return self._state.acquire(blocking=False)

    withdraw = take

    def deliver(self, result: T | None, error: BaseException | None) -> None:
        """Called in the loop's thread."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)  # type: ignore[arg-type]


def deliver(outcomes: list[tuple[Job[Any], Any, BaseException | None]]) -> None:
    """Hand results to their loops: one wake-up per loop, however many results."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job[Any], Any, BaseException | None]]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver_here, group)
        except RuntimeError:  # the loop was closed: there is no waiter any more
            continue


def _deliver_here(group: list[tuple[Job[Any], Any, BaseException | None]]) -> None:
    for job, result, error in group:
        job.deliver(result, error)


class SizedWork:
    """Work that is done at once while it is small, and in one of a few threads where it is large: others have their
    turn meanwhile.
    """

    def __init__(self, name: str, threads: int, at_once: int) -> None:
        self._pool = Pool(name, threads)
        self._at_once = at_once

    async def run(self, size: int, work: Callable[[], T]) -> T:
        return work() if size <= self._at_once else await self._pool.run(lambda _: work())


class Pool:
    """A bounded set of threads, each with a resource of its own (a database connection, or nothing).

    Threads are made on demand up to `size`, and end after `stop`. A thread that is busy with what no caller waits for
    any more may be so for ever. It is given up: counted, and replaced until it comes back, so that some that hang do
    not hold up the rest. At most `lost_max` are replaced; behind more than that work waits for its deadline.
    """

    def __init__(
        self,
        name: str,
        size: int,
        open_resource: Callable[[], Any] = lambda: None,
        close_resource: Callable[[Any], None] = lambda _: None,
        *,
        lost_max: int = LOST_MAX,
    ):
        self._name = name
        self._size = size
        self._lost_max = lost_max
        self._open = open_resource
        self._close = close_resource
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._made = 0
        self._load = 0  # jobs that were submitted and are not over
        self._running: set[Job[Any]] = set()
        self._lost: set[Job[Any]] = set()  # of those that run: no caller waits for them
        self._stopped = False

    @property
    def thread_count(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    @property
    def lost_count(self) -> int:
        """Threads that were given up and have not come back."""
        return len(self._lost)

    async def run(self, work: Callable[[Any], T], *, slow_s: float | None = None) -> T:
        """For who has a deadline elsewhere: cancelling the waiter gives up its work.

        `slow_s`: work that takes longer may hang. It is still waited for, but another thread takes its place, so that
        no job waits behind it.
        """
        loop = asyncio.get_running_loop()
        job = Job(work, loop)
        self.submit(job)
        timer = None if slow_s is None else loop.call_later(slow_s, self._replace, job, slow_s)
        try:
            return await job.future
        except asyncio.CancelledError:
            self.give_up(job)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _replace(self, job: Job[Any], slow_s: float) -> None:
        """It is slow, be it that it waits for others which are: those are replaced by their own waiters."""
        with self._lock:
            if job in self._running:
                self._lost.add(job)
                self._grow()
                return
        if not job.future.done():  # it has not begun: look again
            job.loop.call_later(slow_s, self._replace, job, slow_s)

    def submit(self, job: Job[Any]) -> None:
        with self._lock:
            if self._stopped:
                raise RuntimeError(f"the {self._name} threads are stopped")
            self._load += 1
            self._grow()
        self._jobs.put(job)

    def give_up(self, job: Job[Any]) -> bool:
        """Its caller waits no more. True if it had not begun: then it never will."""
        job.unwanted = True
        with self._lock:
            # Under the lock, as is taking it: a job that cannot be withdrawn is running, or over.
            if job.withdraw():
                return True
            if job in self._running:
                self._lost.add(job)
                self._grow()
        return False

    @property
    def _room(self) -> int:
        return self._size + min(len(self._lost), self._lost_max)

    def _grow(self) -> None:
        """As many threads as there are jobs, up to the size. By a count of jobs, not of threads that look idle: one
        that has just taken a job still does, and a job that was left to it would wait for as long as that one hangs.
        """
        if len(self._threads) < min(self._load, self._room) and not self._stopped:
            self._made += 1
            self._threads.append(start(f"{self._name}-{self._made}", self._serve))

    def stop(self) -> None:
        """Queued work is still done. Does not wait: look at `thread_count`."""
        with self._lock:
            self._stopped = True
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)

    def _serve(self) -> None:
        resource: Any = None
        opened = False
        while True:
            job = self._jobs.get()
            if job is None:
                break
            if self._take(job):
                result, error = None, None
                try:
                    if not opened:
                        resource, opened = self._open(), True
                    result = job.work(resource)
                except BaseException as caught:  # noqa: BLE001  whatever it was belongs to the waiter
                    error = caught
                self._over(job)
                deliver([(job, result, error)])
                del result, error
            del job
            with self._lock:
                self._load -= 1
                if len(self._threads) > self._room:  # one that was lost came back; this one is too many now
                    self._threads.remove(threading.current_thread())
                    break
        if opened:
            self._close(resource)

    def _take(self, job: Job[Any]) -> bool:
        with self._lock:
            if not job.take():
                return False
            self._running.add(job)
        return True

    def _over(self, job: Job[Any]) -> None:
        with self._lock:
            self._running.discard(job)
            self._lost.discard(job)
