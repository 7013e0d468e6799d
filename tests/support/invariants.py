"""What is always true of a chat, as functions that return what is wrong: an empty list is what it should be.

They know nothing of how a change came about, so they judge the core alone, the model beside it and the real stores.
"""

from collections.abc import Collection, Iterable, Sequence

from holdfast.core import history, journal
from holdfast.core.records import (
    FINAL,
    CallState,
    ChatRecord,
    Message,
    Phase,
    Role,
    Snapshot,
    State,
    ToolCall,
    ToolResult,
)

RUNNABLE = frozenset({CallState.PLANNED, CallState.APPROVED, CallState.STARTED})
OUTSIDE = frozenset({CallState.ASKING, CallState.EXTERNAL})

GROWS = ("version", "seq", "fence", "epoch", "turn", "attempt_ended")
FIXED = (
    *("id", "owner", "metadata", "active_tools", "client_tools", "created_at"),
    *("parent_id", "parent_call", "root_id", "depth", "forked_from", "forked_at"),
)


def promise_7(snapshot: Snapshot, live_workers: Collection[str]) -> list[str]:
    """No chat is stranded: at work it is held or wakes, waiting it has somebody outside, at rest it has neither."""
    chat = snapshot.chat
    if chat.state in (State.RUNNING, State.STOPPING):
        return _called_or_held(chat, live_workers)
    found = [] if chat.worker is None else [f"{chat.state}, but held by {chat.worker}"]
    if chat.state is State.WAITING:
        outside = [call for call in snapshot.calls if call.state in OUTSIDE]
        expiry = min((call.expires_at for call in outside if call.expires_at is not None), default=None)
        if not outside:
            found.append("waiting, but nobody outside owes an answer")
        if chat.wake_at != expiry:
            found.append(f"waiting until {chat.wake_at}, but the next expiry is {expiry}")
    elif chat.wake_at is not None:
        found.append(f"{chat.state}, but wakes at {chat.wake_at}")
    return found


def _called_or_held(chat: ChatRecord, live_workers: Collection[str]) -> list[str]:
    if chat.worker is not None and chat.worker not in live_workers:
        return [f"{chat.state}, held by {chat.worker}, which is dead"]
    if chat.backoff_ms and chat.wake_at is None:
        return [f"{chat.state}, held by {chat.worker}, and backs off"]
    if (chat.worker is None) == (chat.wake_at is None):
        return [f"{chat.state}, held by {chat.worker or 'nobody'}, and wakes at {chat.wake_at}"]
    return []


def consistency(snapshot: Snapshot) -> list[str]:
    """State, phase, calls and queue say the same thing."""
    chat, calls = snapshot.chat, snapshot.calls
    open_calls = [call for call in calls if call.state not in FINAL]
    found = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            found.append(f"{chat.state}/{chat.phase}: {what}")

    must(not calls or chat.batch is not None, "calls have a batch")
    must(all(call.batch == chat.batch for call in calls), "all calls are of the current batch")
    must([call.pos for call in calls] == sorted({call.pos for call in calls}), "calls stand in order")
    must(len({call.id for call in calls}) == len(calls), "call ids are unique")
    for call in calls:
        must((call.state is CallState.EXTERNAL) <= (call.external is not None), f"{call.id} says who answers it")
        must((call.state is CallState.STARTED) <= (call.starts > 0), f"{call.id} counts its starts")
    must([q.rank for q in snapshot.queue] == sorted({q.rank for q in snapshot.queue}), "the queue is in order")
    must(len({q.id for q in snapshot.queue}) == len(snapshot.queue), "a message is queued once")
    must((chat.error is not None) == (chat.state is State.FAILED), "failed, and says why")
    if chat.state is State.WAITING:
        must(bool(open_calls), "somebody outside owes an answer")
        must(not any(call.state in RUNNABLE for call in calls), "nothing is runnable")
        must(chat.phase is Phase.CALLS, "calls are next")
    if chat.state is State.RUNNING:
        must((chat.phase is Phase.CALLS) == bool(open_calls), "calls are next exactly while one is open")
        must(chat.turn_started_at is not None or chat.phase is Phase.REST, "without a turn the model owes nothing")
    if chat.state in (State.IDLE, State.FAILED):
        must(not open_calls, "no call is open")
        must(chat.turn_started_at is None, "no turn is open")
        must(not chat.compact, "no compaction is owed")
    if chat.state is State.IDLE:
        must(not snapshot.queue, "the queue is empty")
        must(chat.phase is Phase.REST, "nothing is owed")
    else:
        must(not chat.archived or chat.state is State.FAILED, "only a chat at rest is archived")
    if chat.state is State.STOPPING:
        must(chat.cause is not None or chat.turn_started_at is None, "says why")
    return found


def step(before: Snapshot, after: Snapshot) -> list[str]:
    """What may not go backwards from one version to the next, and what may not change at all."""
    old, new = before.chat, after.chat
    found = [
        f"{name} fell from {getattr(old, name)} to {getattr(new, name)}" for name in GROWS if _fell(name, old, new)
    ]
    found += [f"{name} changed" for name in FIXED if getattr(old, name) != getattr(new, name)]
    if old.agent != new.agent and new.turn:
        found.append("agent changed in a chat that has begun")
    if new.version <= old.version:
        found.append(f"the version did not grow from {old.version}")
    if new.length < old.length and new.epoch <= old.epoch:
        found.append(f"history shrank from {old.length} to {new.length} within epoch {old.epoch}")
    if old.worker is None and new.worker is not None and new.fence <= old.fence:
        found.append(f"{new.worker} took the chat without a new fence")
    if new.worker not in (None, old.worker) and old.worker is not None:
        found.append(f"{new.worker} took the chat from {old.worker}")
    for call in before.calls:
        now = after.call(call.id)
        if call.state in FINAL and now is not None and now != call:
            found.append(f"call {call.id} was over and changed")
        if call.state not in FINAL and now is None:
            found.append(f"call {call.id} vanished while it was open")
    return found


def _fell(name: str, old: ChatRecord, new: ChatRecord) -> bool:
    return bool(getattr(new, name) < getattr(old, name))


def journal_problems(snapshot: Snapshot, entries: Sequence[tuple[int, journal.AnyEntry]]) -> list[str]:
    """The journal of one chat, from its first entry on."""
    found = []
    numbers = [number for number, _ in entries]
    if numbers != list(range(1, snapshot.chat.seq + 1)):
        found.append(f"the journal's numbers are {numbers}, the last is said to be {snapshot.chat.seq}")
    asked: list[str] = []  # call ids in the order of their responses
    answered: dict[str, int] = {}
    for number, entry in entries:
        if not isinstance(entry, journal.MessageAdded):
            continue
        message = entry.message
        unanswered = [call_id for call_id in asked if call_id not in answered]
        if message.role is not Role.TOOL and unanswered:
            found.append(f"entry {number}: a {message.role} message entered while {unanswered} were open")
        asked += [call.call_id for call in message.calls]
        for result in _results(message):
            answered[result.call_id] = answered.get(result.call_id, 0) + 1
    found += [f"call {call_id} has {count} results" for call_id, count in answered.items() if count != 1]
    found += [
        f"there is a result for {call_id}, which nobody asked for" for call_id in answered if call_id not in asked
    ]
    open_now = {call.id for call in snapshot.open_calls}
    for call_id in asked:
        if (call_id in answered) == (call_id in open_now):
            found.append(f"call {call_id} is {'open and has' if call_id in open_now else 'over and has no'} result")
    return found


def _results(message: Message) -> Iterable[ToolResult]:
    return (part for part in message.parts if isinstance(part, ToolResult))


def history_problems(snapshot: Snapshot, messages: Sequence[Message]) -> list[str]:
    """Any history can be made valid; one that is complete is valid as it stands, flaws of cut-off messages aside."""
    found = history.problems(history.make_valid(messages))
    chat = snapshot.chat
    at_rest = chat.state in (State.IDLE, State.FAILED)
    if at_rest or (chat.state is State.RUNNING and chat.phase is not Phase.CALLS):
        found += [problem for problem in history.problems(messages) if not _is_flaw_of_cut_off(problem, messages)]
        if len(messages) != chat.length:
            found.append(f"the history has {len(messages)} messages and is said to have {chat.length}")
    elif len(messages) != chat.length - len([c for c in snapshot.open_calls if c.pos < chat.length]):
        found.append(f"{len(messages)} messages of {chat.length} positions, open calls aside")
    return found


def _is_flaw_of_cut_off(problem: str, messages: Sequence[Message]) -> bool:
    """A stream that broke leaves half arguments, unsigned reasoning, empty text; a whole response does not."""
    for at, message in enumerate(messages):
        if message.stopped is None:
            continue
        if problem in (f"message {at} ({message.role}) is empty",):
            return True
        if problem.startswith(f"message {at} holds an empty or unsigned"):
            return True
        if any(problem == f"the arguments of call {call.call_id} are not a JSON object" for call in _cut(message)):
            return True
    return False


def _cut(message: Message) -> list[ToolCall]:
    return [call for call in message.calls if call.cut]


def everything(
    snapshot: Snapshot,
    messages: Sequence[Message],
    entries: Sequence[tuple[int, journal.AnyEntry]],
    live_workers: Collection[str],
) -> list[str]:
    """All that can be said of a chat at one moment."""
    return [
        *promise_7(snapshot, live_workers),
        *consistency(snapshot),
        *journal_problems(snapshot, entries),
        *history_problems(snapshot, messages),
    ]
