"""The store's contract: few verbs, each one transaction. Decisions come from the core; the stores differ in SQL.

Every verb either happened wholly or not at all, and raises what `errors.py` says. None waits longer than the
store's deadline (8 s by default); `StoreTimeout.outcome` then says whether the write may still happen. A verb with
a key or a commit id may simply be called again: it is answered as done if it was.
"""

import asyncio
import hashlib
import logging
import math
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, NoReturn, Self

import msgspec
from msgspec import Raw

from holdfast.core.apply import Change, Refused, apply
from holdfast.core.codec import JSON_DEPTH_MAX, check_text, encode, is_too_deep, too_deep
from holdfast.core.commands import Claim, Command, Edit, LeaseExpired, LeaseOutlived, Repair, Send
from holdfast.core.deadlines import WAKE_DEADLINES, WakeDeadlines
from holdfast.core.history import TOOL_NAME
from holdfast.core.leases import LeaseWatch
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import (
    NOTHING,
    Cause,
    Chat,
    ClientTool,
    Compaction,
    Frozen,
    Lease,
    LeaseEnd,
    Message,
    NewChat,
    Record,
    Role,
    Sampling,
    Snapshot,
    State,
    Text,
)
from holdfast.core.wake import WakeState
from holdfast.errors import (
    InvalidInput,
    KeyReused,
    LimitReached,
    NotFound,
    RecordError,
    RefusedError,
    StaleWriter,
    StoreClosed,
    StoreError,
    StoreTimeout,
    WentBack,
)
from holdfast.ids import new_id
from holdfast.store import host_lock
from holdfast.store.cursor import After, Cursor
from holdfast.store.incidents import WENT_BACK, Incident, Incidents, note_of
from holdfast.store.liveness import JOURNAL_AHEAD, SWEPT_MAX, UNDER_DEAD_LEASE
from holdfast.store.notify.bell import WORK, Bell, control_topic, rest_topic
from holdfast.store.notify.wake_stream import Source, Wake, WakeStream
from holdfast.store.open_calls import ARGUMENTS_BYTES_MAX, Asked, Given, OpenCall, open_call
from holdfast.store.remnants import LARGE_DEADLINE_S, SWEPT_S, Occupied, Remnant, RemnantWatch, Slice
from holdfast.store.retention import Amount, Cutoffs, Leftover
from holdfast.store.rows import ChatWrite, writes_of
from holdfast.store.stamps import Past, check_past, is_proven, judge, stamped
from holdfast.store.write_probe import Pulse
from holdfast.system.clock import Clock, SystemClock

log = logging.getLogger(__name__)

STORE_DEADLINE_S = 8.0
RENEWAL_DEADLINE_S = 5.0
POLL_INTERVAL_S = 0.25
RECEIPT_DAYS = 7
RECEIPTS_STEP_MS_MAX = 3_600_000
PRUNED_MAX = 5_000  # receipts in one transaction, which others wait for on SQLite
PAGE_ROWS = 500
CLEARING_INTERVAL_S = 5.0  # between two looks at what somebody else may go on with
LISTED_MAX = 10_000
OPENING_SHOWN = 80
# What a store is asked for without writing. Each has room of its own, so that none waits for the next one's slowness:
# the point reads that everybody needs, pages of listings, and searches, which read as much as there is.
Lane = Literal["reads", "lists", "searches"]
QUIET = (State.IDLE, State.FAILED, State.WAITING)  # nothing happens in it until somebody does something


class StoreOptions(Frozen):
    """What both stores can be told. Everything has a default that is safe."""

    limits: Limits = LIMITS
    clock: Clock = SystemClock()
    deadline_s: float = STORE_DEADLINE_S
    lease_ttl_ms: int = 30_000
    poll_interval_s: float = POLL_INTERVAL_S
    wake: WakeDeadlines = WAKE_DEADLINES
    only_reads: bool = False  # a store that cannot be written to is good enough; SQLite alone knows how


class Key(Frozen):
    """An idempotency key: unique per principal, remembered for seven days with the answer it got.

    `request` is a digest of what the client asked for, where that is less than what the store is given: a client that
    asks again does not know the ids that were made for it the first time.
    """

    principal: str
    key: str
    request: str | None = None


class Answer(Record):
    """What a client call did. The same call with the same key gets the same answer."""

    chat_id: str
    seq: int
    state: State
    dropped: tuple[Raw, ...] = ()  # queued messages that will not be delivered


class Item(Frozen):
    """One thing a reader sees: a journal entry, or a delta of the response that is being streamed."""

    cursor: str
    at: int
    body: bytes
    seq: int | None = None
    attempt: int | None = None
    k: int | None = None


class Page(Frozen):
    items: tuple[Item, ...]
    cursor: str  # read on after this
    at_rest: bool  # nothing more will come until somebody does something
    more: bool  # there is more right now


class Located(Frozen):
    pos: int
    role: Role
    epoch: int


class HistoryRow(Frozen):
    """One position of the history. `body` is the journal entry's JSON, as it was written."""

    pos: int
    seq: int
    role: Role
    message_id: str
    body: bytes


class DeltaRow(Frozen):
    attempt: int
    k: int
    body: bytes


class DeltaBatch(Frozen):
    """The deltas of one chat in a flush. `chat` is what their runner knew when it began the attempt: they are written
    only while its claim holds, and while all that it knew is in the chat's past.
    """

    chat: Chat
    attempt: int
    first_k: int
    bodies: tuple[bytes, ...]

    @property
    def chat_id(self) -> str:
        return self.chat.id


class WorkerInfo(Frozen):
    worker: str
    host: str
    pid: int
    lock_path: str | None = None
    info: Raw = Raw(b"{}")


class Violation(Frozen):
    """A chat for which promise 7 does not hold."""

    chat_id: str
    state: State
    reason: str


def violation(row: Sequence[Any]) -> Violation:
    """A row of the liveness query."""
    chat_id, state, reason = row
    return Violation(chat_id=chat_id, state=State(state), reason=reason)


class ChatLine(Frozen):
    """A chat in a listing."""

    id: str
    agent: str
    owner: str
    title: str | None
    opening: str | None  # the first words of its first message, where that is a text of some 64 KiB at most
    state: State
    archived: bool
    queued: int
    created_at: int
    updated_at: int
    worker: str | None
    wake_at: int | None
    metadata: Raw

    @property
    def called(self) -> str:
        """What people know it by: its title or, where it has none, the first words in it."""
        if self.title or not self.opening:
            return self.title or ""
        words = " ".join(self.opening.split())
        return words if len(words) <= OPENING_SHOWN else words[: OPENING_SHOWN - 1].rstrip() + "…"


class ChatFilter(Frozen):
    """Which chats a listing shows. What is None, or empty, filters nothing."""

    owner: str | None = None
    agent: str | None = None
    state: State | None = None
    archived: bool | None = None
    search: str | None = None  # in the title and the first message; case does not matter
    metadata: Mapping[str, str] = {}  # top-level keys, their values compared as text

    def values(self) -> dict[str, Any]:
        """For a statement, by name: what both stores can compare."""
        for field in ("owner", "agent", "search"):
            check_text(field, getattr(self, field) or "", bytes_max=512)
        for name, value in self.metadata.items():
            check_text("metadata", name + value, bytes_max=2048)
        return {
            "owner": self.owner,
            "agent": self.agent,
            "pattern": _containing(self.search) if self.search else None,
            "metadata": encode(self.metadata).decode() if self.metadata else None,
        }

    def given(self, before: str | None) -> tuple[State | None, bool | None, frozenset[str]]:
        """What the statement depends on: which filters there are."""
        names = ("owner", "agent", "metadata")
        given = {name for name in names if getattr(self, name) not in (None, {})}
        given |= {"before"} if before is not None else set()
        return self.state, self.archived, frozenset(given | ({"pattern"} if self.search else set()))

    @property
    def lane(self) -> "Lane":
        """A search looks at every chat; the other filters have an index, or a page is soon full."""
        return "searches" if self.search or self.metadata else "lists"


ALL_CHATS = ChatFilter()


def _containing(text: str) -> str:
    """A pattern for LIKE: its own special characters mean themselves."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


CHAT_LINE = (
    *("id", "agent", "owner", "title", "opening", "state", "archived", "queued"),
    *("created_at", "updated_at", "worker", "wake_at", "metadata"),
)


def chat_line(row: Sequence[Any]) -> ChatLine:
    """A row of a listing, in the order of CHAT_LINE."""
    values = dict(zip(CHAT_LINE, row, strict=True))
    values["state"] = State(values["state"])
    values["archived"] = bool(values["archived"])
    values["metadata"] = Raw(values["metadata"].encode())
    return ChatLine(**values)


class Size(NamedTuple):
    """Of a database, in bytes. `free` is in the file and used again; None where the server keeps that to itself."""

    total: int
    free: int | None


class ChildCounts(NamedTuple):
    """How many children a chat has. Open: running, stopping or waiting."""

    open: int
    this_turn: int
    open_in_family: int


Children = Literal["refuse", "include"]
Held = tuple[str, int]  # a chat, and the stamp of the claim under which it is held


class Forking(Frozen):
    """What `fork_chat` was asked for."""

    chat_id: str
    new_id: str
    upto: int | None
    owner: str | None
    key: Key
    hash: str


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
        self._check_new_chat(new)
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
        self._check_event(event)
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
        self, filter: "ChatFilter | None" = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        """Newest first; `before` is the id of the last one of the page before. Raises InvalidInput."""

    async def open_calls(self, chat_id: str) -> list[OpenCall]:
        """What people and clients have to answer in this chat and in all chats below it, one moment of it: the
        uppermost chat first, at most OPEN_CALLS_MAX. Empty where there is no such chat. Arguments are whole as long
        as the responses that hold them come to no more than ARGUMENTS_BYTES_MAX.
        """
        found: list[OpenCall] = []
        left, given = ARGUMENTS_BYTES_MAX, Given()
        for asked in await self._asked(chat_id):
            if left > 0 and given.lacks(asked):
                given = Given(asked, await self._response(asked.chat_id, asked.call.batch))
                left -= given.size
            found.append(open_call(asked, given.of(asked)))
        return found

    async def read_open_call(self, chat_id: str, call_id: str) -> OpenCall:
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
        self._check_fork(new_id, owner, key)
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
    async def measure(self) -> "Size":
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

    def _decide_ahead(
        self, snapshot: Snapshot, events: Sequence[Command], commit_id: str, now: int
    ) -> "Decided | None":
        """A runner's commit decided on the runner's own snapshot, so that the store has only to compare and swap.

        None where the store must look for itself: the snapshot refuses, or other chats are reached.
        """
        changes: list[Change] = []
        after = snapshot
        for event in events:
            outcome = apply(after, event, now, self.options.limits)
            if isinstance(outcome, Refused) or outcome.reaches_others:
                return None
            changes.append(outcome)
            after = outcome.after
        return decided(changes, commit_id)

    def _claim(self, snapshot: Snapshot, worker: str, now: int) -> Change | None:
        change = apply(snapshot, Claim(worker=worker), now, self.options.limits)
        return None if isinstance(change, Refused) else change

    def is_suspect(self, snapshot: Snapshot) -> bool:
        """It lost so many workers in a row that it is better held alone."""
        return snapshot.chat.unclean >= self.options.limits.suspect_claims_min

    def _check_new_chat(self, new: NewChat) -> None:
        for name in ("id", "agent", "owner"):
            check_text(name, getattr(new, name), bytes_max=512)
        if not new.id or not new.agent:
            raise InvalidInput("id" if not new.id else "agent", "is empty")
        if new.title is not None:
            check_text("title", new.title, bytes_max=4 * self.options.limits.title_chars_max)
        self._check_names(new.active_tools)
        self._check_client_tools(new.client_tools)
        metadata = bytes(new.metadata)
        if len(metadata) > self.options.limits.metadata_bytes_max:
            raise LimitReached(
                "metadata in bytes",
                len(metadata),
                self.options.limits.metadata_bytes_max,
                "keep it in a store of yours",
            )
        check_json_object("metadata", metadata)
        for message in (*new.past, *([new.message] if new.message is not None else []), *new.since):
            self._check_message(message)

    def _check_fork(self, new_id: str, owner: str | None, key: Key | None) -> None:
        """For `fork_chat`, before anything else."""
        check_text("id", new_id, bytes_max=512)
        if not new_id:
            raise InvalidInput("id", "is empty")
        check_text("owner", owner or "", bytes_max=512)
        check_key(key)

    def _check_event(self, event: Command) -> None:
        if isinstance(event, Send | Edit):
            self._check_message(event.message)
        for name in event.__struct_fields__:
            value = getattr(event, name)
            if isinstance(value, str):
                check_text(name, value, bytes_max=self.options.limits.message_bytes_max)

    def _check_names(self, names: tuple[str, ...] | None) -> None:
        limit = self.options.limits.active_tools_max
        if names is not None and len(names) > limit:
            raise LimitReached("active tools", len(names), limit, "name fewer")
        for name in names or ():
            check_text("active_tools", name, bytes_max=512)

    def _check_client_tools(self, tools: tuple[ClientTool, ...]) -> None:
        limits = self.options.limits
        if len(tools) > limits.client_tools_max:
            raise LimitReached("client tools", len(tools), limits.client_tools_max, "declare fewer")
        size = 0
        for tool in tools:
            if not TOOL_NAME.fullmatch(tool.name):
                raise InvalidInput(
                    "client_tools", f"names a tool {tool.name!r}; a name has 1 to 64 letters, digits, _ or -"
                )
            check_text(f"client_tools {tool.name} description", tool.description, bytes_max=limits.message_bytes_max)
            schema = bytes(tool.schema)
            check_json_object(f"client_tools {tool.name} schema", schema)
            if tool.expires_ms is not None and not 0 < tool.expires_ms < 1 << 53:
                raise InvalidInput("client_tools", f"{tool.name}: expires_ms is {tool.expires_ms}; give more than 0")
            size += len(schema) + len(tool.description.encode())
        if size > limits.client_tools_bytes_max:
            raise LimitReached("client tools in bytes", size, limits.client_tools_bytes_max, "describe them shorter")
        if len({tool.name for tool in tools}) < len(tools):
            raise InvalidInput("client_tools", "names a tool twice")

    def _check_message(self, message: Message) -> None:
        check_text("message id", message.id, bytes_max=512)
        self._check_names(message.active_tools)
        self._check_client_tools(message.client_tools)
        check_text("instructions", message.instructions or "", bytes_max=self.options.limits.message_bytes_max)
        size = _check_sampling(message.sampling) if message.sampling is not None else 0
        if not message.id or not message.parts:
            raise InvalidInput("message", "needs an id and at least one part")
        limit = self.options.limits.message_bytes_max
        for part in message.parts:
            for name in part.__struct_fields__:
                value = getattr(part, name)
                if isinstance(value, str):
                    check_text(f"message {type(part).__name__.lower()} {name}", value, bytes_max=limit)
                    size += len(value)
        if message.metadata != NOTHING:
            metadata = bytes(message.metadata)
            check_json("message metadata", metadata)
            size += len(metadata)
        if not any(not isinstance(part, Text) or part.text for part in message.parts):
            raise InvalidInput("message", "says nothing; send some text or a file")
        if size > limit:
            raise InvalidInput("message", f"is over {limit:,} bytes; send large content as file references")

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


def topics_of(changes: Sequence[Change]) -> set[str]:
    """Who may want to know: readers of the chats, workers if there is something to claim, a chat's runner, and who
    waits until it rests."""
    topics = {change.after.chat.id for change in changes}
    for change in changes:
        if change.after.chat.wake_at is not None:
            topics.add(WORK)
        if change.after.chat.worker is not None and not change.by_runner:
            topics.add(control_topic(change.after.chat.id))
        if change.after.chat.state in QUIET:
            topics.add(rest_topic(change.after.chat.id))
    return topics


class Decided(Frozen):
    """Changes that are stamped, and ready to be written."""

    changes: tuple[Change, ...]
    writes: list[ChatWrite]

    @property
    def after(self) -> Snapshot:
        """What the first chat looks like after them."""
        chat_id = self.changes[0].after.chat.id
        return next(change.after for change in reversed(self.changes) if change.after.chat.id == chat_id)


def decided(changes: Sequence[Change], commit_id: str | None = None) -> Decided:
    """What a transaction writes. Nothing is written but through here."""
    made = stamped(changes, commit_id)
    return Decided(changes=made, writes=writes_of(made))


def in_turn(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    """Round robin: the first of each list, then the second of each."""
    for rank in range(max(map(len, lists), default=0)):
        for items in lists:
            if rank < len(items):
                yield items[rank]


class _Countdown:
    def __init__(self, seconds: float) -> None:
        self._clock = SystemClock()
        self._end_ms = self._clock.boot_ms() + seconds * 1000

    def left_s(self) -> float:
        return (self._end_ms - self._clock.boot_ms()) / 1000


def check_json(field: str, data: bytes) -> object:
    """It is kept byte for byte, so one that cannot be read now could never be read again."""
    if is_too_deep(data):
        raise InvalidInput(field, too_deep(JSON_DEPTH_MAX))
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(field, f"is not JSON: {error}") from error
    if b"\\u0000" in data:
        raise InvalidInput(field, "holds a NUL character; remove it")
    return value


def check_json_object(field: str, data: bytes) -> None:
    if not isinstance(check_json(field, data), dict):
        raise InvalidInput(field, "is not a JSON object")


def page_size(limit: int) -> int:
    if not 1 <= limit <= LISTED_MAX:
        raise InvalidInput("limit", f"is {limit}; it can be 1 to {LISTED_MAX:,}")
    return limit


def check_key(key: Key | None) -> None:
    if key is not None:
        check_text("principal", key.principal, bytes_max=512)
        check_text("key", key.key, bytes_max=512)
        if not key.key:
            raise InvalidInput("key", "is empty")


def _check_sampling(sampling: Sampling) -> int:
    """Returns how long it is."""
    output = sampling.output
    for text in (*sampling.stop, sampling.reasoning_effort or "", output.name if output is not None else ""):
        check_text("sampling", text, bytes_max=512)
    for number in (sampling.temperature, sampling.top_p):
        if number is not None and not math.isfinite(number):
            raise InvalidInput("sampling", f"{number} is no number that a provider takes")
    schema = bytes(output.schema) if output is not None else b""
    if schema:
        check_json_object("sampling output schema", schema)
    return sum(map(len, sampling.stop)) + len(schema)


def check_expired(found: Sequence[object], chat_id: str, state: str) -> None:
    """For `delete_chat` with `archived_before`: what the look inside its transaction found."""
    if not found:
        raise RefusedError(f"chat {chat_id!r} is in use again", reason="state", state=state, event="delete")


def raise_refused(refused: Refused) -> NoReturn:
    message = f"{refused.event} refused while the chat is {refused.state}: {refused.message}"
    if refused.reason in ("stale_writer", "stale_epoch"):
        raise StaleWriter(message)
    raise RefusedError(message, reason=refused.reason, state=refused.state, event=refused.event)


def answer_of(changes: Sequence[Change]) -> Answer:
    first = changes[0]
    return Answer(
        chat_id=first.after.chat.id,
        seq=first.after.chat.seq,
        state=first.after.chat.state,
        dropped=tuple(queued.body for queued in first.dropped),
    )


_answer = msgspec.json.Decoder(Answer)


def decode_answer(text: str) -> Answer:
    return _answer.decode(text)


def check_receipt(key: Key, stored_hash: str, hash: str) -> None:
    if stored_hash != hash:
        raise KeyReused(key.key)


def own_key() -> Key:
    """Without a key from the caller the store uses one of its own, to ask again after a lost connection."""
    return Key(principal="", key=new_id("req"))


def request_of(key: Key | None, *values: object) -> str:
    return key.request if key is not None and key.request is not None else request_hash(*values)


def request_hash(*values: object) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        digest.update(type(value).__name__.encode())
        digest.update(encode(value))
    return digest.hexdigest()


Line = tuple[int, int, int, str]  # of a journal: seq, stamp, at, body
Piece = tuple[int, int, int, int, str]  # of what is streamed: attempt, k, stamp, at, body


def page_of(
    after: Cursor, journal: Sequence[Line], deltas: Sequence[Piece], *, last_seq: int, state: str, limit: int
) -> Page:
    """Journal rows, then, once a reader is at the journal's end, the open attempt's deltas up to the
    first gap: what lies behind one would be read as if it followed.
    """
    items: list[Item] = []
    cursor = after
    for seq, stamp, at, body in journal:
        cursor = Cursor(seq, cursor.attempt, cursor.k, cursor.chat, stamp, cursor.attempt_stamp)
        items.append(Item(cursor=str(cursor), at=at, body=body.encode(), seq=seq))
    at_end = not journal or journal[-1][0] == last_seq
    for attempt, k, stamp, at, body in deltas:
        if k != (cursor.k + 1 if attempt == cursor.attempt else 0):
            continue
        cursor = Cursor(cursor.seq, attempt, k, cursor.chat, cursor.stamp, stamp)
        items.append(Item(cursor=str(cursor), at=at, body=body.encode(), attempt=attempt, k=k))
    return Page(
        items=tuple(items),
        cursor=str(cursor),
        at_rest=at_end and state in ("idle", "failed"),
        more=not at_end or len(items) >= limit,
    )
