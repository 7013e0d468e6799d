"""The store's contract: few verbs, each one transaction. Decisions come from the core; the stores differ in SQL.

Every verb either happened wholly or not at all, and raises what `errors.py` says. None waits longer than the
store's deadline (8 s by default); `StoreTimeout.outcome` then says whether the write may still happen. A verb with
a key or a commit id may simply be called again: it is answered as done if it was.
"""

import asyncio
import logging
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from msgspec import Raw

from holdfast.core.change import Change
from holdfast.core.commands import Command, LeaseExpired, LeaseOutlived, Repair
from holdfast.core.leases import LeaseWatch
from holdfast.core.records import Cause, Chat, Compaction, Lease, LeaseEnd, NewChat, Snapshot, State
from holdfast.core.wake import WakeState
from holdfast.errors import (
    NotFound,
    RecordError,
    RefusedError,
    StaleWriter,
    StoreClosed,
    StoreError,
    StoreTimeout,
    WentBack,
)
from holdfast.store import host_lock
from holdfast.store.checks import check_command, check_fork, check_key, check_new_chat
from holdfast.store.cursor import After
from holdfast.store.incidents import WENT_BACK, Incident, Incidents, note_of
from holdfast.store.liveness import JOURNAL_AHEAD, SWEPT_MAX, UNDER_DEAD_LEASE
from holdfast.store.notify.bell import Bell, topics_of
from holdfast.store.notify.wake_stream import Source, Wake, WakeStream
from holdfast.store.open_calls import ARGUMENTS_BYTES_MAX, Asked, Given, OpenCallRecord, open_call
from holdfast.store.receipts import RECEIPT_DAYS, RECEIPTS_STEP_MS_MAX, own_key, request_of
from holdfast.store.records import (
    PAGE_ROWS,
    Answer,
    ChatFilter,
    ChatLine,
    ChildCounts,
    Children,
    DeltaBatch,
    DeltaRow,
    Forking,
    Held,
    HistoryRow,
    Key,
    Located,
    Page,
    Size,
    StoreOptions,
    Violation,
    WorkerInfo,
)
from holdfast.store.remnants import LARGE_DEADLINE_S, SWEPT_S, Occupied, Remnant, RemnantWatch, Slice
from holdfast.store.retention import Amount, Cutoffs, Leftover
from holdfast.store.stamps import Past, check_past, is_proven, judge
from holdfast.store.write_probe import Pulse
from holdfast.system.clock import SystemClock

log = logging.getLogger("holdfast.store")

RENEWAL_DEADLINE_S = 5.0
CLEARING_INTERVAL_S = 5.0  # between two looks at what somebody else may go on with


class LeaseLine(ABC):
    """A worker's lease, kept from any thread over a connection of its own. Synchronous: no event loop needed."""

    @abstractmethod
    def register(self, worker: WorkerInfo) -> Lease:
        """Take a lease under a new worker id."""

    @abstractmethod
    def renew(self, worker: str, info: Raw | None = None) -> Lease:
        """Count its number up. This alone decides: raises LeaseLost once somebody ended it."""

    @abstractmethod
    def retire(self, worker: str) -> None:
        """Give the lease up. What the worker still holds is handed over by the next sweep."""

    @abstractmethod
    def close(self) -> None: ...


class Store(ABC):
    """See the module's first lines. `open` before use, `close` after; also an async context manager.

    `str(store)` says which database it is, without passwords.
    """

    slice: Slice  # what one transaction takes or adds of a large chat

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.bell = Bell()
        self._swept_upto = ("", "")  # chats that wait, and chats with a queue
        self.pulse = Pulse(options.clock, self.prove_writing)
        self.unreadable = 0  # chats passed over because newer code wrote them
        self.schema_version: int | None = None  # of the database, once it is open
        self.incidents = Incidents()
        self._torn_upto = ""  # how far sweeps have looked
        self.poisoned = 0  # chats that were failed here because they had lost every worker
        self.wakes: WakeStream | None = None  # None: nobody tells us, waiters poll
        self.why_read_only: StoreError | None = None  # why it is open for reading alone
        self.remnant_count = 0  # ids with rows that have no chat, when this process last looked
        self._remnant_watch = RemnantWatch()
        self._clearing: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------------------

    @abstractmethod
    async def open(self, wait_s: float = 0.0) -> None:
        """Connect and migrate. Raises StoreUnavailable, StoreAuth, StoreCorrupt, StoreReadOnly, SchemaError.

        A database server that cannot be reached is asked again for `wait_s`, and so is a file that has to be changed
        while another process holds its write lock.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was taken, then let go. Bounded by the deadline and the wake stream's `drain_s`.

        Raises DrainFailed, once everything is closed, if something of the wake stream did not let go.
        """

    @property
    def write_lock_path(self) -> str | None:
        """The file whose lock every writer on this host needs, if there is one: who freezes with it is ended."""
        return None

    @property
    def gone(self) -> bool:
        """What was opened is not there any more, and does not come back by waiting. Quick, from any thread."""
        return False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- chats ------------------------------------------------------------------------------------------------

    async def create_chat(self, new: NewChat, key: Key | None = None) -> Answer:
        """Create a chat; with a first message it is running. Raises InvalidInput, KeyReused."""
        check_new_chat(new, self.options.limits)
        check_key(key)
        own, clock = key or own_key(), _Countdown(LARGE_DEADLINE_S)
        with self._doubting():
            while True:
                try:
                    return await self._create(new, own, request_of(key, new))
                except Occupied:
                    if clock.left_s() <= 0:
                        raise
                    await self._vacate(new.id, clock)

    async def submit(self, chat_id: str, event: Command, key: Key | None = None) -> Answer:
        """Apply a client's event. Raises NotFound, RefusedError, LimitReached, InvalidInput, KeyReused."""
        check_command(event, self.options.limits)
        check_key(key)
        with self._doubting():
            return await self._submit(chat_id, event, key or own_key(), request_of(key, chat_id, event))

    @contextmanager
    def _doubting(self) -> Iterator[None]:
        """A client's write that the store fails is a reason to ask whether any works."""
        try:
            yield
        except StoreError:
            self.pulse.doubt()
            raise

    @abstractmethod
    async def recall(self, key: Key) -> Answer | None:
        """The answer that this key got, for a caller who must look before it can ask again. Raises KeyReused."""

    @abstractmethod
    async def commit(self, snapshot: Snapshot, events: Sequence[Command], commit_id: str) -> Snapshot:
        """A runner's write: all events or none, fenced. Returns the snapshot after.

        `snapshot` is the runner's own, from its claim or its last commit; if the chat moved on since, the events are
        applied to what is there now, where that is proven to have come after it (stamps.py). The same commit id again
        is answered as done. Raises StaleWriter when another claim, past or epoch rules (WentBack where that is the
        database's doing), RefusedError when the state does not take an event.
        """

    @abstractmethod
    async def read_chat(self, chat_id: str) -> Snapshot:
        """Raises NotFound, or RecordError if newer code wrote what this code cannot read."""

    async def follow_chat(self, known: Snapshot) -> Snapshot:
        """The chat as it is now, for a runner who knew `known` before it asks. Raises NotFound, and StaleWriter where
        `known` is not in its past: another claim rules, or (WentBack) the database went back.
        """
        seen = await self.read_chat(known.chat.id)
        if not is_proven(seen.chat, known.chat):
            line = await self._line_stamp(known.chat)
            if judge(seen.chat, known.chat, line) is Past.UNDONE:
                # Or it was deleted between the two looks, and its journal with it: then another tells.
                seen = await self.read_chat(known.chat.id)
            with self._noticing():
                check_past(seen.chat, known.chat, line)
        return seen

    @abstractmethod
    async def list_chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        """Newest first; `before` is the id of the last one of the page before. Raises InvalidInput."""

    async def open_calls(self, chat_id: str) -> list[OpenCallRecord]:
        """What people and clients have to answer in this chat and in all chats below it, one moment of it: the
        uppermost chat first, at most OPEN_CALLS_MAX. Empty where there is no such chat. Arguments are whole as long
        as the responses that hold them come to no more than ARGUMENTS_BYTES_MAX.
        """
        found: list[OpenCallRecord] = []
        left, given = ARGUMENTS_BYTES_MAX, Given()
        for asked in await self._asked(chat_id):
            if left > 0 and given.lacks(asked):
                given = Given(asked, await self._response(asked.chat_id, asked.call.batch))
                left -= given.size
            found.append(open_call(asked, given.of(asked)))
        return found

    async def read_open_call(self, chat_id: str, call_id: str) -> OpenCallRecord:
        """One of this chat's own, whole however large it is. Raises NotFound."""
        for asked in await self._asked(chat_id):
            if (asked.chat_id, asked.call.id) == (chat_id, call_id):
                given = Given(asked, await self._response(chat_id, asked.call.batch))
                return open_call(asked, given.of(asked))
        raise NotFound("open call", call_id)

    @abstractmethod
    async def _asked(self, chat_id: str) -> list[Asked]: ...

    @abstractmethod
    async def _response(self, chat_id: str, seq: int) -> bytes | None:
        """The journal entry with this number, as it is stored."""

    @abstractmethod
    async def count_children(self, chat: Chat) -> ChildCounts: ...

    async def fork_chat(
        self, chat_id: str, new_id: str, *, upto: int | None = None, owner: str | None = None, key: Key | None = None
    ) -> Answer:
        """Copy the history, as bytes, up to the end of the group that position `upto` is in; lands idle.

        The chat as it is when the last slice is copied (remnants.py); until then there is no new one. Raises
        StoreTimeout where that takes longer than LARGE_DEADLINE_S.
        """
        check_fork(new_id, owner, key)
        own, clock = key or own_key(), _Countdown(LARGE_DEADLINE_S)
        hash = request_of(key, chat_id, new_id, upto, owner)
        asked = Forking(chat_id=chat_id, new_id=new_id, upto=upto, owner=owner, key=own, hash=hash)
        begun, answer = False, None
        try:
            while answer is None:
                if clock.left_s() <= 0:
                    why = f"chat {chat_id!r} could not be copied within {LARGE_DEADLINE_S:g} s; nothing was made"
                    raise StoreTimeout(why)
                try:
                    answer = await self._fork_slice(asked)
                    begun = True
                except Occupied as occupied:
                    if begun and occupied.taken:
                        why = f"another fork is being made under the id {new_id!r}"
                        raise RefusedError(why, reason="state", state=State.IDLE, event="fork") from occupied
                    await self._vacate(new_id, clock)
        finally:
            if begun and (answer is None or answer.chat_id != new_id):
                self._clear_later(new_id)
        return answer

    @abstractmethod
    async def _fork_slice(self, asked: Forking) -> Answer | None:
        """One transaction: the next slice of a fork. None: there is more to copy. Raises Occupied, NotFound, …"""

    async def delete_chat(
        self, chat_id: str, *, children: Children = "refuse", archived_before: int | None = None
    ) -> tuple[str, ...]:
        """Really gone, and the spawned chats with it if told so. Returns the ids; refused unless all are at rest, and
        with `archived_before` (ms) unless it is archived and nothing happened in its family since then.

        One transaction takes them out of everybody's sight; what a slice does not hold goes in further ones, which
        are waited for, but for no longer than LARGE_DEADLINE_S.
        """
        deleted, left = await self._take_out(chat_id, children, archived_before)
        done = not left
        try:
            done = done or await self._clear_all(deleted, _Countdown(LARGE_DEADLINE_S))
        except StoreError as error:  # it is deleted all the same
            extra = {"action": "remnants.waiting", "chat": chat_id, "error": str(error)}
            log.warning("not all rows of a deleted chat are removed yet", extra=extra)
        finally:
            if not done:
                self._clear_later()
        return deleted

    @abstractmethod
    async def _take_out(
        self, chat_id: str, children: Children, archived_before: int | None = None
    ) -> tuple[tuple[str, ...], bool]:
        """One transaction, after which these chats are gone for everybody. True: rows of them are left."""

    # --- history and journal ------------------------------------------------------------------------------------

    @abstractmethod
    async def read_history(self, chat_id: str, *, start: int = 0, limit: int = 10_000) -> list[HistoryRow]:
        """Positions from `start` on, in order. While calls are open, the positions of their results are missing."""

    @abstractmethod
    async def read_compaction(self, chat_id: str) -> Compaction | None: ...

    @abstractmethod
    async def locate_message(self, chat_id: str, message_id: str) -> Located:
        """Where a message stands in history now. Raises NotFound."""

    @abstractmethod
    async def read_journal(self, chat_id: str, after: After = None, limit: int = PAGE_ROWS) -> Page:
        """What a reader at cursor `after` has not seen. Raises NotFound, WrongCursor for a cursor that no reader of
        this chat can have.

        Deltas come only for an attempt that is still open, and only as far as none is missing; once its message is
        committed, a reader gets that, with the attempt's number on it, in place of the deltas it did not see.
        """

    async def wait_journal(self, chat_id: str, after: After, deadline_s: float, poll_s: float | None = None) -> Page:
        """As `read_journal`, but waits until there is something, or the deadline: then an empty page.

        `poll_s`: how often it looks without being told to, for who waits long and in great numbers.
        """
        clock = _Countdown(deadline_s)
        with self.bell.listen(chat_id) as listener:
            while True:
                page = await self.read_journal(chat_id, after)
                left_s = clock.left_s()
                if page.items or left_s <= 0:
                    return page
                await listener.wait(min(left_s, poll_s or self.options.poll_interval_s))

    @abstractmethod
    async def add_deltas(self, batches: Sequence[DeltaBatch]) -> tuple[str, ...]:
        """One transaction for all chats. Safe to repeat. Returns the chats that refused: their writer is stale, or
        the piece before the first one is not there, and what lies behind a gap would be read as if it followed.
        """

    @abstractmethod
    async def read_deltas(self, chat_id: str, attempt: int) -> list[DeltaRow]: ...

    # --- workers ------------------------------------------------------------------------------------------------

    @abstractmethod
    def lease_line(self) -> LeaseLine:
        """A connection for leases alone; call from the thread that keeps them."""

    @abstractmethod
    async def claim_chats(
        self, worker: str, agents: Mapping[str, int], limit: int, suspects: int | None = None
    ) -> list[Snapshot]:
        """Take chats that are due, oldest first, in turn between agents, at most `agents[name]` of each, and at most
        so many `suspects` among them: chats that lost several workers in a row (None: as many as there are).

        A chat goes to one worker only. A chat this code cannot read is left for a worker that can. Raises LeaseLost.
        """

    @property
    def file(self) -> str | None:
        """The file that it keeps everything in, and beside which other files of its lie; None on a server."""
        return None

    @property
    def lock_folder(self) -> str:
        """Where workers on this store keep the locks that tell of their death."""
        return os.path.join(tempfile.gettempdir(), f"holdfast-{os.getuid()}")

    @abstractmethod
    async def list_workers(self) -> list[Lease]: ...

    @abstractmethod
    async def held_chats(self, worker: str) -> set[Held]:
        """What is held in this worker's name: each chat, and the stamp of its claim."""

    async def end_leases(
        self, watch: LeaseWatch | None = None, myself: str | None = None
    ) -> list[tuple[Lease, LeaseEnd]]:
        """The first half of `expire_workers`. It touches no chat, so that no chat keeps an observer from looking.
        Returns every lease that is ended and not forgotten.
        """
        leases = await self.list_workers()
        others = [lease for lease in leases if lease.worker != myself]
        silent = watch.look(others, self.options.clock.boot_ms()) if watch is not None else []
        ends = [(lease, lease.ended or await self._end(lease, silent)) for lease in leases]
        return [(lease, how) for lease, how in ends if how is not None]

    async def expire_workers(self, watch: LeaseWatch | None = None, myself: str | None = None) -> dict[str, int]:
        """Take their chats from workers whose lease ended, and end the leases of those whose flock is free here and
        of those that `watch` finds silent. `myself` is the worker that looks: nobody observes itself.

        Each chat is a transaction of its own. Returns how many chats each lost worker had held.
        """
        lost: dict[str, int] = {}
        # The lease first, so that it cannot be renewed any more; then chat by chat; then the row.
        for lease, how in await self.end_leases(watch, myself):
            lost[lease.worker] = await self._take_back(lease.worker, how)
            if lease.lock_path is not None:
                host_lock.forget(lease.lock_path)
        for worker in await self._unknown_holders():
            lost[worker] = await self._take_back(worker, LeaseEnd.SILENT)
        return lost

    async def _end(self, lease: Lease, silent: Sequence[Lease]) -> LeaseEnd | None:
        """How its lease ended just now, if it did: a renewal that comes first wins over silence."""
        if lease.lock_path is not None and host_lock.is_dead(lease.lock_path):
            return LeaseEnd.DIED if await self._end_lease(lease.worker, LeaseEnd.DIED) else None
        if lease in silent and await self._end_lease(lease.worker, LeaseEnd.SILENT, lease.renewal):
            extra = {"action": "lease.ended", "worker": lease.worker, "renewal": lease.renewal}
            log.warning("worker %s was silent for its %g s", lease.worker, lease.ttl_ms / 1000, extra=extra)
            return LeaseEnd.SILENT
        return None

    async def outlive_lease(self, worker: str) -> None:
        """Said by a worker that lives and goes on under another id: its lease is ended, and no chat that it lost
        counts that as a death. Which these are the chats say: it may have learnt chat by chat that they are not its
        own any more, before it learnt why. Each is a transaction. Safe to repeat.
        """
        await self._retire_lease(worker)
        # In this order: what is not held any more has been counted.
        held = [chat_id for chat_id, _ in await self.held_chats(worker)]
        for chat_id in dict.fromkeys((*held, *await self._lost_in_silence(worker))):
            await self._apply_alone(chat_id, LeaseOutlived(worker=worker))

    async def _take_back(self, worker: str, how: LeaseEnd) -> int:
        held = await self.held_chats(worker)
        for chat_id, _ in sorted(held):
            if await self._apply_alone(chat_id, LeaseExpired(worker=worker, how=how)):
                with suppress(NotFound, RecordError):
                    error = (await self.read_chat(chat_id)).chat.error
                    self.poisoned += error is not None and error.cause is Cause.CRASH
        await self._drop_worker(worker)
        return len(held)

    # --- upkeep ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def find_violations(self) -> list[Violation]:
        """Promise 7 as one query. Empty is what it should be."""

    @abstractmethod
    async def _next_to_sweep(self, after: tuple[str, str]) -> tuple[list[str], list[str]]:
        """At most SWEPT_MAX ids of chats that wait, and of chats with a queue, behind these two, in order."""

    @abstractmethod
    async def _find_violations_among(self, waiting: list[str], queued: list[str]) -> list[Violation]:
        """As `find_violations`, but of the chats that wait or have a queue only these are looked at."""

    @abstractmethod
    async def _next_torn(self, after: str) -> list[tuple[str, str, bool]]:
        """The next SWEPT_MAX chats behind this id: id, state, and whether its journal has lines beyond its row."""

    async def find_torn(self) -> list[Violation]:
        """Chats that no write gets into, because their journal has lines beyond their row. Looks at every chat."""
        found: list[Violation] = []
        after = ""
        while looked_at := await self._next_torn(after):
            found += _torn(looked_at)
            after = looked_at[-1][0]
        return found

    async def _find_some_torn(self) -> list[Violation]:
        """A sweep's share, as below."""
        looked_at = await self._next_torn(self._torn_upto)
        self._torn_upto = looked_at[-1][0] if len(looked_at) == SWEPT_MAX else ""
        return _torn(looked_at)

    async def _find_some_violations(self) -> list[Violation]:
        """A sweep's share. The next sweep goes on behind it, and begins anew at the end."""
        waiting, queued = await self._next_to_sweep(self._swept_upto)
        ends = [ids[-1] if len(ids) == SWEPT_MAX else "" for ids in (waiting, queued)]
        self._swept_upto = (ends[0], ends[1])
        return await self._find_violations_among(waiting, queued)

    async def sweep(self) -> dict[str, int]:
        """As `expire_workers`; then repair violations, each in a transaction of its own, counted by reason.

        Of the chats that wait, or have a queue, SWEPT_MAX are looked at in each sweep, in turn.

        A chat under a dead lease is not repaired: its worker died since we looked, or another sweeper is taking its
        chats back just now. Only an expiry counts as unclean, and only an expiry says whose chat it takes; a repair
        would take the chat from whoever has claimed it meanwhile.
        """
        await self._keep_incidents()
        await self.expire_workers()
        repaired: dict[str, int] = {}
        for violation in [*await self._find_some_torn(), *await self._find_some_violations()]:
            if violation.reason == UNDER_DEAD_LEASE:
                continue  # for the next sweep's expiry
            if await self._apply_alone(violation.chat_id, Repair(reason=violation.reason, lease_is_live=True)):
                repaired[violation.reason] = repaired.get(violation.reason, 0) + 1
        await self.clear_remnants(SWEPT_S)
        return repaired

    # --- rows without a chat (remnants.py) -----------------------------------------------------------------------

    async def clear_remnants(self, within_s: float) -> None:
        """Go on with what others left: remove rows of deleted chats, and of forks that nobody goes on with. What is
        not done within that time is for the next one who looks.
        """
        clock = _Countdown(within_s)
        records = await self._read_remnants()
        for record in self._remnant_watch.abandoned(records, self.options.clock.boot_ms()):
            await self._give_up_fork(record.chat_id, record.pos)
            records = [*records, Remnant(chat_id=record.chat_id)]
        self.remnant_count = len(records)
        if going := [record.chat_id for record in records if record.source_id is None]:
            await self._clear_all(going, clock)
            self.remnant_count = len(await self._read_remnants())

    async def _clear_all(self, chat_ids: Sequence[str], clock: "_Countdown") -> bool:
        """False: there was no time for all of it."""
        for start in range(0, len(chat_ids), SWEPT_MAX):
            some = chat_ids[start : start + SWEPT_MAX]
            while await self._clear_slice(some):
                if clock.left_s() <= 0:
                    return False
        return True

    async def _vacate(self, chat_id: str, clock: "_Countdown") -> None:
        """What is under this id goes, a fork that is being made among it."""
        await self._give_up_fork(chat_id)
        await self._clear_all([chat_id], clock)

    def _clear_later(self, chat_id: str | None = None) -> None:
        """Beside whatever else is done here, until nothing is left; with a fork of our own that came to nothing."""
        if self._clearing is None or self._clearing.done():
            self._clearing = asyncio.get_running_loop().create_task(self._clear_on(chat_id))

    async def _clear_on(self, chat_id: str | None) -> None:
        while True:
            try:
                if chat_id is not None:
                    await self._vacate(chat_id, _Countdown(LARGE_DEADLINE_S))
                    chat_id = None
                await self.clear_remnants(LARGE_DEADLINE_S)
                if not self.remnant_count:
                    return
            except StoreClosed:
                return
            except StoreError as error:
                log.warning("rows could not be removed: %s", error, extra={"action": "remnants.waiting"})
            await asyncio.sleep(CLEARING_INTERVAL_S)

    async def _stop_clearing(self) -> None:
        """When the store is closed. The next one who opens it goes on."""
        task, self._clearing = self._clearing, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @abstractmethod
    async def _read_remnants(self) -> list[Remnant]:
        """At most SWEPT_MAX records."""

    @abstractmethod
    async def _give_up_fork(self, chat_id: str, pos: int | None = None) -> None:
        """The rows of a fork that is not whole are to go. Where a position is told, only if it still stands there."""

    @abstractmethod
    async def _clear_slice(self, chat_ids: Sequence[str]) -> bool:
        """One transaction: a slice of the rows under these ids, those of them whose rows are to go. True: some are
        left.
        """

    # --- what befell the database -------------------------------------------------------------------------------

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except WentBack as error:
            self.incidents.tell(WENT_BACK, str(error), chat=error.chat_id)
            raise

    async def _keep_incidents(self) -> None:
        for incident in sorted(self.incidents.unkept):
            await self._note(note_of(incident), self.options.clock.wall_ms())
            self.incidents.unkept.discard(incident)

    async def incident_at(self, incident: Incident) -> int | None:
        """When any process last noticed one, as far as the database knows, in ms."""
        return (await self._read_notes()).get(note_of(incident))

    @abstractmethod
    async def _note(self, key: str, value: int) -> None: ...

    @abstractmethod
    async def _read_notes(self) -> dict[str, int]: ...

    @abstractmethod
    async def _line_stamp(self, known: Chat) -> int | None:
        """What the line that `known` ends with is stamped with now; None where it is gone."""

    @abstractmethod
    async def read_repairs(self) -> dict[str, int]:
        """How many violations were ever repaired, by reason."""

    async def end_all_leases(self) -> int:
        """After the database was put back to an earlier state: whoever held a chat then does not hold it now.

        Returns how many leases there were. Also notes that it went back, and when: nobody else may notice.
        """
        leases = [lease for lease in await self.list_workers() if lease.ended is None]
        for lease in leases:
            await self._retire_lease(lease.worker)  # which is nobody's death
        await self._note(note_of(WENT_BACK), self.options.clock.wall_ms())
        return len(leases)

    async def prune_receipts(self) -> int:
        """Forget answers older than seven days: at most PRUNED_MAX, the oldest first. Returns how many.

        By a clock of their own, which stands in the table `meta` and goes on from prune to prune as the wall clock
        does, but never back and never by more than an hour: a wall clock that is set forward by a week would make
        clients that ask again do twice what was done once.
        """
        wall_ms = self.now_ms()
        notes = await self._read_notes()
        went_on_ms = wall_ms - notes.get("receipts_wall", wall_ms)
        clock_ms = notes.get("receipts_clock", wall_ms) + max(0, min(went_on_ms, RECEIPTS_STEP_MS_MAX))
        await self._note("receipts_wall", wall_ms)  # first: what a crash then leaves out is not counted twice
        await self._note("receipts_clock", clock_ms)
        return await self._prune_receipts(clock_ms - RECEIPT_DAYS * 86_400_000)

    async def aged_ms(self) -> int:
        """The clock by which what is kept grows old without anybody's asking: that of the receipts. A wall clock that
        is set forward by a year must not delete what was archived yesterday.
        """
        now_ms = self.now_ms()
        return min(now_ms, (await self._read_notes()).get("receipts_clock", now_ms))

    @abstractmethod
    async def _prune_receipts(self, before: int) -> int: ...

    @abstractmethod
    async def next_with_leftovers(self, cutoffs: Cutoffs, after: str) -> list[tuple[str, bool]]:
        """The next LOOKED_AT_MAX chats behind this id, and whether they keep what is to go (retention.py)."""

    @abstractmethod
    async def drop_leftovers(
        self, kind: Leftover, chat_ids: Sequence[str], before: int, *, dry_run: bool = False
    ) -> Amount:
        """One transaction: of these chats the leftovers from before that instant, at most ROWS_MAX of them and some
        BYTES_MAX. With `dry_run` all of them are counted, and none deleted. Safe to repeat.
        """

    @abstractmethod
    async def next_expired(self, before: int, after: str) -> list[tuple[str, int]]:
        """The next LOOKED_AT_MAX archived chats behind this id in whose family nothing happened since that instant,
        and how many there are in each family."""

    @abstractmethod
    async def measure(self) -> Size:
        """How large the database is."""

    def now_ms(self) -> int:
        """The wall clock by which what is stored gets its instants: the server's, where there is one."""
        return self.options.clock.wall_ms()

    @abstractmethod
    async def prove_writing(self) -> None:
        """A small write that is as durable as any, and that waits for no chat."""

    @abstractmethod
    def stats(self) -> dict[str, int | float | str | None]:
        """Figures beside their limits, for /health. Never blocks, never raises."""

    # --- for the implementations ------------------------------------------------------------------------------------

    @abstractmethod
    async def _create(self, new: NewChat, key: Key, hash: str) -> Answer: ...

    @abstractmethod
    async def _submit(self, chat_id: str, event: Command, key: Key, hash: str) -> Answer: ...

    async def _apply_alone(self, chat_id: str, event: Command) -> bool:
        """One chat, one transaction: a chat that refuses, is gone, cannot be read, is locked by somebody who does not
        let go or meets a fault of ours stops nobody else's repair. The next sweep finds it again.
        """
        try:
            await self._apply_upkeep(chat_id, event)
        except RecordError:
            self.unreadable += 1
            return False
        except (RefusedError, StaleWriter, NotFound):
            return False
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreTimeout):
                raise  # of the store, not of this chat
            extra = {"action": "upkeep_failed", "chat": chat_id, "event": event.name, "error": str(error)}
            log.warning("a chat could not be swept", extra=extra, exc_info=error)
            return False
        return True

    @abstractmethod
    async def _apply_upkeep(self, chat_id: str, event: Command) -> None:
        """Apply an event that nobody asked for; a Repair is counted in the same transaction."""

    @abstractmethod
    async def _end_lease(self, worker: str, how: LeaseEnd, renewal: int | None = None) -> bool:
        """False: it was ended before, or `renewal` is not its number any more."""

    @abstractmethod
    async def _retire_lease(self, worker: str) -> None:
        """Ended by its own worker, which lives: that beats what others took it for."""

    @abstractmethod
    async def _lost_in_silence(self, worker: str) -> list[str]:
        """Chats that were taken from this worker as from one that may live, and have made no progress since."""

    @abstractmethod
    async def _unknown_holders(self) -> list[str]:
        """Workers that hold chats and have no row: nobody would ever take those chats back."""

    @abstractmethod
    async def _drop_worker(self, worker: str) -> None:
        """Forget a worker that holds nothing any more."""

    def _ring(self, changes: Sequence[Change]) -> None:
        self.bell.ring(topics_of(changes))

    # --- what other processes say -------------------------------------------------------------------------------

    async def _listen_to(self, source: Source) -> None:
        self.wakes = WakeStream(source, self._hear, self.options.wake, report=self._report)
        await self.wakes.start()

    def _hear(self, wake: Wake) -> None:
        if wake.topics is None:
            self.bell.ring_all()
        else:
            self.bell.ring(wake.topics)

    def _report(self, state: WakeState, error: str | None) -> None:
        if error is not None:
            log.warning("wake stream %s: %s", state, self._scrub(error), extra={"action": "wake.trouble"})
        else:
            log.debug("wake stream %s", state, extra={"action": "wake.state"})

    def _scrub(self, text: str) -> str:
        return text

    def _wake_stats(self) -> "dict[str, int | float | str | None]":
        if self.wakes is None:
            return {"wake_stream": "off"}
        figures = self.wakes.figures()
        return {
            "wake_stream": figures.state,
            "wake_stream_s": round(figures.state_s, 3),
            "wake_connects": figures.connects,
            "wake_reconnects": figures.reconnects,
            "wake_pings": figures.pings,
            "wake_pings_failed": figures.pings_failed,
            "wakes_heard": figures.wakes,
            "wake_letting_go": figures.letting_go,
            "wake_last_error": self._scrub(figures.last_error) if figures.last_error is not None else None,
        }


def _torn(looked_at: Sequence[tuple[str, str, bool]]) -> list[Violation]:
    return [
        Violation(chat_id=id, state=State(state), reason=JOURNAL_AHEAD) for id, state, ahead in looked_at if ahead
    ]


class _Countdown:
    def __init__(self, seconds: float) -> None:
        self._clock = SystemClock()
        self._end_ms = self._clock.boot_ms() + seconds * 1000

    def left_s(self) -> float:
        return (self._end_ms - self._clock.boot_ms()) / 1000
