"""`apply(snapshot, event, now)`: one event, decided by the tables of `states.py`, carried out here.

Returns a `Change` (the snapshot after, and the journal lines that tell of it) or a `Refused` that names state and
event; a refusal changes nothing. What a store has to write is the difference between before and after, so a
snapshot and its rows cannot disagree. Time comes in as `now`; ids come in with the events.
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.codec import decode_object, encode
from holdfast.core.history import problems
from holdfast.core.instants import iso
from holdfast.core.limits import LIMITS, Limits, unclean_backoff_ms
from holdfast.core.records import (
    FINAL,
    Call,
    CallState,
    Cause,
    Chat,
    Compaction,
    External,
    Failure,
    File,
    Frozen,
    LeaseEnd,
    Message,
    NewChat,
    Phase,
    Queued,
    Replay,
    Role,
    SendMode,
    Snapshot,
    State,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
    fence_of,
    last_attempt_of,
    result_message,
)
from holdfast.core.states import (
    AT_REST,
    CALLS,
    EXECUTION,
    OPEN,
    OUTSIDE,
    OWNERSHIP,
    RUNNABLE,
    CallEvent,
    Owner,
    OwnerEvent,
)
from holdfast.errors import InvalidInput, LimitReached

Reason = Literal[
    "state",  # this state does not take this event
    "stale_writer",  # another (worker, fence) holds the chat, or nobody does
    "stale_epoch",  # history was cut or work superseded since
    "taken",  # the chat is held by a worker
    "not_due",  # its wake_at is still ahead
    "no_such_call",
    "call_state",  # the call's own state does not take this
    "call_changed",  # its arguments are not those that a person was shown
    "no_such_message",
    "stale_position",  # history was cut since a client looked
    "not_a_user_message",
    "limit",  # a documented limit is reached
    "family_full",  # one more chat would be too many in this family
    "open_calls",  # calls without a result
    "model_is_next",  # the model still owes a response
    "compaction_is_next",  # a compaction was asked for and is still owed
    "not_the_models_turn",  # a response nobody asked for
    "runnable",  # there is something to run here
    "nothing_outside",  # nobody outside could wake the chat
    "wrong_message",  # roles, parts or ids that do not fit the event
    "wrong_cause",  # a cause that this event cannot have
    "wrong_title",
    "moved_on",  # the chat is not as its sender has read it
    "titled",  # a title is not replaced by one that only fills a gap
]


class Line(Struct, frozen=True, gc=False):
    """One journal entry to be. With `pos` it is also a position of the history."""

    entry: journal.Entry
    pos: int | None = None
    role: Role | None = None
    ref: str | None = None  # message id


class Change(Frozen):
    """What happened to one chat. `before` None: it was created."""

    before: Snapshot | None
    after: Snapshot
    lines: tuple[Line, ...] = ()
    cut_from: int | None = None  # history positions from here on left history before `lines` entered it
    dropped: tuple[Queued, ...] = ()  # queued messages the caller gets back
    compaction: Compaction | None = None
    ended_attempt: int | None = None  # its deltas are replaced by its message
    # What this means for other chats, in the same transaction:
    spawned: NewChat | None = None
    awaited: Call | None = None  # a call that now waits for a child, which may have ended already
    stop_children: tuple[str, ...] = ()
    stop_all_children: bool = False
    turn_over: int | None = None  # the turn that ended: a parent may wait for it
    asking: tuple[Call, ...] = ()  # calls of a chat below another that people or clients have to answer from now on
    answered: tuple[Call, ...] = ()  # and those that they need not answer any more
    gone: bool = False  # deleted: no later turn will end
    by_runner: bool = False  # made by whoever holds the chat, who need not be told of it

    @property
    def reaches_others(self) -> bool:
        return bool(
            self.spawned
            or self.awaited
            or self.stop_children
            or self.stop_all_children
            or self.asking
            or self.answered
            or ((self.gone or self.turn_over is not None) and self.after.chat.parent_id)
        )


class Refused(Frozen):
    reason: Reason
    state: State
    event: str
    message: str


class Refusal(Exception):
    """Raised inside a cell, turned into a `Refused` by `apply`."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def row_of(event: cmd.Command) -> str:
    return f"send.{event.mode}" if isinstance(event, cmd.Send) else event.name


def apply(snapshot: Snapshot, event: cmd.Command, now: int, limits: Limits = LIMITS) -> Change | Refused:
    row = row_of(event)
    state = snapshot.chat.state
    cell = EXECUTION[row].get(state)
    draft = Draft(snapshot, now, limits)
    try:
        if isinstance(event, cmd.RunnerCommand):
            _check_writer(snapshot.chat, event)
            draft.effects["by_runner"] = True
            draft.work(event.by.worked_ms)
        if isinstance(event, cmd.Send):
            _check_unmoved(snapshot.chat, event.length)
        if isinstance(event, cmd.Stop) and event.turn not in (None, snapshot.chat.turn):
            raise Refusal("moved_on", f"the chat is in turn {snapshot.chat.turn}, not in turn {event.turn}")
        if cell is None:
            raise Refusal("state", f"a chat that is {state} does not take {row}")
        _CELLS[cell.do](draft, event)
    except Refusal as refusal:
        return Refused(reason=refusal.reason, state=state, event=row, message=str(refusal))
    change = draft.finish()
    assert change.after.chat.state in cell.to, f"{row} in {state}: {change.after.chat.state} is not in the table"
    return change


def create(new: NewChat, now: int, limits: Limits = LIMITS, *, parent_turn: int | None = None) -> Change:
    """A new chat; with a first message it is running. Raises InvalidInput for a message that no user sends."""
    chat = Chat(
        id=new.id,
        agent=new.agent,
        owner=new.owner,
        metadata=new.metadata,
        active_tools=new.active_tools,
        client_tools=new.client_tools,
        title=new.title,
        parent_id=new.parent_id,
        parent_call=new.parent_call,
        root_id=new.root_id,
        parent_turn=parent_turn,
        depth=new.depth,
        created_at=now,
        updated_at=now,
    )
    draft = Draft(Snapshot(chat=chat), now, limits)
    draft.tell(journal.ChatCreated(agent=new.agent, parent_id=new.parent_id))
    _check_given(new, limits)
    for message in new.past:
        draft.add_given(message)
    if new.message is not None:
        try:
            begin(draft, cmd.Send(message=new.message))
        except Refusal as refusal:
            raise InvalidInput("message", str(refusal)) from refusal
    for message in new.since:
        draft.add_given(message)
    return replace(draft.finish(), before=None)


def _check_given(new: NewChat, limits: Limits) -> None:
    """What was said elsewhere has to be a history that a provider accepts, and to leave the model something to do."""
    given = (*new.past, *new.since)
    if len(given) > limits.given_messages_max:
        raise LimitReached("given messages", len(given), limits.given_messages_max, "give fewer, or a summary")
    if not given:
        return
    if any(message.role is Role.SYSTEM or message.synthetic is not None for message in given):
        raise InvalidInput("past", "holds user, assistant and tool messages only; instructions are the agent's")
    if new.since and (new.message is None or new.since[-1].role is not Role.TOOL):
        raise InvalidInput("since", "follows a message, and ends with the results that the model is to go on from")
    whole = [*new.past, *([new.message] if new.message is not None else []), *new.since]
    if found := problems(whole):
        raise InvalidInput("past", f"is not a history that a provider accepts: {'; '.join(found[:5])}")


def _check_unmoved(chat: Chat, length: int | None) -> None:
    if length is not None and (chat.state not in AT_REST or chat.length != length):
        raise Refusal("moved_on", f"the chat is {chat.state} with {chat.length} positions, not at rest with {length}")


def _check_writer(chat: Chat, event: cmd.RunnerCommand) -> None:
    by = event.by
    if chat.worker != by.worker or chat.fence != by.fence:
        raise Refusal(
            "stale_writer",
            f"the chat is held by {chat.worker or 'nobody'} under fence {chat.fence}, "
            f"not by {by.worker} under fence {by.fence}",
        )
    if event.name not in cmd.EPOCH_FREE and chat.epoch != by.epoch:
        raise Refusal("stale_epoch", f"the chat's epoch is {chat.epoch}, the write was made for {by.epoch}")


# --- a change in the making ------------------------------------------------------------------------


class Draft:
    """A snapshot being changed. Cells speak in its verbs; nothing escapes when a cell refuses."""

    def __init__(self, snapshot: Snapshot, now: int, limits: Limits) -> None:
        self.before = snapshot
        self.chat = snapshot.chat
        self.calls = snapshot.calls
        self.queue = snapshot.queue
        self.now = now
        self.limits = limits
        self.lines: list[Line] = []
        self.effects: dict[str, Any] = {}

    def finish(self) -> Change:
        chat = replace(
            self.chat,
            version=self.chat.version + 1,
            updated_at=self.now,
            seq=self.chat.seq + len(self.lines),
        )
        if chat.root_id is not None and self.calls is not self.before.calls:
            self._note_questions()
        return Change(
            before=self.before,
            after=Snapshot(chat=chat, calls=self.calls, queue=self.queue),
            lines=tuple(self.lines),
            **self.effects,
        )

    def _note_questions(self) -> None:
        """Whatever opened or closed them: what people below a root are asked is told there, always."""
        had = {(call.id, call.state): call for call in self.before.calls if asks_somebody(call)}
        has = {(call.id, call.state): call for call in self.calls if asks_somebody(call)}
        now = {call.id: call for call in self.calls}
        self.effects["asking"] = tuple(call for key, call in has.items() if key not in had)
        self.effects["answered"] = tuple(now.get(call.id, call) for key, call in had.items() if key not in has)

    def set(self, **fields: Any) -> None:
        self.chat = replace(self.chat, **fields)

    def work(self, ms: int) -> None:
        if ms and self.chat.turn_started_at is not None:
            self.set(turn_ms=self.chat.turn_ms + ms)

    def tell(self, entry: journal.Entry) -> None:
        self.lines.append(Line(entry))

    def tell_of_call(self, call: Call, **told: Any) -> None:
        """Where it stands now."""
        self.tell(journal.CallChanged(call_id=call.id, name=call.name, state=call.state, **told))

    # -- ownership

    def own(self, event: OwnerEvent, worker: str | None = None) -> None:
        owner = Owner.HELD if self.chat.worker else Owner.UNOWNED
        target = OWNERSHIP[event].get(owner)
        if target is None:
            raise Refusal("taken" if event is OwnerEvent.CLAIM else "stale_writer", f"{event}: the chat is {owner}")
        self.set(worker=(worker or self.chat.worker) if target is Owner.HELD else None)

    # -- execution

    def rest(self, state: State) -> None:
        self.own(OwnerEvent.REST)
        # Nobody streams into a chat at rest, and the next holder numbers its attempts higher.
        ended = max(self.chat.attempt_ended, last_attempt_of(self.chat.fence))
        self.set(state=state, wake_at=None, backoff_ms=0, turn_started_at=None, attempt_ended=ended)

    def run(self) -> None:
        """To running: the holder goes on, or the next worker is called now."""
        self.set(state=State.RUNNING, wake_at=None if self.chat.worker else self.now, backoff_ms=0)

    def stopping(self, cause: Cause) -> None:
        self.set(state=State.STOPPING, cause=cause, wake_at=None if self.chat.worker else self.now, backoff_ms=0)
        self.tell(journal.StopRequested(cause=cause))

    def end_turn(
        self, state: State, cause: Cause | None, detail: str | None = None, answer_seq: int | None = None
    ) -> None:
        """Does nothing if no turn is open: a compaction at rest leaves the last turn's cause and answer alone."""
        if self.chat.turn_started_at is not None:
            self.tell(journal.TurnEnded(turn=self.chat.turn, state=state, cause=cause, detail=detail))
            self.effects["turn_over"] = self.chat.turn
            self.set(cause=cause, answer_seq=answer_seq, turn_started_at=None)

    def end_turn_and_go_on(
        self, cause: Cause | None, detail: str | None = None, answer_seq: int | None = None, **fields: Any
    ) -> None:
        """How a turn ends that did not fail: the queue's head starts the next one, or the chat rests.

        A compaction asked for in the turn's last moments comes before the rest: it was accepted, so it is done.
        """
        if fields:
            self.set(**fields)
        state = State.RUNNING if self.queue or self.chat.compact else State.IDLE
        self.end_turn(state, cause, detail, answer_seq)
        if self.queue:
            self.start_next_turn()
        elif self.chat.compact:
            self.set(phase=Phase.REST)
            self.run()
        else:
            self.set(phase=Phase.REST)
            self.rest(State.IDLE)

    def start_next_turn(self) -> None:
        head, self.queue = self.queue[0], self.queue[1:]
        self.start_turn(head.id, head.body)

    def start_turn(self, message_id: str, body: Raw) -> None:
        assert not self.has_open_calls(), "open calls under a new message"
        self.unarchive()
        self.set(
            turn=self.chat.turn + 1,
            turn_started_at=self.now,
            turn_from=self.chat.length,
            step=0,
            turn_tokens=0,
            turn_cost=0.0,
            turn_ms=0,
            cause=None,
            error=None,
            unclean=0,
            silent="",
            phase=Phase.MODEL,
        )
        self.tell(journal.TurnStarted(turn=self.chat.turn))
        self.add_user_message(message_id, body)
        self.run()

    def unarchive(self) -> None:
        if self.chat.archived:
            self.set(archived=False)
            self.tell(journal.ChatArchived(archived=False))

    # -- history

    def add_user_message(self, message_id: str, body: Raw) -> None:
        """It was checked when it was accepted, and is passed on unread: newer code may have queued it."""
        self._append(journal.MessageAdded(message=body), Role.USER, message_id)

    def add_given(self, message: Message) -> None:
        """Said elsewhere, before there was a chat."""
        self._append(journal.MessageAdded(message=Raw(encode(message))), message.role, message.id)

    def add_response(self, message: Message, *, attempt: int, started: tuple[str, ...] = ()) -> None:
        entry = journal.MessageAdded(message=Raw(encode(message)), attempt=attempt, started=started)
        self._append(entry, Role.ASSISTANT, message.id)
        self.effects["ended_attempt"] = attempt

    def _append(self, entry: journal.MessageAdded, role: Role, message_id: str) -> None:
        self.lines.append(Line(entry, self.chat.length, role, message_id))
        self.set(length=self.chat.length + 1)

    def end_attempts(self, upto: int) -> None:
        if upto > self.chat.attempt_ended:
            self.set(attempt_ended=upto)

    def cut(self, pos: int) -> None:
        if not 0 <= pos < self.chat.length:
            raise Refusal("no_such_message", f"there is no message at position {pos}")
        self.set(length=pos, epoch=self.chat.epoch + 1)
        self.effects["cut_from"] = pos
        self.tell(journal.HistoryCut(length=pos, epoch=self.chat.epoch))

    # -- the queue

    def enqueue(self, event: cmd.Send | cmd.Edit, mode: SendMode, *, first: bool = False) -> None:
        if len(self.queue) >= self.limits.queue_messages_max:
            raise Refusal(
                "limit",
                f"the chat has {len(self.queue):,} queued messages, which is the limit: "
                "wait for them to be handled, or stop with clear_queue",
            )
        if any(queued.id == event.message.id for queued in self.queue):
            raise Refusal("wrong_message", f"message {event.message.id!r} is queued already")
        body = Raw(encode(event.message))
        size = len(body) + sum(len(queued.body) for queued in self.queue)
        if size > self.limits.queue_bytes_max:
            raise Refusal(
                "limit", f"the queue would hold {size:,} bytes, the limit is {self.limits.queue_bytes_max:,}"
            )
        rank = 0
        if self.queue:
            rank = self.queue[0].rank - 1 if first else self.queue[-1].rank + 1
        queued = Queued(id=event.message.id, rank=rank, mode=mode, body=body)
        self.queue = (queued, *self.queue) if first else (*self.queue, queued)
        self.tell(journal.MessageQueued(message=body, mode=mode, first=first))

    def to_front(self, message_id: str) -> None:
        queued = self.queued(message_id)
        rest = tuple(other for other in self.queue if other is not queued)
        rank = rest[0].rank - 1 if rest else queued.rank
        self.queue = (replace(queued, rank=rank), *rest)
        self.tell(journal.MessagePromoted(message_id=message_id))

    def queued(self, message_id: str) -> Queued:
        for queued in self.queue:
            if queued.id == message_id:
                return queued
        raise Refusal("no_such_message", f"message {message_id!r} is not in the queue")

    def drop(self, gone: tuple[Queued, ...], why: Literal["withdrawn", "cleared", "edited"]) -> None:
        """Nothing acknowledged vanishes silently: the caller gets the messages, the journal their names."""
        if gone:
            self.queue = tuple(queued for queued in self.queue if queued not in gone)
            self.effects["dropped"] = gone
            self.tell(journal.MessagesDropped(message_ids=tuple(queued.id for queued in gone), why=why))

    # -- calls

    def open_batch(self, message: Message, plans: dict[str, cmd.PlannedCall]) -> None:
        """The calls of the response just added become the current ones; each result's position is kept free."""
        calls = message.calls
        batch = self.chat.seq + len(self.lines)  # the response's journal number: never used twice
        first = self.chat.length
        self.calls = tuple(
            [
                Call(
                    id=part.call_id,
                    batch=batch,
                    pos=first + n,
                    name=part.name,
                    replay=plans[part.call_id].replay,
                    on_unknown=plans[part.call_id].on_unknown,
                    excerpt=excerpt(part.arguments, self.limits.excerpt_chars_max),
                )
                for n, part in enumerate(calls)
            ]
        )
        self.set(batch=batch, length=first + len(self.calls))

    def told(self, arguments: str | None) -> str | None:
        return None if arguments is None else excerpt(arguments, self.limits.excerpt_chars_max)

    def has_open_calls(self) -> bool:
        return not FINAL.issuperset([call.state for call in self.calls])

    def call(self, call_id: str) -> Call:
        for call in self.calls:
            if call.id == call_id:
                return call
        raise Refusal("no_such_call", f"call {call_id!r} is not one of the chat's current calls")

    def move(self, call: Call, event: CallEvent, **fields: Any) -> Call:
        target = CALLS[event].get(call.state)
        if target is None:
            raise Refusal("call_state", f"call {call.id!r} is {call.state} and does not take {event}")
        moved = replace(call, state=target, **fields)
        self.calls = tuple([moved if other is call else other for other in self.calls])
        return moved

    def answer(self, call: Call, result: ToolResult) -> None:
        """Write the call's one result, at the position kept for it; off history if that was cut away."""
        in_history = call.pos < self.chat.length
        message = result_message(result, self.now)
        entry = journal.MessageAdded(message=Raw(encode(message)), call_state=call.state, off_history=not in_history)
        self.lines.append(Line(entry, call.pos if in_history else None, Role.TOOL, message.id))

    def answer_synthetically(
        self, call: Call, event: CallEvent, kind: Synthetic, content: str, **fields: Any
    ) -> None:
        moved = self.move(call, event, **fields)
        self.answer(moved, ToolResult(call_id=call.id, name=call.name, content=content, error=True, synthetic=kind))
        if moved.external is External.CHILD and moved.child_id and moved.state is CallState.CANCELLED:
            self.effects["stop_children"] = (*self.effects.get("stop_children", ()), moved.child_id)

    def answer_all(self, why: str, *, lost: bool = False) -> None:
        """Every open call gets its result now. `lost`: nobody saw the started ones end."""
        for call in self.calls:
            if call.state not in OPEN:
                continue
            if call.state is CallState.STARTED and lost and call.replay is Replay.UNSAFE:
                text = _unknown_text(call)
                self.answer_synthetically(call, CallEvent.LOSE, Synthetic.UNKNOWN, text)
            else:
                kind, content = _cancelled(call, why)
                self.answer_synthetically(call, CallEvent.CANCEL, kind, content)

    def settle(self) -> None:
        """After a call moved: a waiting chat runs again as soon as something is runnable, else it waits for the next
        expiry; once all calls are answered the model is next, and steering messages join.
        """
        if self.chat.state is State.STOPPING:
            return  # what is still open is answered when the stop is done
        answered = not self.has_open_calls()
        if self.chat.state is State.WAITING:
            if not answered and not any(call.state in RUNNABLE for call in self.calls):
                self.set(wake_at=next_expiry(self.calls))
                return
            self.run()
            self.tell(journal.TurnResumed())
        if answered and self.chat.phase is Phase.CALLS:
            self.set(phase=Phase.MODEL)
            self.step_boundary()

    def step_boundary(self) -> None:
        """Steering messages join here: never between a call and its result."""
        if not self.queue:
            return
        steering = tuple(queued for queued in self.queue if queued.mode == "steer")
        if steering:
            self.queue = tuple(queued for queued in self.queue if queued.mode != "steer")
            for queued in steering:
                self.add_user_message(queued.id, queued.body)
            self.set(phase=Phase.MODEL)


def next_expiry(calls: tuple[Call, ...]) -> int | None:
    times = [call.expires_at for call in calls if call.state in OUTSIDE and call.expires_at is not None]
    return min(times, default=None)


def asks_somebody(call: Call) -> bool:
    """A person or a client has to answer it; not a child, not the clock."""
    return call.state is CallState.ASKING or (
        call.state is CallState.EXTERNAL and call.external in (External.CLIENT, External.QUESTION)
    )


def excerpt(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… ({len(text):,} characters in all)"


def told_arguments(call: Call) -> str:
    """As they are told to people: those that count, without secrets. Where no hook changed them it is an excerpt, and
    the response that the call is of has the whole.
    """
    return call.excerpt if call.told is None else call.told


def _unknown_text(call: Call, why: str = "") -> str:
    """All that is known of it, in words that never change: they stay in the history, and in prompt caches.

    The arguments are those that the model gave: what a hook made of them may hold a key that is not the model's.
    """
    at = f" at {iso(call.started_at)}" if call.started_at is not None else ""
    changed = " (a hook changed them)" if call.arguments is not None else ""
    how = f". {why.rstrip().rstrip('.')}" if why else ", and its worker was lost before it reported"
    return (
        f"Outcome unknown: {call.name} was started{at} with the arguments {call.excerpt or '{}'}{changed}{how}. "
        "It may or may not have taken effect. Verify before you try again."
    )


def _cancelled(call: Call, why: str) -> tuple[Synthetic, str]:
    """What the model is told of a call that ends without an outcome. "Never ran" is said only where it is true."""
    if call.state is CallState.STARTED:
        return Synthetic.CANCELLED, f"Cancelled while it ran: {why}. It may have taken effect in part."
    if call.starts:
        doubted = call.question if call.state is CallState.EXTERNAL else None
        return Synthetic.UNKNOWN, f"{doubted or _unknown_text(call)} Nothing more was done about it: {why}."
    if call.state is CallState.EXTERNAL:
        return Synthetic.CANCELLED, f"Not answered: {why}."
    return Synthetic.CANCELLED, f"Never ran: {why}."


# --- cells: clients --------------------------------------------------------------------------------


def begin(draft: Draft, event: cmd.Send) -> None:
    _check_user(event.message)
    draft.start_turn(event.message.id, Raw(encode(event.message)))


def enqueue(draft: Draft, event: cmd.Send) -> None:
    _check_user(event.message)
    draft.enqueue(event, event.mode)


def enqueue_first(draft: Draft, event: cmd.Send) -> None:
    _check_user(event.message)
    draft.enqueue(event, event.mode, first=True)


def enqueue_and_promote(draft: Draft, event: cmd.Send) -> None:
    _check_user(event.message)
    if draft.queue:
        draft.enqueue(event, event.mode)
        draft.start_next_turn()
    else:
        begin(draft, event)


def answer_or_enqueue(draft: Draft, event: cmd.Send) -> None:
    """An open question takes the message as its answer, unless its time is over."""
    _check_user(event.message)
    for call in draft.calls:
        open_question = call.state is CallState.EXTERNAL and call.external is External.QUESTION
        if open_question and _over_at(draft, call) is None:
            _finish_external(draft, call, _as_answer(event.message), error=False, by="")
            draft.settle()
            return
    draft.enqueue(event, event.mode)


def answer_all_and_begin(draft: Draft, event: cmd.Send) -> None:
    _check_user(event.message)
    draft.answer_all("the user sent a new message")
    draft.end_turn(State.RUNNING, Cause.SUPERSEDED)
    draft.start_turn(event.message.id, Raw(encode(event.message)))


def interrupt(draft: Draft, event: cmd.Send) -> None:
    _check_user(event.message)
    draft.enqueue(event, event.mode, first=True)
    draft.set(epoch=draft.chat.epoch + 1)
    draft.stopping(Cause.SUPERSEDED)


def edit_at_rest(draft: Draft, event: cmd.Edit) -> None:
    _check_edit(draft, event)
    draft.drop(draft.queue, "edited")
    draft.cut(event.pos)
    draft.set(batch=None)
    draft.calls = ()
    draft.start_turn(event.message.id, Raw(encode(event.message)))


def edit_waiting(draft: Draft, event: cmd.Edit) -> None:
    _check_edit(draft, event)
    draft.drop(draft.queue, "edited")
    draft.cut(event.pos)
    draft.answer_all("the conversation was edited")
    draft.end_turn(State.RUNNING, Cause.SUPERSEDED)
    draft.start_turn(event.message.id, Raw(encode(event.message)))


def edit_at_work(draft: Draft, event: cmd.Edit) -> None:
    """History is cut now; the edited message waits, first and alone, until the old work is dead."""
    _check_edit(draft, event)
    draft.drop(draft.queue, "edited")
    draft.cut(event.pos)
    draft.set(phase=Phase.REST)  # whatever was streamed answers messages that are gone
    draft.enqueue(event, "interrupt", first=True)
    if draft.chat.state is State.RUNNING:
        draft.stopping(Cause.SUPERSEDED)


def nothing_to_stop(draft: Draft, event: cmd.Stop) -> None:
    """But for its children: it may have left some of them at work."""
    if event.clear_queue:
        draft.drop(draft.queue, "cleared")
    draft.effects["stop_all_children"] = True


def stop(draft: Draft, event: cmd.Stop) -> None:
    if event.clear_queue:
        draft.drop(draft.queue, "cleared")
    draft.effects["stop_all_children"] = True
    draft.stopping(Cause.USER)


def stop_again(draft: Draft, event: cmd.Stop) -> None:
    if event.clear_queue:
        draft.drop(draft.queue, "cleared")
    draft.effects["stop_all_children"] = True
    if draft.chat.cause is not Cause.USER:
        draft.stopping(Cause.USER)


def stop_waiting(draft: Draft, event: cmd.Stop) -> None:
    if event.clear_queue:
        draft.drop(draft.queue, "cleared")
    draft.effects["stop_all_children"] = True
    draft.tell(journal.StopRequested(cause=Cause.USER))
    draft.answer_all(_why(Cause.USER))
    draft.end_turn_and_go_on(Cause.USER, compact=False)


def promote(draft: Draft, event: cmd.Promote) -> None:
    draft.to_front(event.message_id)


def promote_and_supersede(draft: Draft, event: cmd.Promote) -> None:
    draft.to_front(event.message_id)
    draft.set(epoch=draft.chat.epoch + 1)
    draft.stopping(Cause.SUPERSEDED)


def promote_waiting(draft: Draft, event: cmd.Promote) -> None:
    draft.to_front(event.message_id)
    draft.answer_all("the user moved on to another message")
    draft.end_turn(State.RUNNING, Cause.SUPERSEDED)
    draft.start_next_turn()


def promote_failed(draft: Draft, event: cmd.Promote) -> None:
    draft.to_front(event.message_id)
    draft.start_next_turn()


def withdraw(draft: Draft, event: cmd.Withdraw) -> None:
    draft.drop((draft.queued(event.message_id),), "withdrawn")


def approve(draft: Draft, event: cmd.Approve) -> None:
    asked = draft.call(event.call_id)
    if event.digest is not None and asked.state is CallState.ASKING and event.digest != asked.digest:
        raise Refusal("call_changed", f"call {asked.id!r} has other arguments than those that were shown: look again")
    call = draft.move(asked, CallEvent.APPROVE, answered_by=event.by, question=None, expires_at=None)
    _check_in_time(draft, asked)
    draft.tell_of_call(call, by=event.by)
    draft.settle()


def deny(draft: Draft, event: cmd.Deny) -> None:
    words = f' They said: "{event.words}"' if event.words else ""
    call = draft.call(event.call_id)
    if call.state is not CallState.ASKING:
        raise Refusal("call_state", f"call {call.id!r} is {call.state}; a person denies what a person was asked")
    draft.answer_synthetically(
        call,
        CallEvent.DENY,
        Synthetic.DENIED,
        f"Denied: a person refused this call.{words}",
        answered_by=event.by,
        question=None,
    )
    draft.settle()


def submit(draft: Draft, event: cmd.Submit) -> None:
    call = draft.call(event.call_id)
    if call.external not in (External.CLIENT, External.QUESTION):
        raise Refusal("call_state", f"call {call.id!r} is not one that a client answers")
    _finish_external(draft, call, event.content, error=event.error, by=event.by)
    _check_in_time(draft, call)
    draft.settle()


def _check_in_time(draft: Draft, call: Call) -> None:
    """Silence until the expiry was an answer, though a sibling still runs, or nobody has yet said so."""
    if (over_at := _over_at(draft, call)) is not None:
        raise Refusal("call_state", f"the time to answer call {call.id!r} was over at {iso(over_at)}")


def _over_at(draft: Draft, call: Call) -> int | None:
    """When the time in which somebody could answer it was over, if it is."""
    expires_at = call.expires_at
    return expires_at if expires_at is not None and expires_at <= draft.now else None


def begin_compaction(draft: Draft, event: cmd.Compact) -> None:
    """A failed chat that owes a response goes on with it afterwards: most were compacted to get there."""
    draft.set(compact=True)
    if draft.chat.state is State.FAILED and draft.chat.phase is Phase.MODEL:
        retry(draft, event)
        return
    draft.unarchive()
    draft.set(error=None, unclean=0, silent="")
    draft.run()


def note_compaction(draft: Draft, event: cmd.Compact) -> None:
    draft.set(compact=True)


def retry(draft: Draft, event: cmd.Retry | cmd.Compact) -> None:
    """The turn goes on where it failed: what was committed is not asked for again."""
    draft.unarchive()
    draft.set(error=None, cause=None, unclean=0, silent="", turn_started_at=draft.now, turn_ms=0)
    draft.tell(journal.ChatRetried())
    draft.run()


def archive(draft: Draft, event: cmd.Archive) -> None:
    if draft.chat.archived != event.archived:
        draft.set(archived=event.archived)
        draft.tell(journal.ChatArchived(archived=event.archived))


def rename(draft: Draft, event: cmd.Rename) -> None:
    if event.unless_titled and draft.chat.title is not None:
        raise Refusal("titled", "the chat has a title")
    title = " ".join(event.title.split())
    if not 0 < len(title) <= draft.limits.title_chars_max:
        raise Refusal(
            "wrong_title", f"a title has 1 to {draft.limits.title_chars_max} characters, this one {len(title):,}"
        )
    if title != draft.chat.title:
        chat = draft.chat
        draft.set(title=title, turn_tokens=chat.turn_tokens + event.tokens, turn_cost=chat.turn_cost + event.cost)
        draft.tell(journal.ChatRenamed(title=title, tokens=event.tokens, cost=event.cost))


def leave(draft: Draft, event: cmd.Command) -> None:
    """Allowed, and nothing in this chat changes by it."""


def delete(draft: Draft, event: cmd.Delete) -> None:
    """Allowed. Whoever waits for a later turn of this chat is told that none will come."""
    draft.effects["gone"] = True


def ignore(draft: Draft, event: cmd.Command) -> None:
    """Too late to matter."""


def _check_user(message: Message) -> None:
    _check_spoken(message)
    if message.synthetic is not None:
        raise Refusal("wrong_message", "only the runtime marks a message as synthetic")


def _check_spoken(message: Message) -> None:
    """A user message that says something."""
    if message.role is not Role.USER:
        raise Refusal("wrong_message", f"only user messages are sent, this one is of role {message.role}")
    if not all(isinstance(part, Text | File) for part in message.parts):
        raise Refusal("wrong_message", "a user message holds text and files, nothing else")
    if not any(isinstance(part, File) or part.text for part in message.parts if isinstance(part, Text | File)):
        raise Refusal("wrong_message", "the message says nothing; send some text or a file")


def _check_edit(draft: Draft, event: cmd.Edit) -> None:
    _check_user(event.message)
    if event.epoch != draft.chat.epoch:
        raise Refusal("stale_position", "history was cut since the message was looked up; look again")
    if event.role is not Role.USER:
        raise Refusal("not_a_user_message", f"only user messages can be edited, this one is of role {event.role}")


def _as_answer(message: Message) -> str:
    """A message as the answer to a question: its text, and where its files are."""
    files = [f"[{part.media_type}: {part.uri}]" for part in message.parts if isinstance(part, File)]
    return "\n".join([message.text, *files] if message.text else files)


def _why(cause: Cause | None) -> str:
    return "superseded by a newer message" if cause is Cause.SUPERSEDED else "stopped by the user"


# --- cells: surroundings ---------------------------------------------------------------------------


def child_ended(draft: Draft, event: cmd.ChildEnded) -> None:
    content = event.text if event.text is not None else "The sub-agent ended without a recorded answer."
    error = event.error or event.text is None
    for call in draft.calls:
        waits = call.state is CallState.EXTERNAL and call.child_id == event.child_id
        if waits and (call.child_turn or 0) <= event.turn:
            _finish_external(draft, call, content, error=error, by=event.child_id)
    draft.settle()


def due(draft: Draft, event: cmd.Command) -> None:
    for call in draft.calls:
        if call.state not in OUTSIDE or _over_at(draft, call) is None:
            continue
        if call.external is External.TIMER:
            _finish_external(draft, call, "The time has come.", error=False, by="timer")
        elif call.state is CallState.ASKING:
            draft.answer_synthetically(
                call, CallEvent.DENY, Synthetic.EXPIRED, "Denied: nobody answered the approval in time."
            )
        else:
            draft.answer_synthetically(call, CallEvent.CANCEL, Synthetic.EXPIRED, "Expired: nobody answered in time.")
    draft.settle()


def tell_of_descendant(draft: Draft, event: cmd.Descendant) -> None:
    for call in event.answered:
        draft.tell(
            journal.DescendantAnswered(
                chat_id=event.chat_id, call_id=call.id, name=call.name, state=call.state, by=call.answered_by
            )
        )
    for call in event.asking:
        draft.tell(
            journal.DescendantAsking(
                chat_id=event.chat_id,
                agent=event.agent,
                call_id=call.id,
                name=call.name,
                state=call.state,
                external=call.external,
                question=call.question,
                arguments=excerpt(told_arguments(call), draft.limits.excerpt_chars_max),
                expires_at=call.expires_at,
            )
        )


def _finish_external(draft: Draft, call: Call, content: str, *, error: bool, by: str) -> None:
    if call.state is not CallState.EXTERNAL:
        raise Refusal("call_state", f"call {call.id!r} is {call.state} and waits for nobody outside")
    moved = draft.move(call, CallEvent.FINISH, answered_by=by)
    draft.answer(moved, ToolResult(call_id=call.id, name=call.name, content=content, error=error))


# --- cells: a runner -------------------------------------------------------------------------------


def respond(draft: Draft, event: cmd.Responded) -> None:
    message, chat = event.message, draft.chat
    if chat.phase is not Phase.MODEL:
        raise Refusal("not_the_models_turn", f"what is next is {chat.phase}, not a model response")
    calls = _check_response(message)
    if len(calls) > draft.limits.batch_calls_max:
        raise Refusal("limit", f"{len(calls)} calls in one response; the limit is {draft.limits.batch_calls_max}")
    plans = {plan.id: plan for plan in event.plans}
    if plans.keys() != calls:
        raise Refusal("wrong_message", "every call of a response needs one plan")
    _check_attempt(chat, event.attempt)
    started = tuple([plan.id for plan in event.plans if plan.start])
    draft.add_response(message, attempt=event.attempt, started=started)
    draft.open_batch(message, plans)
    draft.set(
        step=chat.step + 1,
        turn_tokens=chat.turn_tokens + event.tokens,
        turn_cost=chat.turn_cost + event.cost,
        attempt_ended=event.attempt,
        phase=Phase.CALLS if draft.calls else Phase.REST,
    )
    for call_id in started:
        draft.move(draft.call(call_id), CallEvent.START, started_at=draft.now, starts=1)
    if not draft.calls:
        draft.step_boundary()


def ask_again(draft: Draft, event: cmd.AskAgain) -> None:
    message = event.message
    _check_spoken(message)
    if message.synthetic is None:
        raise Refusal("wrong_message", "the model is asked again by a synthetic user message")
    _check_nothing_open(draft)
    if draft.chat.phase is not Phase.REST or draft.chat.turn_started_at is None:
        raise Refusal("model_is_next", "there is no response here to ask again about")
    draft.add_user_message(message.id, Raw(encode(message)))
    draft.set(phase=Phase.MODEL)


def _check_response(message: Message) -> set[str]:
    """The ids of its calls."""
    if message.role is not Role.ASSISTANT:
        raise Refusal("wrong_message", f"a response is an assistant message, not one of role {message.role}")
    if ToolResult in map(type, message.parts):
        raise Refusal("wrong_message", "a response holds no tool results")
    ids = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
    unique = set(ids)
    if len(unique) != len(ids):
        raise Refusal("wrong_message", "every call of a response needs an id of its own")
    return unique


def _check_attempt(chat: Chat, attempt: int) -> None:
    if fence_of(attempt) != chat.fence:
        raise Refusal("wrong_message", f"attempt {attempt} was not made under fence {chat.fence}")
    if attempt <= chat.attempt_ended:
        raise Refusal("wrong_message", f"attempt {attempt} is over; the last one to end was {chat.attempt_ended}")


def record_lost_attempt(draft: Draft, event: cmd.AttemptLost) -> None:
    _check_attempt(draft.chat, event.attempt)
    draft.end_attempts(event.attempt)
    if event.tokens:
        chat = draft.chat
        draft.set(turn_tokens=chat.turn_tokens + event.tokens, turn_cost=chat.turn_cost + event.cost)
    draft.tell(
        journal.AttemptFailed(
            attempt=event.attempt,
            model=event.model,
            error=event.error,
            code=event.code,
            provider=event.provider,
            status=event.status,
            request_id=event.request_id,
            retry_in_ms=event.retry_in_ms,
            next_model=event.next_model,
            duration_ms=event.duration_ms,
            tokens=event.tokens,
        )
    )
    draft.tell(journal.PreviewReset(attempt=event.attempt))


def start_calls(draft: Draft, event: cmd.StartCalls) -> None:
    for call_id in event.call_ids:
        call = draft.call(call_id)
        arguments = event.arguments.get(call_id, call.arguments)
        told = draft.told(event.told.get(call_id, event.arguments.get(call_id))) or call.told
        draft.move(
            call, CallEvent.START, started_at=draft.now, starts=call.starts + 1, arguments=arguments, told=told
        )
    draft.tell(journal.CallsStarted(call_ids=event.call_ids, arguments={**event.arguments, **event.told}))


def ask_approval(draft: Draft, event: cmd.AskApproval) -> None:
    """Whoever is asked is told what would run, which may not be what the model asked for."""
    told = event.arguments if event.told is None else event.told
    call = draft.move(
        draft.call(event.call_id),
        CallEvent.ASK,
        question=event.question,
        arguments=event.arguments,
        told=told,
        expires_at=event.expires_at,
    )
    draft.tell_of_call(call, question=event.question, arguments=told)


def delegate(draft: Draft, event: cmd.Delegate) -> None:
    call_id, spawn = event.call_id, event.spawn
    child_id = spawn.id if spawn is not None else event.child_id
    if (event.external is External.CHILD) != (child_id is not None):
        raise Refusal("wrong_message", "a call waits for a child exactly when it names one")
    if event.external is External.TIMER and event.expires_at is None:
        raise Refusal("wrong_message", "a timer needs the time at which it rings")
    call = draft.call(call_id)
    told = event.arguments if event.told is None else event.told
    call = draft.move(
        call,
        CallEvent.DELEGATE,
        external=event.external,
        arguments=call.arguments if event.arguments is None else event.arguments,
        told=told or call.told,
        question=event.question,
        child_id=child_id,
        child_turn=event.child_turn,
        expires_at=event.expires_at,
    )
    draft.tell_of_call(call, external=call.external, question=call.question, child_id=call.child_id, arguments=told)
    if spawn is not None:
        _spawn(draft, call, spawn)
    if call.child_id is not None:
        draft.effects["awaited"] = call


def _spawn(draft: Draft, call: Call, new: NewChat) -> None:
    """A child chat, created in this transaction. Who its parent is, is known here and nowhere better."""
    if new.message is not None:
        _check_user(new.message)
    chat = draft.chat
    draft.effects["spawned"] = replace(
        new,
        metadata=_inherited(chat.metadata, new.metadata),
        parent_id=chat.id,
        parent_call=call.id,
        root_id=chat.root_id or chat.id,
        depth=chat.depth + 1,
    )
    if chat.state is State.STOPPING and chat.cause is Cause.USER:
        # The stop has already gone through the children and would miss this one.
        draft.effects["stop_children"] = (new.id,)


def _inherited(parents: Raw, own: Raw) -> Raw:
    """A child's metadata: what holds of its parent, such as that nobody is there to answer, holds of it."""
    if own in (parents, _NO_METADATA):
        return parents
    return Raw(encode({**decode_object(parents, "chat's metadata"), **decode_object(own, "chat's metadata")}))


_NO_METADATA = Raw(b"{}")


def refuse_call(draft: Draft, event: cmd.Refuse) -> None:
    call = draft.call(event.call_id)
    if event.denied:
        draft.answer_synthetically(call, CallEvent.DENY, Synthetic.DENIED, event.content)
    else:
        draft.answer_synthetically(call, CallEvent.REFUSE, Synthetic.REFUSED, event.content)
    draft.settle()


def record_outcome(draft: Draft, event: cmd.Outcome) -> None:
    call = draft.call(event.call_id)
    if call.state is not CallState.STARTED:
        raise Refusal("call_state", f"call {call.id!r} is {call.state}; only a started call has an outcome")
    if event.unknown:
        starts_max = draft.limits.call_starts_max if event.again and draft.chat.state is State.RUNNING else 0
        _lose(draft, call, event.content, rerun=call.replay is not Replay.UNSAFE and call.starts < starts_max)
    else:
        moved = draft.move(call, CallEvent.FINISH)
        draft.answer(moved, ToolResult(call_id=call.id, name=call.name, content=event.content, error=event.error))
    if draft.chat.unclean:
        draft.set(unclean=0, silent="")
    if event.spawn is not None:
        _spawn(draft, call, event.spawn)
    draft.settle()


def note(draft: Draft, event: cmd.Note) -> None:
    draft.tell(journal.Noted(topic=event.topic, text=event.text, call_id=event.call_id))


def finish_compaction(draft: Draft, event: cmd.FinishCompaction) -> None:
    _check_cut(draft, event)
    draft.set(compact=False)
    if draft.chat.turn_started_at is not None and event.tokens:
        chat = draft.chat
        draft.set(turn_tokens=chat.turn_tokens + event.tokens, turn_cost=chat.turn_cost + event.cost)
    if event.error:
        draft.tell(journal.CompactionFailed(error=event.error, why=event.why, tokens=event.tokens))
    if event.summary is None:
        if not event.error:
            draft.tell(journal.Noted(topic="compaction", text="There was nothing to compact."))
        return
    if draft.chat.unclean:
        draft.set(unclean=0, silent="")
    trimmed = bool(event.error)
    draft.effects["compaction"] = Compaction(upto=event.upto, summary=event.summary, created_at=draft.now)
    draft.tell(
        journal.Compacted(
            upto=event.upto,
            summary=event.summary,
            why=event.why,
            trimmed=trimmed,
            tokens=0 if trimmed else event.tokens,
        )
    )


def _check_cut(draft: Draft, event: cmd.FinishCompaction) -> None:
    if event.summary is None:
        return
    if not 0 < event.upto <= draft.chat.length:
        raise Refusal("no_such_message", f"a compaction up to {event.upto} of {draft.chat.length} positions")
    if draft.has_open_calls() and event.upto >= draft.calls[0].pos:
        raise Refusal("open_calls", f"a compaction up to {event.upto} covers calls that have no result yet")
    if draft.calls and draft.calls[0].pos <= event.upto <= draft.calls[-1].pos:
        raise Refusal("wrong_message", f"a compaction up to {event.upto} parts a call from its results")


def park(draft: Draft, event: cmd.Park) -> None:
    runnable = [call.id for call in draft.calls if call.state in RUNNABLE]
    outside = tuple(call.id for call in draft.calls if call.state in OUTSIDE)
    if runnable:
        raise Refusal("runnable", f"calls {', '.join(runnable)} are runnable")
    if not outside:
        raise Refusal("nothing_outside", "no call waits for anybody outside")
    wake_at = next_expiry(draft.calls)
    draft.own(OwnerEvent.REST)
    draft.set(state=State.WAITING, wake_at=wake_at, unclean=0, silent="")
    draft.tell(journal.TurnWaiting(call_ids=outside, wake_at=wake_at))


def finish_turn(draft: Draft, event: cmd.FinishTurn) -> None:
    chat = draft.chat
    _check_nothing_open(draft)
    if event.cause not in _CAUSES_OF_A_RUNNER:
        raise Refusal("wrong_cause", f"a runner does not end a turn because of {event.cause}")
    if chat.phase is not Phase.REST and event.cause is None:
        raise Refusal("model_is_next", "the model still owes a response to the last message")
    if chat.compact and chat.turn_started_at is None:
        raise Refusal("compaction_is_next", "the compaction that this chat was woken for is still owed")
    answer_seq = chat.batch if event.cause is None else None  # the last response was all it had to say
    draft.end_turn_and_go_on(event.cause, event.detail, answer_seq, unclean=0, silent="")


# A stop comes from a user, a handover from a release or a lost lease; none of them is a turn's own end.
_CAUSES_OF_A_RUNNER = (None, Cause.BUDGET, Cause.DEADLINE)


def finish_stop(draft: Draft, event: cmd.FinishStop) -> None:
    cause = draft.chat.cause or Cause.USER
    draft.answer_all(_why(cause))
    if event.partial is not None:
        _add_partial(draft, event, event.partial, cause)
    _end_stopped_attempts(draft, event.attempt)
    _finish_stopping(draft, cause, event.detail, unclean=0, silent="")


def _add_partial(draft: Draft, event: cmd.FinishStop, partial: Message, cause: Cause) -> None:
    """The partial response enters history if the model still owed it there; else it stays in the deltas.

    It does not if history was cut meanwhile, nor if clients were told to forget it because its worker was lost before
    the stop.
    """
    _check_response(partial)
    if event.attempt is None or not partial.parts:
        raise Refusal("wrong_message", "a partial response has at least one part and names its attempt")
    chat = draft.chat
    if chat.phase is Phase.MODEL and event.length == chat.length and event.attempt > chat.attempt_ended:
        # Only now is the cause certain: a user's stop may have come after the message that superseded this.
        partial = replace(partial, stopped=cause)
        draft.add_response(partial, attempt=event.attempt)
        draft.open_batch(partial, {part.call_id: cmd.PlannedCall(id=part.call_id) for part in partial.calls})
        draft.answer_all(_why(cause))


def _end_stopped_attempts(draft: Draft, attempt: int | None) -> None:
    """The stopped attempt is over, and so are those of earlier holders. The holder's next one is not."""
    fence = draft.chat.fence
    if attempt is not None and fence_of(attempt) > fence:
        raise Refusal("wrong_message", f"attempt {attempt} was not made under fence {fence} or before")
    draft.end_attempts(max(attempt or 0, last_attempt_of(fence - 1)))


def _finish_stopping(draft: Draft, cause: Cause, detail: str | None, **fields: Any) -> None:
    if cause is Cause.USER:
        fields["compact"] = False  # the user's stop ends a compaction as well
        if draft.chat.compact:
            draft.tell(journal.CompactionFailed(error=_why(cause)))
    draft.end_turn_and_go_on(cause, detail, **fields)


def fail(draft: Draft, event: cmd.Fail) -> None:
    _fail(draft, event.error)


def _fail(draft: Draft, error: Failure) -> None:
    draft.answer_all("the turn failed", lost=True)
    draft.end_turn(State.FAILED, error.cause, error.code)
    draft.rest(State.FAILED)
    owed = Phase.REST if draft.chat.phase is Phase.REST else Phase.MODEL
    draft.set(error=error, compact=False, phase=owed)
    draft.tell(journal.ChatFailed(error=error))


def fail_stopping(draft: Draft, event: cmd.Fail) -> None:
    """It was to end anyway: the stop is done, the error is noted."""
    _end_stopped_attempts(draft, event.attempt)
    _stop_with_error(draft, event.error)


def _stop_with_error(draft: Draft, error: Failure) -> None:
    draft.tell(journal.Noted(topic="error", text=f"{error.code}: {error.message}"))
    draft.answer_all("the turn failed while stopping", lost=True)
    _finish_stopping(draft, draft.chat.cause or Cause.USER, error.code, compact=False)


def _check_nothing_open(draft: Draft) -> None:
    open_calls = [call.id for call in draft.calls if call.state in OPEN]
    if open_calls:
        raise Refusal("open_calls", f"calls {', '.join(open_calls)} have no result yet")


# --- cells: ownership ------------------------------------------------------------------------------


def claim(draft: Draft, event: cmd.Claim) -> None:
    if backs_off(draft.chat, draft.now):
        raise Refusal("not_due", f"the chat wakes at {draft.chat.wake_at}, it is {draft.now}")
    draft.own(OwnerEvent.CLAIM, event.worker)
    draft.set(fence=draft.chat.fence + 1, wake_at=None, backoff_ms=0)
    _settle_lost_calls(draft)


def backs_off(chat: Chat, now: int) -> bool:
    """Of a chat that runs. One that lies further ahead than it is long is over: somebody set the clock back."""
    return chat.wake_at is not None and 0 < chat.wake_at - now <= chat.backoff_ms


def claim_waiting(draft: Draft, event: cmd.Claim) -> None:
    """Only the clock leads here. If what was due makes nothing runnable, the chat goes on waiting, unowned."""
    if draft.chat.wake_at is None or draft.chat.wake_at > draft.now:
        raise Refusal("not_due", "the chat waits for somebody outside")
    due(draft, event)  # sets the next wake_at if nothing came of it
    if draft.chat.state is State.RUNNING:
        claim(draft, event)


def _settle_lost_calls(draft: Draft) -> None:
    """Whoever started these calls is gone: a new holder never inherits a running body."""
    for call in draft.calls:
        if call.state is CallState.STARTED:
            _lose(draft, call, rerun=call.replay is not Replay.UNSAFE)
    draft.settle()


def _lose(draft: Draft, call: Call, why: str = "", *, rerun: bool) -> None:
    """It was started, and nobody knows what came of it: it runs again, a person is asked, or the model is told.

    A stop asks nobody: what it does not know it tells the model.
    """
    if rerun:
        moved = draft.move(call, CallEvent.REVERT, started_at=None)
        draft.tell_of_call(moved, detail=f"runs again: {why}" if why else "runs again")
    elif call.on_unknown == "ask" and draft.chat.state is not State.STOPPING:
        question = _unknown_text(call, why)
        moved = draft.move(call, CallEvent.DOUBT, external=External.QUESTION, question=question)
        draft.tell_of_call(moved, external=moved.external, question=moved.question)
    else:
        draft.answer_synthetically(call, CallEvent.LOSE, Synthetic.UNKNOWN, _unknown_text(call, why))


def release(draft: Draft, event: cmd.Release) -> None:
    for call_id in event.never_begun:
        call = draft.call(call_id)
        draft.move(call, CallEvent.REVERT, started_at=None, starts=call.starts - 1)
    draft.own(OwnerEvent.RELEASE)
    _hand_over(draft, Cause.SHUTDOWN, backoff_ms=event.delay_ms)


def expire_lease(draft: Draft, event: cmd.LeaseExpired) -> None:
    if draft.chat.worker != event.worker:
        raise Refusal("stale_writer", f"the chat is held by {draft.chat.worker or 'nobody'}, not by {event.worker}")
    draft.own(OwnerEvent.EXPIRE)
    if event.how is LeaseEnd.RETIRED:
        _hand_over(draft, Cause.LEASE_LOST)  # by a worker that lives: there is nothing to count
    else:
        _count_death(draft, event)


def _count_death(draft: Draft, event: cmd.LeaseExpired) -> None:
    unclean = draft.chat.unclean + 1
    draft.set(unclean=unclean)
    if event.how is LeaseEnd.SILENT:
        draft.set(silent=f"{draft.chat.silent} {event.worker}".lstrip())
    if unclean >= draft.limits.unclean_claims_max:
        error = Failure(
            code="crash",
            message=f"{unclean} workers in a row were lost while they held this chat and made no progress; "
            "look at their logs, then retry",
            cause=Cause.CRASH,
            chain=(event.why,) if event.why else (),
        )
        if draft.chat.state is State.STOPPING:
            _stop_with_error(draft, error)
        else:
            _fail(draft, error)
    else:
        cause = Cause.LEASE_LOST if event.how is LeaseEnd.SILENT else Cause.CRASH
        _hand_over(draft, cause, backoff_ms=unclean_backoff_ms(unclean))


def outlive_lease(draft: Draft, event: cmd.LeaseOutlived) -> None:
    """A worker that lives was no death: the chat is handed over if nobody took it back yet, else not counted."""
    chat = draft.chat
    if chat.worker == event.worker:
        draft.own(OwnerEvent.EXPIRE)
        _hand_over(draft, Cause.LEASE_LOST)
        return
    _uncount(draft, event.worker)
    if chat.wake_at is not None:
        earned_ms = min(chat.backoff_ms, unclean_backoff_ms(draft.chat.unclean))
        draft.set(wake_at=chat.wake_at - chat.backoff_ms + earned_ms, backoff_ms=earned_ms)


def _uncount(draft: Draft, worker: str) -> None:
    chat = draft.chat
    silent = chat.silent.split()
    if worker not in silent:
        raise Refusal("stale_writer", f"the chat was not taken from {worker}, or has made progress since")
    silent.remove(worker)
    draft.set(unclean=chat.unclean - 1, silent=" ".join(silent))


def revive(draft: Draft, event: cmd.LeaseOutlived) -> None:
    """It was given up for one loss too many, and that was none: it goes on, as by a retry, after what is left of its
    backoff. Not where others have gone on without it: a person who put it away, a parent that was told of its end.
    """
    chat = draft.chat
    _uncount(draft, event.worker)
    given_up = chat.error is not None and chat.error.cause is Cause.CRASH
    if not given_up or chat.archived or chat.parent_id is not None:
        return
    draft.set(error=None, cause=None, turn_started_at=draft.now)
    draft.tell(journal.Noted(topic="lease", text=f"Worker {event.worker}, which was taken for lost, lives."))
    draft.tell(journal.ChatRetried())
    draft.run()
    backoff_ms = unclean_backoff_ms(draft.chat.unclean)
    draft.set(wake_at=draft.now + backoff_ms, backoff_ms=backoff_ms)


def _hand_over(draft: Draft, cause: Cause, *, backoff_ms: int = 0) -> None:
    draft.set(wake_at=draft.now + backoff_ms, backoff_ms=backoff_ms)
    if draft.chat.state is State.RUNNING and draft.chat.phase is Phase.MODEL:
        # The next holder asks the model again. A stopping chat keeps its preview: it becomes the partial text.
        ended = last_attempt_of(draft.chat.fence)
        draft.end_attempts(ended)
        draft.tell(journal.PreviewReset(attempt=ended, cause=cause))


def repair(draft: Draft, event: cmd.Repair) -> None:
    """Bring ownership, wake_at and calls back into line with the state."""
    chat = draft.chat
    if chat.state in (State.RUNNING, State.STOPPING):
        if chat.worker is None:
            draft.set(wake_at=chat.wake_at if chat.wake_at is not None else draft.now)
        elif event.lease_is_live:
            draft.set(wake_at=None, backoff_ms=0)
        else:
            draft.own(OwnerEvent.EXPIRE)
            _hand_over(draft, Cause.LEASE_LOST)
    elif chat.state is State.WAITING:
        draft.own(OwnerEvent.REST)
        draft.settle()
    else:
        draft.own(OwnerEvent.REST)
        draft.set(wake_at=None, backoff_ms=0)
        draft.answer_all("the chat was at rest", lost=True)
        if chat.state is State.IDLE and draft.queue:
            draft.start_next_turn()
    draft.tell(journal.ChatRepaired(reason=event.reason))


_CELLS: dict[str, Callable[[Draft, Any], None]] = {
    cell.do: globals()[cell.do] for row in EXECUTION.values() for cell in row.values()
}
