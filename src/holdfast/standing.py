"""Why a chat stands where it stands: what it does or waits for, since when, under which deadline, what happens next.

Told from the store alone, so that any process can tell it, also where no worker lives. The agent, where this process
knows it, adds the deadlines of its tools and its model. It changes nothing and waits for nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.agent import Agent
from holdfast.core import journal as jn
from holdfast.core.deadlines import MODEL_DEADLINES
from holdfast.core.records import (
    UNFINISHED,
    Call,
    CallState,
    External,
    Failure,
    Frozen,
    Lease,
    Message,
    Phase,
    Snapshot,
    State,
    ToolResult,
)
from holdfast.errors import NotFound
from holdfast.models.choice import label_of
from holdfast.store.chat_store import ChatStore
from holdfast.store.cursor import Cursor
from holdfast.store.driver_watch import is_live
from holdfast.store.update_reader import event_of

TAIL_ENTRIES = 60  # of the journal, that are looked at
PROBLEMS_MAX = 5
CHILDREN_DEEP_MAX = 8

Doing = Literal[
    "rests",
    "failed",
    "due",
    "no_worker",
    "backs_off",
    "worker_lost",
    "asks_model",
    "streams",
    "waits_to_retry",
    "runs_tools",
    "prepares_calls",
    "compacts",
    "ends_turn",
    "stops",
    "waits_for_person",
    "waits_for_client",
    "waits_for_child",
    "waits_for_clock",
    "stranded",
]


class Trouble(Frozen):
    """Something that went wrong in the chat of late."""

    at: int
    what: str  # the tool, hook or model
    error: str
    call_id: str | None = None


class Standing(Frozen):
    """`doing` is a stable code, `words` say the same to a person. Instants are milliseconds since 1970."""

    chat_id: str
    agent: str
    state: State
    turn: int
    step: int
    fence: int
    doing: Doing
    words: str
    since: int | None
    deadline_at: int | None
    deadline: str | None  # which one, and what sets it
    next: str
    worker: str | None
    worker_heard_at: int | None
    queued: int
    error: Failure | None = None
    troubles: tuple[Trouble, ...] = ()
    child: "Standing | None" = None  # of the sub-agent that it waits for


async def standing_of(
    store: ChatStore, chat_id: str, agents: Mapping[str, Agent[Any]], depth: int = CHILDREN_DEEP_MAX
) -> Standing:
    """One look. Raises NotFound."""
    snapshot = await store.read_chat(chat_id)
    seq = snapshot.chat.seq
    page = await store.read_journal(chat_id, Cursor(seq=max(0, seq - TAIL_ENTRIES)), limit=10 * TAIL_ENTRIES)
    tail = [event_of(item) for item in page.items]
    leases = await store.list_workers()
    child = None
    child_id = next((call.child_id for call in snapshot.open_calls if call.child_id is not None), None)
    if snapshot.chat.state is State.WAITING and child_id is not None and depth:
        try:
            child = await standing_of(store, child_id, agents, depth - 1)
        except NotFound:
            child = None
    agent = agents.get(snapshot.chat.agent)
    return _Look(snapshot, leases, tail, agent, store.options.clock.wall_ms(), child).standing()


class _Told(msgspec.Struct):
    agents: list[str] = []
    draining: bool = False
    hostname: str = "?"


class _Answer(Frozen):
    doing: Doing
    words: str
    next: str
    since: int | None = None
    deadline_at: int | None = None
    deadline: str | None = None


class _Look:
    """What is known at one moment, and what follows from it."""

    def __init__(
        self,
        snapshot: Snapshot,
        leases: Sequence[Lease],
        tail: Sequence[jn.Event],
        agent: Agent[Any] | None,
        now: int,
        child: Standing | None,
    ) -> None:
        self._snapshot = snapshot
        self._chat = snapshot.chat
        self._leases = leases
        self._tail = tail
        self._agent = agent
        self._now = now
        self._child = child

    def standing(self) -> Standing:
        chat, answer = self._chat, self._answer()
        lease = self._lease
        return Standing(
            chat_id=chat.id,
            agent=chat.agent,
            state=chat.state,
            turn=chat.turn,
            step=chat.step,
            fence=chat.fence,
            **{name: getattr(answer, name) for name in answer.__struct_fields__},
            worker=chat.worker,
            worker_heard_at=None if lease is None else lease.renewed_at,
            queued=len(self._snapshot.queue),
            error=chat.error,
            troubles=tuple(self._troubles()[-PROBLEMS_MAX:]),
            child=self._child,
        )

    def _answer(self) -> _Answer:
        match self._chat.state:
            case State.IDLE:
                return self._rests()
            case State.FAILED:
                return self._failed()
            case State.WAITING:
                return self._waits()
            case State.RUNNING | State.STOPPING:
                return self._held() if self._chat.worker is not None else self._due()

    # --- what the journal says of late --------------------------------------------------------------------

    def _last(self, *kinds: type[jn.Entry]) -> jn.Event | None:
        return next((event for event in reversed(self._tail) if isinstance(event.body, kinds)), None)

    def _since(self, *kinds: type[jn.Entry]) -> int:
        event = self._last(*kinds)
        return self._chat.updated_at if event is None else event.at

    def _troubles(self) -> list[Trouble]:
        found: list[Trouble] = []
        for event in self._tail:
            match event.body:
                case jn.Traced() as trace:
                    last = trace.text.strip().rsplit("\n", 1)[-1]
                    what = f"{trace.source} {trace.name}".strip()
                    found.append(Trouble(at=event.at, what=what, error=last, call_id=trace.call_id))
                case jn.AttemptFailed() as lost:
                    status = "" if lost.status is None else f" ({lost.status})"
                    error = f"{lost.code}{status}: {lost.error}"
                    found.append(Trouble(at=event.at, what=f"model {lost.model}", error=error))
                case jn.MessageAdded(message=Message(finish=str() as finish) as cut):
                    error = f"its answer is not whole: {UNFINISHED.get(finish, finish)}"
                    found.append(Trouble(at=event.at, what=f"model {cut.model}", error=error))
                case jn.MessageAdded(call_state=CallState() as state) as added:
                    raised = {trouble.call_id for trouble in found}
                    found += [
                        Trouble(
                            at=event.at, what=f"tool {part.name}", error=_words(part, state), call_id=part.call_id
                        )
                        for part in added.message.parts
                        if isinstance(part, ToolResult)
                        and part.call_id not in raised
                        and (part.error or state is not CallState.DONE)
                    ]
                case jn.ChatHandedOver() as left:
                    error = jn.HANDED_OVER.get(left.cause, f"left the chat: {left.cause}")
                    found.append(Trouble(at=event.at, what=f"worker {left.worker}", error=error))
                case _:
                    pass
        return found

    # --- at rest ------------------------------------------------------------------------------------------

    def _rests(self) -> _Answer:
        chat = self._chat
        ended = self._last(jn.TurnEnded)
        since = chat.updated_at if ended is None else ended.at
        if self._snapshot.queue:
            words = "it rests though messages are queued, which no chat may"
            return _Answer(doing="stranded", words=words, since=since, next="a worker's sweep repairs it")
        if chat.turn == 0:
            words = "it has had no message yet"
        elif chat.cause is not None:
            words = f"its last turn was cut short: {chat.cause}"
            if ended is not None and isinstance(ended.body, jn.TurnEnded) and ended.body.detail:
                words += f" ({ended.body.detail})"
        else:
            words = "its last turn is done"
        return _Answer(doing="rests", words=words, since=since, next="a message begins the next turn")

    def _failed(self) -> _Answer:
        error = self._chat.error
        words = "its last turn failed" if error is None else f"its last turn failed ({error.code}): {error.message}"
        follows = f"nothing by itself; `holdfast chats retry {self._chat.id}` goes on where it failed, a message too"
        return _Answer(doing="failed", words=words, since=self._since(jn.ChatFailed), next=follows)

    # --- waiting ------------------------------------------------------------------------------------------

    def _waits(self) -> _Answer:
        calls = [call for call in self._snapshot.calls if call.state in (CallState.ASKING, CallState.EXTERNAL)]
        since = self._since(jn.TurnWaiting)
        if not calls:
            words = "it waits, and no call of it is open, which no chat may"
            return _Answer(doing="stranded", words=words, since=since, next="a worker's sweep repairs it")
        call = min(calls, key=lambda call: (call.expires_at is None, call.expires_at or 0))
        doing, whom, over = _WAITS["approval" if call.state is CallState.ASKING else str(call.external)]
        what = f"{call.name} ({call.id})"
        if call.external is External.CHILD:
            what = f"{call.child_id}, for {what}"
        words = f"it waits for {whom}: {what}"
        if call.question:
            words += f": {call.question}"
        if len(calls) > 1:
            words += f"; {len(calls) - 1} more are open"
        if call.expires_at is None:
            return _Answer(doing=doing, words=words, since=since, next=_ANSWERED[doing].format(chat=self._chat.id))
        follows = over
        if call.expires_at <= self._now and not self._drivers():
            follows = f"the time is over, and {self._no_worker()}"
        return _Answer(
            doing=doing,
            words=words,
            since=since,
            deadline_at=call.expires_at,
            deadline="expires_at of the call",
            next=follows,
        )

    # --- due ----------------------------------------------------------------------------------------------

    @property
    def _lease(self) -> Lease | None:
        return next((lease for lease in self._leases if lease.worker == self._chat.worker), None)

    def _drivers(self) -> list[str]:
        """Workers that could drive it."""
        found = []
        for lease in self._leases:
            told = msgspec.json.decode(lease.info, type=_Told)
            if (
                is_live(lease)
                and not self._is_silent(lease)
                and not told.draining
                and self._chat.agent in told.agents
            ):
                found.append(lease.worker)
        return found

    def _is_silent(self, lease: Lease) -> bool:
        return self._now - lease.renewed_at > lease.ttl_ms

    def _no_worker(self) -> str:
        return (
            f"no living worker has the agent {self._chat.agent!r}: it goes on when one comes "
            f"(`holdfast serve`, `holdfast worker`, or `holdfast run --chat {self._chat.id}`)"
        )

    def _due(self) -> _Answer:
        chat = self._chat
        wake_at, doing = chat.wake_at, "to stop" if chat.state is State.STOPPING else "to go on"
        since = self._since(jn.TurnStarted, jn.TurnResumed, jn.ChatHandedOver, jn.ChatRetried, jn.MessageAdded)
        if wake_at is None:
            words = "it runs, and neither has a worker nor is due, which no chat may"
            return _Answer(doing="stranded", words=words, since=since, next="a worker's sweep repairs it")
        if chat.backoff_ms and self._now < wake_at <= self._now + chat.backoff_ms:
            words = f"it rests after {chat.unclean} workers were lost with it"
            then = "then a worker takes it; after the fifth in a row it fails with the cause `crash`"
            return _Answer(
                doing="backs_off", words=words, since=since, next=then, deadline_at=wake_at, deadline="backoff"
            )
        if not self._drivers():
            words = f"it is due {doing}, and no worker that lives could drive it"
            return _Answer(doing="no_worker", words=words, since=since, next=self._no_worker())
        words = f"it is due {doing}, and waits for a worker that has room"
        return _Answer(doing="due", words=words, since=since, next="the first worker with room claims it (poll_s)")

    # --- held by a worker ---------------------------------------------------------------------------------

    def _held(self) -> _Answer:
        chat, lease = self._chat, self._lease
        if lease is None or lease.ended is not None or not is_live(lease) or self._is_silent(lease):
            return self._worker_lost(lease)
        if chat.state is State.STOPPING:
            words = f"it is stopping ({chat.cause}): what runs is ended, and what was said is kept"
            then = "it rests" if not self._snapshot.queue else "the next queued message begins a turn"
            return _Answer(doing="stops", words=words, since=self._since(jn.StopRequested), next=then)
        if chat.phase is Phase.CALLS:
            return self._calls()
        if chat.compact:
            words, then = "it makes a summary of its older part", "then it goes on, with or without one"
            return _Answer(doing="compacts", words=words, since=chat.updated_at, next=then)
        if chat.phase is Phase.REST:
            return _Answer(doing="ends_turn", words="it ends its turn", since=chat.updated_at, next="it rests")
        return self._model()

    def _worker_lost(self, lease: Lease | None) -> _Answer:
        chat = self._chat
        if lease is None or lease.ended is not None:
            how = "its lease is over" if lease is None else f"its lease ended: {lease.ended}"
        elif not is_live(lease):
            how = "its process is gone"
        else:
            how = "it has been silent for longer than its lease"
        words = f"its worker {chat.worker} is lost: {how}"
        others = [worker for worker in self._drivers() if worker != chat.worker]
        then = "another worker takes the chat over" if others else self._no_worker()
        since = chat.updated_at if lease is None else lease.renewed_at
        deadline_at = None if lease is None or lease.ended is not None else lease.renewed_at + lease.ttl_ms
        return _Answer(
            doing="worker_lost",
            words=words,
            next=then,
            since=since,
            deadline_at=deadline_at,
            deadline=None if deadline_at is None else "lease_ttl_s",
        )

    def _calls(self) -> _Answer:
        started = [call for call in self._snapshot.calls if call.state is CallState.STARTED]
        if not started:
            names = ", ".join(call.name for call in self._snapshot.open_calls)
            words = f"it is about to start {names}: a hook looks at it, or too many run (limits.parallel_calls)"
            return _Answer(doing="prepares_calls", words=words, since=self._chat.updated_at, next="the tool starts")
        call = min(started, key=lambda call: self._deadline_of(call) or 0)
        names = ", ".join(f"{call.name} ({call.id})" for call in started)
        deadline_at = self._deadline_of(call)
        then = "its result goes to the model"
        if deadline_at is None:
            then += "; its deadline is known where its agent is"
        else:
            then += "; at the deadline it is ended, and the model is told so"
        return _Answer(
            doing="runs_tools",
            words=f"it runs {names}",
            since=min(call.started_at or self._now for call in started),
            deadline_at=deadline_at,
            deadline=None if deadline_at is None else f"deadline_s of {call.name}",
            next=then,
        )

    def _deadline_of(self, call: Call) -> int | None:
        tool = self._agent.tools.get(call.name) if self._agent is not None else None
        return None if tool is None or call.started_at is None else call.started_at + int(1000 * tool.deadline_s)

    def _model(self) -> _Answer:
        last = self._last(jn.AttemptFailed, jn.MessageAdded, jn.TurnStarted)
        lost = last.body if last is not None and isinstance(last.body, jn.AttemptFailed) else None
        deadlines = self._agent.deadlines if self._agent is not None else MODEL_DEADLINES
        if last is not None and lost is not None and lost.retry_in_ms and last.at + lost.retry_in_ms > self._now:
            words = f"{lost.model} failed: {lost.code}: {lost.error}; it waits before it asks {lost.next_model} again"
            at = last.at + lost.retry_in_ms
            return _Answer(
                doing="waits_to_retry", words=words, since=last.at, deadline_at=at, deadline="the pause",
                next=f"{lost.next_model} is asked again",
            )  # fmt: skip
        spoken = [event for event in self._tail if isinstance(event.body, jn.Delta)]
        model = lost.next_model if lost is not None and lost.next_model else self._model_name
        then = "an attempt that is late counts as failed: it is repeated, a fallback is asked, or the turn fails"
        if spoken:
            return _Answer(
                doing="streams",
                words=f"{model} is answering",
                since=spoken[0].at,
                deadline_at=spoken[-1].at + int(1000 * deadlines.silence_s),
                deadline="deadlines.silence_s, begun anew by every piece",
                next=f"its answer is committed; {then}",
            )
        since = self._since(jn.AttemptFailed, jn.MessageAdded, jn.PreviewReset, jn.ChatTakenOver, jn.Compacted)
        at = since + int(1000 * deadlines.first_byte_s)
        return _Answer(
            doing="asks_model",
            words=f"it asks {model}, which has not begun to answer",
            since=since,
            deadline_at=at,
            deadline="deadlines.first_byte_s, begun anew by every sign of life",
            next=f"its answer streams; {then}",
        )

    @property
    def _model_name(self) -> str:
        if self._agent is None:
            return "the model"
        return label_of(self._agent.model)


def _words(result: ToolResult, state: CallState) -> str:
    return result.content if state is CallState.DONE else f"{state}: {result.content}"


_WAITS: dict[str, tuple[Doing, str, str]] = {
    "approval": ("waits_for_person", "a person to approve or deny", "then it counts as denied, and the turn goes on"),
    "question": ("waits_for_person", "a person's answer", "then the model is told that nobody answered"),
    "client": ("waits_for_client", "a client to run", "then the model is told that nobody answered"),
    "child": ("waits_for_child", "a sub-agent", "then the model is told that it did not answer in time"),
    "timer": ("waits_for_clock", "the clock", "then the turn goes on"),
}
_ANSWERED: dict[Doing, str] = {
    "waits_for_person": "it goes on once a person answers (`holdfast chats show {chat}` says how); no time is set",
    "waits_for_client": "it goes on once the client submits a result; no time is set",
    "waits_for_child": "it goes on when the sub-agent's turn ends",
    "waits_for_clock": "it goes on when the time has come",
}
