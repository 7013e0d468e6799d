"""The store's contract: few verbs, each one transaction. Decisions come from the core; the stores differ in SQL.

Every verb either happened wholly or not at all, and raises what `errors.py` says. None waits longer than the
store's deadline (8 s by default); `StoreTimeout.outcome` then says whether the write may still happen. A verb with
a key or a commit id may simply be called again: it is answered as done if it was.
"""

import logging
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from msgspec import Raw

from holdfast.core.commands import Command
from holdfast.core.kept_files import Aside
from holdfast.core.leases import LeaseWatch
from holdfast.core.records import ChatRecord, Compaction, Lease, LeaseEnd, Message, NewChat, Snapshot
from holdfast.core.wake import WakeState
from holdfast.errors import NotFound, StoreError, WentBack
from holdfast.store.budgets import BudgetLedgers
from holdfast.store.checks import check_command, check_fork, check_key, check_new_chat
from holdfast.store.claims import Claims, claim_wanted
from holdfast.store.cursor import AfterCursor
from holdfast.store.deliveries import Deliveries
from holdfast.store.fairness import NO_SHARES, Shares
from holdfast.store.incidents import WENT_BACK, Incident, Incidents, note_of
from holdfast.store.kept_files import KeptFiles, put_aside
from holdfast.store.kept_rules import KeptRules
from holdfast.store.large_chats import LargeChats
from holdfast.store.link_keys import LinkKeys
from holdfast.store.memory import Memories
from holdfast.store.notify.bell import Bell
from holdfast.store.notify.wake_stream import Source, Wake, WakeStream
from holdfast.store.open_calls import (
    ARGUMENTS_BYTES_MAX,
    AskedCall,
    GivenArguments,
    OpenCallFilter,
    OpenCallLine,
    OpenCallRecord,
    open_call,
)
from holdfast.store.receipts import RECEIPT_DAYS, RECEIPTS_STEP_MS_MAX, own_key, request_of
from holdfast.store.records import (
    PAGE_BYTES,
    PAGE_ROWS,
    Answer,
    ChatFilter,
    ChatLine,
    ChildCounts,
    DeleteChildren,
    DeltaBatch,
    DeltaRow,
    Forking,
    Held,
    HistoryRow,
    Key,
    Located,
    Ownership,
    Page,
    Size,
    StoreOptions,
    Violation,
    WorkerInfo,
)
from holdfast.store.recovery import Recovery
from holdfast.store.remnants import LARGE_DEADLINE_S, SWEPT_S, Occupied
from holdfast.store.retention import Amount, Cutoffs, Leftover
from holdfast.store.schedules import Schedules
from holdfast.store.stamps import Past, check_past, is_proven, judge
from holdfast.store.sub_agents import (
    EXCERPTS_BYTES_MAX,
    EXCERPTS_MAX,
    SUB_AGENTS_MAX,
    ChildRow,
    SubAgent,
    excerpt_of,
    sub_agent,
)
from holdfast.store.survey import EVERYTHING, Survey
from holdfast.store.tokens import Tokens
from holdfast.store.transfers import Transfers
from holdfast.store.webhooks import Webhooks
from holdfast.store.write_probe import Pulse
from holdfast.system.clock import Countdown

log = logging.getLogger("holdfast.store")

RENEWAL_DEADLINE_S = 5.0


class LeaseLine(ABC):
    """A worker's lease, kept from any thread over a connection of its own. Synchronous: no event loop needed."""

    @abstractmethod
    def register(self, worker: WorkerInfo) -> Lease:
        """Take a lease under a new worker id."""

    @abstractmethod
    def renew(self, worker: str, info: Raw | None = None) -> Lease:
        """Count its number up. This alone decides: raises LeaseLost once an observer ended it."""

    @abstractmethod
    def retire(self, worker: str) -> None:
        """Give the lease up. What the worker still holds is handed over by the next sweep."""

    @abstractmethod
    def close(self) -> None: ...


class Store(ABC):
    """See the module's first lines. `open` before use, `close` after; also an async context manager.

    `str(store)` says which database it is, without passwords.
    """

    # What a store is made of, besides itself: each has the steps of that subject, and what is built of them.
    claims: Claims
    recovery: Recovery
    large_chats: LargeChats
    transfers: Transfers
    tokens: Tokens
    kept_rules: KeptRules
    budgets: BudgetLedgers
    webhooks: Webhooks
    deliveries: Deliveries
    link_keys: LinkKeys
    files: KeptFiles
    schedules: Schedules
    memory: Memories

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.bell = Bell()
        self.pulse = Pulse(options.clock, self.prove_writing)
        self.schema_version: int | None = None  # of the database, once it is open
        self.incidents = Incidents()
        self.wakes: WakeStream | None = None  # None: no other process tells us, waiters poll

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
    def write_lock_paths(self) -> tuple[str, ...]:
        """The files whose locks every writer on this host needs: a worker that is frozen with one is ended."""
        return ()

    @property
    def why_read_only(self) -> StoreError | None:
        """Why it is open for reading alone, if it is."""
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
        own, clock = key or own_key(), Countdown(LARGE_DEADLINE_S)
        hash = request_of(key, new)
        new, aside = await put_aside(new)
        with self._doubting():
            while True:
                try:
                    return await self._create(new, own, hash, aside)
                except Occupied:
                    if clock.left_s() <= 0:
                        raise
                    await self.large_chats.vacate(new.id, clock)

    async def submit(self, chat_id: str, command: Command, key: Key | None = None) -> Answer:
        """Apply a client's command. Raises NotFound, RefusedError, LimitReached, InvalidInput, KeyReused."""
        check_command(command, self.options.limits)
        check_key(key)
        with self._doubting():
            hash = request_of(key, chat_id, command)
            command, aside = await put_aside(command)
            return await self._submit(chat_id, command, key or own_key(), hash, aside)

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
    async def commit(self, snapshot: Snapshot, commands: Sequence[Command], commit_id: str) -> Snapshot:
        """A runner's write: all commands or none, fenced. Returns the snapshot after.

        `snapshot` is the runner's own, from its claim or its last commit; if the chat moved on since, the commands
        are applied to what is there now, where that is proven to have come after it (stamps.py). The same commit id
        again is answered as done. Raises StaleWriter when another claim, past or epoch rules (WentBack where that is
        the database's doing), RefusedError when the state does not take a command.
        """

    @abstractmethod
    async def read_chat(self, chat_id: str) -> Snapshot:
        """Raises NotFound, or RecordError if newer code wrote what this code cannot read."""

    async def follow_chat(self, known: Snapshot) -> Snapshot:
        """The chat as it is now, for a runner who knew `known` before it asks. Raises NotFound, and StaleWriter where
        `known` is not in its past: another claim rules, or (WentBack) the database went back.

        A runner asks every second, and mostly nothing happened: then `known` itself, for one read of two numbers.
        """
        if await self._marks(known.chat.id) == (known.chat.stamp, known.chat.version):
            return known
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
    async def read_owner(self, chat_id: str) -> Ownership | None:
        """Whose chat it is, also where newer code wrote the rest of it; None where there is none."""

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
        left, given = ARGUMENTS_BYTES_MAX, GivenArguments()
        for asked in await self._asked(chat_id):
            if left > 0 and given.lacks(asked):
                given = GivenArguments(asked, await self._response(asked.chat_id, asked.call.batch))
                left -= given.size
            found.append(open_call(asked, given.of(asked)))
        return found

    async def read_open_call(self, chat_id: str, call_id: str) -> OpenCallRecord:
        """One of this chat's own, whole however large it is. Raises NotFound."""
        for asked in await self._asked(chat_id):
            if (asked.chat_id, asked.call.id) == (chat_id, call_id):
                given = GivenArguments(asked, await self._response(chat_id, asked.call.batch))
                return open_call(asked, given.of(asked))
        raise NotFound("open call", call_id)

    @abstractmethod
    async def list_open_calls(
        self, filter: OpenCallFilter | None = None, *, before: str | None = None, limit: int = 100
    ) -> list[OpenCallLine]:
        """What people and clients have to answer in all chats: the newest chat first, each one's in order; `before`
        is the `place` of the last one of the page before. What it costs goes by the chats that wait or are at work,
        however many rest. Arguments as people are told of them, long ones as an excerpt. Raises InvalidInput.
        """

    @abstractmethod
    async def _asked(self, chat_id: str) -> list[AskedCall]: ...

    @abstractmethod
    async def _response(self, chat_id: str, seq: int) -> bytes | None:
        """The journal entry with this number, as it is stored."""

    async def sub_agents(self, chat_id: str, *, deep: bool = False, limit: int = SUB_AGENTS_MAX) -> list[SubAgent]:
        """What this chat's calls spawned, and with `deep` all that is below it: those at work first, then the newest,
        SUB_AGENTS_MAX at most, the first EXCERPTS_MAX of them with their words. Empty where there is no such chat.
        """
        found: list[SubAgent] = []
        left = EXCERPTS_BYTES_MAX
        for row in await self._sub_agents(chat_id, min(limit, SUB_AGENTS_MAX), deep=deep):
            task = answer = None
            if len(found) < EXCERPTS_MAX and left > 0:
                rows = await self.read_history(row.chat.id, start=row.chat.turn_from, limit=1)
                task = rows[0].body if rows else None
                if row.chat.answer_seq is not None:
                    answer = await self._response(row.chat.id, row.chat.answer_seq)
                left -= len(task or b"") + len(answer or b"")
            found.append(sub_agent(row, excerpt_of(task), excerpt_of(answer)))
        return found

    @abstractmethod
    async def _sub_agents(self, chat_id: str, limit: int, *, deep: bool) -> list[ChildRow]: ...

    @abstractmethod
    async def count_children(self, chat: ChatRecord) -> ChildCounts: ...

    async def fork_chat(
        self, chat_id: str, new_id: str, *, upto: int | None = None, owner: str | None = None, key: Key | None = None
    ) -> Answer:
        """Copy the history, as bytes, up to the end of the group that position `upto` is in; lands idle.

        The chat as it is when the last slice is copied (remnants.py); until then there is no new one. Raises
        StoreTimeout where that takes longer than LARGE_DEADLINE_S.
        """
        check_fork(new_id, owner, key)
        hash = request_of(key, chat_id, new_id, upto, owner)
        return await self.large_chats.fork_chat(
            Forking(chat_id=chat_id, new_id=new_id, upto=upto, owner=owner, key=key or own_key(), hash=hash)
        )

    async def delete_chat(
        self, chat_id: str, *, children: DeleteChildren = "refuse", archived_before: int | None = None
    ) -> tuple[str, ...]:
        """Really gone, and the spawned chats with it if told so. Returns the ids; refused unless all are at rest, and
        with `archived_before` (ms) unless it is archived and nothing happened in its family since then.

        One transaction takes them out of every reader's sight; what a slice does not hold goes in further ones, which
        are waited for, but for no longer than LARGE_DEADLINE_S.
        """
        await self.memory.before_deletion(chat_id)
        deleted = await self.large_chats.delete_chat(chat_id, children, archived_before)
        try:
            await self.files.clear_unused(Countdown(LARGE_DEADLINE_S))
        except StoreError as error:  # it is deleted all the same, and the next sweep goes on
            extra = {"action": "files.waiting", "chat": chat_id, "error": str(error)}
            log.warning("not all files of a deleted chat are removed yet", extra=extra)
        return deleted

    # --- history and journal ------------------------------------------------------------------------------------

    @abstractmethod
    async def read_history(
        self, chat_id: str, *, start: int = 0, limit: int = 10_000, bytes_max: int | None = None
    ) -> list[HistoryRow]:
        """Positions from `start` on, in order. While calls are open, the positions of their results are missing.
        With `bytes_max` the row that reaches it is the last, and there is at least one.
        """

    async def read_file(self, chat_id: str, digest: str) -> bytes:
        """The bytes of a file that a message of this chat names. Raises NotFound."""
        return await self.files.read(chat_id, digest)

    async def whole_messages(
        self, chat_id: str, messages: Sequence[Message], *, every: bool = False
    ) -> Sequence[Message]:
        """Messages of this chat, with the bytes of the files that they name in place of their names: of the newest
        SHOWN_BYTES_MAX of them (kept_files.py). With `every`, for who makes another chat of them, it raises
        LimitReached where there are more.
        """
        return await self.files.whole(chat_id, messages, every=every)

    @abstractmethod
    async def read_compaction(self, chat_id: str) -> Compaction | None: ...

    @abstractmethod
    async def read_compactions(self, chat_id: str, *, start: int, end: int, limit: int = 100) -> list[Compaction]:
        """Those that end behind `start`, up to `end`, in order; of too many, the last ones. Older ones are forgotten
        in time (retention.py).
        """

    @abstractmethod
    async def locate_message(self, chat_id: str, message_id: str) -> Located:
        """Where a message stands in history now. Raises NotFound."""

    @abstractmethod
    async def read_journal(
        self, chat_id: str, after: AfterCursor = None, limit: int = PAGE_ROWS, bytes_max: int = PAGE_BYTES
    ) -> Page:
        """What a reader at cursor `after` has not seen: at most `limit` items, and the one that reaches `bytes_max`
        is the last, so that a page has at least one. Raises NotFound, WrongCursor for a cursor that no reader of
        this chat can have.

        Deltas come only for an attempt that is still open, and only as far as none is missing; once its message is
        committed, a reader gets that, with the attempt's number on it, in place of the deltas it did not see.
        """

    async def wait_journal(
        self, chat_id: str, after: AfterCursor, deadline_s: float, poll_s: float | None = None
    ) -> Page:
        """As `read_journal`, but waits until there is something, or the deadline: then an empty page.

        `poll_s`: how often it looks without being told to, for who waits long and in great numbers.
        """
        clock = Countdown(deadline_s)
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

    async def claim_chats(
        self,
        worker: str,
        agents: Mapping[str, int],
        limit: int,
        suspects: int | None = None,
        shares: Shares = NO_SHARES,
    ) -> list[Snapshot]:
        """Take chats that are due, in turn between owners and agents, oldest first, at most `agents[name]` of each,
        and at most so many `suspects` among them: chats that lost several workers in a row (None: as many as there
        are). `shares`: what the worker has of each owner already, and the most that it takes of one.

        A chat goes to one worker only. A chat this code cannot read is left for a worker that can. Raises LeaseLost.
        """
        return await self.claims.claim_chats(claim_wanted(worker, agents, limit, suspects, shares))

    @property
    def file(self) -> str | None:
        """The file that it keeps everything in, and beside which other files of its lie; None on a server."""
        return None

    @property
    def lock_folder(self) -> str:
        """Where workers on this store keep the locks that tell of their death."""
        return os.path.join(tempfile.gettempdir(), f"holdfast-{os.getuid()}")

    async def list_workers(self) -> list[Lease]:
        return await self.recovery.list_workers()

    async def held_chats(self, worker: str) -> set[Held]:
        """What is held in this worker's name: each chat, and the stamp of its claim."""
        return await self.recovery.held_chats(worker)

    async def end_leases(
        self, watch: LeaseWatch | None = None, myself: str | None = None
    ) -> list[tuple[Lease, LeaseEnd]]:
        """The first half of `expire_workers`. It touches no chat, so that no chat keeps an observer from looking.
        Returns every lease that is ended and not forgotten.
        """
        return await self.recovery.end_leases(watch, myself)

    async def expire_workers(self, watch: LeaseWatch | None = None, myself: str | None = None) -> dict[str, int]:
        """Take their chats from workers whose lease ended, and end the leases of those whose flock is free here and
        of those that `watch` finds silent. `myself` is the worker that looks: none observes itself.

        Each chat is a transaction of its own. Returns how many chats each lost worker had held.
        """
        return await self.recovery.expire_workers(watch, myself)

    async def outlive_lease(self, worker: str) -> None:
        """Said by a worker that lives and goes on under another id: its lease is ended, and no chat that it lost
        counts that as a death. Which these are the chats say: it may have learnt chat by chat that they are not its
        own any more, before it learnt why. Each is a transaction. Safe to repeat.
        """
        await self.recovery.outlive_lease(worker)

    # --- upkeep ---------------------------------------------------------------------------------------------------

    async def find_violations(self) -> list[Violation]:
        """Promise 7 as one query. Empty is what it should be."""
        return await self.recovery.find_violations()

    async def find_torn(self) -> list[Violation]:
        """Chats that no write gets into, because their journal has lines beyond their row. Looks at every chat."""
        return await self.recovery.find_torn()

    async def sweep(self) -> dict[str, int]:
        """As `expire_workers`; then repair violations, each in a transaction of its own, counted by reason.

        Of the chats that wait, or have a queue, SWEPT_MAX are looked at in each sweep, in turn.

        A chat under a dead lease is not repaired: its worker died since we looked, or another sweeper is taking its
        chats back just now. Only an expiry counts as unclean, and only an expiry says whose chat it takes; a repair
        would take the chat from the worker that has claimed it meanwhile.
        """
        await self._keep_incidents()
        seen = await self.recovery.survey(self.budgets.fold_before)
        if await self.recovery.expire_seen(seen):
            seen = await self.recovery.survey(self.budgets.fold_before)  # the dead leave more than their chats
        repaired = await self.recovery.repair_some(seen)
        await self.budgets.sweep(seen.spending)
        await self._clear_remnants(SWEPT_S, seen)
        return repaired

    async def clear_remnants(self, within_s: float) -> None:
        """Go on with what other processes left: remove rows of deleted chats, and of forks that none goes on with.
        What is not done within that time is for the next process that looks.
        """
        await self._clear_remnants(within_s, EVERYTHING)

    async def _clear_remnants(self, within_s: float, seen: Survey) -> None:
        if seen.remnants:
            await self.large_chats.clear_remnants(within_s)
        else:
            self.large_chats.saw_none()
        if seen.unused_files or seen.remnants:
            await self.files.clear_unused(Countdown(within_s))

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
    async def _marks(self, chat_id: str) -> tuple[int, int] | None:
        """The stamp of the last write, and the version, which older code beside us moves without a stamp."""

    @abstractmethod
    async def _line_stamp(self, known: ChatRecord) -> int | None:
        """What the line that `known` ends with is stamped with now; None where it is gone."""

    async def read_repairs(self) -> dict[str, int]:
        """How many violations were ever repaired, by reason."""
        return await self.recovery.read_repairs()

    async def end_all_leases(self) -> int:
        """After the database was put back to an earlier state: a worker that held a chat then does not hold it now.

        Returns how many leases there were. Also notes that it went back, and when: no other may notice.
        """
        count = await self.recovery.retire_all()
        await self._note(note_of(WENT_BACK), self.options.clock.wall_ms())
        return count

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
        """The clock by which what is kept grows old by itself: that of the receipts. A wall clock that
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

    @property
    def unreadable(self) -> int:
        """Chats passed over because newer code wrote them."""
        return self.claims.unreadable + self.recovery.unreadable

    # --- for the implementations ------------------------------------------------------------------------------------

    @abstractmethod
    async def _create(self, new: NewChat, key: Key, hash: str, aside: Aside) -> Answer: ...

    @abstractmethod
    async def _submit(self, chat_id: str, command: Command, key: Key, hash: str, aside: Aside) -> Answer: ...

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
