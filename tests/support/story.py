"""`Story`: a chat told command by command, for tests that read as the story of one chat.

Every command goes through the same transaction as in production, into a `ModelStore`. `does` demands that a command
is accepted, `refuses` that it is refused and changes nothing; both check what is always true.
"""

from collections.abc import Sequence

from msgspec import Raw

from holdfast.core import commands as cmd
from holdfast.core.apply import row_of
from holdfast.core.change import Change, Reason, Refused
from holdfast.core.journal import AnyEntry, Entry, MessageAdded
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import (
    Call,
    ChatRecord,
    External,
    Failure,
    LeaseEnd,
    Message,
    NewChat,
    OnUnknown,
    Part,
    Phase,
    Reasoning,
    Replay,
    Role,
    SendMode,
    Snapshot,
    State,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
    attempt_id,
)
from tests.support import invariants
from tests.support.model import ModelStore

START = 1_700_000_000_000
BOOM = Failure(code="boom", message="it broke")


def user(message_id: str, text: str = "Hello") -> Message:
    return Message(id=message_id, role=Role.USER, parts=(Text(text=text),), created_at=START)


def assistant(message_id: str, *parts: Part) -> Message:
    return Message(id=message_id, role=Role.ASSISTANT, parts=parts or (Text(text="Well."),), created_at=START)


SIGNED = Reasoning(text="Hm.", provider="somebody", signature=Raw(b'"seal"'))
"""A response that says nothing and yet is one."""


def asks_for(*call_ids: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call_id=call_id, name="tool", arguments="{}") for call_id in call_ids)


class Story:
    """One chat and the worker that holds it. `chat_id` may be changed to tell of another chat of the same store."""

    def __init__(self, message: str | None = "m1", *, limits: Limits = LIMITS, chat_id: str = "chat") -> None:
        self.store = ModelStore(limits)
        self.now = START
        self.chat_id = chat_id
        self.workers = {"w1", "w2"}
        self.attempts = 0
        self.store.create(NewChat(id=chat_id, agent="agent", message=user(message) if message else None), self.now)

    # --- what is there ------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        return self.store.get(self.chat_id)

    @property
    def chat(self) -> ChatRecord:
        return self.snapshot.chat

    @property
    def state(self) -> State:
        return self.chat.state

    @property
    def phase(self) -> Phase:
        return self.chat.phase

    @property
    def queue(self) -> list[str]:
        return [queued.id for queued in self.snapshot.queue]

    @property
    def history(self) -> list[Message]:
        return self.store.history(self.chat_id)

    @property
    def ids(self) -> list[str]:
        """The ids of the messages in history."""
        return [message.id for message in self.history]

    @property
    def journal(self) -> list[AnyEntry]:
        return self.store.journal(self.chat_id)

    @property
    def answer(self) -> str | None:
        """What the last turn answered, if it did."""
        seq = self.chat.answer_seq
        if seq is None:
            return None
        entry = self.journal[seq - 1]
        assert isinstance(entry, MessageAdded)
        return journal_message(entry).text

    @property
    def by(self) -> cmd.Writer:
        """Who may write: the holder. Of a chat that nobody holds, whoever held it last."""
        return cmd.Writer(self.chat.worker or "w1", self.chat.fence, self.chat.epoch)

    def call(self, call_id: str) -> Call:
        call = self.snapshot.call(call_id)
        assert call is not None
        return call

    def result(self, call_id: str) -> ToolResult:
        """The call's one result, wherever it is: in history, or only in the journal."""
        found = [result for result, _ in self._results() if result.call_id == call_id]
        assert len(found) == 1, f"{call_id} has {len(found)} results"
        return found[0]

    def off_history(self) -> list[str]:
        """Calls whose results are in the journal alone."""
        return [result.call_id for result, off in self._results() if off]

    def _results(self) -> list[tuple[ToolResult, bool]]:
        return [
            (part, row.pos is None)
            for row, entry in zip(self.store.rows[self.chat_id], self.journal, strict=True)
            if isinstance(entry, MessageAdded)
            for part in journal_message(entry).parts
            if isinstance(part, ToolResult)
        ]

    def tells(self, kind: type[Entry]) -> list[AnyEntry]:
        return [entry for entry in self.journal if isinstance(entry, kind)]

    # --- what happens -------------------------------------------------------------------------------

    def does(self, *commands: cmd.Command) -> Change:
        """The first change: this chat's."""
        return self.all_of(*commands)[0]

    def all_of(self, *commands: cmd.Command) -> tuple[Change, ...]:
        before = {chat_id: self.store.get(chat_id) for chat_id in self.store.chats}
        outcome = self.store.apply(self.chat_id, *commands, now=self.now)
        assert not isinstance(outcome, Refused), outcome.message
        for chat_id in self.store.chats:
            self._check(chat_id, before.get(chat_id))
        assert self.store.untold_questions() == []
        return outcome

    def refuses(self, *commands: cmd.Command, reason: Reason) -> Refused:
        before = self.snapshot, self.journal, self.history
        outcome = self.store.apply(self.chat_id, *commands, now=self.now)
        assert isinstance(outcome, Refused), "accepted"
        assert (outcome.reason, outcome.state) == (reason, before[0].chat.state)
        assert outcome.command in {*(row_of(command) for command in commands), "spawn"}
        assert (self.snapshot, self.journal, self.history) == before, "a refusal changes nothing"
        return outcome

    def _check(self, chat_id: str, before: Snapshot | None) -> None:
        after = self.store.get(chat_id)
        if before is not None and before != after:
            assert invariants.step(before, after) == []
        messages, entries = self.store.history(chat_id), self.store.numbered_journal(chat_id)
        assert invariants.everything(after, messages, entries, self.workers) == []

    # --- shorthands ---------------------------------------------------------------------------------

    def later(self, ms: int) -> "Story":
        self.now += ms
        return self

    def claimed(self, worker: str = "w1") -> "Story":
        self.does(cmd.Claim(worker=worker))
        self.attempts = 0
        return self

    def lost(self, how: LeaseEnd = LeaseEnd.DIED) -> "Story":
        """The holder's lease ends, and the chat is due again."""
        assert self.chat.worker is not None
        self.does(cmd.LeaseExpired(worker=self.chat.worker, how=how))
        if self.chat.wake_at is not None:
            self.now = max(self.now, self.chat.wake_at)
        return self

    def sends(self, message_id: str, mode: SendMode = "queue", text: str = "Hello") -> Change:
        return self.does(cmd.Send(message=user(message_id, text), mode=mode))

    def edits(self, pos: int, message_id: str = "edited") -> Change:
        role = self.store.positions(self.chat_id)[pos].role
        return self.does(cmd.Edit(pos=pos, role=role, epoch=self.chat.epoch, message=user(message_id)))

    def next_attempt(self) -> int:
        self.attempts += 1
        return attempt_id(self.chat.fence, self.attempts)

    def response(
        self,
        message: Message,
        start: Sequence[str] = (),
        replay: Replay = Replay.UNSAFE,
        on_unknown: OnUnknown = "tell_model",
    ) -> cmd.Respond:
        plans = tuple(
            cmd.PlannedCall(id=call.call_id, replay=replay, on_unknown=on_unknown, start=call.call_id in start)
            for call in message.calls
        )
        return cmd.Respond(by=self.by, message=message, attempt=self.next_attempt(), plans=plans)

    def says(self, message_id: str = "said", *parts: Part, text: str | None = None) -> "Story":
        if text is not None:
            parts = (*parts, Text(text=text))
        self.does(self.response(assistant(message_id, *parts)))
        return self

    def calls(
        self,
        *call_ids: str,
        start: bool = False,
        replay: Replay = Replay.UNSAFE,
        on_unknown: OnUnknown = "tell_model",
    ) -> "Story":
        """The model responds with these calls; with `start`, their bodies begin at once."""
        message = assistant(f"calls-{'-'.join(call_ids)}", *asks_for(*call_ids))
        self.does(self.response(message, call_ids if start else (), replay, on_unknown))
        return self

    def starts(self, *call_ids: str) -> "Story":
        self.does(cmd.StartCalls(by=self.by, call_ids=call_ids))
        return self

    def returns(self, call_id: str, content: str = "ok") -> "Story":
        self.does(cmd.Outcome(by=self.by, call_id=call_id, content=content))
        return self

    def asks(self, call_id: str, expires_in_ms: int | None = None) -> "Story":
        expires_at = None if expires_in_ms is None else self.now + expires_in_ms
        self.does(cmd.AskApproval(by=self.by, call_id=call_id, question="May I?", expires_at=expires_at))
        return self

    def delegates(self, call_id: str, external: str = "client", expires_in_ms: int | None = None) -> "Story":
        expires_at = None if expires_in_ms is None else self.now + expires_in_ms
        self.does(cmd.Delegate(by=self.by, call_id=call_id, external=External(external), expires_at=expires_at))
        return self

    def parks(self) -> "Story":
        self.does(cmd.Park(by=self.by))
        return self

    def finishes(self) -> "Story":
        self.does(cmd.FinishTurn(by=self.by))
        return self

    def stops(self, *, clear_queue: bool = False) -> Change:
        return self.does(cmd.Stop(clear_queue=clear_queue))

    def finishes_stop(self, partial: Message | None = None, attempt: int | None = None) -> Change:
        return self.does(cmd.FinishStop(by=self.by, partial=partial, attempt=attempt, length=self.chat.length))

    def fails(self) -> "Story":
        self.does(cmd.Fail(by=self.by, error=BOOM))
        return self

    def is_synthetic(self, call_id: str, kind: Synthetic) -> bool:
        return self.result(call_id).synthetic is kind and self.result(call_id).error


def journal_message(entry: MessageAdded) -> Message:
    return entry.message
