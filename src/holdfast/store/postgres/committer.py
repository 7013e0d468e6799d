"""Group commit: while one statement is on its way, the commits that arrive wait together and form the next.

Each was decided ahead, on its runner's own snapshot, so the server has only to compare and swap: one statement, one
round trip, one flush of the server's log for all of them. What did not swap, because the chat moved on or somebody
holds its row, is handed back to be looked at by itself; it delays nobody.

A statement whose connection was lost is sent again as it is. Where the first one did get through, the second finds
another version and writes nothing; its owner then recognises its own commit id.
"""

import asyncio
import statistics
from collections import deque
from collections.abc import Callable

import psycopg

from holdfast.core.codec import NOT_UNICODE
from holdfast.errors import HoldfastError, InvalidInput, Outcome, StoreClosed, StoreTimeout, StoreUnavailable
from holdfast.faults import reach
from holdfast.store.base import Decided
from holdfast.store.postgres import swaps
from holdfast.store.postgres.connection import Connection, Connector
from holdfast.store.postgres.errors import Fate, explain, fate_of
from holdfast.store.postgres.pauses import FIRST_S, pauses
from holdfast.store.postgres.transactions import reach_written
from holdfast.store.rows import ChatWrite

BATCH_COMMITS_MAX = 256
BATCH_BYTES_MAX = 4 << 20

# True: swapped. False: missed. An error: neither, or unknown, as its `outcome` says.
Verdict = bool | BaseException


class Entry:
    """One commit on its way. It can be withdrawn until it is taken; then it takes its course."""

    __slots__ = ("alone", "deadline", "decided", "maybe_written", "on_verdict", "size", "taken")

    def __init__(self, decided: Decided, deadline: float, on_verdict: "Callable[[Entry, Verdict], None]") -> None:
        self.decided = decided
        self.deadline = deadline
        self.on_verdict = on_verdict
        self.taken = False
        self.maybe_written = False  # it was sent, and no answer came
        self.alone = False  # it, or a neighbour, made a statement fail
        self.size = sum(len(line[-1]) for line in self.write.journal)

    @property
    def write(self) -> ChatWrite:
        return self.decided.writes[0]

    @property
    def outcome(self) -> Outcome:
        return "unknown" if self.maybe_written else "not_written"


class Committer:
    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._connection: Connection | None = None
        self._pending: deque[Entry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._latencies_s: deque[float] = deque(maxlen=512)
        self.in_flight = 0
        self.commits = 0
        self.batches = 0
        self.misses = 0
        self.resends = 0

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def latency_p50_ms(self) -> float | None:
        return round(statistics.median(self._latencies_s) * 1000, 3) if self._latencies_s else None

    def submit(self, entry: Entry) -> None:
        if self._closed:
            raise StoreClosed("the store is not open")
        self._pending.append(entry)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def withdraw(self, entry: Entry) -> bool:
        """True if it had not been taken, and now never will be."""
        if entry.taken or entry not in self._pending:
            return False
        self._pending.remove(entry)
        return True

    async def close(self, wait_s: float) -> None:
        self._closed = True
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=wait_s)
        while self._pending:
            entry = self._pending.popleft()
            entry.on_verdict(
                entry, StoreUnavailable("the store was closed before this was written", outcome=entry.outcome)
            )
        if self._connection is not None:
            await self._connection.discard()
            self._connection = None

    # --- the one task -----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            pause = pauses()
            while self._pending:
                batch = self._take()
                if await self._send(batch):
                    pause = pauses()
                else:
                    await asyncio.sleep(next(pause))
        finally:
            self._task = None

    def _take(self) -> list[Entry]:
        """The oldest, as many as fit, each chat once: a second commit of a chat is decided after the first."""
        batch: list[Entry] = []
        later: list[Entry] = []
        chats: set[str] = set()
        size = 0
        while self._pending and len(batch) < BATCH_COMMITS_MAX:
            entry = self._pending[0]
            if batch and (entry.alone or batch[0].alone or size + entry.size > BATCH_BYTES_MAX):
                break
            self._pending.popleft()
            chat_id = entry.write.after.id
            if chat_id in chats:
                later.append(entry)
                continue
            entry.taken = True
            batch.append(entry)
            chats.add(chat_id)
            size += entry.size
        self._pending.extendleft(reversed(later))
        return batch

    async def _send(self, batch: list[Entry]) -> bool:
        """False: those that still have time are back in front of the queue."""
        loop = asyncio.get_running_loop()
        deadline = min(entry.deadline for entry in batch)
        self.in_flight = len(batch)
        try:
            if self._connection is None:
                self._connection = await self._connector.connect(deadline)
            connection = self._connection
            question, batch = self._question(batch)
            if question is None:
                return True
            connection.deadline = deadline
            began = loop.time()
            swapped = await self._ask(connection, question)
            self._latencies_s.append(loop.time() - began)
        except psycopg.Error as error:
            return await self._failed(batch, error)
        except HoldfastError as error:
            return self._keep_those_with_time(batch, error)
        except BaseException as error:
            # A crash point or a bug: everybody in the batch is told.
            for entry in batch:
                entry.on_verdict(entry, error)
            await self._disconnect()
            if isinstance(error, asyncio.CancelledError):
                raise
            return True
        finally:
            self.in_flight = 0
        self.batches += 1
        self.commits += len(swapped)
        self.misses += len(batch) - len(swapped)
        for entry in batch:
            entry.on_verdict(entry, entry.write.after.id.encode() in swapped)
        return True

    def _question(self, batch: list[Entry]) -> tuple[swaps.Question | None, list[Entry]]:
        """Values that cannot be sent fail their own commit and no other."""
        try:
            return swaps.swap([entry.write for entry in batch]), batch
        except UnicodeError:
            good = []
            for entry in batch:
                try:
                    swaps.swap([entry.write])
                    good.append(entry)
                except UnicodeError:
                    entry.on_verdict(entry, InvalidInput("text", NOT_UNICODE))
            return (swaps.swap([entry.write for entry in good]) if good else None), good

    async def _ask(self, connection: Connection, question: swaps.Question) -> set[bytes]:
        reach("write.begun")
        reach("write.chat.before")
        reach_written()
        reach("commit.before")
        statement, values = question
        swapped = set(await connection.ask(statement.name, statement.text, values))
        reach("commit.after")
        reach("ack.before")
        return swapped

    async def _failed(self, batch: list[Entry], error: psycopg.Error) -> bool:
        fate = fate_of(error, self._connection)
        if fate is Fate.LOST:
            await self._disconnect()
            for entry in batch:
                entry.maybe_written = True
        self.resends += 1
        if fate is Fate.FINAL and len(batch) > 1:
            # One of them is to blame: each by itself, and only that one fails.
            for entry in batch:
                entry.alone = True
            self._pending.extendleft(reversed(batch))
            return True
        if fate is Fate.FINAL:
            batch[0].on_verdict(batch[0], explain(error, self._connector.address))
            return True
        return self._keep_those_with_time(batch, explain(error, self._connector.address))

    def _keep_those_with_time(self, batch: list[Entry], error: HoldfastError) -> bool:
        """What cannot be tried again is told why; a wrong password is not tried again at all."""
        now = asyncio.get_running_loop().time()
        hopeless = not isinstance(error, StoreUnavailable)
        kept = []
        for entry in batch:
            if not hopeless and entry.deadline > now + FIRST_S:
                kept.append(entry)
            elif isinstance(error, StoreUnavailable):
                kind = StoreTimeout if isinstance(error, StoreTimeout) else StoreUnavailable
                told = kind(str(error), outcome=entry.outcome)
                told.__cause__ = error.__cause__
                entry.on_verdict(entry, told)
            else:
                entry.on_verdict(entry, error)
        self._pending.extendleft(reversed(kept))
        return False

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.discard()
