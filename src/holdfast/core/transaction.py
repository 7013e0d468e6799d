"""One transaction that reaches several chats: a child's end wakes its parent, a stop reaches all that is below,
a parent speaks to its child.

`transact` is a generator, so that it stays pure: it yields what it needs to read and is sent the answer. The store
drives it inside one write transaction and then writes every `Change` it returns, or none.

It may ask for the parent of the chat it began with, for the chat at the top of its family, and for chats below it,
parents before their children. A store that locks rows must therefore lock these two before the chat itself, the
topmost first: two orders would be a deadlock.
"""

from collections.abc import Generator, Iterable
from typing import Any

from msgspec import Struct

from holdfast.core.apply import apply, create
from holdfast.core.change import Change, Refused
from holdfast.core.codec import decode_entry, encode
from holdfast.core.commands import ChildEnded, Command, Descendant, Reach, Reached, Send, Stop
from holdfast.core.journal import MessageAdded
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import Call, Cause, ChatRecord, Message, NewChat, Snapshot, State


class ReadChat(Struct, frozen=True):
    """Answer: a Snapshot, or None if there is no such chat."""

    chat_id: str


class ReadBelow(Struct, frozen=True):
    """Answer: the ids of the chats below this one, at any depth, that are running, stopping or waiting, the uppermost
    first. Whatever lies between may be at rest.
    """

    chat_id: str
    root_id: str  # the chat at the top of its family


class ReadEntry(Struct, frozen=True):
    """Answer: the JSON of a journal entry of a chat, or None if there is no such entry."""

    chat_id: str
    seq: int


class CountFamily(Struct, frozen=True):
    """Answer: how many chats below this one, at any depth, are running, stopping or waiting.

    The transaction that makes one more has the chat at the top locked, so that no other does so meanwhile.
    """

    root_id: str


Need = ReadChat | ReadBelow | ReadEntry | CountFamily
Steps = Generator[Need, Any, "tuple[Change, ...] | Refused"]


def transact(snapshot: Snapshot, commands: Iterable[Command], now: int, limits: Limits = LIMITS) -> Steps:
    """Apply commands to one chat in order, all or none, and everything that follows from them elsewhere.

    The first change is the asked-for one; changes of one chat come in order.
    """
    unit = _Unit(now, limits)
    unit.chats[snapshot.chat.id] = snapshot
    for command in commands:
        refused = unit.apply(snapshot.chat.id, command)
        if refused is not None:
            return refused
    refused = yield from unit.follow_up()
    return tuple(unit.changes) if refused is None else refused


class _Unit:
    def __init__(self, now: int, limits: Limits) -> None:
        self.now = now
        self.limits = limits
        self.chats: dict[str, Snapshot] = {}
        self.changes: list[Change] = []
        self.done = 0  # changes already followed up
        self.swept: set[str] = set()  # chats below which everything is stopped, or about to be

    def apply(self, chat_id: str, command: Command) -> Refused | None:
        outcome = apply(self.chats[chat_id], command, self.now, self.limits)
        if isinstance(outcome, Refused):
            return outcome
        self.record(outcome)
        return None

    def record(self, change: Change) -> None:
        self.chats[change.after.chat.id] = change.after
        self.changes.append(change)

    def read(self, chat_id: str) -> Generator[Need, Any, bool]:
        if chat_id not in self.chats:
            snapshot = yield ReadChat(chat_id)
            if snapshot is None:
                return False
            self.chats[chat_id] = snapshot
        return True

    def follow_up(self) -> Generator[Need, Any, Refused | None]:
        while self.done < len(self.changes):
            change = self.changes[self.done]
            self.done += 1
            if not change.reaches_others:
                continue
            chat = change.after.chat
            if change.spawned is not None:
                if (refused := (yield from self.no_room(change, change.spawned))) is not None:
                    return refused
                self.record(create(change.spawned, self.now, self.limits, parent_turn=change.after.chat.turn))
            if change.awaited is not None:
                yield from self.look_at_child(chat.id, change.awaited)
            if change.reach is not None:
                self.apply(chat.id, (yield from self.reach_child(chat.id, change.reach)))
            if change.stop_all_children:
                yield from self.stop_below(chat, change.stop_cause)
            for child_id in change.stop_children:
                if child_id not in self.swept and (yield from self.read(child_id)):
                    yield from self.stop(child_id, change.stop_cause)
            if (
                chat.root_id is not None
                and (change.asking or change.answered)
                and (yield from self.read(chat.root_id))
            ):
                command = Descendant(
                    chat_id=chat.id, agent=chat.agent, asking=change.asking, answered=change.answered
                )
                self.apply(chat.root_id, command)
            if chat.parent_id and _is_over(change) and (yield from self.read(chat.parent_id)):
                self.apply(chat.parent_id, (yield from self.report(change)))
        return None

    def stop(self, chat_id: str, cause: Cause) -> Generator[Need, Any, None]:
        """A chat that was read, and all that is below it, whether it is at rest itself or not."""
        chat = self.chats[chat_id].chat
        if chat.state in _STOPPABLE:
            self.apply(chat_id, Stop(clear_queue=True, cause=cause))
        yield from self.stop_below(chat, cause)

    def stop_below(self, chat: ChatRecord, cause: Cause) -> Generator[Need, Any, None]:
        if chat.id in self.swept:
            return
        below: tuple[str, ...] = yield ReadBelow(chat.id, chat.root_id or chat.id)
        self.swept.update((chat.id, *below))
        for chat_id in below:
            if (yield from self.read(chat_id)) and self.chats[chat_id].chat.state in _STOPPABLE:
                self.apply(chat_id, Stop(clear_queue=True, cause=cause))

    def reach_child(self, parent_id: str, reach: Reach) -> Generator[Need, Any, Reached]:
        """Only its own: what is another's is as good as not there."""
        known = yield from self.read(reach.child_id)
        child = self.chats[reach.child_id] if known else None
        if child is None or child.chat.parent_id != parent_id:
            text = f"{reach.child_id!r} is none of your agents: list_agents names them."
            return Reached(call_id=reach.call_id, content=text, error=True)
        was = child.chat.state
        if reach.message is None:
            yield from self.stop(reach.child_id, Cause.PARENT)
            told: dict[str, Any] = {"agent_id": reach.child_id, "was": was}
        else:
            if was not in _STOPPABLE and (full := (yield from self.family_full(child.chat))) is not None:
                return Reached(call_id=reach.call_id, content=f"{full}: wait for some of them first.", error=True)
            tainted = self.chats[parent_id].chat.tainted_from is not None
            send = Send(message=reach.message, mode=reach.mode, answers=False, tainted=tainted)
            if (refused := self.apply(reach.child_id, send)) is not None:
                return Reached(call_id=reach.call_id, content=f"It was not taken: {refused.message}", error=True)
            told = {"agent_id": reach.child_id, "turn": _turn_of(self.chats[reach.child_id], reach.message.id)}
        told["state"] = self.chats[reach.child_id].chat.state
        return Reached(call_id=reach.call_id, content=encode(told).decode())

    def family_full(self, chat: ChatRecord) -> Generator[Need, Any, str | None]:
        open_ones: int = yield CountFamily(chat.root_id or chat.id)
        open_ones += sum(made.before is None for made in self.changes)
        if open_ones < self.limits.family_open_max:
            return None
        return f"{open_ones} chats are open in this family, which is the limit"

    def no_room(self, change: Change, new: NewChat) -> Generator[Need, Any, Refused | None]:
        """Decided here, where many chats of a family that spawn at once do so one after the other."""
        if new.message is None or (text := (yield from self.family_full(change.after.chat))) is None:
            return None
        return Refused(reason="family_full", state=change.after.chat.state, command="spawn", message=text)

    def look_at_child(self, parent_id: str, call: Call) -> Generator[Need, Any, None]:
        """The child may have ended before its parent began to wait. One that cannot report is reported lost."""
        assert call.child_id is not None
        known = yield from self.read(call.child_id)
        child = self.chats[call.child_id] if known else None
        if child is None or child.chat.parent_id != parent_id:
            self.apply(parent_id, _lost(call.child_id))
            return
        at_rest = child.chat.turn_started_at is None
        ended = child.chat.turn if at_rest else child.chat.turn - 1
        if at_rest if call.child_turn is None else ended >= call.child_turn:
            self.apply(parent_id, (yield from self.child_report(child, ended)))

    def report(self, change: Change) -> Generator[Need, Any, ChildEnded]:
        if change.turn_over is None:
            return _lost(change.after.chat.id)
        return (yield from self.child_report(change.after, change.turn_over))

    def child_report(self, child: Snapshot, turn: int) -> Generator[Need, Any, ChildEnded]:
        """What a parent is told. An empty answer is an answer; no answer is said to be none."""
        chat = child.chat
        tainted = chat.tainted_from is not None
        if chat.error is not None:
            text = f"The sub-agent failed: {chat.error.message}"
            return ChildEnded(child_id=chat.id, turn=turn, text=text, error=True, untrusted=tainted)
        answer = None if chat.answer_seq is None else (yield from self.message(chat.id, chat.answer_seq))
        if answer is None and chat.cause in _CUT_SHORT:
            text = f"The sub-agent {_CUT_SHORT[chat.cause]} before it had an answer."
            return ChildEnded(child_id=chat.id, turn=turn, text=text, error=True)
        untrusted = tainted and answer is not None
        said = None if answer is None else answer.text
        return ChildEnded(child_id=chat.id, turn=turn, text=said, untrusted=untrusted)

    def message(self, chat_id: str, seq: int) -> Generator[Need, Any, Message | None]:
        """What a journal entry added, be it written or still to be written by this transaction."""
        for change in self.changes:
            first = change.after.chat.seq - len(change.lines) + 1
            if change.after.chat.id == chat_id and 0 <= seq - first < len(change.lines):
                entry: Any = change.lines[seq - first].entry
                break
        else:
            body = yield ReadEntry(chat_id, seq)
            entry = decode_entry(body) if body is not None else None
        return entry.message if isinstance(entry, MessageAdded) else None


_STOPPABLE = frozenset({State.RUNNING, State.STOPPING, State.WAITING})


_ANY_TURN = 1 << 62

# Why a child has no answer, as its parent is told. A turn that another message superseded is not the child's end.
_CUT_SHORT = {
    Cause.USER: "was stopped by the user",
    Cause.PARENT: "was cancelled",
    Cause.BUDGET: "reached its limit",
}


def _turn_of(child: Snapshot, message_id: str) -> int:
    """In which a message is taken, as things stand: what is said to it later may come before."""
    place = next((n for n, queued in enumerate(child.queue) if queued.id == message_id), None)
    steers = child.chat.state is not State.STOPPING  # then all of the queue comes after this turn
    if place is None or (steers and child.queue[place].mode == "steer"):
        return child.chat.turn
    ahead = [queued for queued in child.queue[:place] if not (steers and queued.mode == "steer")]
    return child.chat.turn + 1 + len(ahead)


def _lost(child_id: str) -> ChildEnded:
    return ChildEnded(child_id=child_id, turn=_ANY_TURN, text=None, error=True)


def _is_over(change: Change) -> bool:
    return change.gone or change.turn_over is not None
