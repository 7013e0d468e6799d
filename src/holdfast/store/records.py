"""What the store's verbs take and return: plain records, the same for both stores."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Raw

from holdfast.core.codec import check_text, encode
from holdfast.core.deadlines import WAKE_DEADLINES, WakeDeadlines
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import ChatRecord, Frozen, Record, Role, State
from holdfast.system.clock import Clock, SystemClock

STORE_DEADLINE_S = 8.0
POLL_INTERVAL_S = 0.25
PAGE_ROWS = 500
PAGE_BYTES = 1 << 20  # of bodies: the one that reaches it is the last of its page
OPENING_SHOWN = 80
# What a store is asked for without writing. Each has room of its own, so that none waits for the next one's slowness:
# the point reads that every caller needs, pages of listings, and searches, which read as much as there is.
Lane = Literal["reads", "lists", "searches"]
QUIET = (State.IDLE, State.FAILED, State.WAITING)  # nothing happens in it until a person or a client acts
DeleteChildren = Literal["refuse", "include"]
Held = tuple[str, int]  # a chat, and the stamp of the claim under which it is held


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


# A message waits in the queue, it began the turn, or the turn that was open has taken it.
Placement = Literal["queued", "began", "joined"]


class Answer(Record):
    """What a client call did. The same call with the same key gets the same answer."""

    chat_id: str
    seq: int
    state: State
    dropped: tuple[Raw, ...] = ()  # queued messages that will not be delivered
    turn: int = 0  # that the chat is in, or was in last
    message_id: str | None = None  # of the message that came with the call
    placed: Placement | None = None  # what became of that message


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
    at_rest: bool  # nothing more will come until a person or a client acts
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

    chat: ChatRecord
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
    id: str | None = None
    agent: str | None = None
    state: State | None = None
    archived: bool | None = None
    search: str | None = None  # in the title and the first message; case does not matter
    metadata: Mapping[str, str] = {}  # top-level keys, their values compared as text

    def values(self) -> dict[str, Any]:
        """For a statement, by name: what both stores can compare."""
        for field in ("owner", "id", "agent", "search"):
            check_text(field, getattr(self, field) or "", bytes_max=512)
        for name, value in self.metadata.items():
            check_text("metadata", name + value, bytes_max=2048)
        return {
            "owner": self.owner,
            "id": self.id,
            "agent": self.agent,
            "pattern": _containing(self.search) if self.search else None,
            "metadata": encode(self.metadata).decode() if self.metadata else None,
        }

    def given(self, before: str | None) -> tuple[State | None, bool | None, frozenset[str]]:
        """What the statement depends on: which filters there are."""
        names = ("owner", "id", "agent", "metadata")
        given = {name for name in names if getattr(self, name) not in (None, {})}
        given |= {"before"} if before is not None else set()
        return self.state, self.archived, frozenset(given | ({"pattern"} if self.search else set()))

    @property
    def lane(self) -> Lane:
        """A search looks at every chat; the other filters have an index, or a page is soon full."""
        return "searches" if self.search or self.metadata else "lists"


ALL_CHATS = ChatFilter()


def _containing(text: str) -> str:
    """A pattern for LIKE: its own special characters mean themselves."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


class Size(NamedTuple):
    """Of a database, in bytes. `free` is in the file and used again; None where the server keeps that to itself."""

    total: int
    free: int | None


class Ownership(NamedTuple):
    """Whose chat it is, and which chat spawned it."""

    owner: str
    parent_id: str | None


class ChildCounts(NamedTuple):
    """How many children a chat has. Open: running, stopping or waiting."""

    open: int
    this_turn: int
    open_in_family: int


class Forking(Frozen):
    """What `fork_chat` was asked for."""

    chat_id: str
    new_id: str
    upto: int | None
    owner: str | None
    key: Key
    hash: str
