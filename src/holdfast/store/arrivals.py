"""A chat that is being imported: whether what its lines say is what a chat can be.

A file may be made by hand, to have a worker run what no person was asked for, to reach chats of others, or to harm
those who read it later. So a chat is taken only as the core leaves one that rests or waits: its numbers fit its
lines, nothing in it can run by itself, and it names no chat but those that come with it.
"""

from typing import Any

from holdfast.core.journal import AnyEntry, MessageAdded
from holdfast.core.kept_files import kept_in
from holdfast.core.limits import Limits
from holdfast.core.records import (
    FINAL,
    Call,
    CallState,
    ChatRecord,
    External,
    Message,
    NewChat,
    Phase,
    Role,
    State,
    last_attempt_of,
)
from holdfast.errors import InvalidInput, LimitReached
from holdfast.store.checks import check_message, check_new_chat
from holdfast.store.rows import CALL_COLUMNS, call_of

AT_REST = (State.IDLE, State.FAILED, State.WAITING)
_PHASES = {
    State.IDLE: (Phase.REST,),
    State.FAILED: (Phase.REST, Phase.MODEL),
    State.WAITING: (Phase.CALLS,),
}


SPENT_MAX = 1 << 60  # beyond any limit, and what is added to it still is a number of the database


def check_chat(chat: ChatRecord, limits: Limits) -> None:
    """What can be seen before its lines are. Raises InvalidInput, LimitReached."""
    check_new_chat(
        NewChat(
            id=chat.id,
            agent=chat.agent,
            owner=chat.owner,
            metadata=chat.metadata,
            active_tools=chat.active_tools,
            client_tools=chat.client_tools,
            title=chat.title,
        ),
        limits,
    )
    if chat.state not in AT_REST or chat.worker is not None:
        raise InvalidInput("state", f"it is {chat.state}: only a chat that rests or waits is taken")
    if chat.phase not in _PHASES[chat.state]:
        raise InvalidInput("state", f"no chat that is {chat.state} is like that")
    if chat.attempt_ended > last_attempt_of(chat.fence):
        raise InvalidInput("attempt_ended", "no attempt had that number yet")
    if chat.seq < 1 or (chat.batch or 0) > chat.seq or (chat.answer_seq or 0) > chat.seq:
        raise InvalidInput("seq", "the journal is shorter than that")
    for name in ("turn_tokens", "turn_cost", "chat_tokens", "chat_cost"):
        if not 0 <= getattr(chat, name) < SPENT_MAX:
            raise InvalidInput(name, "what was spent is nothing or more, and has an end")


class Arrival:
    """One chat, line by line."""

    def __init__(self, chat: ChatRecord, limits: Limits) -> None:
        self.chat = chat
        self._limits = limits
        self._lines = 0
        self._stamp = 0  # of the last line
        self._positions = 0
        self._taken = bytearray()  # a bit for each of them
        self._calls = 0  # of the current batch
        self._queued = 0
        self._queued_bytes = 0
        self.open_calls: list[Call] = []
        self._named: set[str] = set()  # files that messages name
        self._files: set[str] = set()  # files that came
        self._tainted_from: int | None = None  # where the first content from outside is

    def take_entry(self, line: Any, entry: AnyEntry) -> None:
        """Raises InvalidInput, as the others do."""
        self._lines += 1
        if line.seq != self._lines or line.seq > self.chat.seq:
            raise InvalidInput("seq", f"is {line.seq}, but line {self._lines} of {self.chat.seq} is next")
        self._stamp = line.stamp
        if line.pos is None:
            return
        self._take_position(line.pos, line.seq)
        if isinstance(entry, MessageAdded):
            self._named |= kept_in((entry.message,))
            if entry.message.from_outside:
                self._tainted_from = line.pos if self._tainted_from is None else min(self._tainted_from, line.pos)
        if not isinstance(entry, MessageAdded) or (entry.message.id, entry.message.role) != (line.ref, line.role):
            raise InvalidInput("pos", "only a message has a place in the history, under its own id and role")

    def _take_position(self, pos: int, seq: int) -> None:
        """Each is taken by one line, or kept free for a call: there are few more of them than lines, and few bits."""
        if pos >= min(self.chat.length, seq + self._limits.batch_calls_max):
            raise InvalidInput("pos", f"is {pos}: the history has no such position there")
        byte, bit = pos >> 3, 1 << (pos & 7)
        if byte >= len(self._taken):
            self._taken.extend(bytes(byte + 1 - len(self._taken)))
        if self._taken[byte] & bit:
            raise InvalidInput("pos", f"is {pos}, where another message is")
        self._taken[byte] |= bit
        self._positions += 1

    def _is_taken(self, pos: int) -> bool:
        return pos >> 3 < len(self._taken) and bool(self._taken[pos >> 3] & 1 << (pos & 7))

    def take_file(self, digest: str) -> None:
        self._files.add(digest)

    def take_call(self, line: Any) -> None:
        call = call_of([getattr(line, name, None) for name in CALL_COLUMNS])  # what it offered does not come along
        if self.chat.batch is None or call.batch > self.chat.batch:
            raise InvalidInput("batch", "is of a response that there is not yet")
        if call.batch < self.chat.batch:
            return  # of a response that is over: no runner looks at it again
        self._calls += 1
        if self._calls > self._limits.batch_calls_max:
            raise InvalidInput("batch", f"has more than {self._limits.batch_calls_max} calls")
        if call.state in FINAL:
            return
        if self.chat.state is not State.WAITING or call.state not in (CallState.ASKING, CallState.EXTERNAL):
            raise InvalidInput("state", f"is {call.state}: a chat that is {self.chat.state} has no such call")
        if (call.state is CallState.EXTERNAL) != (call.external is not None):
            raise InvalidInput("external", "says who has to answer, of a call that waits for that one")
        if (call.external is External.CHILD) != (call.child_id is not None):
            raise InvalidInput("child_id", "names the chat that a call waits for, and nothing else does")
        if call.external is External.TIMER and call.expires_at is None:
            raise InvalidInput("expires_at", "is when a timer rings")
        if any(other.id == call.id for other in self.open_calls):
            raise InvalidInput("id", f"{call.id[:80]!r} is that of another open call")
        self.open_calls.append(call)

    def take_queued(self, id: str, message: Message, size: int) -> None:
        check_message(message, self._limits)
        if message.id != id or message.role is not Role.USER:
            raise InvalidInput("id", "a user's message waits in the queue, under its own id")
        self._named |= kept_in((message,))
        self._queued += 1
        self._queued_bytes += size
        for what, value, limit in (
            ("queued messages", self._queued, self._limits.queue_messages_max),
            ("queued messages in bytes", self._queued_bytes, self._limits.queue_bytes_max),
        ):
            if value > limit:
                raise LimitReached(what, value, limit, "the file has more than a chat may have")

    def take_compaction(self, upto: int) -> None:
        if upto > self.chat.length:
            raise InvalidInput("upto", f"is {upto}, but the history has {self.chat.length} positions")

    def end(self) -> None:
        """All of its lines are there."""
        chat = self.chat
        if self._lines != chat.seq:
            raise InvalidInput(f"chat {chat.id}", f"has {self._lines} of {chat.seq} journal lines")
        if self._stamp != chat.line_stamp:
            raise InvalidInput(f"chat {chat.id}", "the last line of its journal is not of its last write")
        for call in self.open_calls:
            if self._is_taken(call.pos):
                raise InvalidInput(f"chat {chat.id}", f"a message is at {call.pos}, which is kept free for a call")
        free = len([call for call in self.open_calls if call.pos < chat.length])
        if self._positions + free != chat.length:
            words = f"has {self._positions} messages, and room for {free}, of {chat.length}"
            raise InvalidInput(f"chat {chat.id}", words)
        if (chat.state is State.WAITING) != bool(self.open_calls):
            raise InvalidInput(f"chat {chat.id}", f"is {chat.state}, with {len(self.open_calls)} open calls")
        if missing := self._named - self._files:
            raise InvalidInput(f"chat {chat.id}", f"names a file that did not come with it: {min(missing)[:12]}…")
        if self._tainted_from is not None and (chat.tainted_from is None or chat.tainted_from > self._tainted_from):
            raise InvalidInput("tainted_from", f"what stands at {self._tainted_from} comes from outside")
        expiries = [call.expires_at for call in self.open_calls if call.expires_at is not None]
        if chat.wake_at != min(expiries, default=None):
            raise InvalidInput(f"chat {chat.id}", f"wakes at {chat.wake_at}, which is not its next expiry")
