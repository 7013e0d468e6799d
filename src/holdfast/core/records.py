"""The records: what a chat is made of, frozen, with one JSON form each.

A record that is stored as JSON is written once and never re-encoded: what newer code wrote survives older code,
which ignores fields it does not know and refuses kinds it does not know (`UnknownRecord`). What changes over a
chat's life (`ChatRecord`, `Call`) is stored in columns instead, for the same reason.

All instants are wall-clock milliseconds and end in `_at`.
"""

from enum import StrEnum
from hashlib import blake2b
from typing import Any, Literal, dataclass_transform

from msgspec import Raw, Struct, StructMeta


class _KeywordOnly(StructMeta):
    """msgspec hands `frozen` down to subclasses but not `kw_only`; a record's fields are always named."""

    def __new__(mcls, *args: Any, **options: Any) -> "_KeywordOnly":
        return super().__new__(mcls, *args, **{"kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Frozen(Struct, frozen=True, gc=False, metaclass=_KeywordOnly):
    """Base of the values that pass through the core.

    Frozen values cannot form cycles, so the garbage collector need not look at them: it took a sixth of the time of
    32 busy chats when it did.
    """


class Record(Frozen, omit_defaults=True):
    """Base of everything stored as JSON."""


# An optional Raw field has this value when there is nothing: msgspec cannot decode into `Raw | None`.
NOTHING = Raw(b"null")


# --- messages --------------------------------------------------------------------------------------


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Cause(StrEnum):
    """Why work ended."""

    USER = "user"
    PARENT = "parent"  # the agent above cancelled it
    SUPERSEDED = "superseded"
    SHUTDOWN = "shutdown"
    LEASE_LOST = "lease_lost"
    DEADLINE = "deadline"
    CRASH = "crash"
    BUDGET = "budget"


STOPS = frozenset({Cause.USER, Cause.PARENT})  # of a stop that was asked for, and goes on to all that is below


class Synthetic(StrEnum):
    """Why a tool result, or a message, was written by the runtime and not by the tool, or its role."""

    CANCELLED = "cancelled"  # stopped, superseded or failed before an outcome was known
    UNKNOWN = "unknown"  # started, then its worker died: it may or may not have happened
    DENIED = "denied"  # a person or a guard said no
    EXPIRED = "expired"  # no answer came in time
    REFUSED = "refused"  # never run: no such tool, not active, arguments cut off, …
    NOT_CARRIED_OVER = "not_carried_over"  # still open where the chat was forked
    REPAIRED = "repaired"  # missing from a history that had to be made valid
    INVALID_OUTPUT = "invalid_output"  # a user message: the answer did not fit the output type, and why


class Text(Record, tag="text", tag_field="kind"):
    """`phase`: what a provider calls it, and wants back: a comment on the way to the answer, or the answer."""

    text: str
    phase: str | None = None


FINAL_ANSWER = "final_answer"


class Reasoning(Record, tag="reasoning", tag_field="kind"):
    """A model's reasoning. `signature` is opaque data that only `provider` understands and may demand back."""

    text: str = ""
    provider: str | None = None
    signature: Raw = NOTHING

    @property
    def signed(self) -> bool:
        return self.signature != NOTHING


class File(Record, tag="file", tag_field="kind"):
    """A reference to an image or any other file; the bytes live where `uri` says."""

    media_type: str
    uri: str
    name: str | None = None
    size_bytes: int | None = None

    @property
    def is_text(self) -> bool:
        return self.media_type.startswith("text/") or self.media_type.partition(";")[0].endswith("json")


class ToolCall(Record, tag="tool_call", tag_field="kind"):
    """A model's request to run a tool. `arguments` is its text, verbatim; `cut` says that the stream broke in it."""

    call_id: str
    name: str
    arguments: str = ""
    cut: bool = False


class ToolResult(Record, tag="tool_result", tag_field="kind"):
    call_id: str
    name: str
    content: str = ""
    error: bool = False
    synthetic: Synthetic | None = None
    files: tuple[File, ...] = ()  # images and the like that the model is shown with it
    untrusted: bool = False  # it comes from outside: content to read, whatever it says


class Expansion(Record, tag="expansion", tag_field="kind"):
    """What a slash command at the beginning of a user message stands for: the text of a skill, or of a tool server's
    prompt. The model reads it after what the person typed. It is stored as it was when the message was accepted, so
    nothing that becomes of its source later changes what the model saw; `digest` names the text.
    """

    name: str
    source: str  # skill, prompt
    text: str
    digest: str = ""


Part = Text | Reasoning | File | ToolCall | ToolResult | Expansion


class ClientTool(Record):
    """A tool that a chat's client declared and runs: whichever worker has the chat knows it from here."""

    name: str
    description: str = ""
    schema: Raw = Raw(b'{"type":"object","properties":{}}')
    expires_ms: int | None = 300_000
    needs_approval: bool = False


class OutputFormat(Record):
    """JSON of a schema, as a client wants the answer to one turn."""

    name: str
    schema: Raw
    strict: bool = False
    any_object: bool = False  # whatever JSON object it is: the schema says no more than that


class Sampling(Record):
    """What a client asks of the model for one turn, over what the agent says; None leaves it to the agent."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool_choice: str | None = None  # "required", or a tool's name: of the first response that it is asked for
    parallel_calls: bool | None = None
    reasoning_effort: str | None = None
    output: OutputFormat | None = None


class Terms(Record):
    """What a client asks of a turn beside its words."""

    instructions: str | None = None  # after the agent's
    sampling: Sampling | None = None
    active_tools: tuple[str, ...] | None = None  # None: all of the agent's
    client_tools: tuple[ClientTool, ...] = ()  # that the client runs
    metadata: Raw = NOTHING


# Why an answer is not whole, in words.
UNFINISHED = {
    "length": "the model reached its limit of tokens (max_tokens)",
    "refused": "the model, or a filter of its provider, refused",
    "other": "the model broke off, for a reason of its own",
}


class Message(Record):
    """One entry of a chat's history. A tool message holds exactly one result."""

    id: str
    role: Role
    parts: tuple[Part, ...]
    created_at: int = 0
    model: str | None = None
    agent_fingerprint: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0  # of its input, as its provider counted
    reasoning_tokens: int = 0  # of its output
    estimated_tokens: int | None = None  # of request and response, as we estimate them: its provider counted nothing
    context_limit: int | None = None  # tokens the model that wrote it could hold, where known
    covered: int = 0  # history positions that its request held only as a summary
    stopped: Cause | None = None  # an assistant message that was cut off, and why
    finish: str | None = None  # of one that its model did not end as it wished: length, refused, other
    active_tools: tuple[str, ...] | None = None  # of a user message: the tools of the turn it begins; None: all
    client_tools: tuple[ClientTool, ...] = ()  # of a user message: tools that its client runs in that turn
    instructions: str | None = None  # of a user message: for the turn it begins, after the agent's
    sampling: Sampling | None = None  # of a user message: for the turn it begins
    terms: Terms | None = None  # of a result that a client brought: from here on, in place of those of its turn
    synthetic: Synthetic | None = None  # written by the runtime, and why
    traceparent: str | None = None  # of a user message: the trace it was sent from, as W3C Trace Context writes it
    metadata: Raw = NOTHING

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if isinstance(part, ToolCall)])

    @property
    def asked(self) -> Terms:
        """Those of the turn that a user message begins."""
        return Terms(
            instructions=self.instructions,
            sampling=self.sampling,
            active_tools=self.active_tools,
            client_tools=self.client_tools,
            metadata=self.metadata,
        )

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def expansions(self) -> tuple[Expansion, ...]:
        return tuple([part for part in self.parts if isinstance(part, Expansion)])

    @property
    def from_outside(self) -> bool:
        """Whether content from outside speaks through it: a marked result, or the prompt of a tool server."""
        return any(
            part.untrusted
            if isinstance(part, ToolResult)
            else isinstance(part, Expansion) and part.source == "prompt"
            for part in self.parts
        )

    @property
    def answer(self) -> str:
        """The text without what was only said on the way to it, where the provider tells them apart."""
        said = [part for part in self.parts if isinstance(part, Text)]
        last = [part.text for part in said if part.phase == FINAL_ANSWER]
        return "".join(last).strip() if last else self.text


def result_message(result: ToolResult, created_at: int, terms: Terms | None = None) -> Message:
    """A call's one result, as it stands in history."""
    return Message(id=f"{result.call_id}.result", role=Role.TOOL, parts=(result,), created_at=created_at, terms=terms)


# --- a chat and its parts --------------------------------------------------------------------------


class State(StrEnum):
    """The execution machine: what should happen."""

    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    FAILED = "failed"


class Phase(StrEnum):
    """Inside a running chat: who is next."""

    MODEL = "model"  # the model owes a response
    CALLS = "calls"  # the calls of the last response are not all answered
    REST = "rest"  # nothing is owed; the turn can finish


class CallState(StrEnum):
    """The call machine."""

    PLANNED = "planned"
    ASKING = "asking"
    APPROVED = "approved"
    STARTED = "started"
    EXTERNAL = "external"
    DONE = "done"
    DENIED = "denied"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


class Replay(StrEnum):
    """What may be done with a call that started and whose outcome was lost."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    UNSAFE = "unsafe"


class External(StrEnum):
    """Who must answer a call that the worker does not run."""

    CLIENT = "client"
    CHILD = "child"
    TIMER = "timer"
    QUESTION = "question"


OnUnknown = Literal["tell_model", "ask"]

Always = Literal["chat", "agent", "owner"]  # where a kept rule counts: always among the chats of its owner


class Failure(Record):
    """Why a chat failed, with the whole chain of causes, first cause last; `advice` says what to change, if known."""

    code: str
    message: str
    cause: Cause | None = None
    chain: tuple[str, ...] = ()
    advice: str = ""


class Purse(Record):
    """A limit of a chat above this one, as it was when this one was spawned: its turn's, or its whole family's."""

    chat_id: str
    tokens: int | None = None
    cost: float | None = None
    family: bool = False


class ChatRecord(Frozen):
    """One durable conversation, without its history. Every field is a column of its own."""

    id: str
    agent: str
    owner: str = ""
    metadata: Raw = Raw(b"{}")
    active_tools: tuple[str, ...] | None = None  # None: all of its agent; empty: none
    client_tools: tuple[ClientTool, ...] = ()  # that its client brings, beside its agent's
    created_at: int

    # lineage
    parent_id: str | None = None  # the chat whose call spawned this one
    parent_call: str | None = None
    root_id: str | None = None  # the chat at the top of its family; None: this one
    parent_turn: int | None = None  # the turn of its parent in which it was spawned
    depth: int = 0
    purses: tuple[Purse, ...] = ()  # limits of chats above it that bound it, too; those of the topmost first
    forked_from: str | None = None
    forked_at: int | None = None  # history length that was copied
    life: int = 0  # the stamp it was made with: tells it from a deleted chat that had its id

    # What follows changes, and is rewritten with every change.
    updated_at: int
    title: str | None = None

    # execution
    state: State = State.IDLE
    phase: Phase = Phase.REST
    archived: bool = False
    compact: bool = False  # a compaction was asked for and is still owed
    turn: int = 0
    turn_started_at: int | None = None  # None: no turn is open
    turn_from: int = 0  # history position of the message that began the turn
    step: int = 0  # model responses in this turn
    turn_tokens: int = 0
    turn_cost: float = 0.0
    chat_tokens: int = 0  # in all its turns, with what it took beside them: summaries, titles
    chat_cost: float = 0.0
    spawned: int = 0  # chats below it that it made
    turn_ms: int = 0  # that runners have worked in this turn, each by its own boot time
    cause: Cause | None = None  # why its turn is stopping, or its last one was cut short; see `stop_cause_of`
    error: Failure | None = None
    answer_seq: int | None = None  # journal number of the last turn's answer, for a parent; None: it gave none
    keepsakes: str = ""  # what its tools keep for a rerun and for later calls: an object of texts, as JSON; bounded
    tainted_from: int | None = (
        None  # history position of the first content from outside (`Message.from_outside`); None: there is none
    )

    # ownership
    worker: str | None = None
    fence: int = 0
    # Running and unowned: due. The instant only sorts, but for a backoff, which ends then and is `backoff_ms` long.
    # Waiting: the earliest expiry, which people chose and the wall clock decides.
    wake_at: int | None = None
    backoff_ms: int = 0
    unclean: int = 0  # workers that were lost with it since its last progress
    silent: str = ""  # those among them that only went silent, by id: one that turns up alive is taken off again

    # concurrency and place
    version: int = 0
    epoch: int = 0
    commit_id: str | None = None  # of the last runner's commit
    seq: int = 0  # last journal number
    length: int = 0  # history positions taken
    batch: int | None = None  # journal number of the last response, whose calls are the current ones
    attempt_ended: int = 0  # attempts up to this one are over: no client shows their preview

    # stamps, drawn by the store for each write (store/stamps.py): counters order, these prove
    stamp: int = 0  # of the last write
    claim_stamp: int = 0  # of the write that gave it to its holder
    line_stamp: int = 0  # of the last write that told the journal something; its line `seq` has it


class Call(Frozen):
    """One tool call of the chat's current batch. Every field is a column of its own."""

    id: str
    batch: int
    pos: int  # the history position kept free for its result
    name: str
    state: CallState = CallState.PLANNED
    replay: Replay = Replay.UNSAFE
    on_unknown: OnUnknown = "tell_model"
    arguments: str | None = None  # only where a hook changed them
    excerpt: str = ""  # of the arguments that the model gave, for people: bounded
    # Those that a hook made of them, without secrets: whole while a person or a client is asked, else bounded.
    told: str | None = None
    external: External | None = None
    child_id: str | None = None
    child_turn: int | None = None
    question: str | None = None  # what a person is asked
    offer: str | None = None  # the rules that "always" would keep, one on each line; None: it is not offered
    answered_by: str | None = None
    started_at: int | None = None
    starts: int = 0
    expires_at: int | None = None

    @property
    def digest(self) -> str:
        """Names this call with the arguments that would run now. Those that the model gave never change under the
        call's id; those that a hook made of them may, where a database went back and the hook was asked again.
        """
        changed = b"" if self.arguments is None else b"=" + self.arguments.encode()
        return blake2b(b"\0".join((self.id.encode(), self.name.encode(), changed)), digest_size=10).hexdigest()


class KeptRule(Frozen):
    """A rule that stays because a person said "always" to what it allows. Every field is a column of its own.

    It is its owner's, and counts in all of the owner's chats, in those of one agent, or in one chat: that very one,
    not another that is made under its id later.
    """

    id: str = ""  # drawn by the store
    rule: str
    owner: str
    agent: str | None = None
    chat_id: str | None = None
    life: int = 0  # of the chat
    made_by: str = ""
    made_at: int
    expires_at: int | None = None
    call_id: str  # that the person was asked about

    @property
    def scope(self) -> Always:
        return "chat" if self.chat_id is not None else "agent" if self.agent is not None else "owner"


SendMode = Literal["queue", "interrupt", "steer"]


class NewChat(Frozen):
    """What a chat starts from. With a message it starts running.

    `past` is a conversation that was held elsewhere and came before the message; `since` is what the model and its
    tools had already said to the message, so that the model goes on from there.
    """

    id: str
    agent: str
    owner: str = ""
    metadata: Raw = Raw(b"{}")
    active_tools: tuple[str, ...] | None = None
    client_tools: tuple[ClientTool, ...] = ()
    title: str | None = None
    past: tuple[Message, ...] = ()
    message: Message | None = None
    since: tuple[Message, ...] = ()
    parent_id: str | None = None
    parent_call: str | None = None
    root_id: str | None = None
    depth: int = 0
    purses: tuple[Purse, ...] = ()
    tainted: bool = False  # what began it comes from a chat through which content from outside may speak

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that it starts from, in order."""
        first = () if self.message is None else (self.message,)
        return (*self.past, *first, *self.since)


class Queued(Frozen):
    """A user message that waits for its turn. `body` is the message's JSON, kept as it came."""

    id: str
    rank: int
    mode: SendMode
    body: Raw


class Snapshot(Frozen):
    """What the core needs to know of a chat to decide: bounded, whatever the chat's length."""

    chat: ChatRecord
    calls: tuple[Call, ...] = ()  # the current batch, in call order; answered ones included
    queue: tuple[Queued, ...] = ()  # by rank

    @property
    def open_calls(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls if call.state not in FINAL)

    def call(self, call_id: str) -> Call | None:
        return next((call for call in self.calls if call.id == call_id), None)

    @property
    def stop_cause(self) -> Cause:
        return stop_cause_of(self.chat, self.queue)


def stop_cause_of(chat: ChatRecord, queue: tuple[Queued, ...]) -> Cause:
    """Why a stopping chat is stopping. The stop of a compaction at rest is none of the last turn's, whose `cause`
    stays: the user's stop forgets the compaction at once, a message that supersedes it leaves it owed. (Older code
    wrote the cause of a user's stop over the turn's, and forgot the compaction only at the end.)
    """
    if chat.turn_started_at is not None:
        return chat.cause or Cause.USER
    superseded = chat.compact and (bool(queue) or chat.cause is not Cause.USER)
    return Cause.SUPERSEDED if superseded else Cause.USER


FINAL = frozenset({CallState.DONE, CallState.DENIED, CallState.UNKNOWN, CallState.CANCELLED})


# A client asked for it, the limit was near, or the provider refused a request as too long.
CompactionWhy = Literal["asked", "near_limit", "too_long"]


class Compaction(Record):
    """Messages before `upto` are represented to the model by `summary`; the rows stay."""

    upto: int
    summary: str
    created_at: int = 0


class LeaseEnd(StrEnum):
    RETIRED = "retired"  # by its worker, which lives
    DIED = "died"  # its lock was free
    SILENT = "silent"  # no observer heard of it for its TTL: it may live


class Lease(Frozen):
    """A worker's time-limited right to act. One row per worker."""

    worker: str
    host: str  # boot id: which boot of which machine
    pid: int
    lock_path: str | None  # a free flock here means that the worker is dead; None: an observer here cannot tell
    started_at: int
    renewed_at: int  # by a wall clock, for people
    ttl_ms: int  # a renewal number that stands so long before an observer's eyes may be ended
    renewal: int = 0
    ended: LeaseEnd | None = None  # final
    info: Raw = Raw(b"{}")


# --- attempts --------------------------------------------------------------------------------------

_ATTEMPTS_PER_CLAIM = 1 << 20


def attempt_id(fence: int, n: int) -> int:
    """The n-th attempt made under a fence. Later claims always number higher, so a stale one is never current."""
    if not 0 < n < _ATTEMPTS_PER_CLAIM:
        raise ValueError(f"attempt {n} is out of range 1..{_ATTEMPTS_PER_CLAIM - 1}")
    return fence * _ATTEMPTS_PER_CLAIM + n


def last_attempt_of(fence: int) -> int:
    """At or above every attempt that was or will be made under this fence."""
    return fence * _ATTEMPTS_PER_CLAIM + _ATTEMPTS_PER_CLAIM - 1


def fence_of(attempt: int) -> int:
    return attempt // _ATTEMPTS_PER_CLAIM
