"""A turn as one trace, whichever workers and processes carried it: OpenTelemetry's conventions for generative AI.

The trace's id, the id of the turn's root span and those of its parts are digests of durable facts (chat, life, turn,
call, attempt, fence), so that every process works out the same ones. A message that was sent from within a trace, by
a program, a client's `traceparent` or a parent's call, keeps where it came from (`Message.traceparent`), and the turn
that it begins goes on in that trace.

Every part hangs right under the root or under what called it, never under something that a killed process had still
to end. The root, a wait that is over and a worker that was lost are told by the process that committed them: the
witness of its store's commits. No span holds what was said unless `trace_content` asks for it.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.change import Change
from holdfast.core.codec import decode_entry
from holdfast.core.journal import CallChanged, MessageAdded
from holdfast.core.records import Call, CallState, ChatRecord, Message, NewChat, Phase, State
from holdfast.errors import HoldfastError
from holdfast.log_context import logger
from holdfast.spans import Attribute, SpanPlace, Traces, digest, place_of
from holdfast.store.contract import Store
from holdfast.store.cursor import Cursor

log = logger("holdfast.spans")

TELLING_MAX = 1_000  # commits that are still being told; what comes on top is not
SENDERS_MAX = 10_000  # turns whose sender is remembered
_WAITS = (CallState.ASKING, CallState.EXTERNAL)


class TurnPlace(NamedTuple):
    """Where the spans of a turn hang. `sender`: what its root hangs under, if it was sent from within a trace."""

    root: SpanPlace
    sender: SpanPlace | None


def call_place(turn: TurnPlace, chat: ChatRecord, call_id: str, starts: int) -> SpanPlace:
    """Of the span of one start of a call; 0: of one that is not run by a worker."""
    return turn.root._replace(span_id=digest(8, chat.id, chat.life, "call", call_id, starts))


def lost_attempt_place(turn: TurnPlace, chat: ChatRecord, fence: int) -> SpanPlace:
    """Of the model call that a worker was lost in, which held the chat under this fence."""
    return turn.root._replace(span_id=digest(8, chat.id, chat.life, "lost", fence))


def claim_place(turn: TurnPlace, chat: ChatRecord, fence: int) -> SpanPlace:
    return turn.root._replace(span_id=digest(8, chat.id, chat.life, "claim", fence))


def about_chat(chat: ChatRecord) -> dict[str, Attribute]:
    """What every span of a chat says."""
    return {
        "gen_ai.conversation.id": chat.id,
        "gen_ai.agent.name": chat.agent,
        "holdfast.turn": chat.turn,
        "holdfast.fence": chat.fence,
        "holdfast.worker": chat.worker,
    }


def about_tool(call_id: str, name: str, starts: int, kind: str = "function") -> dict[str, Attribute]:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": kind,
        "gen_ai.tool.call.id": call_id,
        "holdfast.starts": starts,
    }


def root_name(chat: ChatRecord) -> str:
    return f"invoke_agent {chat.agent}"


class TurnSpans:
    """Of an app: its store's commits, and where its runners' spans hang."""

    def __init__(self, traces: Traces, store: Store) -> None:
        self.traces = traces
        self._store = store
        self._senders: dict[tuple[str, int, int], SpanPlace | None] = {}  # by chat, life and turn
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def on(self) -> bool:
        return self.traces.on

    def open(self) -> None:
        self.traces.open()
        if self.traces.on:
            self._store.bell.witness = self._witness

    async def close(self) -> None:
        """What is committed is told, as far as the store answers."""
        self._store.bell.witness = None
        if self._telling:
            await asyncio.wait(self._telling, timeout=self._store.options.deadline_s)

    # --- where spans hang -------------------------------------------------------------------------------

    def sent(self, message: Message) -> Message:
        """With where it is sent from, if it is sent from within a trace."""
        traceparent = self.traces.sender()
        return message if traceparent is None else replace(message, traceparent=traceparent)

    def spawned(self, new: NewChat, by: SpanPlace) -> NewChat:
        """A child's first turn goes on in the trace of the call that spawned it."""
        if new.message is None:
            return new
        return replace(new, message=replace(new.message, traceparent=by.traceparent))

    def place(self, chat: ChatRecord, sender: SpanPlace | None) -> TurnPlace:
        """A retry of a failed turn goes on in its trace, under a root of its own: its start is in the root's id."""
        name = root_name(chat)
        if sender is not None:
            trace_id, sampled = sender.trace_id, sender.sampled
        else:
            trace_id = digest(16, chat.id, chat.life, chat.turn)
            sampled = self.traces.samples(trace_id, name)
        span_id = digest(8, chat.id, chat.life, chat.turn, chat.turn_started_at or 0)
        return TurnPlace(SpanPlace(trace_id, span_id, sampled), sender)

    def learn_sender(self, chat: ChatRecord, opener: Message | None) -> TurnPlace:
        """From the message that began the turn."""
        sender = place_of(opener.traceparent) if opener is not None else None
        if len(self._senders) >= SENDERS_MAX:
            del self._senders[next(iter(self._senders))]
        self._senders[chat.id, chat.life, chat.turn] = sender
        return self.place(chat, sender)

    async def find_place(self, chat: ChatRecord) -> TurnPlace:
        key = chat.id, chat.life, chat.turn
        if key in self._senders:
            return self.place(chat, self._senders[key])
        rows = await self._store.read_history(chat.id, start=chat.turn_from, limit=1)
        entry = decode_entry(rows[0].body) if rows and rows[0].pos == chat.turn_from else None
        return self.learn_sender(chat, entry.message if isinstance(entry, MessageAdded) else None)

    # --- what was committed -----------------------------------------------------------------------------

    def _witness(self, changes: Sequence[Change]) -> None:
        told = [change for change in changes if _is_told(change)]
        if told and len(self._telling) < TELLING_MAX:
            task = asyncio.get_running_loop().create_task(self._tell(told))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            before = change.before
            if before is None:
                continue
            try:
                turn = await self.find_place(before.chat)
                if change.after.chat.fence != before.chat.fence:
                    self._tell_claim(turn, before.chat, change.after.chat)
                elif _was_let_go(change):
                    self._tell_let_go(turn, change)
                await self._tell_answered(turn, change)
                if change.turn_over is not None:
                    self._tell_end(turn, change)
            except HoldfastError as error:  # a span less
                log.warning("a commit is not traced", extra={"action": "spans.lost", "error": str(error)})

    def _tell_claim(self, turn: TurnPlace, before: ChatRecord, after: ChatRecord) -> None:
        """As long as it waited for a worker. Its links lead from claim to claim of the turn."""
        place = claim_place(turn, after, after.fence)
        first = before.step == 0 and before.turn_ms == 0 and not before.unclean
        why = "turn_began" if first else "worker_lost" if before.unclean else "goes_on"
        links = () if first else (claim_place(turn, after, before.fence),)
        due_at = before.wake_at if before.wake_at is not None else after.updated_at
        about = {**about_chat(after), "holdfast.why": why, "holdfast.workers_lost": before.unclean}
        at_ms = min(due_at, after.updated_at)
        span = self.traces.start("claim", about, under=turn.root, span_id=place.span_id, at_ms=at_ms, links=links)
        span.end(after.updated_at)

    def _tell_let_go(self, turn: TurnPlace, change: Change) -> None:
        assert change.before is not None
        before, after = change.before.chat, change.after.chat
        about: dict[str, Attribute] = about_chat(before)
        at_ms, links = after.updated_at, (claim_place(turn, before, before.fence),)
        if change.by_runner:
            about["holdfast.why"] = "released"
            self.traces.start("handed over", about, under=turn.root, at_ms=at_ms, links=links).end(at_ms)
            return
        silent = after.silent != before.silent
        how = "silent" if silent else "died" if after.unclean != before.unclean else "retired"
        about["holdfast.why"] = how
        span = self.traces.start("worker lost", about, under=turn.root, at_ms=before.updated_at, links=links)
        span.failed("worker_lost")
        span.end(at_ms)
        self._tell_lost_work(turn, change, links)

    def _tell_lost_work(self, turn: TurnPlace, change: Change, links: Sequence[SpanPlace]) -> None:
        """What ran in a worker that is gone, as far as the store knows of it: since when, and until it was missed."""
        assert change.before is not None
        chat, ended_at = change.before.chat, change.after.chat.updated_at
        if chat.phase is Phase.MODEL and chat.state is State.RUNNING:
            about = {**about_chat(chat), "gen_ai.operation.name": "chat"}
            place = lost_attempt_place(turn, chat, chat.fence)
            at_ms = chat.updated_at
            span = self.traces.start("chat", about, under=turn.root, span_id=place.span_id, at_ms=at_ms, links=links)
            span.failed("worker_lost")
            span.end(ended_at)
        for call in change.before.calls:
            if call.state is CallState.STARTED:
                about = {**about_chat(chat), **about_tool(call.id, call.name, call.starts)}
                span_id, at_ms = call_place(turn, chat, call.id, call.starts).span_id, call.started_at or ended_at
                name = f"execute_tool {call.name}"
                span = self.traces.start(name, about, under=turn.root, span_id=span_id, at_ms=at_ms, links=links)
                span.failed("worker_lost")
                span.end(ended_at)

    async def _tell_answered(self, turn: TurnPlace, change: Change) -> None:
        """Calls that waited for a person, a client, a child or the clock, and do no more."""
        assert change.before is not None
        pairs = [(call, change.after.call(call.id)) for call in change.before.calls if call.state in _WAITS]
        answered = [(call, now) for call, now in pairs if now is None or now.state is not call.state]
        if not answered:
            return
        since = await self._waiting_since(change.before.chat)
        for call, now in answered:
            self._tell_wait(turn, change, call, now, since.get(call.id))

    def _tell_wait(self, turn: TurnPlace, change: Change, call: Call, now: Call | None, began_at: int | None) -> None:
        assert change.before is not None
        chat, ended_at = change.before.chat, change.after.chat.updated_at
        about = {**about_chat(chat), **about_tool(call.id, call.name, call.starts)}
        span_id = None
        if call.state is CallState.ASKING:
            del about["gen_ai.operation.name"]  # nothing was run
            name, about["holdfast.waits_for"] = f"wait for approval of {call.name}", "approval"
        else:
            name, about["holdfast.waits_for"] = f"execute_tool {call.name}", str(call.external)
            span_id = call_place(turn, chat, call.id, 0).span_id
        about["holdfast.outcome"] = str(now.state) if now is not None else "cancelled"
        at_ms = min(began_at or ended_at, ended_at)
        self.traces.start(name, about, under=turn.root, span_id=span_id, at_ms=at_ms).end(ended_at)

    async def _waiting_since(self, chat: ChatRecord) -> dict[str, int]:
        """When each call of the current batch began to wait, by its id. What is read is bounded by the batch."""
        found: dict[str, int] = {}
        cursor: Cursor | str = Cursor(seq=chat.batch or 0)
        while True:
            page = await self._store.read_journal(chat.id, cursor)
            for item in page.items:
                entry = decode_entry(item.body) if item.seq is not None else None
                if isinstance(entry, CallChanged) and entry.state in _WAITS:
                    found[entry.call_id] = item.at
            if not page.more:
                return found
            cursor = page.cursor

    def _tell_end(self, turn: TurnPlace, change: Change) -> None:
        """The root, with the turn's real start, by the process that ended it."""
        assert change.before is not None
        before, after = change.before.chat, change.after.chat
        about: dict[str, Attribute] = {
            **about_chat(before),
            "gen_ai.operation.name": "invoke_agent",
            "user.id": before.owner or None,
            "holdfast.state": str(after.state),
            "holdfast.cause": None if after.cause is None else str(after.cause),
            "holdfast.steps": before.step,
            "holdfast.tokens": before.turn_tokens,
            "holdfast.cost": before.turn_cost or None,
        }
        if turn.sender is not None and before.parent_id is not None:
            about["holdfast.parent"] = before.parent_id
        span = self.traces.start(
            root_name(before),
            about,
            under=turn.sender,
            trace_id=turn.root.trace_id,
            span_id=turn.root.span_id,
            at_ms=before.turn_started_at,
        )
        if after.error is not None:
            span.failed(after.error.code)
        span.end(after.updated_at)


def _is_told(change: Change) -> bool:
    before = change.before
    if before is None or before.chat.turn_started_at is None:
        return False  # no turn was open: a compaction at rest makes its own span
    claimed = change.after.chat.fence != before.chat.fence
    return claimed or change.turn_over is not None or _was_let_go(change) or _some_answered(change)


def _was_let_go(change: Change) -> bool:
    """By its worker, or from one that was lost, in mid-turn."""
    if change.before is None or change.before.chat.worker is None or change.after.chat.worker is not None:
        return False
    parked = change.after.chat.state is State.WAITING
    return not change.by_runner or (change.turn_over is None and not parked)


def _some_answered(change: Change) -> bool:
    assert change.before is not None
    if change.after.calls is change.before.calls:
        return False
    for call in change.before.calls:
        if call.state in _WAITS:
            now = change.after.call(call.id)
            if now is None or now.state is not call.state:
                return True
    return False
