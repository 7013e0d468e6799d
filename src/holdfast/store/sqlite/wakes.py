"""The wake stream from a SQLite file: `data_version` says that somebody wrote, the journal says about what.

A thread of its own with a connection of its own, because `data_version` compares what one connection saw. A ping is
a look in that very thread, on that very connection, at a file that is still the one it opened: a thread that hangs in
the kernel, or a connection to a file that was deleted or replaced, would stay silent for ever.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import apsw

from holdfast import threads
from holdfast.store.bell import WORK
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.connection import FileIdentity, reading, translated
from holdfast.store.sqlite.writing import rows
from holdfast.store.wakestream import Stream, Wake

T = TypeVar("T")


class _Seen(NamedTuple):
    data_version: int
    newest: int  # the journal's last row


class _Eye:
    """What the thread holds."""

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self.connection = connection
        self.identity = FileIdentity(path)


class SqliteWakes:
    """The source. `needed` says whether anybody waits: if nobody does, it does not look."""

    def __init__(
        self, path: str, open_reader: Callable[[], apsw.Connection], interval_s: float, needed: Callable[[], bool]
    ) -> None:
        self._path = path
        self._open_reader = open_reader
        self._interval_s = interval_s
        self._needed = needed

    async def connect(self) -> Stream:
        thread = threads.Pool(
            "sqlite-wakes", 1, lambda: _Eye(self._open_reader(), self._path), lambda eye: eye.connection.close()
        )
        stream = SqliteWakeStream(self._path, thread, self._interval_s, self._needed)
        try:
            await stream.look()
        except BaseException:
            # A thread that hangs is let go of when it ends, and until then counts as not let go.
            await stream.close()
            raise
        return stream


class SqliteWakeStream:
    def __init__(self, path: str, thread: threads.Pool, interval_s: float, needed: Callable[[], bool]) -> None:
        self._path = path
        self._thread = thread
        self._interval_s = interval_s
        self._needed = needed
        self._seen: _Seen | None = None

    async def read(self) -> Wake | None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self._needed() and (wake := await self.look()) is not None:
                return wake

    async def look(self) -> Wake | None:
        """What was written since the last look. By this process too: who heard of it already looks once more."""
        seen = self._seen

        def work(eye: _Eye) -> tuple[_Seen, Wake | None]:
            connection = eye.connection
            with translated(self._path):
                version: int = connection.pragma("data_version")
                if seen is not None and version == seen.data_version:
                    return seen, None
                with reading(connection):
                    newest = rows(connection, sql.NEWEST_ROWID)[0][0] or 0
                    if seen is None or newest < seen.newest:  # the newest chat was deleted
                        return _Seen(version, newest), Wake()
                    changed = rows(connection, sql.CHANGED_SINCE, (seen.newest,))
            topics = (WORK, *(row[0] for row in changed)) if changed else ()
            return _Seen(version, newest), Wake(topics=topics) if topics else None

        self._seen, wake = await self._ask(work)
        return wake

    async def ping(self) -> None:
        def work(eye: _Eye) -> None:
            eye.identity.check()
            with translated(self._path):
                eye.connection.pragma("data_version")

        await self._ask(work)

    async def close(self) -> None:
        self._thread.stop()
        pause_s = 0.001
        while self._thread.thread_count:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.25)

    async def _ask(self, work: Callable[[_Eye], T]) -> T:
        job = threads.Job(work, asyncio.get_running_loop())
        self._thread.submit(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            job.withdraw()
            raise
