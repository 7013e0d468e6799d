"""Group commit: while one statement is on its way, the commits that arrive wait together and form the next.

Each was decided ahead, on its runner's own snapshot, so the server has only to compare and swap: one statement, one
round trip, one flush of the server's log for all of them. What did not swap, because the chat moved on or another
transaction holds its row, is handed back to be looked at by itself; it delays no other.

A statement whose connection was lost is sent again as it is. Where the first one did get through, the second finds
another version and writes nothing; its owner then recognises its own commit id.

There is no task: an arriving commit, an answer and a timer each take the next step. Only reconnecting is one.
"""

import asyncio
import logging
import statistics
from collections import deque
from collections.abc import Callable, Coroutine

import psycopg
from psycopg import pq

from holdfast.core.codec import NOT_UNICODE
from holdfast.errors import HoldfastError, InvalidInput, Outcome, StoreClosed, StoreTimeout, StoreUnavailable
from holdfast.faults import reach
from holdfast.store.decisions import ChatWrite, Decided
from holdfast.store.postgres import swaps
from holdfast.store.postgres.connection import Connector
from holdfast.store.postgres.errors import READ_ONLY, Fate, NoAnswer, explain, fate_of
from holdfast.store.postgres.pauses import FIRST_S, pauses
from holdfast.store.postgres.transactions import reach_written
from holdfast.store.postgres.wire import ServerWire

log = logging.getLogger("holdfast.store")

BATCH_COMMITS_MAX = 256
BATCH_BYTES_MAX = 4 << 20
LATE_S = 0.5  # behind its deadline; who knows better why it failed has told by then

# True: swapped. False: missed. An error: neither, or unknown, as its `outcome` says.
CommitVerdict = bool | BaseException


class PendingCommit:
    """One commit on its way. It can be withdrawn until it is taken; then it takes its course."""

    __slots__ = ("alone", "deadline", "decided", "maybe_written", "on_verdict", "taken")

    def __init__(
        self, decided: Decided, deadline: float, on_verdict: "Callable[[PendingCommit, CommitVerdict], None]"
    ) -> None:
        self.decided = decided
        self.deadline = deadline
        self.on_verdict = on_verdict
        self.taken = False
        self.maybe_written = False  # it was sent, and no answer came
        self.alone = False  # it, or a neighbour, made a statement fail

    @property
    def write(self) -> ChatWrite:
        return self.decided.writes[0]

    @property
    def size(self) -> int:
        return sum(len(line[-1]) for line in self.write.journal)

    @property
    def outcome(self) -> Outcome:
        return "unknown" if self.maybe_written else "not_written"


class Committer:
    """Belongs to one event loop. `on_verdict` of every entry is called once, whatever happens."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._wire: ServerWire | None = None
        self._pending: deque[PendingCommit] = deque()
        self._in_flight: list[PendingCommit] = []
        self._question: swaps.SwapQuestion | None = None
        self._going = False  # a next step is certain: scheduled, or an answer is awaited, or a connection
        self._began = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._pauses = pauses()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._latencies_s: deque[float] = deque(maxlen=512)
        self.commits = 0
        self.batches = 0
        self.misses = 0
        self.resends = 0

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def latency_p50_ms(self) -> float | None:
        return round(statistics.median(self._latencies_s) * 1000, 3) if self._latencies_s else None

    def submit(self, entry: PendingCommit) -> None:
        if self._closed:
            raise StoreClosed("the store is not open")
        self._pending.append(entry)
        if not self._going:
            # Not at once: commits that are ready in the same moment come along.
            self._going = True
            self._loop.call_soon(self._go)
        if self._watch is None:
            self._watch = self._loop.call_at(entry.deadline, self._on_watch)

    def withdraw(self, entry: PendingCommit) -> bool:
        """True if it had not been taken, and now never will be."""
        if entry.taken or entry not in self._pending:
            return False
        self._pending.remove(entry)
        return True

    async def close(self, wait_s: float) -> None:
        self._closed = True
        until = self._loop.time() + wait_s
        while self._going and self._loop.time() < until:  # noqa: ASYNC110  once, at the end; an event is paid always
            await asyncio.sleep(0.002)
        for task in self._tasks:
            task.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self._cut_wire()
        left, self._in_flight = [*self._in_flight, *self._pending], []
        self._pending.clear()
        for entry in left:
            closed = StoreUnavailable("the store was closed before this was written", outcome=entry.outcome)
            _tell(entry, closed)
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- sending ----------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        """Send what is pending, if anything is. Called only while nothing is in flight."""
        while self._pending:
            if self._wire is None:
                self._own(self._reconnect())
                return
            self._in_flight = self._take()
            try:
                if self._ask(self._wire):
                    return
            except Exception as error:  # noqa: BLE001  a crash point or a bug: every waiter of the batch is told
                self._tell_all(error)
        self._going = False

    def _take(self) -> list[PendingCommit]:
        """The oldest, as many as fit, each chat once: a second commit of a chat is decided after the first."""
        batch = [self._pending.popleft()]
        batch[0].taken = True
        if not self._pending or batch[0].alone:
            return batch
        chats = {batch[0].write.after.id}
        later: list[PendingCommit] = []
        size = batch[0].size
        while self._pending and len(batch) < BATCH_COMMITS_MAX:
            entry = self._pending[0]
            size += entry.size
            if entry.alone or size > BATCH_BYTES_MAX:
                break
            self._pending.popleft()
            chat_id = entry.write.after.id
            if chat_id in chats:
                later.append(entry)
                continue
            entry.taken = True
            batch.append(entry)
            chats.add(chat_id)
        self._pending.extendleft(reversed(later))
        return batch

    def _ask(self, wire: ServerWire) -> bool:
        """False if nothing is left to be asked."""
        try:
            question = swaps.swap([entry.write for entry in self._in_flight])
        except UnicodeError:
            self._in_flight = [entry for entry in self._in_flight if self._is_text(entry)]
            if not self._in_flight:
                return False
            question = swaps.swap([entry.write for entry in self._in_flight])
        reach("write.begun")
        reach("write.chat.before")
        reach_written()
        reach("commit.before")
        self._question = question
        self._began = self._loop.time()
        wire.ask(question)
        return True

    def _is_text(self, entry: PendingCommit) -> bool:
        """Values that cannot be sent fail their own commit and no other."""
        try:
            swaps.swap([entry.write])
        except UnicodeError:
            _tell(entry, InvalidInput("text", NOT_UNICODE))
            return False
        return True

    def on_answer(self, answer: pq.abc.PGresult) -> None:
        try:
            reach("commit.after")
            reach("ack.before")
        except Exception as error:  # noqa: BLE001  as above
            self._tell_all(error)
            self._go()
            return
        assert self._question is not None
        written = self._question.written(answer)
        batch, self._in_flight = self._in_flight, []
        self._latencies_s.append(self._loop.time() - self._began)
        self._pauses = pauses()
        self.batches += 1
        self.commits += len(written)
        self.misses += len(batch) - len(written)
        for entry in batch:
            _tell(entry, entry.write.after.id in written)
        self._go()

    # --- what goes wrong --------------------------------------------------------------------------------------------

    def on_error(self, error: psycopg.Error) -> None:
        batch, self._in_flight = self._in_flight, []
        lost = self._wire is None or self._wire.lost or fate_of(error, None) is Fate.LOST
        if lost or error.sqlstate == READ_ONLY:  # a standby now: the next connection may find the primary
            self._cut_wire()
        if not batch:
            return  # an idle connection was closed by the server: the next commit makes a new one
        self.resends += 1
        if lost or fate_of(error, None) is Fate.AGAIN:
            for entry in batch:
                entry.maybe_written |= lost
            self._keep_those_with_time(batch, explain(error, self._connector.address))
            self._loop.call_later(next(self._pauses), self._go)
        elif len(batch) > 1:
            # One of them is to blame: each by itself, and only that one fails.
            for entry in batch:
                entry.alone = True
            self._pending.extendleft(reversed(batch))
            self._go()
        else:
            _tell(batch[0], explain(error, self._connector.address))
            self._go()

    def _on_watch(self) -> None:
        """One timer for all: commits wait in the order of their deadlines, because all have as long."""
        self._watch = None
        now = self._loop.time()
        if self._in_flight and min(entry.deadline for entry in self._in_flight) <= now:
            self._cut_wire()
            self.on_error(NoAnswer("no answer before the deadline"))
        self._tell_the_late(now)
        waiting = [*self._in_flight, *self._pending]
        if waiting:
            soonest = max(now + 0.05, min(entry.deadline for entry in waiting))
            self._watch = self._loop.call_at(soonest, self._on_watch)

    def _tell_the_late(self, now: float) -> None:
        """Those that were never sent, where even the reason for it did not come in time."""
        late = [entry for entry in self._pending if entry.deadline + LATE_S <= now]
        for entry in late:
            self._pending.remove(entry)
            why = f"{self._connector.address}: it could not be sent before the deadline"
            _tell(entry, StoreTimeout(why, outcome=entry.outcome))

    async def _reconnect(self) -> None:
        """Whatever comes in between, it ends with a next step: without one no commit would ever be sent again."""
        while self._pending and self._wire is None:
            try:
                self._wire = await self._connected(self._pending[0].deadline)
            except HoldfastError as error:
                batch = list(self._pending)
                self._pending.clear()
                self._keep_those_with_time(batch, error)
                if self._pending:
                    await asyncio.sleep(next(self._pauses))
        self._go()

    async def _connected(self, deadline: float) -> ServerWire:
        connection = await self._connector.connect(deadline)
        try:
            return ServerWire(connection, self)
        except Exception as error:
            # It was lost again at once, or the system watches no more sockets for us.
            await connection.discard()
            why = f"{self._connector.address} cannot be reached: {type(error).__name__}: {error}"
            raise StoreUnavailable(why) from error

    def _keep_those_with_time(self, batch: list[PendingCommit], error: HoldfastError) -> None:
        """Back in front of the queue. The others are told why; a wrong password is not tried again at all."""
        now = self._loop.time()
        kept = []
        for entry in batch:
            if not isinstance(error, StoreUnavailable):
                _tell(entry, error)
            elif entry.deadline > now + FIRST_S:
                kept.append(entry)
            else:
                kind = StoreTimeout if isinstance(error, StoreTimeout) else StoreUnavailable
                told = kind(str(error), outcome=entry.outcome)
                told.__cause__ = error.__cause__
                _tell(entry, told)
        self._pending.extendleft(reversed(kept))

    def _tell_all(self, error: BaseException) -> None:
        batch, self._in_flight = self._in_flight, []
        for entry in batch:
            _tell(entry, error)

    def _cut_wire(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            self._own(wire.connection.discard())

    def _own(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tell(entry: PendingCommit, verdict: CommitVerdict) -> None:
    """One that cannot be told keeps no other from being told, and the next commits from being sent."""
    try:
        entry.on_verdict(entry, verdict)
    except Exception as error:
        extra = {"action": "verdict_failed", "chat": entry.write.after.id, "error": type(error).__name__}
        log.error("a commit's verdict could not be told", extra=extra, exc_info=error)
