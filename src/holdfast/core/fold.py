"""The one fold from a chat's journal to what a reader shows: entries and deltas in, updates out.

It reconciles what was streamed, what was committed and what was taken back. What a reader was shown of a response is
kept as far as a new attempt, or the committed message, begins with it; only where they differ is something taken
back. Text that never came as a delta is added when its message is committed. `settled` looks at no delta: text comes
once it is committed, and nothing is ever taken back.

A reader can leave after any update and come back with its cursor, to any process. The cursor says which line of the
journal was told last (the store's part of it), where the turn began, and what was shown of the response that was not
committed then: how many characters, and a digest of them (`Mark`). It goes on by reading the turn's entries from its
start again, which gives the turn so far exactly; deltas of an attempt that is over are gone by then, which is why the
cursor carries what they cannot tell any more. If what follows begins with the characters that were shown, it is told
from there; if not, all of them are taken back.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core import journal as jn
from holdfast.core import updates as up
from holdfast.core.records import CallState, Message, Reasoning, Role, State, ToolResult
from holdfast.core.shown_words import Heard, ShownWords
from holdfast.core.update_cursor import Mark, cursor_of
from holdfast.core.updates import CallView, TurnView, Update
from holdfast.errors import RecordError

PROGRESS = "progress"  # the topic of what a tool says while it runs


def fold(events: Iterable[jn.Event], *, settled: bool = False) -> Iterator[Update]:
    """All updates of a journal, read from its beginning or from the beginning of a turn."""
    folding = Fold(settled=settled)
    for event in events:
        yield from folding.take(event)


class _Pending(NamedTuple):
    """An update of the event that is being taken, before it has its cursor."""

    make: type[Any]
    turn: TurnView
    mark: Mark
    fields: dict[str, Any]


_OF_TEXT = (up.TextAdded, up.ReasoningAdded, up.Restarted)


class Fold:
    """Takes the events of one chat in order. Holds a turn, never more."""

    def __init__(self, *, settled: bool = False, place: str = "") -> None:
        self._settled = settled
        self._place = place  # the store's cursor just before the next event
        self._turn_seq = 0
        self._attempt = 0  # whose deltas came last
        self._drafted: set[str] = set()
        self._drafts = (0, 0)  # as in a mark
        self._calls: dict[tuple[str | None, str], CallView] = {}
        self._text = ShownWords()
        self._reasoning = ShownWords()
        self._answer_from = 0  # where in the text the last committed response begins
        self._response_over = False  # with the present event
        self._pending: list[_Pending] = []
        self._told = 0  # updates of the present event, those of text not counted
        self._skipped = 0  # that were told before, of the next entry
        self.turn = TurnView()

    def resume(self, mark: Mark, place: str) -> None:
        """After the turn's entries up to that place were taken: goes on as if it had told everything up to there.
        What is streamed is to be taken from its beginning.
        """
        self._text.resume(mark.text)
        self._reasoning.resume(mark.reasoning)
        self._skipped = mark.told
        self._drafts = mark.drafts
        self._place = place

    @property
    def paused(self) -> bool:
        """A person or a client has to act before anything happens."""
        return self.turn.state == "waiting" and bool(self.turn.open)

    def take(self, event: jn.Event) -> list[Update]:
        body = event.body
        self._told = 0
        if isinstance(body, jn.Delta):
            if not self._settled:
                self._delta(body, event.attempt or 0)
        else:
            if not isinstance(body, jn.UnknownEntry):
                with suppress(RecordError):  # of a message: newer code wrote it
                    self._entry(body, event)
            self._skipped = 0
        return self._finish(event)

    def _finish(self, event: jn.Event) -> list[Update]:
        """Only after its last update is a reader past the event. Before, it is at the one before, with more shown:
        what the event has committed is not committed there.
        """
        if self._response_over:
            self._response_over = False
            self._text.end()
            self._reasoning.end()
        pending, self._pending = self._pending, []
        before, self._place = self._place, event.cursor
        past = self._mark(0)
        cursors = [cursor_of(before, one.mark) for one in pending[:-1]] + [cursor_of(event.cursor, past)]
        return [
            one.make(turn=one.turn, cursor=cursor, **one.fields)
            for one, cursor in zip(pending, cursors, strict=False)
        ]

    def _tell(self, make: type[Any], **fields: Any) -> None:
        if make not in _OF_TEXT:
            self._told += 1
            if self._told <= self._skipped:
                return
        self._pending.append(_Pending(make, self.turn, self._mark(self._told), fields))

    def _mark(self, told: int) -> Mark:
        return Mark(self._turn_seq, told, self._text.shown, self._reasoning.shown, self._drafts)

    def _set(self, **fields: Any) -> None:
        self.turn = replace(self.turn, **fields)

    # --- text -----------------------------------------------------------------------------------------

    def _delta(self, delta: jn.Delta, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._drafted.clear()
            self._text.begin_attempt()
            self._reasoning.begin_attempt()
        if delta.part == "text":
            self._tell_words(self._text.hear(delta.text), Heard())
        elif delta.part == "reasoning":
            self._tell_words(Heard(), self._reasoning.hear(delta.text))
        elif delta.part == "arguments" and delta.call_id is not None and delta.call_id not in self._drafted:
            self._drafted.add(delta.call_id)
            if (attempt, len(self._drafted)) > self._drafts:  # else it was told before, elsewhere
                self._drafts = (attempt, len(self._drafted))
                self._tell(up.CallDrafted, call=CallView(id=delta.call_id, name=delta.name or ""))

    def _tell_words(self, text: Heard, reasoning: Heard) -> None:
        dropped = text.dropped or reasoning.dropped
        if dropped or text.met or reasoning.met:
            self._show_words()
        if dropped:
            self._tell(up.Restarted, dropped=text.dropped, reasoning_dropped=reasoning.dropped)
        for words, heard, make in (
            (self._reasoning, reasoning, up.ReasoningAdded),
            (self._text, text, up.TextAdded),
        ):
            if heard.rest:
                words.add(heard.rest)
                self._show_words()
                self._tell(make, text=heard.rest)

    def _show_words(self) -> None:
        chars = self._text.committed_chars
        self.turn = up.with_words(self.turn, self._text.all, self._reasoning.all, answer_from=chars)

    def _end_response(self, text: str = "", reasoning: str = "") -> None:
        """This is what it came to: nothing, where it was not kept."""
        self._tell_words(self._text.hear_all(text), self._reasoning.hear_all(reasoning))
        self._response_over = True
        # Where another process had shown all of it, nothing is told, and it is known only now.
        start = self._answer_from
        self.turn = up.with_words(self.turn, self._text.all, self._reasoning.all, retries=0, answer_from=start)

    # --- entries --------------------------------------------------------------------------------------

    def _entry(self, entry: jn.AnyEntry, event: jn.Event) -> None:
        match entry:
            case jn.MessageAdded():
                self._message(entry, entry.message, event.at)
            case jn.TurnStarted():
                self._start_turn(entry, event.seq or 0)
            case jn.TurnEnded():
                self._end_turn(entry)
            case jn.ChatFailed() if self.turn.state == "failed":  # else a compaction at rest did
                self._set(error=entry.error)
                self._tell(up.Finished)
            case jn.TurnWaiting():
                self._set(state="waiting")
                self._tell_waiting(entry)
            case jn.AttemptFailed():
                self._lose_attempt(entry, event.at)
            case jn.PreviewReset():
                self._reset(entry, event.at)
            case jn.CallsStarted():
                for call_id in entry.call_ids:
                    self._begin_call(call_id, event.at, entry.arguments.get(call_id))
            case jn.CallChanged():
                self._change_call(entry, event.at)
            case jn.Noted(topic=topic, call_id=call_id) if topic == PROGRESS and call_id is not None:
                self._tell(
                    up.CallProgress,
                    call=self._keep(up.with_progress(self._call(call_id), entry.text)),
                    text=entry.text,
                )
            case jn.DescendantAsking() | jn.DescendantAnswered():
                self._descend(entry)
            case jn.Traced():
                pass  # for operators
            case _:
                self._go_on(entry)
                self._tell(up.Happened, entry=entry)

    def _go_on(self, entry: jn.AnyEntry) -> None:
        """What changes how the turn stands, and is told as it is."""
        match entry:
            case jn.StopRequested() if not self.turn.over:  # else of a compaction at rest
                self._set(state="stopping", cause=entry.cause)
            case jn.TurnResumed():
                self._set(state="running")
            case jn.ChatRetried():
                self._set(state="running", cause=None, detail=None, error=None)
            case jn.HistoryCut() if not self.turn.over:  # what it had said is not said any more
                self._answer_from = self._text.committed_chars
                self._set(response=None, answer_from=self._answer_from)
            case jn.Compacted(tokens=tokens) | jn.CompactionFailed(tokens=tokens) if not self.turn.over:
                self.turn = up.with_tokens(self.turn, tokens)  # one of a chat at rest is none of the turn's
            case jn.Noted(tokens=tokens, cost=cost) if tokens or cost:
                self.turn = up.with_tokens(self.turn, tokens, cost)
            case jn.AttemptFailed(tokens=tokens):
                self.turn = up.with_tokens(self.turn, tokens)
            case jn.ChatRenamed(tokens=tokens, cost=cost):
                self.turn = up.with_tokens(self.turn, tokens, cost)

    def _start_turn(self, entry: jn.TurnStarted, seq: int) -> None:
        self._end_response()
        self._turn_seq = seq
        self._calls.clear()
        self._text, self._reasoning = ShownWords(), ShownWords()
        self._answer_from = 0
        self.turn = TurnView(number=entry.turn, state="running")
        self._tell(up.Happened, entry=entry)

    def _end_turn(self, entry: jn.TurnEnded) -> None:
        """What was shown and not committed by now never will be."""
        self._end_response()
        failed = entry.state is State.FAILED
        state: up.TurnViewState = "failed" if failed else "stopped" if entry.cause is not None else "done"
        self._set(number=entry.turn, state=state, cause=entry.cause, detail=entry.detail)
        if entry.tokens is not None and entry.cost is not None:  # older code did not say
            self._set(usage=replace(self.turn.usage, total_tokens=entry.tokens), cost=entry.cost)
        if not failed:  # the next entry says why
            self._tell(up.Finished)

    def _tell_waiting(self, entry: jn.AnyEntry) -> None:
        if found := self.turn.open:
            self._tell(up.Paused, open=found)
        else:  # for a sub-agent, or the clock
            self._tell(up.Happened, entry=entry)

    def _lose_attempt(self, entry: jn.AttemptFailed, at: int) -> None:
        self._go_on(entry)
        if entry.retry_in_ms is None:
            self._tell(up.Happened, entry=entry)
            return
        self._retry(entry.error, at + entry.retry_in_ms, entry.next_model)

    def _reset(self, entry: jn.PreviewReset, at: int) -> None:
        """What is shown stays until something else is said. Only a handover is news: a failed attempt was told."""
        if entry.cause is not None:
            self._retry(str(entry.cause), at, None)

    def _retry(self, reason: str, at: int, model: str | None) -> None:
        self._set(retries=self.turn.retries + 1)
        self._tell(up.Retrying, reason=reason, at=at, attempt=self.turn.retries + 1, model=model)

    def _message(self, entry: jn.MessageAdded, message: Message, at: int) -> None:
        if entry.attempt is not None:
            self._respond(entry, message, at)
        elif message.role is Role.TOOL:
            for part in message.parts:
                if isinstance(part, ToolResult):
                    self._end_call(part, entry.call_state, at)
        else:
            self._tell(up.Happened, entry=entry)

    def _respond(self, entry: jn.MessageAdded, message: Message, at: int) -> None:
        self._answer_from = self._text.committed_chars
        thought = "".join([part.text for part in message.parts if isinstance(part, Reasoning)])
        self._end_response(message.text, thought)
        for part in message.calls:
            self._keep(CallView(id=part.call_id, name=part.name, arguments=part.arguments))
        self.turn = up.with_response(self.turn, message)
        self._tell(up.Responded, message=message)
        for call_id in entry.started:
            self._begin_call(call_id, at)

    # --- calls ----------------------------------------------------------------------------------------

    def _call(self, call_id: str, name: str = "") -> CallView:
        """One that the fold has not heard of was asked for before its first event."""
        return self._calls.get((None, call_id)) or CallView(id=call_id, name=name)

    def _keep(self, call: CallView) -> CallView:
        self._calls[call.chat_id, call.id] = call
        self.turn = up.with_call(self.turn, call)
        return call

    def _begin_call(self, call_id: str, at: int, arguments: str | None = None) -> None:
        call = self._call(call_id)
        arguments = call.arguments if arguments is None else arguments
        self._tell(
            up.CallBegan,
            call=self._keep(replace(call, state=CallState.STARTED, arguments=arguments, began_at=at)),
        )

    def _change_call(self, entry: jn.CallChanged, at: int) -> None:
        call = replace(
            self._call(entry.call_id, entry.name),
            state=entry.state,
            external=entry.external,
            question=entry.question,
            child_id=entry.child_id,
            by=entry.by,
        )
        if entry.arguments is not None:
            call = replace(call, arguments=entry.arguments)
        if call.kind is not None:
            self._tell(up.CallAsked, call=self._keep(call))
        elif call.state is CallState.EXTERNAL:
            self._tell(up.CallBegan, call=self._keep(replace(call, began_at=at)))
        elif call.state is CallState.APPROVED:
            self._tell(up.CallAnswered, call=self._keep(call))
        else:  # it is to run again
            self._keep(replace(call, began_at=None))
            self._tell(up.Happened, entry=entry)

    def _end_call(self, result: ToolResult, state: CallState | None, at: int) -> None:
        call = replace(
            self._call(result.call_id, result.name),
            state=state or CallState.DONE,
            ended_at=at,
            result=result.content,
            error=result.error,
            files=result.files,
        )
        self._tell(up.CallDone, call=self._keep(call))

    def _descend(self, entry: jn.DescendantAsking | jn.DescendantAnswered) -> None:
        """A call of a sub-agent. Its result is told in its own chat."""
        if isinstance(entry, jn.DescendantAnswered):
            call = self._calls.get((entry.chat_id, entry.call_id)) or CallView(id=entry.call_id, name=entry.name)
            call = replace(call, chat_id=entry.chat_id, state=entry.state, by=entry.by)
            self._tell(up.CallAnswered, call=self._keep(call))
            return
        call = CallView(
            id=entry.call_id,
            name=entry.name,
            arguments=entry.arguments,
            state=entry.state,
            chat_id=entry.chat_id,
            external=entry.external,
            question=entry.question,
            expires_at=entry.expires_at,
        )
        self._tell(up.CallAsked, call=self._keep(call))
        if self.turn.state == "waiting":
            self._tell(up.Paused, open=self.turn.open)
