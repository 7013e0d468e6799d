"""A snapshot in the making: the working copy that a cell changes, and the edits it is changed by.

An edit keeps what belongs together together: a message and its position, a call and its one result, a turn's end and
what starts next. Which edits a command makes is decided by the tables and written down in `cells/`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.call_words import cancelled_result, excerpt, unknown_text
from holdfast.core.change import Change, Line, Refusal
from holdfast.core.codec import encode
from holdfast.core.limits import Limits
from holdfast.core.records import (
    FINAL,
    STOPS,
    Call,
    CallState,
    Cause,
    External,
    Message,
    Phase,
    Queued,
    Replay,
    Role,
    SendMode,
    Snapshot,
    State,
    Synthetic,
    Terms,
    ToolResult,
    last_attempt_of,
    result_message,
    stop_cause_of,
)
from holdfast.core.spending import COST_MAX, TOKENS_MAX, Bill, SpendingKind, SpendingLine, Spent
from holdfast.core.states import (
    CALLS,
    OPEN,
    OUTSIDE,
    OWNERSHIP,
    RUNNABLE,
    CallMove,
    Owner,
    OwnerMove,
    awaits_reply,
)
from holdfast.errors import DropCause


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
        had = {(call.id, call.state): call for call in self.before.calls if awaits_reply(call)}
        has = {(call.id, call.state): call for call in self.calls if awaits_reply(call)}
        now = {call.id: call for call in self.calls}
        self.effects["asking"] = tuple(call for key, call in has.items() if key not in had)
        self.effects["answered"] = tuple(now.get(call.id, call) for key, call in had.items() if key not in has)

    def set(self, **fields: Any) -> None:
        self.chat = replace(self.chat, **fields)

    def work(self, ms: int) -> None:
        if ms and self.chat.turn_started_at is not None:
            self.set(turn_ms=self.chat.turn_ms + ms)

    def spend(
        self, kind: SpendingKind, tokens: int, cost: float, bill: Bill, *, model: str = "", in_turn: bool = True
    ) -> None:
        """Counts in the chat, in its turn, and as a line of its own for the accounts above it."""
        if not (0 <= tokens <= TOKENS_MAX and 0 <= cost <= COST_MAX):
            raise Refusal("wrong_message", f"what is spent is nothing or more, not {tokens} tokens and {cost}")
        if bill.reservations:
            self.effects["settled"] = (*self.effects.get("settled", ()), *bill.reservations)
        if not tokens and not cost:
            return
        chat = self.chat
        self.set(chat_tokens=chat.chat_tokens + tokens, chat_cost=chat.chat_cost + cost)
        if in_turn:
            self.set(turn_tokens=chat.turn_tokens + tokens, turn_cost=chat.turn_cost + cost)
        lines = tuple(
            SpendingLine(
                kind=kind,
                model=part.model,
                tokens=part.tokens,
                cost=part.cost,
                day=bill.day,
                accounts=bill.accounts,
            )
            for part in bill.parts or (Spent(model=model, tokens=tokens, cost=cost),)
            if part.tokens or part.cost
        )
        self.effects["spent"] = (*self.effects.get("spent", ()), *lines)

    def tell(self, entry: journal.Entry) -> None:
        self.lines.append(Line(entry))

    def tell_of_call(self, call: Call, **told: Any) -> None:
        """Where it stands now."""
        self.tell(journal.CallChanged(call_id=call.id, name=call.name, state=call.state, **told))

    # -- ownership

    def own(self, move: OwnerMove, worker: str | None = None) -> None:
        owner = Owner.HELD if self.chat.worker else Owner.UNOWNED
        target = OWNERSHIP[move].get(owner)
        if target is None:
            raise Refusal("taken" if move is OwnerMove.CLAIM else "stale_writer", f"{move}: the chat is {owner}")
        self.set(worker=(worker or self.chat.worker) if target is Owner.HELD else None)

    # -- execution

    def rest(self, state: State) -> None:
        self.own(OwnerMove.REST)
        # No runner streams into a chat at rest, and the next holder numbers its attempts higher.
        ended = max(self.chat.attempt_ended, last_attempt_of(self.chat.fence))
        self.set(state=state, wake_at=None, backoff_ms=0, turn_started_at=None, attempt_ended=ended)

    def run(self) -> None:
        """To running: the holder goes on, or the next worker is called now."""
        self.set(state=State.RUNNING, wake_at=None if self.chat.worker else self.now, backoff_ms=0)

    @property
    def stop_cause(self) -> Cause:
        return stop_cause_of(self.chat, self.queue)

    def stopping(self, cause: Cause) -> None:
        """Its turn, or the compaction that it does at rest: that one is not the turn's (see `stop_cause_of`)."""
        if self.chat.turn_started_at is not None:
            self.set(cause=cause)
        elif cause in STOPS:
            self.set(compact=False)
        self.set(state=State.STOPPING, wake_at=None if self.chat.worker else self.now, backoff_ms=0)
        self.tell(journal.StopRequested(cause=cause))

    def end_turn(
        self, state: State, cause: Cause | None, detail: str | None = None, answer_seq: int | None = None
    ) -> None:
        """Does nothing if no turn is open: a compaction at rest leaves the last turn's cause and answer alone."""
        if self.chat.turn_started_at is not None:
            chat = self.chat
            tokens, cost = chat.turn_tokens, chat.turn_cost
            self.tell(
                journal.TurnEnded(turn=chat.turn, state=state, cause=cause, detail=detail, tokens=tokens, cost=cost)
            )
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
        self.open_turn(turn_from=self.chat.length)
        self.add_user_message(message_id, body)
        self.run()

    def open_turn(self, *, turn_from: int) -> None:
        self.set(
            turn=self.chat.turn + 1,
            turn_started_at=self.now,
            turn_from=turn_from,
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

    def unarchive(self) -> None:
        if self.chat.archived:
            self.set(archived=False)
            self.tell(journal.ChatArchived(archived=False))

    # -- history

    def add_user_message(self, message_id: str, body: Raw) -> None:
        """It was checked when it was accepted, and is passed on unread: newer code may have queued it."""
        self._append(journal.MessageAdded(raw=body), Role.USER, message_id)

    def add_given(self, message: Message) -> None:
        """Said elsewhere, before there was a chat."""
        if message.from_outside:
            self.taint(self.chat.length)
        self._append(journal.MessageAdded(raw=Raw(encode(message))), message.role, message.id)

    def add_response(
        self,
        message: Message,
        *,
        attempt: int,
        previewed: bool = True,
        started: tuple[str, ...] = (),
        decisions: Mapping[str, str] | None = None,
    ) -> None:
        entry = journal.MessageAdded(
            raw=Raw(encode(message)), attempt=attempt, started=started, decisions=decisions or {}
        )
        self._append(entry, Role.ASSISTANT, message.id)
        if previewed:
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
        if self.chat.tainted_from is not None and self.chat.tainted_from >= pos:
            self.set(tainted_from=None)
        self.tell(journal.HistoryCut(length=pos, epoch=self.chat.epoch))

    def taint(self, pos: int) -> None:
        """From this position on, what is said may be what content from outside wants to have said."""
        if self.chat.tainted_from is None or pos < self.chat.tainted_from:
            self.set(tainted_from=pos)

    # -- the queue

    def enqueue(self, command: cmd.Send | cmd.Edit, mode: SendMode, *, first: bool = False) -> None:
        if len(self.queue) >= self.limits.queue_messages_max:
            raise Refusal(
                "limit",
                f"the chat has {len(self.queue):,} queued messages, which is the limit: "
                "wait for them to be handled, or stop with clear_queue",
            )
        if any(queued.id == command.message.id for queued in self.queue):
            raise Refusal("wrong_message", f"message {command.message.id!r} is queued already")
        body = Raw(encode(command.message))
        size = len(body) + sum(len(queued.body) for queued in self.queue)
        if size > self.limits.queue_bytes_max:
            raise Refusal(
                "limit", f"the queue would hold {size:,} bytes, the limit is {self.limits.queue_bytes_max:,}"
            )
        rank = 0
        if self.queue:
            rank = self.queue[0].rank - 1 if first else self.queue[-1].rank + 1
        queued = Queued(id=command.message.id, rank=rank, mode=mode, body=body)
        self.queue = (queued, *self.queue) if first else (*self.queue, queued)
        self.tell(journal.MessageQueued(raw=body, mode=mode, first=first))

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

    def drop(self, gone: tuple[Queued, ...], why: DropCause) -> None:
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

    def move(self, call: Call, move: CallMove, **fields: Any) -> Call:
        target = CALLS[move].get(call.state)
        if target is None:
            raise Refusal("call_state", f"call {call.id!r} is {call.state} and does not take {move}")
        moved = replace(call, state=target, **fields)
        self.calls = tuple([moved if other is call else other for other in self.calls])
        return moved

    def answer(self, call: Call, result: ToolResult, terms: Terms | None = None, decision: str = "") -> None:
        """Write the call's one result, at the position kept for it; off history if that was cut away."""
        in_history = call.pos < self.chat.length
        message = result_message(result, self.now, terms)
        entry = journal.MessageAdded(
            raw=Raw(encode(message)),
            call_state=call.state,
            off_history=not in_history,
            decisions={call.id: decision} if decision else {},
        )
        self.lines.append(Line(entry, call.pos if in_history else None, Role.TOOL, message.id))
        if result.untrusted and in_history:
            self.taint(call.pos)

    def answer_synthetically(
        self,
        call: Call,
        move: CallMove,
        kind: Synthetic,
        content: str,
        *,
        decision: str = "",
        untrusted: bool = False,
        **fields: Any,
    ) -> None:
        moved = self.move(call, move, **fields)
        result = ToolResult(
            call_id=call.id, name=call.name, content=content, error=True, synthetic=kind, untrusted=untrusted
        )
        self.answer(moved, result, decision=decision)
        if moved.external is External.CHILD and moved.child_id and moved.state is CallState.CANCELLED:
            self.effects["stop_children"] = (*self.effects.get("stop_children", ()), moved.child_id)

    def answer_all(self, why: str, *, lost: bool = False) -> None:
        """Every open call gets its result now. `lost`: no worker saw the started ones end."""
        for call in self.calls:
            if call.state not in OPEN:
                continue
            if call.state is CallState.STARTED and lost and call.replay is Replay.UNSAFE:
                text = unknown_text(call)
                self.answer_synthetically(call, CallMove.LOSE, Synthetic.UNKNOWN, text)
            else:
                kind, content = cancelled_result(call, why)
                self.answer_synthetically(call, CallMove.CANCEL, kind, content)

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
