"""Opening a SQLite file, as long as it takes: behind a process that holds the write lock, and through a migration.

A thread does it, because what it waits for is in the kernel. The caller, which waits for the thread, says what for,
and gives up behind a lock that is not let go; a migration that has begun is waited for as PostgreSQL's is.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast.errors import StoreTimeout
from holdfast.store.sqlite.connection import lock_paths
from holdfast.store.sqlite.holder import holder_of
from holdfast.store.sqlite.schema import MIGRATION_DEADLINE_S
from holdfast.store.sqlite.writer import WriterThread
from holdfast.system import threads

log = logging.getLogger("holdfast.store")

FIRST_WORD_S = 1.0  # until the log says what is waited for; the next words come later and later
LAST_WORD_S = 30.0


class Opening:
    def __init__(self, path: str, prepare: Callable[[Callable[[], None]], WriterThread]) -> None:
        """`prepare` runs in the thread, and is given what to call when it begins to migrate."""
        self._path = path
        self._prepare = prepare
        self._migrating = False
        self._pool = threads.Pool("sqlite-open", 1)
        self._job: threads.Job[WriterThread] = threads.Job(self._work, asyncio.get_running_loop())

    def _work(self, _: None) -> WriterThread:
        writer = self._prepare(self._begin)
        if self._job.unwanted:
            writer.discard()
        return writer

    def _begin(self) -> None:
        """The lock came. The caller is gone that would use what a migration makes: it is left to the next one."""
        if self._job.unwanted:
            raise StoreTimeout(f"{self._path} was not opened in time")
        self._migrating = True

    async def writer(self, wait_s: float) -> WriterThread:
        """Raises what opening raises, and StoreTimeout."""
        self._pool.submit(self._job)
        try:
            return await self._watched(wait_s)
        except asyncio.CancelledError:
            self._pool.give_up(self._job)
            raise
        finally:
            self._pool.stop()

    async def _watched(self, wait_s: float) -> WriterThread:
        loop = asyncio.get_running_loop()
        began, words_s = loop.time(), FIRST_WORD_S
        while True:
            waited_s = loop.time() - began
            limit_s = MIGRATION_DEADLINE_S if self._migrating else wait_s
            if waited_s >= limit_s:
                self._pool.give_up(self._job)
                raise StoreTimeout(self._why(f"was not opened within {limit_s:g} s"))
            await asyncio.wait((self._job.future,), timeout=min(words_s, limit_s - waited_s))
            if self._job.future.done():
                return self._job.future.result()
            if loop.time() - began < limit_s:
                log.warning(
                    "%s",
                    self._why(f"is not open after {loop.time() - began:.0f} s"),
                    extra={"action": "store.waiting"},
                )
            words_s = min(words_s * 2, LAST_WORD_S)

    def _why(self, what: str) -> str:
        if self._migrating:
            return f"{self._path} {what}: it is being brought to a new schema"
        if (holder := holder_of(*lock_paths(self._path))) is not None:
            return f"{self._path} {what}: {holder} holds its write lock; end it, or let it go on"
        return f"{self._path} {what}: is the disk, or a process, stuck?"
