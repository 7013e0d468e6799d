"""The wake stream from a SQLite file: `data_version` says that another process wrote, the journal says about what.

A thread of its own with a connection of its own, because `data_version` compares what one connection saw. A ping is
a look in that very thread, on that very connection, at a file that is still the one it opened: a thread that hangs in
the kernel, or a connection to a file that was deleted or replaced, would stay silent for ever.

The thread looks by itself, twenty times a second, or seven when all is quiet, and is silent until there is news. When
the event loop asked for every look, an idle worker used 1.5 % of a processor, nearly all of it for being woken.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.store.notify.bell import WORK, rest_topic
from holdfast.store.notify.wake_stream import SourceStream, Wake
from holdfast.store.records import QUIET
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.checkpoints import leave
from holdfast.store.sqlite.connection import FileIdentity, reading, rows
from holdfast.store.sqlite.errors import translated
from holdfast.system import threads

T = TypeVar("T")


QUIET_LOOKS = 40  # in vain, one after the other; from then on it looks less often
QUIET_SLOWER = 3


class _SeenRows(NamedTuple):
    data_version: int
    newest: int  # the journal's last row


class _Eye:
    """What the thread holds, and what it has seen."""

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self.connection = connection
        self._path = path
        self._identity = FileIdentity(path)
        self._seen: _SeenRows | None = None

    def leave(self) -> None:
        leave(self.connection, self._path)

    def look(self) -> Wake | None:
        """What was written since the last look. By this process too: who heard of it already looks once more."""
        connection, seen = self.connection, self._seen
        with translated(self._path):
            version: int = connection.pragma("data_version")
            if seen is not None and version == seen.data_version:
                return None
            with reading(connection):
                newest = rows(connection, sql.NEWEST_ROWID)[0][0] or 0
                if seen is None or newest < seen.newest:  # the newest chat was deleted
                    self._seen = _SeenRows(version, newest)
                    return Wake()
                changed = rows(connection, sql.CHANGED_SINCE, (seen.newest,))
        self._seen = _SeenRows(version, newest)
        return Wake(topics=tuple(_topics(changed))) if changed else None

    def check(self) -> None:
        self._identity.check()
        with translated(self._path):
            self.connection.pragma("data_version")


def _topics(changed: Sequence[tuple[str, int, str | None]]) -> Iterator[str]:
    """As `topics_of` has them for what this process writes. Work only where there is some: a worker that is told of
    it asks for it in a write transaction, and would do so after each of its own commits.
    """
    if any(due for _, due, _ in changed):
        yield WORK
    for chat_id, _, state in changed:
        yield chat_id
        if state is None or state in QUIET:
            yield rest_topic(chat_id)


class SqliteWakes:
    """The source. `needed` says, from any thread, whether there is a waiter: if there is none, it does not look."""

    def __init__(
        self, path: str, open_reader: Callable[[], apsw.Connection], interval_s: float, needed: Callable[[], bool]
    ) -> None:
        self._path = path
        self._open_reader = open_reader
        self._interval_s = interval_s
        self._needed = needed

    async def connect(self) -> SourceStream:
        watcher = _FileWatcher(lambda: _Eye(self._open_reader(), self._path), self._interval_s, self._needed)
        stream = SqliteWakeStream(watcher)
        try:
            await stream.look()
        except BaseException:
            # A thread that hangs is let go of when it ends, and until then counts as not let go.
            await stream.close()
            raise
        return stream


class SqliteWakeStream:
    def __init__(self, watcher: "_FileWatcher") -> None:
        self._watcher = watcher

    async def read(self) -> Wake | None:
        return await _outcome(self._watcher.watch(_Eye.look))

    async def look(self) -> Wake | None:
        return await _outcome(self._watcher.ask(_Eye.look))

    async def ping(self) -> None:
        await _outcome(self._watcher.ask(_Eye.check))

    async def close(self) -> None:
        self._watcher.stop()
        pause_s = 0.001
        while self._watcher.running:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.25)


class _FileWatcher:
    """A thread that looks every so often while it is told to watch, and does what it is asked to in between."""

    def __init__(self, open_eye: Callable[[], _Eye], interval_s: float, needed: Callable[[], bool]) -> None:
        self._open_eye = open_eye
        self._interval_s = interval_s
        self._needed = needed
        self._eye: _Eye | None = None
        self._jobs: SimpleQueue[tuple[threads.Job[Any], bool] | None] = SimpleQueue()
        self._watch: threads.Job[Wake | None] | None = None
        self._in_vain = 0
        self._thread = threads.start("sqlite-wakes", self._serve)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def ask(self, work: Callable[[_Eye], T]) -> threads.Job[T]:
        """Done once, as soon as it can be."""
        return self._submit(work, watch=False)

    def watch(self, look: Callable[[_Eye], Wake | None]) -> threads.Job[Wake | None]:
        """Looks until there is something to tell. One at a time: the next takes its place."""
        return self._submit(look, watch=True)

    def stop(self) -> None:
        """Does not wait: look at `running`."""
        self._jobs.put(None)

    def _submit(self, work: Callable[[_Eye], T], *, watch: bool) -> threads.Job[T]:
        job = threads.Job(work, asyncio.get_running_loop())
        self._jobs.put((job, watch))
        return job

    # --- in the thread

    def _serve(self) -> None:
        while True:
            try:
                told = self._jobs.get(timeout=self._pause_s if self._watch is not None else None)
            except Empty:
                self._look()
                continue
            if told is None:
                break
            job, watch = told
            if watch:
                self._watch = job
            elif job.take():
                threads.deliver([(job, *self._try(job.work))])
        if self._eye is not None:
            self._eye.leave()

    @property
    def _pause_s(self) -> float:
        return self._interval_s * (1 if self._in_vain < QUIET_LOOKS else QUIET_SLOWER)

    def _look(self) -> None:
        job = self._watch
        assert job is not None
        if not self._needed():
            return
        wake, error = self._try(job.work)
        self._in_vain = self._in_vain + 1 if wake is None else 0
        if wake is not None or error is not None:
            self._watch = None
            if job.take():
                threads.deliver([(job, wake, error)])

    def _try(self, work: Callable[[_Eye], Any]) -> tuple[Any, BaseException | None]:
        try:
            if self._eye is None:
                self._eye = self._open_eye()
            return work(self._eye), None
        except BaseException as error:  # noqa: BLE001  whatever it was belongs to the waiter
            return None, error


async def _outcome(job: threads.Job[T]) -> T:
    try:
        return await job.future
    except asyncio.CancelledError:
        job.withdraw()
        raise
